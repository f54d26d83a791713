# SPDX-License-Identifier: GPL-3.0-or-later
"""`Reading`: what one /metrics page said, in the collection's own terms. Text in, data out; no I/O."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from .engines import (
    BY_NAME,
    COUNTERS,
    ENGINES,
    HEARTBEAT_INFO,
    HEARTBEAT_LAST_STEP,
    HEARTBEAT_STEP_BUCKET,
    HEARTBEAT_STEPS,
    PROXIES,
    Engine,
    Series,
)


@dataclass(frozen=True)
class EngineReading:
    """One engine (one data-parallel rank) at one instant. None: the page does not say. Counters only rise in a process.

    `running`, `waiting`: requests. `heartbeat`: true engine steps. `kv_usage`: 0–1. `last_step`: epoch seconds.
    `longest_step_s`: upper edge of the highest filled bucket of the heartbeat's step histogram.
    """

    running: float | None = None
    waiting: float | None = None
    heartbeat: float | None = None
    steps: float | None = None
    generation_tokens: float | None = None
    prompt_tokens: float | None = None
    finished: float | None = None
    aborted: float | None = None
    preemptions: float | None = None
    flops: float | None = None
    kv_usage: float | None = None
    sleeping: bool | None = None
    last_step: float | None = None
    longest_step_s: float | None = None

    @property
    def work(self) -> float | None:
        """Requests in the engine, running and waiting; None when it may have some that no gauge tells of.

        A number above 0 is work by itself; 0 of the one says nothing where the other could not be read.
        """
        known = (self.running or 0.0) + (self.waiting or 0.0)
        return None if not known and None in (self.running, self.waiting) else known


@dataclass(frozen=True)
class Reading:
    """One page. `engines` is keyed by the `engine` label ("0" where there is none). `page_time`: epoch seconds by the
    server's own clock when it answered."""

    engines: dict[str, EngineReading] = field(default_factory=dict)
    start_time: float | None = None
    in_flight: float | None = None
    models: tuple[str, ...] = ()
    true_steps: bool = False
    page_time: float | None = None

    @property
    def asleep(self) -> bool:
        """Every engine that says so sleeps. Of several, one that is awake has to be judged."""
        said = [engine.sleeping for engine in self.engines.values() if engine.sleeping is not None]
        return bool(said) and all(said)

    def last_step_age_s(self, label: str) -> float | None:
        """Seconds since this engine completed a step, by the heartbeat's time stamp; None where that is not known."""
        engine = self.engines.get(label)
        if engine is None or engine.last_step is None or self.page_time is None:
            return None
        return max(self.page_time - engine.last_step, 0.0)


@dataclass(frozen=True)
class Page:
    """What a page turned out to be: an engine's reading, a proxy, or neither (then `problem` says why).

    `front`: the web server in front, which has no such page and said so itself.
    """

    engine: Engine | None = None
    reading: Reading | None = None
    proxy: str | None = None
    problem: str | None = None
    front: str | None = None


# One sample line: name, labels, value. Timestamps and OpenMetrics exemplars after the value are left alone.
# A brace in a quoted value ends no labels. Possessive, so that a hostile line costs its length and no more.
_LABELS = r'\{((?:[^"}]++|"(?:[^"\\]++|\\.)*+")*+)\}'
_LINE = re.compile(rf"^([a-zA-Z_:][a-zA-Z0-9_:]*+)(?:{_LABELS}[ \t]*+|[ \t]++)([^\s{{}}]++)(?:[ \t].*)?$")
_NAME = re.compile(rf"^([a-zA-Z_:][a-zA-Z0-9_:]*+)(?:{_LABELS})?")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_START = "process_start_time_seconds"
_PREFIXES = tuple(
    sorted(
        {p for e in ENGINES for p in e.prefix} | {p.series_prefix for p in PROXIES if p.series_prefix} | {"llm_engine_"}
    )
)
# The lines worth parsing of a 50 kB page: 30 or so of 600. Ray writes `ray_vllm_…`, everybody else `vllm:…`.
_WANTED_NAMES = {s.name for e in ENGINES for s in e.series} | {
    _START,
    HEARTBEAT_INFO,
    HEARTBEAT_STEPS,
    HEARTBEAT_LAST_STEP,
    HEARTBEAT_STEP_BUCKET,
}
_WANTED = re.compile(
    r"^(?:ray_)?(?:"
    + "|".join(sorted((re.escape(n).replace("_", "[:_]", 1) for n in _WANTED_NAMES), key=len, reverse=True))
    + r")[ \t{].*$",
    re.MULTILINE,
)
_KNOWN = re.compile(
    r"^(?:# (?:TYPE|HELP) )?(?:ray_)?("
    + "|".join(re.escape(p.removesuffix("_")) + "[:_]" if p.endswith("_") else re.escape(p) for p in _PREFIXES)
    + r")",
    re.MULTILINE,
)


