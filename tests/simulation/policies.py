# SPDX-License-Identifier: GPL-3.0-or-later
"""The policies of the league: ours, and those that people use today. Each looks at a world and may restart it."""

from __future__ import annotations

from dataclasses import replace

from ansible_collections.gb10.serving.plugins.module_utils._core.settings import Settings
from ansible_collections.gb10.serving.plugins.module_utils._health.observation import Host, Lease, Observation, Service
from ansible_collections.gb10.serving.plugins.module_utils._health.reading import EngineReading, Reading
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.decide import Action, step
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.memory import Memory
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.patience import proof_seconds

from .world import DAY_S, Seen, World

PERSON_AFTER_S = 4 * 3600.0  # until somebody reads the alert of a latch, looks, and clears it


class Policy:
    """`look` is called at `next_t`; it says when it wants to look again."""

    name = ""

    def __init__(self) -> None:
        self.next_t = 0.0

    def look(self, world: World) -> float:
        raise TypeError("a policy has to look")


class Ours(Policy):
    """The watchdog of this collection, walking the very `step` that a host does."""

    def __init__(self, heartbeat: bool) -> None:
        super().__init__()
        self.heartbeat = heartbeat
        self.name = "gb10.serving, heartbeat and /load" if heartbeat else "gb10.serving, stock vLLM"
        self.settings, self.memory = Settings(), Memory()
        self.latched_at: float | None = None

    def observation(self, world: World, seen: Seen, **more: object) -> Observation:
        reading = None
        if seen.up:
            engine = EngineReading(
                running=float(seen.running),
                waiting=float(seen.waiting),
                heartbeat=seen.beats if self.heartbeat else None,
                steps=seen.steps,
                generation_tokens=seen.tokens,
                kv_usage=seen.kv,
                sleeping=seen.sleeping,
                longest_step_s=seen.longest_step_s if self.heartbeat else None,
            )
            in_flight = float(seen.in_flight) if self.heartbeat else None
            reading = Reading(engines={"0": engine}, start_time=seen.start, in_flight=in_flight)
        crashed = not seen.up and not seen.loading and seen.wanted
        state = "inactive" if not seen.up and not seen.loading else "active"
        return Observation(
            t=world.t,
            metrics="ok" if reading is not None else "refused",
            reading=reading,
            health="ok" if reading is not None else "refused",
            service=Service(state, seen.since, seen.wanted if not crashed else True),
            host=Host(
                gpu_present=seen.gpu_present,
                gpu_power_w=seen.power_w,
                gpu_utilization=0.0 if seen.clients == 0 and seen.power_w < 25 else 0.96,
                clients=seen.clients,
                compilers=("cicc",) if seen.compilers else (),
                cpu_seconds=seen.cpu_s,
                memory_pressure=0.4 if seen.thrashing else 0.0,
                kernel_faults=() if seen.gpu_present else ("Xid 79",),
            ),
            busy_leases=(Lease("batch", True, world.t + 3600),) if seen.lease else (),
            paused=seen.paused or None,
            **more,  # type: ignore[arg-type]
        )

    def look(self, world: World) -> float:
        before, observation = self.memory, self.observation(world, world.see())
        done = step(self.settings, before, observation, sends_proof=True)
        if done.decision.probe:
            done = self.probed(world, replace(before, probed_t=world.t), observation, 20.0)
        elif done.decision.prove:
            within_s = proof_seconds(self.settings, done.memory, done.memory.track, done.verdict.accused)
            done = self.probed(world, before, observation, within_s)
        self.memory = done.memory
        if done.decision.action in (Action.RESTART, Action.START):
            world.restart()
        if self.memory.latched and self.latched_at is None:
            self.latched_at = world.t
        if self.latched_at is not None and world.t - self.latched_at > PERSON_AFTER_S:
            self.memory = replace(self.memory, latched=None, acts=(), never_ready_t=())
            self.latched_at = None
        # where nothing new can happen it may look as seldom as a proof allows; the outcome is the same
        calm = done.verdict.rule in ("progress", "probe_answered", "counters_moved", "not_probed", "sleeping")
        if not calm or world.truly_stuck:
            return 60.0
        return min(170.0, max(world.steady_until - world.t, 60.0))

    def probed(self, world: World, before: Memory, observation: Observation, within_s: float):  # type: ignore[no-untyped-def]
        begun = world.t
        took = world.probe(within_s)
        word = "ok" if took < within_s else "timeout"
        world.to(begun + took)
        again = self.observation(world, world.see(), probe=word, probe_begin=begun)
        return step(self.settings, before, again)


