# Copyright (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A true step counter on vLLM's own /metrics page.

vLLM calls every stat logger after every engine step, and loads further ones from the entry points of the group
``vllm.stat_logger_plugins`` (since 0.11.1). This one counts, per engine:

``llm_engine_steps_total``                     completed steps, prefill chunks and steps without an output included
``llm_engine_last_step_timestamp_seconds``     when the last one was completed
``llm_engine_step_seconds``                    histogram of the time between steps while there was work
``llm_heartbeat_info{version}``                1; 0 once it has disabled itself: then nothing of it may be believed

It must never harm the server: whatever goes wrong in here, it says so in one line, takes itself off the page and is silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mmap
import os
import time
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from vllm.v1.metrics.loggers import StatLoggerBase

__version__ = "1.0.0"

# vLLM unregisters whatever begins with "vllm:", so none of these does.
STEPS = ("llm_engine_steps", "Completed engine steps, those without an output included.")
LAST_STEP = ("llm_engine_last_step_timestamp_seconds", "When the last engine step was completed (Unix time).")
STEP_SECONDS = ("llm_engine_step_seconds", "Time between completed engine steps while there was work in flight.")
INFO = ("llm_heartbeat_info", "1 while the heartbeat of gb10.serving beats, 0 after it disabled itself.")

# A checker reads the longest step off the highest bucket in use: fine from 30 s on, where it decides about patience
# (4 x 45 s = 180 s), coarse below, where every healthy decode step lives.
BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 1200.0)  # fmt: skip

# Set by vLLM when it has several API servers (or by the user): the page is put together from files in that folder.
MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"

# A scrape is seconds apart; a reader never sees a step later than this.
FLUSH_S = 0.5

# Below "vllm", so that vLLM's own handlers print it.
logger = logging.getLogger("vllm.gb10_heartbeat")


class PageTally:
    """The numbers of one engine, put on the page only when it is read: a step costs next to nothing."""

    def __init__(self) -> None:
        self.since: Any = [0.0]
        self.steps = 0
        self.last = 0.0
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total_s = 0.0

    def beat(self, seconds: float | None) -> None:
        self.steps += 1
        self.last = time.time()
        if seconds is not None:
            self.counts[bisect_left(BUCKETS, seconds)] += 1
            self.total_s += seconds


class PageSink:
    """One API server: a collector that reads the tallies when the page is asked for."""

    def __init__(self) -> None:
        self.tallies: dict[str, PageTally] = {}
        REGISTRY.register(self)  # type: ignore[arg-type]

    def tally(self, engine: str) -> PageTally:
        return self.tallies.setdefault(engine, PageTally())

    def withdraw(self) -> None:
        self.tallies.clear()

    def collect(self) -> Iterator[Metric]:
        try:
            found = [] if _process.off else self._families()
        except Exception as error:  # raising here would cost the operator the whole page
            _process.give_up(error)
            found = []
        info = GaugeMetricFamily(*INFO, labels=["version"])
        info.add_metric([__version__], 0.0 if _process.off else 1.0)
        yield info
        yield from found

    def _families(self) -> list[Metric]:
        steps = CounterMetricFamily(*STEPS, labels=["engine"])
        last = GaugeMetricFamily(*LAST_STEP, labels=["engine"])
        histogram = HistogramMetricFamily(*STEP_SECONDS, labels=["engine"])
        for engine, tally in list(self.tallies.items()):
            steps.add_metric([engine], tally.steps)
            if tally.last:
                last.add_metric([engine], tally.last)
            below, buckets = 0, []
            for bound, count in zip([*BUCKETS, "+Inf"], list(tally.counts), strict=True):
                below += count
                buckets.append((str(bound), float(below)))
            histogram.add_metric([engine], buckets, tally.total_s)
        return [steps, last, histogram]


