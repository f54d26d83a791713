# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The counters. Every label value exists from the start: a rate over a series that appears with its first event
misses that event, and the first fail-open is the one that matters."""

from __future__ import annotations

import os

from .outcome import FAILED, Checked, Outcome
from .pool import Pool, State
from .verdict import Cause

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
except ImportError:  # LiteLLM's environment has it; the module and the command do without
    pass

#: Seconds. Fine where a check normally ends (some ms), then at the hedge (50 ms), the attempt (0.5 s), the budget (1 s).
BUCKETS_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 2.0)


#: Endpoints that left the list and are still shown with their ejections. Pods come back under new addresses for years.
MAX_GONE = 500
#: With several workers the series lie in files, from which the library removes none.
_SHARED = "PROMETHEUS_MULTIPROC_DIR" in os.environ


class Bypass:
    """The values of the ``kind`` label of what would slip past the gate."""

    FALLBACK = "fallback"  # an uncapped group falls back into a capped one
    CLIENT_FALLBACK = "client_fallback"  # the client itself asks for a capped group as a fallback
    UNSERVED = "unserved"  # a capped name that no group serves: mistyped, or removed


BYPASS_KINDS = (Bypass.FALLBACK, Bypass.CLIENT_FALLBACK, Bypass.UNSERVED)


class GateMetrics:
    """Made once per process, prefix and registry (``of``): Prometheus refuses a name twice."""

    _made: dict[tuple[int, str], GateMetrics] = {}

    @classmethod
    def of(cls, prefix: str, registry: CollectorRegistry | None = None) -> GateMetrics:
        """The metrics under this prefix, made where they do not exist yet."""
        registry = registry or REGISTRY
        key = (id(registry), prefix)
        if key not in cls._made:
            cls._made[key] = cls(prefix, registry)
        return cls._made[key]

    def __init__(self, prefix: str, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"{prefix}_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, labels: tuple[str, ...] = (), mode: str = "livemax") -> Gauge:
            # With several workers, a scrape sees the worst of them, not their sum.
            return Gauge(f"{prefix}_{name}", text, labels, registry=registry, multiprocess_mode=mode)  # type: ignore[arg-type]

        self._checks = counter("checks_total", "Checks by how they ended", ("outcome",))
        self._fail_open = counter("fail_open_total", "Requests served unchecked, by cause", ("cause",))
        self._retries = counter("check_retry_total", "Further tries after a failed one")
        self._hedges = counter("hedges_total", "Second endpoints asked because the first was late")
        self._ejections = counter("ejections_total", "Endpoints left out, by endpoint", ("endpoint",))
        self._endpoints = gauge("endpoints", "Endpoints by state, as one worker sees them", ("state",))
        self._usable = gauge(
            "endpoints_usable", "Endpoints that are ready or slow, in the worker with the fewest", mode="livemin"
        )
        self._seconds = Histogram(f"{prefix}_check_seconds", "Time a check added", buckets=BUCKETS_S, registry=registry)
        self._active = gauge("active", "1 while the hook is loaded and has endpoints", mode="livemin")
        self._source_age = gauge("source_age_seconds", "Seconds since the source of endpoints was last heard")
        self._config_ok = gauge("config_ok", "0 while the file is broken and the last good one is used", mode="livemin")
        self._bypass = counter("bypass_total", "Requests that would have slipped past the gate, by kind", ("kind",))
        self._journal_lost = counter("unchecked_lost_total", "Unchecked requests that the journal could not keep")
        self._journal_pending = gauge("unchecked_pending", "Unchecked requests not yet reported, of all workers")
        self._reported = counter("unchecked_reported_total", "Unchecked requests reported to the API")
        for outcome in Outcome:
            self._checks.labels(outcome.value)
        for cause in Cause:
            self._fail_open.labels(cause.value)
        for state in State:
            self._endpoints.labels(state.value).set(0)
        for kind in BYPASS_KINDS:
            self._bypass.labels(kind)
        for plain in (self._active, self._source_age, self._journal_pending):
            plain.set(0)
        self._config_ok.set(1)
        self._shown: dict[str, None] = {}  # endpoints with a series, the longest gone first

    def checked(self, checked: Checked) -> None:
        """A check ended."""
        self._checks.labels(checked.outcome.value).inc()
        if checked.outcome is Outcome.NOT_CAPPED:
            return
        self._seconds.observe(checked.took_s)
        if checked.retries:
            self._retries.inc(checked.retries)
        if checked.hedges:
            self._hedges.inc(checked.hedges)
        if checked.outcome in FAILED and checked.outcome is Outcome.FAILED_OPEN:
            self._fail_open.labels((checked.cause or Cause.INTERNAL).value).inc()

    def pool(self, pool: Pool) -> None:
        """What the pool looks like now."""
        for member in pool.members:
            url = member.endpoint.url
            self._shown.pop(url, None)
            self._shown[url] = None
            self._ejections.labels(url)
        if not _SHARED:
            for url in list(self._shown)[: max(0, len(self._shown) - len(pool.members) - MAX_GONE)]:
                del self._shown[url]
                self._ejections.remove(url)
        states = pool.states()
        for state, count in states.items():
            self._endpoints.labels(state.value).set(count)
        self._usable.set(states[State.READY] + states[State.SLOW])

    def ejected(self, url: str) -> None:
        """An endpoint was left out."""
        self._ejections.labels(url).inc()

    def health(self, active: bool, source_age_s: float) -> None:
        """Whether the gate works, and how old its list of endpoints is."""
        self._active.set(1 if active else 0)
        self._source_age.set(source_age_s)

    def config(self, good: bool) -> None:
        """Whether the configuration file is the one in use."""
        self._config_ok.set(1 if good else 0)

    def bypass(self, kind: str) -> None:
        """A request would have slipped past the gate and was caught."""
        self._bypass.labels(kind).inc()

    def journal(self, pending: int, lost: int = 0, reported: int = 0) -> None:
        """What became of unchecked requests: how many wait, how many more were lost or reported."""
        self._journal_pending.set(pending)
        if lost:
            self._journal_lost.inc(lost)
        if reported:
            self._reported.inc(reported)


class NoMetrics(GateMetrics):
    """Counts nothing, where no counters can be made."""

    def __init__(self) -> None:
        pass

    def checked(self, checked: Checked) -> None:
        pass

    def pool(self, pool: Pool) -> None:
        pass

    def ejected(self, url: str) -> None:
        pass

    def health(self, active: bool, source_age_s: float) -> None:
        pass

    def config(self, good: bool) -> None:
        pass

    def bypass(self, kind: str) -> None:
        pass

    def journal(self, pending: int, lost: int = 0, reported: int = 0) -> None:
        pass
