"""Pool and asker under any sequence of faults, on a simulated clock."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gb10.serving.plugins.module_utils._gate.config import Ejection, Limits
from ansible_collections.gb10.serving.plugins.module_utils._gate.verdict import Fault, Verdict
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.unit.gate.simulation import FAULTY, FORBIDS, GOOD, SLOW, SimulatedLoop, World


@dataclass
class Watched:
    """One question and what was promised about it."""

    name: str
    began_s: float
    task: Any
    must_answer: bool
    sent_to: list[str] = field(default_factory=list)


class Asking(RuleBasedStateMachine):
    @initialize(
        count=st.integers(1, 6),
        seed=st.integers(0, 10_000),
        retries=st.integers(0, 3),
        share=st.sampled_from([0.0, 0.1, 1.0]),
        after_5xx=st.integers(0, 4),
    )
    def start(self, count, seed, retries, share, after_5xx):
        self.loop = SimulatedLoop()
        limits = Limits(retries=retries, attempt_s=0.5, budget_s=0.5 * (1 + retries), hedge_share=share)
        self.world = World(count, limits, Ejection(after_5xx=after_5xx), seed)
        self.world.on_send = self.sent
        self.by_name: dict[str, Watched] = {}
        self.watched: list[Watched] = []
        self.finished: list[Watched] = []
        self.probes = self.loop.create_task(self.world.asker.run_probes())
        self.asked = 0
        self.tick(0)

    def sent(self, url, question):
        # A probe repeats the latest question: it is not that question's own try.
        task = asyncio.current_task(self.loop)
        if any(m.probing and m.endpoint.url == url for m in self.world.pool.members):
            return
        assert task is not None
        self.by_name[question.key].sent_to.append(url)

    def tick(self, for_s):
        self.loop.run_until_complete(asyncio.sleep(for_s))
        for watched in [w for w in self.watched if w.task.done()]:
            self.watched.remove(watched)
            self.finished.append(watched)
            self.judge(watched)

    def judge(self, watched):
        asked, took = watched.task.result()
        assert took <= self.world.limits.budget_s + 1e-6, "past the deadline"
        assert len(set(watched.sent_to)) == len(watched.sent_to), "an endpoint twice for one request"
        if watched.must_answer:
            assert isinstance(asked.result, Verdict), f"a healthy endpoint was there: {asked.result}"
        assert len(watched.sent_to) <= 1 + asked.retries + asked.hedges, "a try nobody counted"

    @rule(which=st.integers(0, 5), behaviour=st.sampled_from([GOOD, GOOD, SLOW, FORBIDS, *FAULTY]))
    def change(self, which, behaviour):
        url = self.world.endpoints[which % len(self.world.endpoints)].url
        self.world.behaviour[url] = behaviour
        for watched in self.watched:
            watched.must_answer = False  # the promise held for a world that has just changed

    @rule(questions=st.integers(1, 8))
    def ask(self, questions):
        for _ in range(questions):
            self.asked += 1
            name = f"k{self.asked}"
            # With retries, any endpoint in use and healthy must be found, unless more others are silent than the
            # whole tries the budget has: each of those eats one.
            usable = [m for m in self.world.pool.members if not m.out]
            healthy = [m for m in usable if self.world.behaviour[m.endpoint.url] is GOOD]
            costly = [m for m in usable if self.world.behaviour[m.endpoint.url] not in (GOOD, SLOW)]
            must = bool(healthy) and len(costly) <= self.world.limits.retries
            watched = Watched(name, self.loop.now_s, None, must)
            self.by_name[name] = watched
            watched.task = self.loop.create_task(self.world.ask(name))
            self.watched.append(watched)
        self.tick(0)

    @rule(for_s=st.sampled_from([0.01, 0.06, 0.3, 1.0, 5.0, 15.0]))
    def wait(self, for_s):
        self.tick(for_s)

    @rule()
    def heal_everything(self):
        """After the longest cool-down, everything that is well is in use again."""
        if not self.asked:
            return
        for url in self.world.behaviour:
            self.world.behaviour[url] = GOOD
        self.tick(self.world.pool.ejection.cooldown_max_s * 1.3 + 1)
        assert not any(m.out for m in self.world.pool.members)
        asked, _ = self.loop.run_until_complete(self.healthy_ask())
        assert isinstance(asked.result, Verdict)

    async def healthy_ask(self):
        self.asked += 1
        name = f"k{self.asked}"
        self.by_name[name] = Watched(name, self.loop.now_s, None, True)
        return await self.world.ask(name)

    @rule(keep=st.integers(1, 6))
    def replace(self, keep):
        """The source publishes another list."""
        self.world.pool.replace(self.world.endpoints[:keep])
        for watched in self.watched:
            watched.must_answer = False

    @invariant()
    def never_all_ejected(self):
        if not hasattr(self, "world"):
            return
        members = self.world.pool.members
        assert sum(m.ejected for m in members) < len(members)

    @invariant()
    def counters_add_up(self):
        if not hasattr(self, "world"):
            return
        hedges = sum(w.task.result()[0].hedges for w in self.finished)
        share = self.world.limits.hedge_share
        assert hedges <= (self.world.limits.hedge_burst + share * self.asked if share else 0)
        assert len(self.finished) + len(self.watched) <= self.asked
        assert sum(self.world.pool.states().values()) == len(self.world.pool.members)
        for watched in self.finished:
            assert isinstance(watched.task.result()[0].result, (Verdict, Fault))

    def teardown(self):
        if not hasattr(self, "loop"):
            return
        self.tick(self.world.limits.budget_s)
        assert not self.watched, "a question that never ends"
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()


TestAsking = Asking.TestCase
TestAsking.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
