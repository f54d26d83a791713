# SPDX-License-Identifier: GPL-3.0-or-later
"""What other settings would have done to recorded traces: restarts, false ones, time to detect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._core.errors import ConfigError
from .._core.settings import with_values
from .._health.observation import Observation
from .decide import Action, step
from .memory import Memory
from .trace import Trace, decoded, parse


def outcome(trace: Trace) -> dict[str, Any]:
    """Restarts, how many of them the trace itself shows to be false, and the silence at the first one, in seconds.

    A restart is false when the very process that it would have stopped made progress afterwards in the trace.
    """
    memory, restarts, false, detected = Memory(), 0, 0, None
    for n, observation in enumerate(trace.observations):
        done = step(trace.settings, memory, observation)
        memory = done.memory
        if done.decision.action is Action.RESTART:
            restarts += 1
            detected = done.verdict.silence_s if detected is None else detected
            false += _went_on(trace, memory, trace.observations[n + 1 :])
    return {"restarts": restarts, "false": false, "detect_s": detected}


def _went_on(trace: Trace, memory: Memory, rest: Sequence[Observation]) -> int:
    for observation in rest:
        memory = step(trace.settings, memory, observation).memory
        if memory.track is None or memory.track.new_process:
            return 0
        if memory.track.moved:
            return 1
    return 0


def backtest(files: Sequence[Path], values: Mapping[str, Any]) -> dict[str, Any]:
    """Each trace by its own settings (`now`) and with `values` in their place (`then`), and the totals. Traces that
    cannot be read are noted and left out."""
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for path in files:
        try:
            read = parse(decoded(path.read_bytes()), str(path))
        except (ConfigError, OSError, UnicodeDecodeError) as error:
            notes.append(str(error) if isinstance(error, ConfigError) else f"{path}: cannot be read")
            continue
        if read.note:
            notes.append(read.note)
        other = replace(read, settings=with_values(read.settings, values, "--set"))
        rows.append({"trace": path.name, "now": outcome(read), "then": outcome(other)})
    total = {
        side: {
            "restarts": sum(row[side]["restarts"] for row in rows),
            "false": sum(row[side]["false"] for row in rows),
            "detect_s": _median([row[side]["detect_s"] for row in rows if row[side]["detect_s"] is not None]),
        }
        for side in ("now", "then")
    }
    return {"traces": rows, "total": total, "notes": notes}


def _median(values: list[float]) -> float | None:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else None
