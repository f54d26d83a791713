# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks one server over HTTP and puts what it said into an `Observation`. The only paths ever asked are in `engines`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any

try:
    import httpx
except ImportError:  # the module or command that needs it says so
    pass

from .engines import BY_NAME, ENGINES, PROXIES, Engine
from .http import Answer, ask, told_apart
from .observation import Host, Lease, Observation, Rank, Service
from .probe import says_dead
from .reading import MOST, Page, parse

# /health, /load and the like are flags read by the front end; a late one is not waited for.
SIDE_QUESTION_S = 3.0
# Servers that only pass on what others say, by their Server header.
_FRONT_SERVERS = (
    "nginx",
    "openresty",
    "envoy",
    "haproxy",
    "caddy",
    "traefik",
    "apache",
    "cloudflare",
    "varnish",
)
# Recognised as a proxy by what it does not pass on; its name cannot be told.
UNNAMED_PROXY = "a proxy"
_PLAIN_TEXT = {"Accept": "text/plain;version=0.0.4"}


@dataclass(frozen=True)
class Target:
    """How to ask one server. `engine` None: not known yet. `untold`: its models could not be asked who it is. Times in
    seconds."""

    base: str
    engine: Engine | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    connect_s: float = 3.0
    read_s: float = 15.0
    untold: bool = False

    def of(self, who: Identity) -> Target:
        """The same, of what has been found to answer there."""
        return replace(self, engine=who.engine, untold=who.models is None or not who.models.is_list)


@dataclass(frozen=True)
class Models:
    """What /models said: the ids, and who owns them. `answer`: the HTTP answer itself. `is_list`: it lists models or none."""

    answer: Answer
    ids: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    is_list: bool = False

    @property
    def listed(self) -> bool:
        """A list of models came."""
        return self.answer.how == "ok" and self.answer.status == 200 and bool(self.ids or self.owners)


@dataclass(frozen=True)
class Identity:
    """Who answers: an engine, a proxy, or nobody known (both None)."""

    engine: Engine | None = None
    proxy: str | None = None
    models: Models | None = None


@dataclass(frozen=True)
class Witnesses:
    """What the host shows beside the HTTP answers; all unknown for a server elsewhere."""

    service: Service = field(default_factory=Service)
    host: Host = field(default_factory=Host)
    ranks: tuple[Rank, ...] = ()
    busy_leases: tuple[Lease, ...] = ()
    program: str | None = None


Witness = Callable[[], Awaitable[Witnesses]]


def _json(answer: Answer) -> Any:
    if answer.how != "ok" or answer.status != 200:
        return None
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        return None


async def _get(http: httpx.AsyncClient, target: Target, path: str, read_s: float | None = None) -> Answer:
    return await ask(
        http,
        "GET",
        target.base + path,
        headers=target.headers,
        connect_s=target.connect_s,
        read_s=target.read_s if read_s is None else read_s,
    )


async def ask_models(
    http: httpx.AsyncClient, target: Target, paths: tuple[str, ...], read_s: float | None = None
) -> Models:
    """/models by the first of `paths` that is there. Free: no engine and no proxy asks a model for it."""
    models = Models(Answer("unreachable"))
    for path in paths:
        more = _models(await _get(http, target, path, read_s))
        if models.answer.status != 200 or more.is_list:  # a page that is no list says more than a 404 after it
            models = more
        # a web interface answers any path with its page
        if more.is_list or more.answer.how != "ok" or more.answer.status not in (200, 404, 405):
            break
    return models


def _models(answer: Answer) -> Models:
    said = _json(answer)
    listed = said.get("data", said.get("models")) if isinstance(said, dict) else None
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    return Models(
        answer,
        ids=tuple(str(row["id"]) for row in rows if row.get("id") is not None),
        owners=tuple({str(row["owned_by"]).lower() for row in rows if row.get("owned_by")}),
        is_list=isinstance(listed, list),
    )


def _owner_engine(models: Models) -> Engine | None:
    return next((engine for engine in ENGINES if any(owner in models.owners for owner in engine.owned_by)), None)


def _proxy_of(models: Models) -> str | None:
    headers = models.answer.headers
    server = headers.get("server", "").lower()
    for proxy in PROXIES:
        if proxy.header_prefix and any(name.startswith(proxy.header_prefix) for name in headers):
            return proxy.name
        if any(owner in models.owners for owner in proxy.owned_by):
            return proxy.name
        if proxy.server_header and server.startswith(proxy.server_header):
            return proxy.name
    return None


