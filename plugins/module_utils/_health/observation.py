# SPDX-License-Identifier: GPL-3.0-or-later
"""`Observation`: everything seen of one server at one instant. Data only; None is always "unknown", never zero.

The field names and values are the trace format's (docs/trace.md), so that a recorded trace is a list of these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .reading import EngineReading, Reading

# How reading /metrics went, beyond "http NNN".
METRICS_WORDS = ("ok", "refused", "timeout", "connect timeout", "reset", "unreadable", "loading")


@dataclass(frozen=True)
class Service:
    """The unit or container. `since`: when its main process started, on the observation's clock.

    `wanted`: the intent; False after a stop somebody asked for, disabled, masked or in maintenance; None: cannot be told.
    """

    state: str = "unknown"
    since: float | None = None
    wanted: bool | None = None


@dataclass(frozen=True)
class Host:
    """What the machine shows. Each may be unknown; none is required. `clients`: established connections to the server's
    port, counted in the server's own network namespace. `cpu_seconds`: of the server's whole process tree."""

    gpu_power_w: float | None = None
    gpu_utilization: float | None = None
    gpu_present: bool | None = None
    clients: int | None = None
    compilers: tuple[str, ...] | None = None
    cpu_seconds: float | None = None
    memory_pressure: float | None = None
    kernel_faults: tuple[str, ...] | None = None
    memory_available_gib: float | None = None


@dataclass(frozen=True)
class Rank:
    """One rank of a multi-node server as the head sees it."""

    host: str = ""
    reachable: bool | None = None
    state: str | None = None
    since: float | None = None
    compilers: tuple[str, ...] | None = None
    gpu_power_w: float | None = None
    cpu_seconds: float | None = None


@dataclass(frozen=True)
class Lease:
    """A busy lease as it stood at that instant. `expires` is on the observation's clock."""

    owner: str = ""
    alive: bool | None = None
    expires: float | None = None


