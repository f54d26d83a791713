# SPDX-License-Identifier: GPL-3.0-or-later
"""`Verdict`: what the server is doing and why we say so. The states, what each means, and its exit status."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class State(StrEnum):
    """What a server is doing. `healthy` and `exit_status` belong to the state; the sentence is for people."""

    BUSY = "busy"
    IDLE = "idle"
    SLEEPING = "sleeping"
    REACHABLE = "reachable"
    STARTING = "starting"
    STALLED = "stalled"
    UNRESPONSIVE = "unresponsive"
    UNKNOWN = "unknown"
    SUSPECT = "suspect"
    HUNG = "hung"
    DEAD = "dead"
    STOPPED = "stopped"
    HOST_FAULT = "host_fault"

    @property
    def healthy(self) -> bool | None:
        """True, False, or None: cannot tell."""
        return _TABLE[self][0]

    @property
    def exit_status(self) -> int:
        """Of a command that found this state."""
        return _TABLE[self][1]

    @property
    def meaning(self) -> str:
        """One sentence for people."""
        return _TABLE[self][2]


_TABLE: dict[State, tuple[bool | None, int, str]] = {
    State.BUSY: (True, 0, "Work is in flight and progress was seen."),
    State.IDLE: (True, 0, "Nothing is in flight, and it answered or its counters moved, or no probe was due."),
    State.SLEEPING: (True, 0, "Put to sleep, paused on purpose, or an on-demand server that is not loaded."),
    State.REACHABLE: (True, 0, "A proxy that answers; nothing more can be known through it."),
    State.STARTING: (None, 1, "Not serving yet, within the time it may take to start."),
    State.STALLED: (None, 1, "Work is in flight and nothing has moved; not proven."),
    State.UNRESPONSIVE: (None, 1, "Takes connections and does not answer, or resets them."),
    State.SUSPECT: (None, 1, "The gauges say work, but no client is connected and the GPU is idle: stale gauges."),
    State.HUNG: (False, 2, "No sign of progress for the whole patience, with work in flight."),
    State.DEAD: (False, 2, "Nothing listens, or the engine says itself that it is dead."),
    State.UNKNOWN: (None, 3, "We could not ask."),
    State.STOPPED: (None, 1, "Not running, and not meant to be."),
    State.HOST_FAULT: (False, 2, "The machine has a fault that no restart cures."),
}

# Of several servers the worst counts, in this order.
EXIT_ORDER = (2, 1, 3, 0)


def worst_exit(statuses: list[int]) -> int:
    """The exit status for several servers: 2 before 1 before 3 before 0. Empty: 3, nothing was judged."""
    return next((status for status in EXIT_ORDER if status in statuses), 3)


@dataclass(frozen=True)
class EngineVerdict:
    """One engine's part. `silence_s`: since its last sign of progress, with work in flight; None without work."""

    engine: str
    state: State
    running: float | None = None
    waiting: float | None = None
    silence_s: float | None = None
    patience_s: float | None = None


@dataclass(frozen=True)
class Verdict:
    """`accused`: the engine that is hung or stalled. `restart_justified`: proof is there; whether to act is decided
    elsewhere. `rule`: the name of the rule that spoke (docs/verdicts.md lists them)."""

    state: State
    reason: str
    rule: str
    restart_justified: bool = False
    running: float | None = None
    waiting: float | None = None
    in_flight: float | None = None
    silence_s: float | None = None
    patience_s: float | None = None
    accused: str | None = None
    engines: tuple[EngineVerdict, ...] = field(default=())

    @property
    def healthy(self) -> bool | None:
        """The state's."""
        return self.state.healthy
