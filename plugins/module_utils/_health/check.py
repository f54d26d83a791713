# SPDX-License-Identifier: GPL-3.0-or-later
"""One check of one or many servers: readings, waits, at most one probe, and the verdict. What llm-health and llm_health run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

try:
    import httpx
except ImportError:  # the module or command that needs it says so
    pass

from .._core.servers import Restart
from .engines import engine_named
from .http import client as http_client
from .http import told_apart
from .judge import DEFAULT_PATIENCE_S, DEFAULT_PATIENCE_TRUE_STEPS_S, Limits, judge
from .observation import Observation
from .observe import (
    UNNAMED_PROXY,
    Identity,
    Models,
    Target,
    Witness,
    ask_loaded,
    ask_models,
    identify,
    is_proxy,
    observe,
    observe_around,
    with_load,
)
from .probe import KINDS, ProbeResult, first_kind, probe
from .progress import WHOLE, Track, advance, took_up
from .reading import Page
from .verdict import State, Verdict, worst_exit

# Servers asked at the same moment; more only makes each of them look late on a small controller.
CONCURRENT = 100
DEFAULT_WAIT_S = 10.0


@dataclass(frozen=True)
class Subject:
    """One server to check. `api_key` goes into one header and nowhere else."""

    name: str
    url: str
    base: str
    engine: str = "auto"
    role: str = "auto"
    probe: str = "auto"
    api_key: str | None = None
    lifecycle: str = "always"
    patience_s: float | None = None
    start_ceiling_s: float | None = None
    restart: Restart | None = None


class Held(Protocol):
    """A busy lease that holds now."""

    @property
    def name(self) -> str:
        """What the job calls it."""

    @property
    def owner(self) -> str:
        """Whose it is."""


Leases = Callable[[], Sequence[Held]]


@dataclass(frozen=True)
class Options:
    """Of one run. Times in seconds. `patience_s` None: the watchdog's own where it is known, else the default."""

    waits_s: tuple[float, ...] = (DEFAULT_WAIT_S, DEFAULT_WAIT_S)
    patience_s: float | None = None
    connect_timeout_s: float = 3.0
    read_timeout_s: float = 15.0
    probe: str | None = None
    probe_timeout_s: float = 20.0
    trust_env: bool = False


@dataclass(frozen=True)
class Report:
    """What a check found of one server."""

    subject: Subject
    verdict: Verdict
    engine: str | None
    role: str
    probe_sent: bool = False
    steps_per_second: float | None = None
    tokens_per_second: float | None = None

    def as_json(self) -> dict[str, Any]:
        """The contract's object for one server."""
        verdict = self.verdict
        return {
            "name": self.subject.name,
            "url": self.subject.url,
            "engine": self.engine,
            "role": self.role,
            "state": verdict.state.value,
            "healthy": verdict.healthy,
            "restart_justified": verdict.restart_justified,
            "reason": verdict.reason,
            "running": _whole_number(verdict.running),
            "waiting": _whole_number(verdict.waiting),
            "in_flight": _whole_number(verdict.in_flight),
            "steps_per_second": self.steps_per_second,
            "tokens_per_second": self.tokens_per_second,
            "probe_sent": self.probe_sent,
            "no_progress_seconds": None if verdict.silence_s is None else round(verdict.silence_s, 3),
            "engines": [
                {
                    "engine": engine.engine,
                    "state": engine.state.value,
                    "running": _whole_number(engine.running),
                    "waiting": _whole_number(engine.waiting),
                    "no_progress_seconds": None if engine.silence_s is None else round(engine.silence_s, 3),
                }
                for engine in verdict.engines
                if engine.engine != WHOLE
            ],
        }


def _whole_number(value: float | None) -> float | int | None:
    return int(value) if value is not None and value == int(value) else value


NEVER_THE_SAME = (
    "each reading is from another process: several replicas behind one address, or a crash loop; "
    "name each server by its own address"
)


def _unknown(reason: str, rule: str = "cannot_ask") -> Verdict:
    return Verdict(State.UNKNOWN, reason, rule)


