# SPDX-License-Identifier: GPL-3.0-or-later
"""The policy's promises hold in whatever order things happen."""

from __future__ import annotations

from dataclasses import replace

from ansible_collections.gb10.serving.plugins.module_utils._core.settings import Settings
from ansible_collections.gb10.serving.plugins.module_utils._health.observation import (
    Host,
    Observation,
    Service,
)
from ansible_collections.gb10.serving.plugins.module_utils._health.reading import EngineReading, Reading
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.decide import Action, step
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.memory import Memory
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.unit.watchdog.looks import UP


class Policy(RuleBasedStateMachine):
    """A server to which everything happens in any order; the invariants are the promises of the README."""

    def __init__(self):
        super().__init__()
        self.settings = Settings(
            patience_s=200.0, patience_waiting_s=100.0, patience_heartbeat_s=60.0, cooldown_s=500.0
        )
        self.memory, self.t, self.steps, self.start = Memory(), 0.0, 0.0, 1.0
        self.acts, self.cleared = [], 0.0
        self.moved_t = self.work_t = 0.0
        self.latched = False
        self.working = True
        self.service = UP
        self.silent_since = 0.0
        self.owed = False  # a probe of ours that nobody answered: work, also while the gauges say none

    def look(self, gap=20.0, **more):
        self.t += gap
        engine = {
            "running": 2.0 if self.working else 0.0,
            "waiting": 0.0,
            "steps": self.steps,
            **more.pop("engine", {}),
        }
        reading = Reading(engines={"0": EngineReading(**engine)}, start_time=self.start)
        metrics = more.pop("metrics", "ok")
        observation = Observation(
            t=self.t, metrics=metrics, reading=reading if metrics == "ok" else None, service=self.service, **more
        )
        before = self.memory
        done = step(self.settings, before, observation)
        self.memory = done.memory
        action = done.decision.action
        if action in (Action.RESTART, Action.START):
            assert not before.latched, "latched means latched"
            assert self.service.wanted is True
            state = done.verdict.state.value
            assert state in ("hung", "dead", "unresponsive")
            assert done.verdict.restart_justified or state == "unresponsive"
            if action is Action.RESTART and state == "hung":
                assert self.t - self.silent_since >= 59.9
                assert more.get("probe") != "ok"
            assert not self.acts or self.t - self.acts[-1] >= self.settings.cooldown_s
            self.acts.append(self.t)
            assert self.memory.acts[-1].t == self.t, "recorded with the decision"
        for window, budget in ((6 * 3600, self.settings.budget_6h), (24 * 3600, self.settings.budget_24h)):
            assert sum(1 for at in self.acts if at > self.cleared and self.t - at < window) <= budget
        return done

    @rule(n=st.integers(1, 12), gap=st.sampled_from([20.0, 60.0, 170.0]))
    def stands_still(self, n, gap):
        for _ in range(n):
            self.look(gap)

    @rule(probe=st.sampled_from(["ok", "timeout", "http 400", "http 500"]))
    def is_probed(self, probe):
        self.look(probe=probe)
        if probe == "ok":
            self.silent_since = self.t
        self.owed = probe == "timeout" or (self.owed and probe != "ok")

    @rule()
    def moves(self):
        self.steps += 1
        self.look()
        self.silent_since = self.t
        self.owed = False

    @rule()
    def falls_idle(self):
        self.working = False
        self.look()
        if not self.owed:
            self.silent_since = self.t

    @rule()
    def gets_work(self):
        self.working = True
        self.look()

    @rule()
    def is_restarted_by_somebody(self):
        self.start, self.steps = self.t + 1, 0.0
        self.service = Service("active", self.t, True)
        self.look()
        self.silent_since = self.t
        self.owed = False

    @rule(
        metrics=st.sampled_from(["refused", "timeout", "http 401", "unreadable", "connect timeout"]),
        n=st.integers(1, 8),
    )
    def cannot_be_read(self, metrics, n):
        for _ in range(n):
            self.look(metrics=metrics)

    @rule(health=st.sampled_from(["dead", "timeout", "http 503"]))
    def says(self, health):
        self.look(health=health)

    @rule(wanted=st.sampled_from([True, False, None]), state=st.sampled_from(["active", "inactive", "failed"]))
    def is_meant(self, wanted, state):
        self.service = Service(state, self.service.since, wanted)
        self.look(metrics="ok" if state == "active" else "refused")

    @rule()
    def is_not_looked_at(self):
        self.look(gap=1000.0)
        self.silent_since = self.t

    @rule(
        host=st.sampled_from([Host(gpu_present=False), Host(memory_pressure=0.5), Host(clients=0, gpu_utilization=0.0)])
    )
    def host_is_ill(self, host):
        done = self.look(host=host)
        assert done.decision.action in (Action.NONE, Action.LATCHED, Action.START, Action.RESTART)
        if host.gpu_present is False and done.verdict.state.value == "host_fault":
            assert done.decision.action is Action.NONE

    @rule()
    def is_asleep(self):
        assert self.look(engine={"sleeping": True}).decision.action is Action.NONE

    @precondition(lambda self: self.memory.latched)
    @rule()
    def is_cleared(self):
        self.memory = replace(self.memory, latched=None, acts=(), never_ready_t=())
        self.cleared = self.t
        self.acts = []

    @invariant()
    def memory_is_bounded(self):
        assert len(self.memory.power_w) <= 500
        assert len(self.memory.pauses) <= 200
        assert len(self.memory.never_ready_t) <= 10


Policy.TestCase.settings = hypothesis_settings(max_examples=150, stateful_step_count=40, deadline=None)
test_policy = Policy.TestCase