async def identify(http: httpx.AsyncClient, target: Target) -> Identity:
    """Who answers there, by /v1/models: asked before any page, since TensorRT-LLM's /metrics must never be touched."""
    models = await ask_models(http, target, ("/v1/models",), min(SIDE_QUESTION_S, target.read_s))
    proxy = _proxy_of(models)
    if proxy is not None:
        return Identity(proxy=proxy, models=models)
    return Identity(engine=_owner_engine(models), models=models)


async def ask_loaded(http: httpx.AsyncClient, target: Target) -> tuple[Engine | None, tuple[str, ...] | None]:
    """The models in memory, of an engine that loads a model when it is asked for one; None: it does not say.

    An engine that is not known is asked too: its models' owner can be anybody's name.
    """
    for engine in [target.engine] if target.engine else ENGINES:
        if engine.loaded is None:
            continue
        said = _json(await _get(http, target, engine.loaded, SIDE_QUESTION_S))
        rows = said.get("models") if isinstance(said, dict) else None
        if isinstance(rows, list):
            names = [row.get("name") or row.get("model") for row in rows if isinstance(row, dict)]
            return engine, tuple(str(name) for name in names if name)
    return target.engine, None


def _front(answer: Answer) -> str | None:
    """The web server that answered by its Server header, where it is one of those that pass on what others say."""
    server = answer.headers.get("server", "").lower()
    return next((name for name in _FRONT_SERVERS if name in server), None)


def _is_html(answer: Answer) -> bool:
    return answer.body.lstrip()[:1] == b"<"


async def is_proxy(
    http: httpx.AsyncClient, target: Target, models: Models | None, page: Page | None = None
) -> str | None:
    """For a server without an engine's page: is it a proxy that answers /models and little else?

    The models' owner may be an engine's name, passed on: then what tells is that other paths are not passed on, the page
    (its 404 is the front's own) or a /health that the engine is certain to have.
    """
    alive = await _get(http, target, "/health/liveliness", SIDE_QUESTION_S)
    if alive.how == "ok" and alive.status == 200 and "alive" in alive.text[:40]:
        return "litellm"  # this path is free; its /health calls every model for real and is never asked
    if models is None or not models.listed:
        return None
    row, front = _owner_engine(models), _front(models.answer)
    if front is not None and (row is None or (page is not None and page.front is not None)):
        return front
    path = "/health" if row is None else row.health
    if path is None:
        return None
    health = await _get(http, target, path, SIDE_QUESTION_S)
    return front or UNNAMED_PROXY if health.how == "ok" and health.status == 404 else None


def _page_word(answer: Answer, page: Page | None) -> tuple[str, str | None]:
    """The observation's word for how reading the page went, and a sentence where it went wrong."""
    if answer.how in ("refused", "timeout", "connect timeout", "reset"):
        return answer.how, answer.detail
    if answer.how != "ok":
        return "unreadable", answer.detail
    status = answer.status or 0
    if status in (301, 302, 303, 307, 308):
        return f"http {status}", f"its page redirects ({status}); give the address that it points to"
    if status == 401 or status == 403:
        return f"http {status}", f"its page wants a key ({status}); give one with --api-key-file"
    if status == 404:
        return "http 404", "it has no page there (404); is the address right, and are the engine's metrics turned on?"
    if status != 200:
        return f"http {status}", f"its page answered {status}"
    if page is None or page.reading is None:
        return "unreadable", (page.problem if page else None) or "its page could not be read"
    return "ok", None


async def read_page(http: httpx.AsyncClient, target: Target) -> tuple[str, str | None, Page | None]:
    """One reading of the engine's page: the word, the sentence, and the page where one came."""
    engine = target.engine
    paths: tuple[str, ...] = (
        (engine.page or "/metrics",) if engine else ("/metrics", "/v1/metrics", "/prometheus/metrics")
    )
    scrape = replace(target, headers={**target.headers, **_PLAIN_TEXT})
    answer, path = Answer("unreachable"), ""
    if engine is None and target.untold:
        # it may be a TensorRT-LLM, whose /metrics must not be touched: its other page is asked for before
        path = BY_NAME["tensorrt_llm"].page or ""
        answer = await told_apart(await _get(http, scrape, path), target.base + path, target.connect_s)
        if answer.how != "ok" or (answer.status == 200 and parse(answer.text).engine is not None):
            paths = ()
    for path in paths:
        answer = await told_apart(await _get(http, scrape, path), target.base + path, target.connect_s)
        if answer.how != "ok" or answer.status != 404:
            break
    if answer.how == "ok" and answer.status == 503 and _says_loading(answer):
        return "loading", "its own page says that it is loading", None
    page = parse(answer.text, engine) if answer.how == "ok" and answer.status == 200 else None
    if answer.how == "ok" and answer.status == 404 and (_is_html(answer) or not answer.body):
        page = Page(front=_front(answer), problem="the web server in front has no such page")  # no engine's own 404
    if page is not None and page.engine is not None and path == BY_NAME["nim"].page:
        # NIM publishes its backend's names, but at its own address, which is asked again at the next reading
        page = replace(page, engine=BY_NAME["nim"])
    if page is not None and page.reading is not None and page.reading.true_steps:
        page = replace(page, reading=replace(page.reading, page_time=_said_at(answer)))
    word, detail = _page_word(answer, page)
    return word, detail, page


