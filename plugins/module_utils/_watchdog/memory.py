# SPDX-License-Identifier: GPL-3.0-or-later
"""What the watchdog remembers of one server from run to run. Data only; `decide` makes the next one.

Times are on the observations' clock. On a host that clock is made so that it goes on across reboots (see `clock`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .._health.progress import Track
from .speed import Speeds


@dataclass(frozen=True)
class Act:
    """A restart or start. `fruitful`: progress was seen after it; None: not known yet. `counts`: not a person's drill.
    `engine`: the one that was accused."""

    t: float
    action: str
    reason: str
    fruitful: bool | None = None
    counts: bool = True
    engine: str | None = None


@dataclass(frozen=True)
class Pause:
    """An innocent pause: this long nothing moved with work in flight, and then it went on."""

    t: float
    seconds: float


@dataclass(frozen=True)
class Memory:
    """One server's memory.

    Invariants: `acts` and `pauses` are in order of time; `latched` stays until a person clears it;
    `longest_step_s` is the longest step that had no excuse, `longest_shown_s` the longest on the page so far;
    `identity` is what the engine runs (its arguments and program files, as a digest): what was learned of another is not
    kept; `compiled_t` and `thrashed_t` are when a compiler, or a host short of memory, was seen last;
    `never_ready_since` is the start that was counted last; `short_since` is when a start was first put off for want
    of memory; `stopped_since` is when both independent witnesses began to say "stopped" without a break;
    `unresponsive_since` is since when no look at a server that does not answer has shown CPU time; `excused` are the
    engines whose pause has an excuse.
    """

    track: Track | None = None
    acts: tuple[Act, ...] = ()
    latched: str | None = None
    pauses: tuple[Pause, ...] = ()
    power_w: tuple[float, ...] = ()
    cpu_seconds: float | None = None
    cpu_flat: bool = False
    rank_cpu_seconds: dict[str, float | None] = field(default_factory=dict)
    stopped_since: float | None = None
    compiled_t: float | None = None
    thrashed_t: float | None = None
    excused: tuple[str, ...] = ()
    longest_shown_s: float = 0.0
    longest_step_s: float = 0.0
    dead_rule: str | None = None
    dead_seen: int = 0
    unresponsive_since: float | None = None
    unresponsive_seen: int = 0
    never_ready_t: tuple[float, ...] = ()
    never_ready_since: float | None = None
    short_since: float | None = None
    doubt_since: float | None = None
    doubt_state: str | None = None
    probed_t: float | None = None
    proof_t: float | None = None
    identity: str | None = None
    speeds: Speeds = field(default_factory=Speeds)
