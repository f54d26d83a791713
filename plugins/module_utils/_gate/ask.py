# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Putting one question: to one endpoint, to another when that fails or is late, never past the deadline.

The rules, in the order in which a request meets them:
1. One deadline (``budget_s``) over everything.
2. Each try has ``attempt_s``. A try that fails fast is followed at once by one of an endpoint not yet tried for this
   request; with none left it ends. ``retries`` bounds what may be repeated at a price: tries that ate their whole time
   and questions refused by an endpoint. Fast failures are bounded by exclusion and ejection.
3. A try unanswered for ``hedge_after_s`` gets the help of one other endpoint, if the bucket allows and it is not the
   API as a whole that is slow. The loser runs on, unawaited, so that its failure counts.
4. When all endpoints are out, the least recently failed are tried anyway, each by one request at a time, and nobody
   waits longer for that than a good answer takes.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from .bucket import HedgeBucket
from .config import Limits
from .endpoint import Endpoint
from .lag import NOISE_S, LagMeter
from .pool import Pool, Ticket
from .verdict import Blame, Cause, Fault, Question, Verdict

#: Asks one endpoint once. Must not raise; is cancelled when its time is up.
Send = Callable[[Endpoint, Question, float], Awaitable[Verdict | Fault]]

#: Endpoints tried at a time when all are out: enough to find the one that was ejected for a single reset beside two
#: dead ones, few enough that a total outage of a large fleet costs three connects, not three hundred.
LAST_RESORTS = 3
#: Seconds. With less than this left of the budget another try could not be answered.
MIN_TRY_S = 0.002
#: Seconds granted once where our own loop overslept: two turns of a loop that is busy, far below any limit.
GRACE_S = 0.02
#: Share of attempt_s a try must have had for its time-out to count against the endpoint: with the default sums
#: (0.5 s twice in 1 s) the second try has always lost a millisecond.
FAIR_SHARE = 0.9


@dataclass
class Asked:
    """How one question went. ``result`` is the last fault when no verdict was to be had."""

    result: Verdict | Fault
    retries: int = 0
    hedges: int = 0


@dataclass
class _Ask:
    """The memory of one question while it is being put."""

    question: Question
    deadline_s: float
    tried: set[str] = field(default_factory=set)
    tasks: dict[asyncio.Task[Verdict | Fault], bool] = field(default_factory=dict)  # task -> whether it is a hedge
    hedge_at_s: float = float("inf")
    timeouts: int = 0
    refusals: int = 0
    retries: int = 0
    hedges: int = 0
    graced: bool = False  # whether our own oversleeping was made up for
    fault: Fault | None = None

    def done(self, result: Verdict | Fault) -> Asked:
        return Asked(result, self.retries, self.hedges)


def _expire(limit: asyncio.Timeout, due_s: float) -> None:
    """Ends a try whose time is up; a little later where we overslept, so that an answer that lies unread counts. (Some
    event loops look at their timers before their sockets.)"""
    now_s = asyncio.get_running_loop().time()
    if not limit.expired():
        limit.reschedule(now_s + GRACE_S if now_s - due_s > NOISE_S else now_s)