@dataclass(frozen=True)
class Observation:
    """`t`: seconds on a clock that never runs backwards, when this reading ended; `t_begin`: when it began.

    `detail`: one sentence on how reading the page went wrong. `probe_begin`: when the probe was sent.
    `probe_engine`: the engine the probe was pinned to. `probe_says_dead`: the answer was an engine's death notice.
    `paused`: the engine itself says that it is paused or asleep. `program`: the server's arguments and program files, as
    a digest; another one is another version or other arguments.
    """

    t: float
    metrics: str | None = None
    reading: Reading | None = None
    health: str | None = None
    probe: str | None = None
    service: Service = field(default_factory=Service)
    host: Host = field(default_factory=Host)
    ranks: tuple[Rank, ...] = ()
    busy_leases: tuple[Lease, ...] = ()
    t_begin: float | None = None
    detail: str | None = None
    probe_begin: float | None = None
    probe_engine: str | None = None
    probe_says_dead: bool | None = None
    paused: bool | None = None
    engine: str | None = None
    program: str | None = None

    @property
    def begun(self) -> float:
        """When the reading began (its end where that was not recorded)."""
        return self.t if self.t_begin is None else self.t_begin

    def lease_holders(self) -> tuple[str, ...]:
        """Owners of the leases that hold now: not expired, and their process not known to be gone."""
        return tuple(
            lease.owner
            for lease in self.busy_leases
            if lease.alive is not False and (lease.expires is None or lease.expires > self.t)
        )


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _words(value: Any, one: str = "") -> tuple[str, ...] | None:
    """A list of names. A bare name is a list of one; of a bare number or true the names are unknown: `one` stands for it."""
    if isinstance(value, (list, tuple)):
        return tuple(str(item) for item in value)
    if isinstance(value, str):
        return (value,) if value else ()
    if one and isinstance(value, (bool, int, float)):
        return (one,) if value else ()
    return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _rows(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


_ENGINE_NUMBERS = (
    "running",
    "waiting",
    "heartbeat",
    "steps",
    "generation_tokens",
    "prompt_tokens",
    "finished",
    "aborted",
    "preemptions",
    "flops",
    "kv_usage",
    "last_step",
    "longest_step_s",
)
_HOST_NUMBERS = ("gpu_power_w", "gpu_utilization", "cpu_seconds", "memory_pressure", "memory_available_gib")


def from_json(row: Mapping[str, Any]) -> Observation:
    """One line of a trace. Unknown keys are ignored, missing and odd ones are unknown. `t` must be there (KeyError)."""
    reading = None
    if isinstance(row.get("reading"), Mapping):
        page = row["reading"]
        engines = {
            str(label): EngineReading(
                sleeping=_flag(_mapping(values).get("sleeping")),
                **{name: _number(_mapping(values).get(name)) for name in _ENGINE_NUMBERS},
            )
            for label, values in _mapping(page.get("engines")).items()
        }
        reading = Reading(
            engines=engines,
            start_time=_number(page.get("start_time")),
            in_flight=_number(page.get("in_flight")),
            page_time=_number(page.get("page_time")),
            true_steps=any(e.heartbeat is not None for e in engines.values()),
        )
    service, host = _mapping(row.get("service")), _mapping(row.get("host"))
    clients = _number(host.get("clients"))
    ranks, leases = _rows(row.get("ranks")), _rows(row.get("busy_leases"))
    t = _number(row["t"])
    if t is None:
        raise KeyError("t")
    return Observation(
        t=t,
        metrics=_text(row.get("metrics")),
        reading=reading,
        health=_text(row.get("health")),
        probe=_text(row.get("probe")),
        service=Service(
            state=_text(service.get("state")) or "unknown",
            since=_number(service.get("since")),
            wanted=_flag(service.get("wanted")),
        ),
        host=Host(
            gpu_present=_flag(host.get("gpu_present")),
            clients=None if clients is None else int(clients),
            compilers=_words(host.get("compilers"), "a compiler"),
            kernel_faults=_words(host.get("kernel_faults")),
            **{name: _number(host.get(name)) for name in _HOST_NUMBERS},
        ),
        ranks=tuple(
            Rank(
                host=_text(_mapping(rank).get("host")) or "",
                reachable=_flag(_mapping(rank).get("reachable")),
                state=_text(_mapping(rank).get("state")),
                since=_number(_mapping(rank).get("since")),
                compilers=_words(_mapping(rank).get("compilers"), "a compiler"),
                gpu_power_w=_number(_mapping(rank).get("gpu_power_w")),
                cpu_seconds=_number(_mapping(rank).get("cpu_seconds")),
            )
            for rank in ranks
        ),
        busy_leases=tuple(
            Lease(
                owner=_text(_mapping(lease).get("owner")) or "",
                alive=_flag(_mapping(lease).get("alive")),
                expires=_number(_mapping(lease).get("expires")),
            )
            for lease in leases
        ),
        t_begin=_number(row.get("t_begin")),
        detail=_text(row.get("detail")),
        probe_begin=_number(row.get("probe_begin")),
        probe_engine=_text(row.get("probe_engine")),
        probe_says_dead=_flag(row.get("probe_says_dead")),
        paused=_flag(row.get("paused")),
        engine=_text(row.get("engine")),
        program=_text(row.get("program")),
    )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def to_json(observation: Observation) -> dict[str, Any]:
    """The line of a trace that `from_json` reads back to the same observation."""
    o = observation
    row: dict[str, Any] = {"t": o.t, "metrics": o.metrics, "reading": None, "health": o.health, "probe": o.probe}
    if o.reading is not None:
        row["reading"] = {
            "start_time": o.reading.start_time,
            "in_flight": o.reading.in_flight,
            "engines": {label: dict(vars(engine)) for label, engine in o.reading.engines.items()},
        }
        if o.reading.page_time is not None:
            row["reading"]["page_time"] = o.reading.page_time
    row["service"] = dict(vars(o.service))
    row["host"] = {name: _plain(value) for name, value in vars(o.host).items()}
    row["ranks"] = [{name: _plain(value) for name, value in vars(rank).items()} for rank in o.ranks]
    row["busy_leases"] = [dict(vars(lease)) for lease in o.busy_leases]
    for name in ("t_begin", "detail", "probe_begin", "probe_engine", "probe_says_dead", "paused", "engine", "program"):
        if getattr(o, name) is not None:
            row[name] = getattr(o, name)
    return row
