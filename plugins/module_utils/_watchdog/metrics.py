# SPDX-License-Identifier: GPL-3.0-or-later
"""The watchdog's metrics as a textfile for node_exporter. At most 40 series a server: every label has a fixed set of values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .._core.settings import Settings
from .._health.verdict import State
from . import ended, explain
from .store import ServerState

try:
    from prometheus_client import CollectorRegistry, Gauge, write_to_textfile
    from prometheus_client.core import CounterMetricFamily
except ImportError:  # the module or command that needs it says so
    pass


def registry(
    settings: Settings,
    states: Sequence[tuple[ServerState, float]],
    *,
    leases: int,
    wall: float,
    competing: Mapping[str, int] | None = None,
) -> CollectorRegistry:
    """All metrics of a host. `states`: each server's state and the watchdog's clock for it. `wall`: epoch seconds.

    `competing`: other authorities that the last audit found, by server; None: no audit yet.
    """
    made = CollectorRegistry()

    def gauge(name: str, text: str, labels: Sequence[str] = ("server",)) -> Gauge:
        return Gauge(name, text, labels, registry=made)

    state_set = gauge(
        "llm_server_state", "1 for what the server is doing, 0 for every other state", ("server", "state")
    )
    running = gauge("llm_server_requests_running", "Requests in execution at the last look")
    waiting = gauge("llm_server_requests_waiting", "Requests in the queue at the last look")
    tokens = gauge("llm_server_generated_tokens_per_second", "Generated tokens a second between the last two looks")
    steps = gauge("llm_server_steps_per_second", "Engine steps a second between the last two looks")
    silence = gauge("llm_server_silence_seconds", "Time since the last sign of progress, with work in flight; else 0")
    patience = gauge("llm_server_patience_seconds", "Silence that would prove a hang")
    never_ready = gauge(
        "llm_server_never_ready",
        "1 while it refuses though its start ceiling is over, and was never ready since its start",
    )
    budget = gauge("llm_watchdog_budget_left", "Restarts and starts that the budget still allows")
    latched = gauge("llm_watchdog_latched", "1 while nothing more is done until a person clears it")
    under_way = gauge("llm_watchdog_restart_under_way", "1 while a restart or start is under way")
    maintained = gauge("llm_watchdog_maintenance", "1 while a person has declared maintenance")
    looked = gauge("llm_watchdog_last_look_timestamp_seconds", "When the server was last looked at")
    others = gauge(
        "llm_watchdog_competing_restarters", "Other authorities that could restart the server, by the last audit"
    )
    kv = gauge(
        "llm_server_kv_cache_usage_ratio", "The part of the KV cache in use at the last look, of the fullest engine"
    )
    power = gauge("llm_server_gpu_power_watts", "The GPU's power at the last look, where it can be read")
    done = CounterMetricFamily(
        "llm_watchdog_restarts",
        "Restarts and starts that ended, by why and how",
        labels=("server", "reason", "outcome"),
    )
    Gauge("llm_busy_leases", "Busy leases that hold now", registry=made).set(leases)
    Gauge("llm_watchdog_last_run_timestamp_seconds", "When the watchdog last ran", registry=made).set(wall)
    Gauge("llm_watchdog_servers", "Servers that are watched", registry=made).set(len(states))
    for state, t in states:
        name = state.name
        for kind in State:
            state_set.labels(name, kind.value).set(1 if state.state == kind.value else 0)
        for metric, value in (
            (running, state.running),
            (waiting, state.waiting),
            (tokens, state.tokens_per_second),
            (steps, state.steps_per_second),
            (silence, state.silence_s if state.silence_s is not None else 0.0),
            (patience, state.patience_s),
            (looked, state.looked_wall),
            (kv, kv_usage(state)),
            (power, state.power_w),
        ):
            if value is not None:
                metric.labels(name).set(value)
        row = explain.row(settings, state, t, wall)
        if competing is not None and name in competing:
            others.labels(name).set(competing[name])
        budget.labels(name).set(row["budget_left"])
        latched.labels(name).set(1 if row["latched"] else 0)
        under_way.labels(name).set(1 if row["under_way"] else 0)
        maintained.labels(name).set(1 if row["maintenance"] else 0)
        known_ready = state.memory.track is not None and state.memory.track.ready
        never_ready.labels(name).set(1 if state.rule == "never_ready" and not known_ready else 0)
        for reason in ended.REASONS:
            for outcome in ended.OUTCOMES:
                done.add_metric((name, reason, outcome), (state.ended or {}).get(f"{reason} {outcome}", 0))
    made.register(_Counted(done))
    return made


class _Counted:
    """Counters that the memory holds already. The client's own would add a `_created` series to each of them."""

    def __init__(self, family: CounterMetricFamily) -> None:
        self._family = family

    def collect(self) -> Iterable[CounterMetricFamily]:
        return [self._family]


def kv_usage(state: ServerState) -> float | None:
    """0 to 1, of the fullest engine; None where the last look could not read it."""
    if state.running is None or state.memory.track is None:
        return None
    engines = state.memory.track.engines.values()
    known = [one.last.kv_usage for one in engines if one.last is not None and one.last.kv_usage is not None]
    return max(known) if known else None


def write(path: Path, made: CollectorRegistry) -> None:
    """Replaces the textfile whole, readable by node_exporter. Raises OSError."""
    write_to_textfile(str(path), made)
    path.chmod(0o644)