# The flops of a year are 1e23. Sums of what is less than this are still numbers.
MOST = 1e30


def _plain(name: str) -> str:
    return name.replace(":", "_").removeprefix("ray_")


def _number(text: str) -> float | None:
    """A number that a server can have counted, or None: what cannot be read is unknown, never zero."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= MOST else None


def _samples(text: str) -> Iterable[tuple[str, dict[str, str], str]]:
    for match in _WANTED.finditer(text):
        text_line = match.group(0).rstrip("\r")
        line = _LINE.match(text_line) or _NAME.match(text_line)
        if line is not None:
            labels = {name: _unescaped(value) for name, value in _LABEL.findall(line.group(2) or "")}
            # without a value that can be read it is still there, and unknown
            yield _plain(line.group(1)), labels, line.group(3) if line.re is _LINE else ""


def _unescaped(value: str) -> str:
    if "\\" not in value:
        return value
    return re.sub(r"\\(.)", lambda found: "\n" if found.group(1) == "n" else found.group(1), value)


def _families(text: str) -> set[str]:
    """Which known prefixes the page has, in TYPE lines or samples."""
    return {_plain(m.group(1)) for m in _KNOWN.finditer(text)}


def _is_text_page(text: str) -> str | None:
    """Why the text is no Prometheus page, or None. A page cut off in the middle of a line is not a page."""
    head = text.lstrip()[:200].lower()
    if not head:
        return "the page is empty"
    if head.startswith(("<!doctype", "<html", "<?xml")):
        return "the page is HTML, not metrics"
    if head.startswith(("{", "[")):
        return "the page is JSON, not metrics"
    if not text.endswith("\n"):
        last = text[text.rfind("\n") + 1 :]
        if not last.startswith("#") and (_LINE.match(last) is None or _number(last.split()[-1]) is None):
            return "the page is cut off in the middle of a line"
    return None


def _has_decode_counter(text: str) -> bool:
    return "llamacpp:n_decode_total" in text or "llamacpp_n_decode" in text


def _pick(text: str, families: set[str], samples: list[tuple[str, dict[str, str], str]]) -> Engine | None:
    for engine in ENGINES:
        if engine.page is None or not any(p in families for p in engine.prefix):
            continue
        if engine.name == "llamacpp" and not _has_decode_counter(text):
            continue  # same names without the decode counter: ik_llama.cpp
        return engine
    names = {sample[0] for sample in samples}
    return next((e for e in ENGINES if e.name == "nim" and names & {"num_requests_running"}), None)


def _proxy(text: str, families: set[str], samples: list[tuple[str, dict[str, str], str]]) -> str | None:
    for proxy in PROXIES:
        if proxy.series_prefix is None or proxy.series_prefix not in families:
            continue
        if proxy.series_label is None:
            return proxy.name
        gauges = [labels for name, labels, dummy_raw in samples if name == "vllm_num_requests_running"]
        if gauges and all(proxy.series_label in labels for labels in gauges):
            return proxy.name
    return None


class _Sum:
    """Adds up the samples of one engine. A sample that is no number makes its whole meaning unknown."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.broken: set[str] = set()
        self.awake: float | None = None
        self.last_step: float | None = None
        self.longest: dict[float, float] = {}

    def add(self, meaning: str, value: float | None) -> None:
        if value is None:
            self.broken.add(meaning)
        elif meaning == "kv_usage":
            self.values[meaning] = max(value, self.values.get(meaning, 0.0))
        else:
            self.values[meaning] = self.values.get(meaning, 0.0) + value

    def get(self, meaning: str) -> float | None:
        return None if meaning in self.broken else self.values.get(meaning)


def _longest_step(buckets: dict[float, float]) -> float | None:
    """Upper edge of the highest bucket that holds a step; cumulative counts. Over the last edge counts as twice it."""
    longest, before, last_edge = None, 0.0, 0.0
    for edge in sorted(buckets):
        if buckets[edge] > before:
            longest = edge if math.isfinite(edge) else 2 * last_edge
            before = buckets[edge]
        if math.isfinite(edge):
            last_edge = edge
    return longest


def _unnamed(row: Engine, samples: list[tuple[str, dict[str, str], str]], names: Container[str]) -> str | None:
    """Whose a sample is that names no engine: the lone one's, or of several nobody's. SGLang's front end counts the tokens of
    all ranks in one series beside the ranks' own; a rank that hangs must not live by its sisters' tokens."""
    label = row.engine_label or "engine"
    named = {labels[label] for name, labels, dummy_raw in samples if name in names and label in labels}
    return "0" if not named else next(iter(named)) if len(named) == 1 else None


