# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which endpoint to ask, and which to leave out. Pure: time and chance are arguments, nothing here waits or connects.

Invariants:
- at most n-1 of n endpoints are ejected; the last one is marked failing instead and still tried (see ``all_out``);
- an ejected endpoint comes back only by ``end`` of a probe (or of a last-resort try) that got a verdict;
- an attempt that began before an endpoint came back cannot eject it again.

An endpoint that failed, but not often enough to be ejected, is in doubt: others are preferred to it and probes settle it
at once, so that the failures that are still to be counted are no client's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from .config import Ejection
from .endpoint import Endpoint
from .verdict import Blame, Fault, Verdict

#: Weight of the newest answer in an endpoint's latency. One 300 ms answer after many of 20 ms makes 104 ms: told at
#: once; one of 100 ms makes 44 ms: not yet.
LATENCY_WEIGHT = 0.3
#: Random draws before every endpoint is looked at: with most of 300 healthy, choosing costs the same as with 3.
QUICK_DRAWS = 6
#: Excused time-outs in a row, beside as many verdicts of others, after which lateness is no excuse any more.
MAX_EXCUSED = 3
#: Cool-downs are spread by this share both ways, so that the workers of a proxy do not probe in step.
JITTER = 0.2
#: Seconds until the next probe of an endpoint in doubt, where the last one neither failed nor got a verdict.
CONFIRM_S = 0.25


class State(StrEnum):
    """The values of the ``state`` label."""

    READY = "ready"  # asked as usual
    SLOW = "slow"  # answers, but later than a hedge would: asked only while most others are slow too
    FAILING = "failing"  # failed, but is the last one left: tried by one request at a time
    EJECTED = "ejected"  # left out until a probe gets a verdict


@dataclass
class Member:
    """What the pool knows of one endpoint."""

    endpoint: Endpoint
    ejected: bool = False
    failing: bool = False
    errors: int = 0  # connection faults in a row
    bad_answers: int = 0  # useless answers in a row
    excused: int = 0  # time-outs in a row that our own lateness excused
    verdicts_seen: int = 0  # how many verdicts the pool had got at this endpoint's last one
    failed_at_s: float = float("-inf")
    fault: Fault | None = None
    cooldown_s: float = 0.0
    probe_at_s: float = 0.0
    probing: bool = False
    back_at_s: float = float("-inf")
    epoch: int = 0  # another one at each return; tells attempts of an earlier life
    latency_s: float | None = None
    pending: dict[int, float] = field(default_factory=dict)  # ticket -> start, oldest first

    @property
    def out(self) -> bool:
        return self.ejected or self.failing

    @property
    def busy(self) -> tuple[int, float]:
        """Compares less where fewer attempts are under way, and of as many, where the oldest waits less long."""
        return len(self.pending), -next(iter(self.pending.values()), 0.0)


@dataclass(frozen=True)
class Ticket:
    """One attempt under way."""

    number: int
    endpoint: Endpoint
    epoch: int
    began_s: float
    probe: bool