class Asker:
    """Puts questions to the endpoints of a pool. All times are the running event loop's."""

    def __init__(
        self,
        pool: Pool,
        limits: Limits,
        send: Send,
        lag: LagMeter | None = None,
    ) -> None:
        self.pool = pool
        self.limits = limits
        self.last_question: Question | None = None  # what probes ask: the latest that got a verdict, else the latest
        self._last_got_verdict = False
        self._bucket = HedgeBucket(limits.hedge_share, limits.hedge_burst)
        self._send = send
        self._lag = lag or LagMeter()
        self._running: set[asyncio.Task[Verdict | Fault]] = set()
        self._trials: dict[str, tuple[asyncio.Task[Verdict | Fault], float]] = {}
        self._wake = asyncio.Event()

    async def ask(self, question: Question, spent_s: float = 0.0) -> Asked:
        """A verdict, or why there is none, within ``budget_s``, of which ``spent_s`` have gone already."""
        loop = asyncio.get_running_loop()
        ask = _Ask(question, loop.time() + self.limits.budget_s - spent_s)
        self._bucket.add()
        if not self._last_got_verdict:
            self.last_question = question
        if not self.pool.members:
            return ask.done(Fault(Cause.NO_ENDPOINTS, Blame.NOBODY, "the source of endpoints has not given any yet"))
        if not self._try_next(ask):
            return await self._last_resort(ask)
        while True:
            wake_s = min(ask.hedge_at_s, ask.deadline_s)
            done, dummy = await asyncio.wait(
                ask.tasks, timeout=max(0.0, wake_s - loop.time()), return_when=asyncio.FIRST_COMPLETED
            )
            if verdict := self._take(ask, done):
                return ask.done(verdict)
            late_s = loop.time() - wake_s
            if not done and late_s > NOISE_S and not ask.graced:
                # We overslept: what came in time may lie unread. Look once more before giving up or asking elsewhere.
                ask.graced = True
                if ask.hedge_at_s <= loop.time():
                    ask.hedge_at_s = loop.time() + GRACE_S
                ask.deadline_s = max(ask.deadline_s, loop.time() + GRACE_S)
                continue
            if loop.time() >= ask.deadline_s:
                return ask.done(ask.fault or Fault(Cause.TIMEOUT, Blame.NOBODY, "no verdict within budget_s"))
            if not done:
                self._hedge(ask)
            elif not self._go_on(ask):
                return ask.done(ask.fault or Fault(Cause.INTERNAL, Blame.NOBODY, "no try left"))
            elif not ask.tasks:
                return await self._last_resort(ask)

    def _take(self, ask: _Ask, done: set[asyncio.Task[Verdict | Fault]]) -> Verdict | None:
        """Books what has ended; a verdict among it."""
        found = None
        for task in done:
            hedge = ask.tasks.pop(task)
            result = task.result()
            if isinstance(result, Verdict):
                found = result
                continue
            ask.fault = result
            ask.timeouts += result.cause is Cause.TIMEOUT and not hedge
            ask.refusals += result.blame is Blame.NOBODY
        return found

    def _go_on(self, ask: _Ask) -> bool:
        """After a failure: another try at once, where there may be one. False: the question has ended."""
        limits = self.limits
        if ask.timeouts > limits.retries or ask.refusals > limits.retries:
            return False
        if limits.retries == 0:
            return bool(ask.tasks)
        if ask.deadline_s - asyncio.get_running_loop().time() < MIN_TRY_S:
            return bool(ask.tasks)
        if self._try_next(ask):
            ask.retries += 1
        return True

    def _try_next(self, ask: _Ask, hedge: bool = False) -> bool:
        now_s = asyncio.get_running_loop().time()
        endpoint = self.pool.choose(ask.tried, now_s)
        if endpoint is None:
            return False
        ask.tried.add(endpoint.url)
        limit_s = min(self.limits.attempt_s, ask.deadline_s - now_s)
        ask.tasks[self._launch(endpoint, ask.question, limit_s)] = hedge
        ask.hedge_at_s = float("inf") if hedge else now_s + self.limits.hedge_after_s
        return True

    def _hedge(self, ask: _Ask) -> None:
        ask.hedge_at_s = float("inf")
        if self.pool.mostly_slow() or len(ask.tried) >= len(self.pool.members) or not self._bucket.take():
            return
        if self._try_next(ask, hedge=True):
            ask.hedges += 1

    # -- all are out ---------------------------------------------------------------------------------------------

    async def _last_resort(self, ask: _Ask) -> Asked:
        """Tries the least recently failed anyway; a total outage costs the price of one good answer at most."""
        loop = asyncio.get_running_loop()
        ours: set[asyncio.Task[Verdict | Fault]] = set()
        waiting: dict[asyncio.Task[Verdict | Fault], float] = {}
        looked_at = set(ask.tried)
        for dummy_try in range(LAST_RESORTS if self.limits.retries else 1):
            endpoint = self.pool.least_recently_failed(looked_at)
            if endpoint is None:
                break
            looked_at.add(endpoint.url)
            patience_s = self.limits.hedge_after_s + self.pool.latency_s(endpoint.url)
            task, began_s = self._trials.get(endpoint.url, (None, 0.0))
            if task is None or task.done():
                ask.retries += bool(ask.tried)
                ask.tried.add(endpoint.url)
                limit_s = min(self.limits.attempt_s, ask.deadline_s - loop.time())
                task, began_s = self._launch(endpoint, ask.question, limit_s, probe=True), loop.time()
                self._trials[endpoint.url] = (task, began_s)
                ours.add(task)
            waiting[task] = min(began_s + patience_s, ask.deadline_s)
        while waiting:
            until_s = max(waiting.values())
            done, dummy = await asyncio.wait(
                waiting, timeout=max(0.0, until_s - loop.time()), return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break
            for task in done:
                del waiting[task]
                result = task.result()
                if isinstance(result, Fault):
                    ask.fault = result
                elif task in ours:
                    return ask.done(result)
                else:
                    # Somebody else's try brought this endpoint back: ask it our own question.
                    return await self._ask_returned(ask)
        return ask.done(
            ask.fault or self.pool.last_fault or Fault(Cause.TIMEOUT, Blame.NOBODY, "all endpoints are out")
        )

    async def _ask_returned(self, ask: _Ask) -> Asked:
        loop = asyncio.get_running_loop()
        endpoint = self.pool.choose(ask.tried, loop.time())
        left_s = ask.deadline_s - loop.time()
        if endpoint is None or left_s < MIN_TRY_S:
            return ask.done(ask.fault or Fault(Cause.TIMEOUT, Blame.NOBODY, "all endpoints are out"))
        ask.retries += bool(ask.tried)
        ask.tried.add(endpoint.url)
        task = self._launch(endpoint, ask.question, min(self.limits.attempt_s, left_s))
        await asyncio.wait((task,), timeout=left_s)
        return ask.done(
            task.result() if task.done() else Fault(Cause.TIMEOUT, Blame.NOBODY, "no verdict within budget_s")
        )

    # -- one try -------------------------------------------------------------------------------------------------

    def _launch(
        self, endpoint: Endpoint, question: Question, limit_s: float, probe: bool = False
    ) -> asyncio.Task[Verdict | Fault]:
        ticket = self.pool.begin(endpoint, asyncio.get_running_loop().time(), probe)
        task = asyncio.get_running_loop().create_task(self._try(ticket, question, limit_s))
        self._running.add(task)  # a task nobody holds may be collected before it ends
        task.add_done_callback(self._running.discard)
        return task

    async def _try(self, ticket: Ticket, question: Question, limit_s: float) -> Verdict | Fault:
        loop = asyncio.get_running_loop()
        result: Verdict | Fault
        try:
            async with asyncio.timeout(None) as limit:
                timer = loop.call_later(limit_s, _expire, limit, loop.time() + limit_s)
                try:
                    result = await self._send(ticket.endpoint, question, limit_s)
                finally:
                    timer.cancel()
        except TimeoutError:
            result = Fault(Cause.TIMEOUT, Blame.CONNECTION, f"no whole answer within {limit_s:.3g} s")
        except asyncio.CancelledError:
            self.pool.abandon(ticket)
            raise
        except Exception as error:  # a fault of ours must not look like the endpoint's, nor escape
            result = Fault(Cause.INTERNAL, Blame.NOBODY, f"{type(error).__name__} while asking")
        now_s = loop.time()
        late = isinstance(result, Fault) and result.cause is Cause.TIMEOUT and self._excused(ticket, limit_s, now_s)
        if isinstance(result, Verdict):
            self.last_question, self._last_got_verdict = question, True
        self.pool.end(ticket, result, now_s, excused=late)
        if self.pool.next_probe_s() is not None:
            self._wake.set()
        return result

    def _excused(self, ticket: Ticket, limit_s: float, now_s: float) -> bool:
        # A try cut short by the deadline had less time than an endpoint may take.
        if limit_s < FAIR_SHARE * self.limits.attempt_s:
            return True
        return self._lag.excuses(ticket.began_s, now_s)

    # -- background ----------------------------------------------------------------------------------------------

    async def run_probes(self) -> None:
        """Asks endpoints that are out, when their cool-down ends, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            next_s = self.pool.next_probe_s()
            self._wake.clear()
            try:
                async with asyncio.timeout(None if next_s is None else max(0.0, next_s - loop.time())):
                    await self._wake.wait()
            except TimeoutError:
                pass
            question = self.last_question
            if question is None:
                continue  # nothing was ever asked, so nothing can be out
            for endpoint in self.pool.due_probes(loop.time()):
                task = self._launch(endpoint, question, self.limits.attempt_s, probe=True)
                task.add_done_callback(functools.partial(self._probed, endpoint))

    def _probed(self, endpoint: Endpoint, _task: asyncio.Task[Verdict | Fault]) -> None:
        self.pool.probe_ended(endpoint, asyncio.get_event_loop().time())
        self._wake.set()

    async def drain(self) -> None:
        """Waits for tries under way, such as losing hedges; each ends by itself within ``attempt_s``."""
        while self._running:
            await asyncio.wait(self._running)