def parse(text: str, engine: Engine | None = None) -> Page:
    """Reads a page. `engine`: the row to read it by, None to find out from the page itself."""
    problem = _is_text_page(text)
    if problem:
        return Page(engine=engine, problem=problem)
    samples = list(_samples(text))
    families = _families(text)
    proxy = _proxy(text, families, samples)
    if proxy is not None:
        return Page(proxy=proxy, problem=f"the page is the proxy {proxy}'s, not an engine's")
    row = engine or _pick(text, families, samples)
    if row is None:
        return Page(problem="the page has no series of any engine known here")
    if row.name == "llamacpp" and not _has_decode_counter(text):
        row = BY_NAME["ik_llamacpp"]  # the fork calls itself llamacpp too, and its silence proves nothing
    by_name: dict[str, list[Series]] = {}
    for series in row.series:
        by_name.setdefault(series.name, []).append(series)
    whose = _unnamed(row, samples, by_name.keys())
    sums: dict[str, _Sum] = {}
    models: set[str] = set()
    start_time: float | None = None
    beating = told = False
    for name, labels, raw in samples:
        if name == _START:
            start_time = _number(raw)
            continue
        if name == HEARTBEAT_INFO:
            beating = beating or _number(raw) != 0
            told = True
            continue
        known = by_name.get(name)
        heartbeat = name.startswith("llm_engine_")
        if known is None and not heartbeat:
            continue
        if model := labels.get("model_name"):
            models.add(model)
        label = labels.get("engine" if heartbeat else row.engine_label or "engine", whose)
        if label is None:
            continue
        total = sums.setdefault(label, _Sum())
        value = _number(raw)
        if heartbeat:
            if name == HEARTBEAT_STEPS:
                total.add("heartbeat", value)
            elif name == HEARTBEAT_LAST_STEP and value is not None:
                total.last_step = max(value, total.last_step or 0.0)
            elif name == HEARTBEAT_STEP_BUCKET and value is not None:
                edge = math.inf if labels.get("le") == "+Inf" else _number(labels.get("le", ""))
                if edge is not None:
                    total.longest[edge] = total.longest.get(edge, 0.0) + value
            continue
        for series in known or []:
            if series.label is not None and labels.get(series.label) not in series.values:
                continue
            if series.meaning == "awake":
                total.awake = value
            else:
                total.add(series.meaning, value)
    if told and not beating:
        # the plug-in turned itself off: a count that stands still for that reason is no sign of a hang
        for total in sums.values():
            if not row.true_steps:
                total.values.pop("heartbeat", None)
            total.last_step, total.longest = None, {}
    own = {label for label, total in sums.items() if total.values or total.broken or total.awake is not None}
    if not own or not (families & set(row.prefix) or any(sums[label].values for label in own)):
        return Page(engine=row, problem=f"the page has no {row.name} series; are the engine's statistics turned off?")
    if all(set(sums[label].values) <= {"heartbeat"} for label in own) and not row.true_steps:
        return Page(engine=row, problem=f"the page has no {row.name} series; are the engine's statistics turned off?")
    declared = families & set(row.prefix)
    engines = {}
    for label in sorted(own):
        total = sums[label]
        values = {m: total.get(m) for m in total.values.keys() | total.broken}
        for gauge in ("running", "waiting"):
            # several API servers: the gauge is declared but has no sample before the first request. Nothing yet is 0.
            # An engine that has counted something had a gauge too: where that is missing, it is unknown.
            fresh = not any(total.values.get(name) for name in COUNTERS)
            if gauge not in values and fresh and declared and _declared(text, row, gauge):
                values[gauge] = 0.0
        engines[label] = EngineReading(
            sleeping=None if total.awake is None else total.awake == 0,
            last_step=total.last_step,
            longest_step_s=_longest_step(total.longest),
            **{m: v for m, v in values.items() if v is not None},
        )
    true_steps = row.true_steps or any(e.heartbeat is not None for e in engines.values())
    return Page(
        engine=row,
        reading=Reading(engines=engines, start_time=start_time, models=tuple(sorted(models)), true_steps=true_steps),
    )


def _declared(text: str, engine: Engine, gauge: str) -> bool:
    for series in engine.series:
        if series.meaning == gauge:
            colon = series.name.replace("_", ":", 1)
            if re.search(rf"^# TYPE (?:ray_)?(?:{re.escape(series.name)}|{re.escape(colon)}) ", text, re.MULTILINE):
                return True
    return False
