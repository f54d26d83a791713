# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The gate put together: source -> pool -> ask -> verdict, and what is done when there is none."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from .ask import Asked, Asker
from .cache import LastVerdicts
from .channel import Channels
from .config import DnsEndpoints, GateConfig, OnFailure, StaticEndpoints
from .endpoint import Endpoint
from .groups import Capped
from .lag import LagMeter
from .metrics import GateMetrics
from .outcome import Checked, Outcome
from .pool import Pool
from .source_dns import DnsSource
from .source_kubernetes import KubernetesSource
from .source_static import FixedSource
from .sources import EndpointSource
from .verdict import Cause, Fault, Question, Verdict

LOG = logging.getLogger("gb10.usage_gate")

#: Seconds between two updates of the gauges.
HOUSEKEEPING_S = 1.0
#: Seconds before background work that failed is begun again.
AGAIN_S = 10.0


def make_source(config: GateConfig) -> EndpointSource:
    """The source a configuration asks for."""
    source = config.source
    if isinstance(source, StaticEndpoints):
        return FixedSource(source.endpoints)
    return DnsSource(source) if isinstance(source, DnsEndpoints) else KubernetesSource(source)


class Gate:
    """One configuration at work in one event loop. Made outside a loop or in it; ``start`` needs the loop."""

    def __init__(
        self,
        config: GateConfig,
        metrics: GateMetrics | None = None,
        use_cache: bool = True,
        source: EndpointSource | None = None,
    ) -> None:
        self.config = config
        self.pool = Pool(config.ejection, config.limits.hedge_after_s, random.Random())
        self.channels = Channels(config.request, config.limits.connect_s)
        self._lag = LagMeter()
        self.asker = Asker(self.pool, config.limits, self.channels.send, self._lag)
        self.pool.on_ejected = self._on_ejected
        self._cache = LastVerdicts(config.verdict_cache) if use_cache else None
        self._metrics = metrics
        self._source = source or make_source(config)
        self._capped = Capped(config.capped_models)
        self._failure = Outcome.FAILED_OPEN if config.on_failure is OnFailure.OPEN else Outcome.FAILED_CLOSED
        self._tasks: list[asyncio.Task[None]] = []
        self._first_list = asyncio.Event()
        self._first_answer = asyncio.Event()  # a list, or the source's first failure
        self._heard_at_s: float | None = None
        self.complaint: str | None = None

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to follow the source, to probe and to watch the loop."""
        if self._heard_at_s is None:
            self._heard_at_s = asyncio.get_running_loop().time()
        for work in (lambda: self._source.run(self), self.asker.run_probes, self._lag.run, self._keep_house):
            self._tasks.append(asyncio.get_running_loop().create_task(self._forever(work)))

    def inherit(self, other: Gate) -> None:
        """Take over what the gate before this one knows, so that a configuration changed in an outage, of the API or of the
        source, opens nothing: the last verdicts and, where the source is the same, its last list."""
        if self._cache is not None and other._cache is not None:
            self._cache.inherit(other._cache)
        if other.config.source == self.config.source and other.pool.members:
            self.pool.replace([member.endpoint for member in other.pool.members])
            self._heard_at_s, self.complaint = other._heard_at_s, other.complaint
            self._first_list.set()
            self._first_answer.set()

    async def stop(self) -> None:
        """End the background work and close the connections, once what is under way has ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.asker.drain()
        self.channels.close()

    async def first_list(self, wait_s: float) -> bool:
        """Whether the source has given a list, waiting at most so long for its first."""
        try:
            async with asyncio.timeout(wait_s):
                await self._first_list.wait()
        except TimeoutError:
            return False
        return True

    async def _wait_for_first_answer(self) -> None:
        """While the source has not said anything yet, at most the budget. Once it has failed nobody waits for it: an
        outage of the source must not cost every request a second [measured]."""
        try:
            async with asyncio.timeout(self.config.limits.budget_s):
                await self._first_answer.wait()
        except TimeoutError:
            pass

    async def _forever(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await work()
            except Exception:  # a list that is never read again, or a probe never sent, would show only in an outage
                LOG.exception("usage gate: background work failed and is begun again; please report this")
            await asyncio.sleep(AGAIN_S)

    async def _keep_house(self) -> None:
        while True:
            if self._metrics is not None:
                self._metrics.pool(self.pool)
                self._metrics.health(bool(self.pool.members), self.source_age_s())
            await asyncio.sleep(HOUSEKEEPING_S)

    def source_age_s(self) -> float:
        """Seconds since the source was last heard."""
        now_s = asyncio.get_running_loop().time()
        return now_s - (now_s if self._heard_at_s is None else self._heard_at_s)

    # -- what the source says ------------------------------------------------------------------------------------

    def publish(self, endpoints: list[Endpoint]) -> None:
        """A list from the source; an empty one is not taken over."""
        if not endpoints:
            self.failed("the source of endpoints has none")
            return
        self.heard()
        known = {member.endpoint.url: member.endpoint.address for member in self.pool.members}
        # A name that cannot be resolved now is where it was, as far as anybody knows.
        endpoints = [replace(one, address=known.get(one.url, "")) if one.address == "" else one for one in endpoints]
        before = set(known)
        self.pool.replace(endpoints)
        after = {endpoint.url for endpoint in endpoints}
        if before != after:
            LOG.info("usage gate: %d endpoints: %s", len(after), ", ".join(sorted(after)[:10]))
            self.channels.keep_only(after)
            if self._metrics is not None:
                self._metrics.pool(self.pool)
        self._first_list.set()
        self._first_answer.set()

    def heard(self) -> None:
        """The source is alive."""
        self._heard_at_s = asyncio.get_running_loop().time()
        if self.complaint is not None:
            LOG.info("usage gate: the source of endpoints is back")
            self.complaint = None

    def failed(self, sentence: str) -> None:
        """The source is not; said once, until that changes."""
        kept = "the last list stays in use" if self.pool.members else "there is no list yet, so nobody can be asked"
        sentence = f"{sentence}; {kept}"
        self._first_answer.set()
        if sentence != self.complaint:
            LOG.warning("usage gate: %s", sentence)
            self.complaint = sentence

    def _on_ejected(self, endpoint: Endpoint, fault: Fault) -> None:
        LOG.warning("usage gate: leaving out %s: %s", endpoint.url, fault.detail)
        # Its kept connections lead to a machine that may be gone; after its return they would cost a time-out each.
        self.channels.reset(endpoint)
        if self._metrics is not None:
            self._metrics.ejected(endpoint.url)

    # -- checks --------------------------------------------------------------------------------------------------

    def is_capped(self, model: str) -> bool:
        """Whether this very name is on the list."""
        return model in self._capped

    async def check(self, question: Question) -> Checked:
        """What to do with a request. Never raises for what the network, the API or the gate itself does wrong."""
        if question.model not in self._capped:
            checked = Checked(Outcome.NOT_CAPPED)
        else:
            # Not the loop's clock: uvloop, which LiteLLM runs on, has one of whole milliseconds.
            began_s = time.monotonic()
            try:
                if not self.pool.members:
                    await self._wait_for_first_answer()
                asked = await self.asker.ask(question, spent_s=time.monotonic() - began_s)
                checked = self._settle(question, asked, time.monotonic() - began_s)
            except Exception as error:  # the gate's own fault must neither refuse a request nor be silent
                LOG.exception("usage gate: a fault of its own")
                name, took_s = type(error).__name__, time.monotonic() - began_s
                checked = Checked(self._failure, None, Cause.INTERNAL, name, took_s=took_s)
        if self._metrics is not None:
            self._metrics.checked(checked)
        return checked

    def _settle(self, question: Question, asked: Asked, took_s: float) -> Checked:
        now_s = time.monotonic()
        result = asked.result
        if isinstance(result, Verdict):
            if self._cache is not None:
                self._cache.learn(question, result, now_s)
            outcome = Outcome.ALLOWED if result.allowed else Outcome.DENIED
            return Checked(outcome, result, None, None, asked.retries, asked.hedges, took_s)
        known = self._cache.recall(question, now_s) if self._cache is not None else None
        if known is not None:
            outcome = Outcome.CACHED_ALLOWED if known.allowed else Outcome.CACHED_DENIED
            return Checked(outcome, known, result.cause, result.detail, asked.retries, asked.hedges, took_s)
        return Checked(self._failure, None, result.cause, result.detail, asked.retries, asked.hedges, took_s)