class _Check:
    """One server's check, from its first reading to its verdict."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        subject: Subject,
        options: Options,
        witness: Witness | None,
        gate: asyncio.Semaphore,
        sleep: Callable[[float], Awaitable[None]],
        clock: Callable[[], float],
        leases: Leases,
    ) -> None:
        self.http, self.subject, self.options, self.witness = http, subject, options, witness
        self.gate, self.sleep, self.clock, self.leases = gate, sleep, clock, leases
        headers = {"Authorization": f"Bearer {subject.api_key}"} if subject.api_key else {}
        self.target = Target(
            subject.base,
            engine=None if subject.engine == "auto" else engine_named(subject.engine),
            headers=headers,
            connect_s=options.connect_timeout_s,
            read_s=options.read_timeout_s,
        )
        self.models: Models | None = None
        self.track: Track | None = None
        self.before: Track | None = None
        self.loaded: tuple[str, ...] | None = None
        self.probe_sent = False
        self.readings: list[Observation] = []

    def limits(self) -> Limits:
        patience = self.options.patience_s if self.options.patience_s is not None else self.subject.patience_s
        engines = self.track.engines if self.track else {}
        by_engine = {}
        if patience is None:
            by_engine = {label: DEFAULT_PATIENCE_TRUE_STEPS_S for label, e in engines.items() if e.heartbeat_trusted}
        return Limits(
            patience_s=by_engine,
            default_patience_s=DEFAULT_PATIENCE_S if patience is None else patience,
            start_ceiling_s=self.subject.start_ceiling_s or Limits.start_ceiling_s,
            lifecycle=self.subject.lifecycle,
            watchdog=False,
        )

    def report(self, verdict: Verdict, engine: str | None = None, role: str = "server") -> Report:
        steps, tokens = self.rates()
        row = self.target.engine
        return Report(
            subject=self.subject,
            verdict=verdict,
            engine=engine or (row.name if row else None),
            role=role,
            probe_sent=self.probe_sent,
            steps_per_second=steps,
            tokens_per_second=tokens,
        )

    def rates(self) -> tuple[float | None, float | None]:
        """Steps and generated tokens a second, between the first and the last reading of the same process."""
        if len(self.readings) < 2:
            return None, None
        first, last = self.readings[0], self.readings[-1]
        span = last.t - first.t
        if span <= 0 or first.reading is None or last.reading is None:
            return None, None

        def rate(*names: str) -> float | None:
            for name in names:
                pairs = [
                    (getattr(old, name), getattr(last.reading.engines[label], name))  # type: ignore[union-attr]
                    for label, old in first.reading.engines.items()  # type: ignore[union-attr]
                    if label in last.reading.engines  # type: ignore[union-attr]
                ]
                if pairs and all(a is not None and b is not None for a, b in pairs):
                    return round(float(sum(b - a for a, b in pairs)) / span, 3)
            return None

        return rate("heartbeat", "steps"), rate("generation_tokens")

    def judged(self, observation: Observation) -> Verdict:
        self.track = advance(self.before, observation)
        if self.track.new_process:
            self.readings = [one for one in self.readings if one.begun == observation.begun]  # it may be judged twice
        return judge(self.track, observation, self.limits())

    async def look(self) -> tuple[Observation, Verdict, Page | None]:
        self.before = self.track
        async with self.gate:
            observation, page = await observe(self.http, self.target, self.clock)
        if page is not None and page.engine is not None and self.subject.engine in ("auto", page.engine.name):
            self.target = replace(self.target, engine=page.engine)
        verdict = self.judged(observation)
        if observation.reading is not None:
            self.readings.append(observation)
        return observation, verdict, page

    async def around(self, observation: Observation) -> tuple[Observation, Verdict]:
        """The same observation with side answers and witnesses, judged again."""
        async with self.gate:
            observation = await observe_around(self.http, self.target, self.witness, observation)
        return observation, self.judged(observation)

    async def with_load(self, observation: Observation, verdict: Verdict) -> Verdict:
        """What moves while the gauges say nothing is there is idle, or work that only the front end shows."""
        if verdict.rule != "counters_moved":
            return verdict
        async with self.gate:
            return self.judged(await with_load(self.http, self.target, observation))

    async def run(self) -> Report:
        if self.subject.role == "proxy":
            return await self.proxy(("/models", "/v1/models"), None)
        if self.subject.engine == "auto":
            async with self.gate:
                who = await identify(self.http, self.target)
            self.models = who.models
            if who.proxy is not None and self.subject.role == "auto":
                return self.proxied(who)
            self.target = self.target.of(who)
        row = self.target.engine
        if row is not None and row.page is None and self.probe_kind() not in KINDS:
            return await self.no_evidence()
        return await self.server()

    def proxied(self, who: Identity) -> Report:
        models = who.models
        named = None if who.proxy == UNNAMED_PROXY else who.proxy
        if models is not None and models.is_list:
            subject = f"the proxy {named}" if named else UNNAMED_PROXY
            reason = f"{subject} answers; ask the servers behind it by their own addresses"
            return self.report(Verdict(State.REACHABLE, reason, "proxy"), named, "proxy")
        return self.report(self.not_listed(models, named), named, "proxy")

    async def proxy(self, paths: tuple[str, ...], name: str | None) -> Report:
        async with self.gate:
            models = await ask_models(self.http, self.target, paths)
            told = await told_apart(models.answer, self.target.base + paths[0], self.target.connect_s)
            models = replace(models, answer=told)
        if models.is_list:
            reason = "the proxy answers /models; nothing more can be known through it"
            return self.report(Verdict(State.REACHABLE, reason, "proxy"), name, "proxy")
        return self.report(self.not_listed(models), name, "proxy")

    def not_listed(self, models: Models | None, proxy: str | None = None) -> Verdict:
        answer = models.answer if models else None
        if answer is None:
            return _unknown("it was not asked")
        if answer.how == "refused":
            return Verdict(State.DEAD, "nothing listens there; it may still be loading", "refused")
        if answer.how in ("timeout", "reset"):
            return Verdict(State.UNRESPONSIVE, answer.detail or "it does not answer", "page_silent")
        if answer.how == "ok" and answer.status == 200:
            return _unknown("its /models answered 200, but with no list of models; is the address a proxy's?")
        if answer.how == "ok":
            # LiteLLM without a database says 500 to a question without a key
            keyless = (401, 403, 500) if proxy == "litellm" and not self.subject.api_key else (401, 403)
            hint = "; give a key with --api-key-file" if answer.status in keyless else ""
            return _unknown(f"the proxy's /models answered {answer.status}{hint}")
        return _unknown(answer.detail or "the proxy could not be asked")

    async def no_evidence(self) -> Report:
        row = self.target.engine
        answer = self.models.answer if self.models else None
        if answer is not None and answer.how in ("refused", "timeout", "reset"):
            return self.report(self.not_listed(self.models))
        return self.report(
            _unknown((row.no_evidence if row else None) or "this engine publishes no counters", "no_evidence")
        )

    async def server(self) -> Report:
        """Readings until progress is seen, a probe is answered, or both waits are used."""
        observation, verdict, page = await self.look()
        if page is not None and page.proxy is not None and self.subject.role == "auto":
            reason = f"the proxy {page.proxy} answers; ask the servers behind it by their own addresses"
            return self.report(Verdict(State.REACHABLE, reason, "proxy"), page.proxy, "proxy")
        if verdict.rule == "cannot_ask" and verdict.state is State.UNKNOWN:
            return await self.without_counters(observation, verdict, page)
        if observation.metrics == "reset":
            observation, verdict, dummy = await self.look()  # one reset may be a restart's; two are its manner
        waits = list(self.options.waits_s)
        extra = True
        while True:
            # what moves needs no witness; only doubt asks further
            if verdict.rule not in ("progress", "first_reading", "counters_moved", "probe_answered"):
                observation, verdict = await self.around(observation)
            if verdict.rule == "not_probed" and self.may_probe():
                verdict, answered = await self.send_probe(observation)
                if answered:
                    return self.report(verdict)
            if verdict.rule == "not_probed":
                verdict = self.told_of_lease(verdict)
            if verdict.rule not in ("first_reading", "gauges_unreadable") and verdict.state not in (
                State.STALLED,
                State.HUNG,
                State.SUSPECT,
            ):
                return self.report(verdict)
            if not waits:
                if verdict.rule == "first_reading" and extra:
                    waits, extra = [self.options.waits_s[-1]], False
                else:
                    break
            # a wait runs from the end of the reading: what was asked beside it is part of the wait
            await self.sleep(max(waits.pop(0) - (self.clock() - observation.t), 0.0))
            observation, verdict, dummy = await self.look()
            verdict = await self.with_load(observation, verdict)
        if verdict.state is State.SUSPECT:
            if self.may_probe():
                verdict, dummy_answered = await self.send_probe(observation)
            else:
                verdict = self.told_of_lease(verdict)
        if verdict.rule == "first_reading":
            verdict = Verdict(State.UNKNOWN, NEVER_THE_SAME, "only_first_readings")
        return self.report(verdict)

    def probe_kind(self) -> str:
        return self.options.probe or self.subject.probe

    def may_probe(self) -> bool:
        named_and_sent = self.probe_sent and self.probe_kind() in KINDS  # a kind that somebody names is sent once
        return self.probe_kind() != "never" and not named_and_sent and not self.leases()

    def told_of_lease(self, verdict: Verdict) -> Verdict:
        """The verdict without a probe; where a lease forbade it, the reason names that."""
        held = self.leases() if self.probe_kind() != "never" and not self.probe_sent else ()
        if not held:
            return verdict
        names = ", ".join(f"{lease.name} ({lease.owner})" for lease in held)
        reason = verdict.reason.removesuffix("; no probe was due")
        return replace(verdict, reason=f"{reason}; no probe is sent while a busy lease is held: {names}")

    async def ask_one(self, rank: str | None) -> ProbeResult:
        kind = self.probe_kind()
        model = next((o.reading.models[0] for o in reversed(self.readings) if o.reading and o.reading.models), None)
        if self.loaded:
            right = "embedding" if kind == "embedding" else "chat"
            model = next((name for name in self.loaded if first_kind(name, "auto") == right), self.loaded[0])
        elif model is None or len(self.all_models()) > 1:
            if self.models is None:
                async with self.gate:
                    self.models = await ask_models(self.http, self.target, ("/v1/models",), self.target.connect_s)
            # the name clients use is what /models lists first (a LoRA's comes after its base)
            model = next(iter(self.models.ids), model)
        headers = dict(self.target.headers)
        row = self.target.engine
        if rank is not None and row is not None and row.rank_header:
            headers[row.rank_header] = rank
        result = await probe(
            self.http,
            self.target.base,
            model=model,
            asked=kind,
            headers=headers,
            connect_s=self.target.connect_s,
            probe_s=self.options.probe_timeout_s,
        )
        self.probe_sent = self.probe_sent or result.sent > 0
        return result

    def all_models(self) -> set[str]:
        return {m for o in self.readings if o.reading for m in o.reading.models}

    def ranks(self) -> list[str | None]:
        """The engines to probe: one unpinned probe, or one pinned to each rank where the engine lets us choose.

        A rank that sleeps is not probed; where we cannot choose, none is.
        """
        row = self.target.engine
        known = {label: e for label, e in (self.track.engines if self.track else {}).items() if label != WHOLE}
        awake = [label for label, e in known.items() if e.last is None or not e.last.sleeping]
        if len(known) < 2 or row is None or row.rank_header is None or not all(label.isdigit() for label in known):
            return [None] if len(awake) == len(known) else []
        return [*sorted(awake, key=int)]

    async def send_probe(self, observation: Observation) -> tuple[Verdict, bool]:
        """Probes, then judges. Unanswered: the page is read again first, for what moved or appeared meanwhile."""
        verdict = judge(self.track or advance(None, observation), observation, self.limits())
        for rank in self.ranks():
            begin = self.clock()
            result = await self.ask_one(rank)
            if result.word == "timeout":
                self.before = self.track
                async with self.gate:
                    again, dummy = await observe(self.http, self.target, self.clock)
                again = replace(again, probe="timeout", probe_begin=begin, probe_engine=rank)
                verdict = self.judged(again)
                if again.reading is not None:
                    self.readings.append(again)
                if self.track is not None and verdict.state in (State.STALLED, State.HUNG):
                    self.track = took_up(self.before, self.track, again)
                    verdict = judge(self.track, again, self.limits())
                return await self.with_load(again, verdict), False
            seen = replace(
                observation,
                t=self.clock(),
                t_begin=observation.begun,
                probe=result.word,
                probe_begin=begin,
                probe_engine=rank,
                probe_says_dead=result.says_dead,
                detail=result.detail,
            )
            if result.word.startswith("http 5"):
                async with self.gate:
                    seen = await observe_around(self.http, self.target, self.witness, seen)
            verdict = self.judged(seen)
            if result.word != "ok":
                return verdict, True
            self.before = self.track
        return verdict, True

    async def without_counters(self, observation: Observation, verdict: Verdict, page: Page | None) -> Report:
        """No page of an engine. A proxy is recognised, an engine's own word is heard; a named probe is sent once."""
        metrics = observation.metrics or ""
        if (
            self.subject.role == "auto"
            and self.subject.engine == "auto"
            and (metrics.startswith("http 3") or metrics in ("http 401", "http 404", "http 405"))
        ):
            if metrics == "http 404" and (self.models is None or self.models.answer.status == 404):
                async with self.gate:
                    self.models = await ask_models(self.http, self.target, ("/models",), self.target.connect_s)
            name = await is_proxy(self.http, self.target, self.models, page)
            if name is not None:
                return self.proxied(Identity(proxy=name, models=self.models))
        row = self.target.engine
        answered = metrics.startswith("http ") or page is not None
        if answered and row is not None and row.speaks:
            observation, verdict = await self.around(observation)
            if verdict.state is not State.UNKNOWN:
                return self.report(verdict)
        if self.probe_kind() in KINDS and metrics != "connect timeout":
            if not self.may_probe():
                return self.report(self.told_of_lease(verdict))
            if row is None or row.loaded is not None:
                idle = await self.nothing_loaded()
                if idle is not None:
                    return self.report(idle)
            begin = self.clock()
            result = await self.ask_one(None)
            if not result.sent:
                return self.report(verdict)
            seen = replace(
                observation,
                t=self.clock(),
                t_begin=self.clock(),
                probe=result.word,
                probe_begin=begin,
                probe_says_dead=result.says_dead,
            )
            verdict = self.judged(seen)
        return self.report(verdict)

    async def nothing_loaded(self) -> Verdict | None:
        """Why a server that loads a model when asked for it is not probed, or None: `loaded` has what may be asked for."""
        async with self.gate:
            row, self.loaded = await ask_loaded(self.http, self.target)
        self.target = replace(self.target, engine=row)
        if self.loaded or row is None:
            return None
        if self.loaded is None:
            return _unknown(f"its {row.loaded} could not be read: a probe might load a model, so none was sent")
        return Verdict(State.SLEEPING, "no model is loaded, and a probe would load one: none was sent", "not_loaded")


async def check(
    subjects: Sequence[Subject],
    options: Options,
    witnesses: Callable[[], Callable[[Subject], Witness | None]] = lambda: lambda subject: None,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
    leases: Leases = tuple,
) -> list[Report]:
    """Checks all servers side by side; one report each, in the order given. Never raises for what a server does.

    `leases`: those that hold now; while there is one, nobody is probed.
    """
    gate = asyncio.Semaphore(CONCURRENT)
    witness_of = witnesses()
    https = any(subject.base.startswith("https") for subject in subjects)
    async with http_client(https=https, trust_env=options.trust_env) as http:

        async def one(subject: Subject) -> Report:
            work = _Check(http, subject, options, witness_of(subject), gate, sleep, clock, leases)
            try:
                return await work.run()
            except Exception as error:
                reason = f"the check itself failed ({type(error).__name__}: {error}); please report this"
                return work.report(_unknown(reason, "internal"))

        return list(await asyncio.gather(*(one(subject) for subject in subjects)))


def exit_status(reports: Sequence[Report]) -> int:
    """Of a command that checked these servers."""
    return worst_exit([report.verdict.state.exit_status for report in reports])