def _said_at(answer: Answer) -> float | None:
    """Epoch seconds by the server's own clock: it stamps the heartbeat's time with the same one, ours may differ."""
    try:
        return parsedate_to_datetime(answer.headers.get("date", "")).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


@dataclass(frozen=True)
class Sides:
    """What the free side questions said."""

    health: str | None = None
    in_flight: float | None = None
    paused: bool | None = None


async def ask_sides(http: httpx.AsyncClient, target: Target) -> Sides:
    """/health, /load, /is_paused and the like: whichever this engine has, all at once, none of them waited for long."""
    engine = target.engine
    if engine is None:
        return Sides()

    async def get(path: str | None) -> Answer | None:
        return await _get(http, target, path, SIDE_QUESTION_S) if path else None

    health, load, paused, props = await asyncio.gather(
        get(engine.health), get(engine.load), get(engine.paused), get(engine.props)
    )
    is_paused = None
    for answer, key in ((paused, "is_paused"), (props, "is_sleeping")):
        said = _json(answer) if answer else None
        if isinstance(said, dict) and isinstance(said.get(key), bool):
            is_paused = said[key]
    return Sides(
        health=_health_word(engine, health),
        in_flight=_load(load) if load else None,
        paused=is_paused,
    )


def _load(answer: Answer) -> float | None:
    said = _json(answer)
    load = said.get("server_load") if isinstance(said, dict) else None
    if isinstance(load, bool) or not isinstance(load, (int, float)) or not 0 <= load <= MOST:
        return None
    return float(load)


async def with_load(http: httpx.AsyncClient, target: Target, observation: Observation) -> Observation:
    """The observation with the front end's count of requests, where the engine has one: it can be the only sign of work."""
    if observation.reading is None or target.engine is None or target.engine.load is None:
        return observation
    load = _load(await _get(http, target, target.engine.load, SIDE_QUESTION_S))
    return observation if load is None else replace(observation, reading=replace(observation.reading, in_flight=load))


def _says_loading(answer: Answer) -> bool:
    """llama.cpp's words; a front says 503 too, in others."""
    return b"oading model" in answer.body[:2000]


def _says_dead(answer: Answer) -> bool:
    """vLLM's 503 has no body, or names the dead engine. A front's has words of its own, or the front's name."""
    return says_dead(answer) if answer.body.strip() else _front(answer) is None


def _health_word(engine: Engine, answer: Answer | None) -> str | None:
    if answer is None:
        return None
    if answer.how in ("refused", "timeout"):
        return answer.how
    if answer.how != "ok":
        return "timeout"
    if answer.status == 200:
        return "ok"
    if answer.status == engine.dead_status and _says_dead(answer):
        return "dead"
    if answer.status == engine.loading_status and _says_loading(answer):
        return "loading"
    return f"http {answer.status}"


async def observe(
    http: httpx.AsyncClient, target: Target, clock: Callable[[], float] = time.monotonic
) -> tuple[Observation, Page | None]:
    """One reading of the page as an observation. Side answers and witnesses are added where the page does not suffice."""
    begin = clock()
    word, detail, page = await read_page(http, target)
    engine = (page.engine if page else None) or target.engine
    observation = Observation(
        t=clock(),
        t_begin=begin,
        metrics=word,
        reading=page.reading if page is not None and word == "ok" else None,
        detail=detail,
        engine=engine.name if engine else None,
    )
    return observation, page


async def observe_around(
    http: httpx.AsyncClient, target: Target, witness: Witness | None, observation: Observation
) -> Observation:
    """The observation with the free side questions' answers and what the host shows.

    One after the other: a question of ours that is open while connections are counted is no client of the server's.
    """
    sides = await ask_sides(http, target)
    seen = await witness() if witness else Witnesses()
    reading = observation.reading
    if reading is not None and sides.in_flight is not None:
        reading = replace(reading, in_flight=sides.in_flight)
    return replace(
        observation,
        reading=reading,
        health=sides.health,
        paused=sides.paused,
        service=seen.service,
        host=seen.host,
        ranks=seen.ranks,
        busy_leases=seen.busy_leases,
        program=seen.program,
    )