class Chat(Policy):
    """Chat probes: every `every_s`, limit `limit_s`, a restart after `fails` in a row."""

    def __init__(self, name: str, every_s: float, limit_s: float, fails: int, grace_s: float = 0.0) -> None:
        super().__init__()
        self.name, self.every_s, self.limit_s, self.fails, self.grace_s = name, every_s, limit_s, fails, grace_s
        self.failed, self.quiet_until = 0, 0.0

    def look(self, world: World) -> float:
        if world.t >= self.quiet_until:
            took = world.probe(self.limit_s)
            self.failed = self.failed + 1 if took >= self.limit_s else 0
            if self.failed >= self.fails:
                self.failed, self.quiet_until = 0, world.t + self.grace_s
                world.restart()
        return self.every_s


class CountErrors(Chat):
    """The first incident: a chat probe, and beside it a watchdog that counts the 500s which restarts themselves cause."""

    def look(self, world: World) -> float:
        cause = bool(world.restarts) and world.t - world.restarts[-1] < 1800.0 and world.see().up
        if cause and world.dice.random() < 0.2:
            world.restart()
        return super().look(world)


class Liveness(Policy):
    """/health, 1 s, three times in a row: what a Kubernetes probe or docker's health check with autoheal does."""

    def __init__(self, name: str, every_s: float, limit_s: float, fails: int, grace_s: float) -> None:
        super().__init__()
        self.name, self.every_s, self.limit_s, self.fails, self.grace_s = name, every_s, limit_s, fails, grace_s
        self.failed, self.quiet_until = 0, 0.0

    def look(self, world: World) -> float:
        if world.t < self.quiet_until:
            return self.every_s
        self.failed = self.failed + 1 if world.see().health_s > self.limit_s else 0
        if self.failed >= self.fails:
            self.failed, self.quiet_until = 0, world.t + self.grace_s
            world.restart()
        return self.every_s


class Counters(Policy):
    """No counter moved for `silence_s` with running > 0. `kv`: a change of KV use counts too."""

    def __init__(self, name: str, every_s: float, silence_s: float, kv: bool = False, beats: bool = False) -> None:
        super().__init__()
        self.name, self.every_s, self.silence_s, self.kv, self.beats = name, every_s, silence_s, kv, beats
        self.last: tuple[object, ...] | None = None
        self.since = 0.0

    def look(self, world: World) -> float:
        seen = world.see()
        sign = (seen.steps, seen.tokens, seen.start, seen.kv if self.kv else 0, seen.beats if self.beats else 0)
        if not seen.up or seen.running == 0 or sign != self.last:
            self.last, self.since = sign, world.t
        elif world.t - self.since >= self.silence_s:
            self.last = None
            world.restart()
        return self.every_s


def league() -> list[Policy]:
    """All policies, fresh."""
    return [
        Ours(heartbeat=True),
        Ours(heartbeat=False),
        Chat("chat probe, 5 min, 45 s, 5 fails", 300.0, 45.0, 5),
        CountErrors("the same and a counter of 500s", 300.0, 45.0, 5),
        Chat("chat probe, 15 s limit, 3 fails", 60.0, 15.0, 3, 900.0),
        Liveness("/health, 1 s, 3 fails", 10.0, 1.0, 3, 1200.0),
        Liveness("docker autoheal, 30 s, 3 fails", 30.0, 10.0, 3, 1200.0),
        Counters("step counter, two waits of 10 s", 60.0, 20.0),
        Counters("iteration counter, 120 s", 60.0, 120.0),
        Counters("KV-aware, 300 s", 60.0, 300.0, kv=True),
        Counters("step limit, 300 s", 30.0, 300.0, beats=True),
    ]


def run(policy: Policy, seed: int, days: float) -> World:
    """One server under one policy."""
    world = World(seed)
    end = days * DAY_S
    while world.t < end:
        world.to(max(policy.next_t, world.t))
        policy.next_t = world.t + policy.look(world)
        if world.t < policy.next_t and world.see().up is False and world.now.dead and not isinstance(policy, Ours):
            # the others leave a crash to their service manager, which has given up after exit 0: a person finds it
            if world.t - world.begun > PERSON_AFTER_S:
                world.restart()
        elif not isinstance(policy, Ours) and world.now.hung and world.t - world.begun > 12 * 3600.0:
            world.restart()  # a person finds what the policy does not
            world.found.pop() if world.found else None
    return world