class SharedTally(PageTally):
    """The numbers of one engine where several API servers each see a share of its steps.

    Each value of prometheus_client's is a lock and a write to a file, 1 µs: too much for five of them a step. So the steps
    are tallied here too, and what came together is written by the server's own event loop, FLUSH_S after the first of it.
    """

    def __init__(self, engine: str, folder: str, steps: Counter, last: Gauge, histogram: Histogram) -> None:
        super().__init__()
        self._engine = engine
        self._steps, self._histogram = steps.labels(engine), histogram.labels(engine)
        self._gauge = last
        self._last: Gauge | None = None
        self._due = False
        # A histogram takes one value at a time; only its parts take many. Where a release has no such parts: one at a time.
        parts = getattr(self._histogram, "_buckets", None), getattr(self._histogram, "_sum", None)
        self._parts: Any = parts if parts[0] and parts[1] and len(parts[0]) == len(self.counts) else None
        # One number for all of them: the time since "my own" last step would take the others' steps for one long step.
        # The collector of prometheus_client reads *.db only.
        file = os.open(os.path.join(folder, f"gb10_heartbeat_{engine}.since"), os.O_RDWR | os.O_CREAT, 0o600)  # noqa: PTH118
        try:
            os.ftruncate(file, 8)
            self.since = memoryview(mmap.mmap(file, 8)).cast("d")
        finally:
            os.close(file)
        self.since[0] = 0.0  # a folder set by the user may be older than this server

    def beat(self, seconds: float | None) -> None:
        if seconds is not None:
            seconds = max(seconds, 0.0)  # two API servers may take up two steps in the wrong order
            if self._parts is None:
                self._histogram.observe(seconds)
        super().beat(seconds)
        if self._due:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # nobody to do it later
            self._write()
        else:
            self._due = True
            loop.call_later(FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._due = False
        try:
            if not _process.off:
                self._write()
        except Exception as error:  # the loop is the server's
            _process.give_up(error)

    def _write(self) -> None:
        self._steps.inc(self.steps)
        if self._last is None:  # made with the first step: a sample of 0.0 would read as a silence of fifty years
            self._last = self._gauge.labels(self._engine)
        self._last.set(self.last)
        if self._parts is not None:
            buckets, total = self._parts
            for bucket, count in zip(buckets, self.counts, strict=True):
                if count:
                    bucket.inc(count)
            total.inc(self.total_s)
        self.steps, self.counts, self.total_s = 0, [0] * len(self.counts), 0.0


class SharedSink:
    """Several API servers: prometheus_client's own metrics, which write to files that each of them reads."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._steps = Counter(*STEPS, ["engine"], registry=None)
        # The latest of all processes; a value left by a process that ended is older than any new one.
        self._last = Gauge(*LAST_STEP, ["engine"], registry=None, multiprocess_mode="max")
        self._histogram = Histogram(*STEP_SECONDS, ["engine"], registry=None, buckets=BUCKETS)
        # One process that disabled itself makes the sums worthless, so it must show through the others' 1.
        self._info = Gauge(*INFO, ["version"], registry=None, multiprocess_mode="min").labels(__version__)
        self._info.set(1)
        self._tallies: dict[str, SharedTally] = {}

    def tally(self, engine: str) -> SharedTally:
        if engine not in self._tallies:
            self._tallies[engine] = SharedTally(engine, self._folder, self._steps, self._last, self._histogram)
        return self._tallies[engine]

    def withdraw(self) -> None:
        self._info.set(0)


class Process:
    """What is one for all engines of this process: where the numbers go, and whether we still count."""

    def __init__(self) -> None:
        self.off = False
        self._sink: PageSink | SharedSink | None = None

    def tally(self, engine: str) -> PageTally | SharedTally:
        if self._sink is None:
            folder = os.environ.get(MULTIPROCESS)
            self._sink = SharedSink(folder) if folder else PageSink()
        return self._sink.tally(engine)

    def give_up(self, error: Exception) -> None:
        if self.off:
            return
        self.off = True
        # Nothing may come out of this, or it would be the harm it is there to prevent.
        with contextlib.suppress(Exception):
            logger.warning("gb10_heartbeat %s disabled itself, the server is not affected: %r", __version__, error)
        with contextlib.suppress(Exception):
            if self._sink is not None:
                self._sink.withdraw()


_process = Process()


class Heartbeat(StatLoggerBase):
    """One for each engine. Takes whatever arguments come: their number and names have changed between releases."""

    def __init__(self, vllm_config: object = None, engine_index: int = 0, *_: object, **__: object) -> None:
        try:
            self._tally = _process.tally(str(engine_index))
        except Exception as error:
            _process.give_up(error)

    def record(
        self,
        scheduler_stats: Any = None,
        iteration_stats: Any = None,
        mm_cache_stats: object = None,
        engine_idx: int = 0,
        *_: object,
        **__: object,
    ) -> None:
        # Of the messages about one step exactly one carries the scheduler's numbers, however many API servers there are.
        if scheduler_stats is None or _process.off:
            return
        try:
            self._step(scheduler_stats, iteration_stats, time.monotonic())
        except Exception as error:
            _process.give_up(error)

    def log_engine_initialized(self) -> None:
        pass

    def _step(self, scheduler: Any, iteration: Any, now: float) -> None:
        since = self._tally.since
        running = scheduler.num_running_reqs
        work = running or scheduler.num_waiting_reqs or getattr(scheduler, "num_skipped_waiting_reqs", 0)
        if not running and iteration is None:
            # Nothing ran and nobody got anything: the scheduler only turned over, which it does a thousand times a second
            # while it cannot place what is waiting. That is a stall, and must not look like progress.
            if not work:
                since[0] = 0.0
            elif not since[0]:
                since[0] = now
            return
        seconds = now - since[0] if since[0] else None
        if iteration is not None and (waited := getattr(iteration, "time_to_first_tokens_iter", None)):
            seconds = no_longer_than(waited, seconds)
        self._tally.beat(seconds)
        since[0] = now if work else 0.0


# Should a later release add an abstract method, the class must still be one that can be made: the inherited body will do.
Heartbeat.__abstractmethods__ = frozenset()


def no_longer_than(waited: list[float], seconds: float | None) -> float | None:
    """A step took no longer than anybody waited whose first token it gave.

    That measures the first step after an idle spell, and cuts off the idle spell where a mass abort left the scheduler's
    numbers saying "running".
    """
    for one in waited:
        if one > 0 and (seconds is None or one < seconds):  # differences of the wall clock: below 0 after it was set
            seconds = one
    return seconds
