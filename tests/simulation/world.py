# SPDX-License-Identifier: GPL-3.0-or-later
"""A model server over years: a state machine of episodes, with the lengths and rates that real ones show on GB10.

Sources of the numbers: docs/limits.md. What a policy may see is `World.see`; what is true is the rest.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

DAY_S, HOUR_S, MINUTE_S = 86_400.0, 3600.0, 60.0


@dataclass(frozen=True)
class Episode:
    """What the server does for a while. `work`: requests in flight; `queued`: waiting behind full slots.

    `steps`: the stock step counter moves; `beats`: true steps are made; `kv`: KV use reaches new maxima.
    `gauges`: the gauges show the work (during a first giant step they do not). `hung`: it will never go on by itself.
    """

    kind: str
    seconds: float
    work: int = 0
    queued: int = 0
    steps: bool = False
    beats: bool = False
    kv: bool = False
    gauges: bool = True
    hung: bool = False
    up: bool = True
    compilers: bool = False
    thrashing: bool = False
    sleeping: bool = False
    paused: bool = False
    stale: bool = False
    lease: bool = False
    dead: bool = False
    gpu: bool = True
    cpu: bool = True
    wanted: bool = True
    step_s: float = 0.1


def _uniform(low: float, high: float) -> Callable[[random.Random], float]:
    return lambda dice: dice.uniform(low, high)


def _mostly(low: float, high: float, seldom: float, share: float) -> Callable[[random.Random], float]:
    return lambda dice: dice.uniform(high, seldom) if dice.random() < share else dice.uniform(low, high)


# kind, how many a day, how long, what it is like. Idle and decoding fill the rest.
HEALTHY: tuple[tuple[str, float, Callable[[random.Random], float], dict[str, object]], ...] = (
    # 1M- and 339k-token prompts: flat spans of 230, 471 and 505 s on a stock vLLM, KV use rising all the while
    ("chunked prefill", 6.0, _mostly(20, 240, 540, 0.15), {"work": 1, "beats": True, "kv": True, "step_s": 12.0}),
    # hybrid models keep KV use flat: only true steps move
    ("hybrid prefill", 1.0, _mostly(20, 240, 505, 0.1), {"work": 1, "beats": True, "step_s": 12.0}),
    ("giant step", 2.0, _mostly(5, 20, 40, 0.1), {"work": 1, "gauges": False, "step_s": 40.0}),
    # first requests after a start: 14 to 70 s, compilers at work meanwhile
    ("autotune", 0.5, _uniform(14, 70), {"work": 1, "compilers": True, "step_s": 70.0}),
    # compilers are seen: up to 10 minutes often, 36 once
    ("jit", 0.1, _mostly(60, 600, 2160, 0.03), {"work": 1, "compilers": True}),
    ("grammar", 3.0, _uniform(10, 40), {"work": 1}),
    ("batch", 0.3, _uniform(1 * HOUR_S, 8 * HOUR_S), {"work": 12, "queued": 80, "steps": True, "beats": True}),
    (
        "batch with a lease",
        0.1,
        _uniform(1 * HOUR_S, 8 * HOUR_S),
        {"work": 12, "queued": 80, "steps": True, "beats": True, "lease": True},
    ),
    ("stale gauges", 0.05, _uniform(600, 4 * HOUR_S), {"work": 0, "stale": True, "cpu": False}),
    ("asleep", 0.05, _uniform(HOUR_S, 10 * HOUR_S), {"sleeping": True, "cpu": False}),
    ("paused", 0.05, _uniform(300, 1200), {"work": 3, "paused": True}),
    ("thrashing", 0.03, _uniform(300, 1500), {"work": 2, "thrashing": True, "cpu": False}),
    ("maintenance", 0.01, _uniform(HOUR_S, 6 * HOUR_S), {"up": False, "wanted": False, "cpu": False}),
)

# kind, how many a month, what it is like
FAULTS: tuple[tuple[str, float, dict[str, object]], ...] = (
    ("hang while busy", 1.0, {"work": 3, "hung": True}),
    ("hang, spinning", 0.4, {"work": 3, "hung": True, "cpu": True}),
    ("hang while idle", 0.4, {"work": 0, "hung": True, "cpu": False}),
    ("scheduler stall", 0.4, {"work": 0, "queued": 4, "hung": True}),
    ("hang in the first step", 0.2, {"work": 1, "gauges": False, "hung": True}),
    ("crash, exit 0", 0.5, {"up": False, "dead": True, "cpu": False}),
    ("GPU gone", 0.05, {"work": 2, "hung": True, "gpu": False, "cpu": False}),
)
RESTARTED_BY_OTHERS_A_MONTH = 0.5
LOAD_S = (240.0, 1020.0)  # 22 GB in 4 minutes, 17 minutes seen
REPAIR_S = (1 * HOUR_S, 12 * HOUR_S)  # until a person reboots the host


@dataclass
class Seen:
    """What can be seen of the server at one moment."""

    up: bool
    running: int
    waiting: int
    in_flight: int
    steps: float
    beats: float
    tokens: float
    kv: float
    start: float
    sleeping: bool
    paused: bool
    compilers: bool
    thrashing: bool
    lease: bool
    clients: int
    gpu_present: bool
    power_w: float
    cpu_s: float
    wanted: bool
    loading: bool
    since: float
    longest_step_s: float
    health_s: float


@dataclass
class World:
    """One server. Time only goes forward, by `to`."""

    seed: int
    t: float = 0.0
    start: float = -HOUR_S
    steps: float = 0.0
    beats: float = 0.0
    tokens: float = 0.0
    cpu_s: float = 0.0
    loading_until: float | None = None
    begun: float = 0.0
    lost_s: float = 0.0
    hangs: int = 0
    found: list[float] = field(default_factory=list)
    false: int = 0
    restarts: list[float] = field(default_factory=list)
    busy_probes: int = 0
    longest_step_s: float = 0.1
    kv: float = 0.1

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.now = Episode("idle", 600.0)
        self.ends = 600.0

    # the truth

    @property
    def truly_stuck(self) -> bool:
        """Only a restart (or a person) helps."""
        return self.now.hung or self.now.dead

    @property
    def working(self) -> bool:
        """It does what clients asked of it."""
        return self.now.work + self.now.queued > 0 and not self.truly_stuck and self.now.up

    def _next(self) -> Episode:
        dice = self.dice
        rest_s = 900.0  # a typical stretch of idling or decoding between other episodes
        for kind, a_day, length, likes in HEALTHY:
            if dice.random() < a_day * rest_s / DAY_S:
                return Episode(kind, length(dice), **likes)  # type: ignore[arg-type]
        for kind, a_month, likes in FAULTS:
            if dice.random() < a_month * rest_s / (30 * DAY_S):
                self.hangs += kind != "GPU gone"
                seconds = dice.uniform(*REPAIR_S)
                return Episode(kind, seconds if kind == "GPU gone" else 1e12, **likes)  # type: ignore[arg-type]
        if dice.random() < RESTARTED_BY_OTHERS_A_MONTH * rest_s / (30 * DAY_S):
            self._load()
        if dice.random() < 0.5:
            return Episode("idle", dice.expovariate(1 / 1200.0), cpu=False)
        return Episode("decode", dice.expovariate(1 / 900.0), work=dice.randint(1, 12), steps=True, beats=True)

    def _load(self) -> None:
        self.loading_until = self.t + self.dice.uniform(*LOAD_S)
        self.start, self.steps, self.beats, self.tokens, self.kv = self.t, 0.0, 0.0, 0.0, 0.1

    def to(self, t: float) -> None:
        """Lets time pass until `t`."""
        while self.t < t:
            until = min(t, self.ends if self.loading_until is None else self.loading_until)
            span = until - self.t
            if self.loading_until is not None:
                self.lost_s += span
                self.cpu_s += span
            else:
                now = self.now
                if now.steps:
                    self.steps += span * 20
                    self.tokens += span * 40
                if now.beats or now.steps:
                    self.beats += max(span / now.step_s, 1.0 if span >= now.step_s else 0.0)
                if now.kv:
                    self.kv = min(self.kv + span / 2000, 0.99)
                if now.cpu:
                    self.cpu_s += span
                if self.truly_stuck or now.thrashing:
                    self.lost_s += span
            self.t = until
            if self.loading_until is not None and self.t >= self.loading_until:
                self.loading_until = None
                self.now, self.begun = Episode("idle", 300.0, cpu=False), self.t
                self.ends = self.t + 300.0
            elif self.loading_until is None and self.t >= self.ends:
                if not self.now.hung:
                    self.longest_step_s = max(self.longest_step_s, self.now.step_s)
                    if self.now.work and not self.now.steps:
                        self.steps, self.beats, self.tokens = self.steps + 1, self.beats + 1, self.tokens + 1
                if self.now.kind == "GPU gone":
                    self._load()
                self.kv = 0.1
                self.now, self.begun = self._next(), self.t
                self.ends = self.t + self.now.seconds

    @property
    def steady_until(self) -> float:
        """Nothing new happens before."""
        return self.ends if self.loading_until is None else self.loading_until

    # what can be seen

    def see(self) -> Seen:
        """What every witness shows now."""
        now, loading = self.now, self.loading_until is not None
        shown = now.gauges
        return Seen(
            up=now.up and not loading,
            running=106 if now.stale else (now.work if shown else 0),
            waiting=15 if now.stale else (now.queued if shown else 0),
            in_flight=now.work + now.queued,
            steps=self.steps,
            beats=self.beats,
            tokens=self.tokens,
            kv=self.kv,
            start=self.start,
            sleeping=now.sleeping,
            paused=now.paused,
            compilers=now.compilers and not loading,
            thrashing=now.thrashing,
            lease=now.lease,
            clients=0 if now.stale else now.work + now.queued,
            gpu_present=now.gpu,
            power_w=20.0 if now.hung or now.stale else (46.0 if now.work else 12.0),
            cpu_s=self.cpu_s,
            wanted=now.wanted,
            loading=loading,
            since=self.start,
            longest_step_s=self.longest_step_s,
            health_s=float("inf") if loading or not now.up else (30.0 if now.thrashing else 0.01),
        )

    def chat_s(self) -> float:
        """How long one chat request would take now; infinite for one that is never answered."""
        now = self.now
        if self.loading_until is not None or not now.up or now.hung or now.sleeping:
            return float("inf")
        if now.paused or now.thrashing or (now.work and not now.steps):
            return self.ends - self.t + 1.0
        if now.queued:
            return self.dice.uniform(30.0, 600.0)  # it waits its turn behind a full queue
        return 2.0

    # what is done to it

    def probe(self, within_s: float) -> float:
        """Sends one chat; seconds until its answer or `within_s`. Counted where it disturbs a working server."""
        self.busy_probes += self.working
        return min(self.chat_s(), within_s)

    def restart(self) -> None:
        """Somebody restarts it."""
        if self.truly_stuck and self.now.kind != "GPU gone" and self.loading_until is None:
            self.found.append(self.t - self.begun)
        else:
            self.false += 1
        self.restarts.append(self.t)
        if self.now.kind == "GPU gone":
            return  # it comes up to the same dead GPU
        self._load()
        self.now, self.begun, self.ends = Episode("idle", 300.0, cpu=False), self.t, self.t + 300.0
