# SPDX-License-Identifier: GPL-3.0-or-later
"""Replay is run without hands: a recorded trace through today's policy. Deterministic, byte for byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from .decide import Action, step
from .memory import Memory
from .trace import Trace


def replay(trace: Trace) -> Iterator[dict[str, Any]]:
    """One object an observation, and the summary last. An action that is decided counts as done at its `t`."""
    memory = Memory()
    states: Counter[str] = Counter()
    counts: Counter[Action] = Counter()
    first: float | None = None
    for observation in trace.observations:
        done = step(trace.settings, memory, observation)
        memory, decision, state = done.memory, done.decision, done.verdict.state.value
        states[state] += 1
        counts[decision.action] += 1
        if decision.action is Action.RESTART and first is None:
            first = observation.t
        yield {"t": observation.t, "state": state, "action": decision.action.value, "reason": decision.reason}
    yield {
        "summary": {
            "restarts": counts[Action.RESTART],
            "starts": counts[Action.START],
            "first_restart_t": first,
            "latched": memory.latched is not None,
            "states": dict(sorted(states.items())),
        }
    }