class Pool:
    """The endpoints and their health, as seen by this process."""

    def __init__(self, ejection: Ejection, slow_after_s: float, rng: random.Random) -> None:
        self.ejection = ejection
        self.slow_after_s = slow_after_s
        self.ejections: dict[str, int] = {}  # url -> times ejected
        self.last_fault: Fault | None = None
        self.on_ejected: Callable[[Endpoint, Fault], None] | None = None
        self._rng = rng
        self._members: dict[str, Member] = {}
        self._order: list[Member] = []
        self._tickets = 0
        self._epochs = 0
        self._verdicts = 0

    # -- the list ------------------------------------------------------------------------------------------------

    def replace(self, endpoints: Iterable[Endpoint]) -> None:
        """Take over a new list; endpoints that stay keep their state. An empty list is refused: keep the last one."""
        wanted = {endpoint.url: endpoint for endpoint in endpoints}
        if not wanted:
            raise ValueError("an empty list of endpoints is never taken over")
        members = {}
        for url, endpoint in wanted.items():
            # One that left the list and is back is another life too.
            member = self._members.get(url) or Member(endpoint, epoch=self._next_epoch())
            member.endpoint = endpoint
            members[url] = member
        self._members = members
        self._order = list(members.values())
        if all(member.ejected for member in self._order):
            # The healthy ones left the list: the invariant outlives that.
            spared = min(self._order, key=lambda member: member.failed_at_s)
            spared.ejected, spared.failing = False, True
        else:
            self._eject_failing()

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(self._order)

    def state(self, member: Member) -> State:
        if member.ejected:
            return State.EJECTED
        if member.failing:
            return State.FAILING
        return State.SLOW if self._slow(member) else State.READY

    def states(self) -> dict[State, int]:
        """How many endpoints are in each state; every state is there."""
        counts = dict.fromkeys(State, 0)
        for member in self._order:
            counts[self.state(member)] += 1
        return counts

    def _next_epoch(self) -> int:
        self._epochs += 1
        return self._epochs

    # -- choosing ------------------------------------------------------------------------------------------------

    def choose(self, tried: Collection[str], now_s: float) -> Endpoint | None:
        """An endpoint this request has not tried: idle ones first, then quick ones, then any that is not out; None when
        none is left."""
        order = self._order
        if not order:
            return None
        busy: Member | None = None
        for dummy in range(QUICK_DRAWS):
            member = order[int(self._rng.random() * len(order))]
            if member.endpoint.url in tried or member.out or self._avoided(member, now_s):
                continue
            # One that has not answered yet may have just died: the next question goes elsewhere before anybody can know.
            if not member.pending:
                return member.endpoint
            if busy is None or member.busy < busy.busy:
                busy = member
        if busy is not None:
            return busy.endpoint
        usable = [member for member in order if not member.out and member.endpoint.url not in tried]
        if not usable:
            return None
        quick = [member for member in usable if not self._avoided(member, now_s)]
        # While over half are slow it is the API that is slow: sending everything to the rest would fell them too.
        if quick and not self.mostly_slow():
            return self._rng.choice(quick).endpoint
        prompt = [member for member in usable if not self._overdue(member, now_s)]
        return self._rng.choice(prompt or usable).endpoint

    def least_recently_failed(self, tried: Collection[str]) -> Endpoint | None:
        """The endpoint to try anyway when all are out; None when this request has tried them all."""
        left = [member for member in self._order if member.endpoint.url not in tried]
        return min(left, key=lambda member: member.failed_at_s).endpoint if left else None

    def all_out(self) -> bool:
        """Whether no endpoint is believed to answer."""
        return all(member.out for member in self._order)

    def mostly_slow(self) -> bool:
        """Whether over half of the endpoints that answer do so slowly: then hedges only add load."""
        answering = [member for member in self._order if not member.out]
        return 2 * sum(self._slow(member) for member in answering) > len(answering)

    def latency_s(self, url: str) -> float:
        """How long this endpoint's answers took lately; 0 when none is known."""
        member = self._members.get(url)
        return (member.latency_s if member else None) or 0.0

    def _slow(self, member: Member) -> bool:
        return member.latency_s is not None and member.latency_s > self.slow_after_s

    def _overdue(self, member: Member, now_s: float) -> bool:
        """Whether an attempt has been waiting for longer than a good answer takes: the first sign of a dead node."""
        for began_s in member.pending.values():
            return now_s - began_s > self.slow_after_s
        return False

    def _doubted(self, member: Member) -> bool:
        """Whether it failed lately, but not yet often enough to be ejected."""
        return 0 < member.errors < self.ejection.after_errors or 0 < member.bad_answers < self.ejection.after_5xx

    def _avoided(self, member: Member, now_s: float) -> bool:
        return self._doubted(member) or self._slow(member) or self._overdue(member, now_s)

    def _watched(self, member: Member) -> bool:
        """Whether probes go to it."""
        return member.out or self._doubted(member) or self._slow(member)

    # -- attempts ------------------------------------------------------------------------------------------------

    def begin(self, endpoint: Endpoint, now_s: float, probe: bool = False) -> Ticket:
        """An attempt starts. ``probe``: its verdict may bring the endpoint back."""
        self._tickets += 1
        member = self._members.get(endpoint.url)
        if member is not None:
            member.pending[self._tickets] = now_s
        return Ticket(self._tickets, endpoint, member.epoch if member else -1, now_s, probe)

    def abandon(self, ticket: Ticket) -> None:
        """The attempt was cut off by us; it says nothing about the endpoint."""
        member = self._members.get(ticket.endpoint.url)
        if member is not None:
            member.pending.pop(ticket.number, None)

    def end(self, ticket: Ticket, result: Verdict | Fault, now_s: float, excused: bool = False) -> bool:
        """The attempt ended; True when that ejected the endpoint. ``excused``: our own event loop was late, so a
        time-out proves nothing."""
        self.abandon(ticket)
        member = self._members.get(ticket.endpoint.url)
        if member is None or member.epoch != ticket.epoch:
            return False
        if isinstance(result, Verdict):
            self._verdict(member, ticket, now_s)
            return False
        self.last_fault = result
        if result.blame is Blame.NOBODY:
            return False
        if excused:
            # Our own lateness hits all endpoints alike, and lets some answers through. One that never answers, while
            # others do, is dead all the same: without this a busy proxy would ask a dead node for ever [measured].
            member.excused += 1
            if member.excused < MAX_EXCUSED or self._verdicts - member.verdicts_seen < MAX_EXCUSED:
                return False
        return self._failure(member, result, now_s)

    def _verdict(self, member: Member, ticket: Ticket, now_s: float) -> None:
        self._verdicts += 1
        took_s = now_s - ticket.began_s
        if ticket.probe or member.latency_s is None:
            member.latency_s = took_s
        else:
            member.latency_s += LATENCY_WEIGHT * (took_s - member.latency_s)
        if self._slow(member):
            member.probe_at_s = now_s + self._jittered(self.ejection.cooldown_s)
        if member.ejected and not ticket.probe:
            return  # an attempt from before the ejection
        member.errors = member.bad_answers = member.excused = 0
        member.verdicts_seen = self._verdicts
        if not member.out:
            return
        member.ejected = member.failing = False
        member.epoch = self._next_epoch()
        member.back_at_s = now_s
        self._eject_failing()

    def _failure(self, member: Member, fault: Fault, now_s: float) -> bool:
        member.failed_at_s = now_s
        member.fault = fault
        if fault.blame is Blame.CONNECTION:
            member.errors += 1
            threshold, count = self.ejection.after_errors, member.errors
        else:
            member.bad_answers += 1
            threshold, count = self.ejection.after_5xx, member.bad_answers
        if member.out or threshold == 0:
            return False
        if count < threshold:
            member.probe_at_s = now_s
            return False
        # Soon down again after its return: it has not recovered, so the cool-down goes on growing.
        relapsed = now_s - member.back_at_s < self.ejection.cooldown_max_s
        self._cool_down(member, member.cooldown_s * 2 if relapsed else self.ejection.cooldown_s, now_s)
        if sum(other.ejected for other in self._order) >= len(self._order) - 1:
            member.failing = True
            return False
        self._eject(member)
        return True

    def _eject(self, member: Member) -> None:
        member.ejected, member.failing = True, False
        url = member.endpoint.url
        self.ejections[url] = self.ejections.get(url, 0) + 1
        if self.on_ejected is not None and member.fault is not None:
            self.on_ejected(member.endpoint, member.fault)

    def _eject_failing(self) -> None:
        """Somebody answers: those that were spared only for want of another are left out now."""
        if self.all_out():
            return
        for member in self._order:
            if member.failing:
                self._eject(member)

    # -- probes --------------------------------------------------------------------------------------------------

    def due_probes(self, now_s: float) -> list[Endpoint]:
        """Endpoints whose probe is due; they count as being probed until ``probe_ended``."""
        due = []
        for member in self._order:
            if self._watched(member) and not member.probing and member.probe_at_s <= now_s:
                member.probing = True
                member.probe_at_s = now_s + self._jittered(CONFIRM_S)
                due.append(member.endpoint)
        return due

    def probe_ended(self, endpoint: Endpoint, now_s: float) -> None:
        """The probe is over (``end`` has had its result): when still out, the next one is later."""
        member = self._members.get(endpoint.url)
        if member is None:
            return
        member.probing = False
        if member.out:
            self._cool_down(member, member.cooldown_s * 2, now_s)
        elif not self._doubted(member):
            member.probe_at_s = now_s + self._jittered(self.ejection.cooldown_s)

    def next_probe_s(self) -> float | None:
        """When the next probe is due; None when nobody needs one."""
        times = [m.probe_at_s for m in self._order if self._watched(m) and not m.probing]
        return min(times) if times else None

    def _cool_down(self, member: Member, wanted_s: float, now_s: float) -> None:
        member.cooldown_s = min(max(wanted_s, self.ejection.cooldown_s), self.ejection.cooldown_max_s)
        member.probe_at_s = now_s + self._jittered(member.cooldown_s)

    def _jittered(self, value_s: float) -> float:
        return min(value_s * (1 + JITTER * (2 * self._rng.random() - 1)), self.ejection.cooldown_max_s)
