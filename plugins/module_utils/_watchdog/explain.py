# SPDX-License-Identifier: GPL-3.0-or-later
"""What the watchdog knows, in sentences for a person at 3 a.m. Pure: states in, text and plain data out."""

from __future__ import annotations

from typing import Any

from .._core.settings import Settings
from .._health.judge import seconds
from .._health.verdict import State
from .decide import A_DAY_S, SIX_HOURS_S
from .store import ServerState


def budget_left(settings: Settings, state: ServerState, t: float) -> int:
    """Restarts and starts that the budget still allows now."""
    acts = [act.t for act in state.memory.acts if act.counts]
    left = [
        budget - sum(1 for at in acts if t - at < window)
        for window, budget in ((SIX_HOURS_S, settings.budget_6h), (A_DAY_S, settings.budget_24h))
    ]
    return max(min(left), 0)


def row(settings: Settings, state: ServerState, t: float, wall: float) -> dict[str, Any]:
    """One server's status as plain data."""
    acts = state.memory.acts
    transaction, maintenance = state.transaction, state.maintenance
    return {
        "name": state.name,
        "state": state.state,
        "reason": state.reason,
        "since_seconds": None if state.state_since is None else round(t - state.state_since, 1),
        "looked_seconds_ago": None if state.looked_wall is None else round(wall - state.looked_wall, 1),
        "decision": state.decision,
        "running": state.running,
        "waiting": state.waiting,
        "no_progress_seconds": state.silence_s,
        "patience_seconds": state.patience_s,
        "patience_rule": state.patience_rule,
        "under_way": None if transaction is None else {"action": transaction.action, "phase": transaction.phase},
        "last_act": None
        if not acts
        else {"action": acts[-1].action, "reason": acts[-1].reason, "seconds_ago": round(t - acts[-1].t, 1)},
        "acts_24h": sum(1 for act in acts if act.counts and t - act.t < A_DAY_S),
        "budget_left": budget_left(settings, state, t),
        "latched": state.memory.latched,
        "slow": state.slow,
        "maintenance": None
        if maintenance is None or maintenance.until <= wall
        else {"reason": maintenance.reason, "by": maintenance.by, "seconds_left": round(maintenance.until - wall)},
    }


def sentences(settings: Settings, state: ServerState, t: float, wall: float) -> list[str]:
    """What was seen, which rule spoke, what would change it, and what may be done."""
    said = row(settings, state, t, wall)
    if state.state is None:
        return [f"{state.name} has not been looked at yet. `llm-watchdog run` looks; the timer calls it every minute."]
    kind = State(state.state) if state.state in list(State) else None
    lines = [
        f"{state.name} is {state.state}"
        + (f", since {seconds(said['since_seconds'])}" if said["since_seconds"] else "")
        + ".",
        f"That means: {kind.meaning}" if kind else "",
        f"It was last looked at {seconds(max(said['looked_seconds_ago'] or 0, 0))} ago. What was seen: {state.reason}.",
        f"The rule that spoke: {state.rule}.",
    ]
    if state.silence_s is not None and state.patience_s is not None:
        lines.append(
            f"Silence so far {seconds(state.silence_s)}; {seconds(state.patience_s)} would prove a hang "
            f"(from {state.patience_rule}). Any step, token, finished request or new maximum of KV use ends the silence."
        )
    if state.slow is not None:
        lines.append(f"It is {state.slow}. It moves, so it is left alone.")
    lines.append(f"What was decided: {state.decision}.")
    if said["under_way"]:
        lines.append(f"A {said['under_way']['action']} is under way; it is at the step `{said['under_way']['phase']}`.")
    last = said["last_act"]
    if last:
        lines.append(f"The last {last['action']} was {seconds(last['seconds_ago'])} ago, because: {last['reason']}.")
    else:
        lines.append("It has not been restarted in the last 30 days.")
    if state.memory.latched:
        lines.append(
            f"It is latched: {state.memory.latched}. Nothing more is done to it until "
            f"`llm-watchdog clear {state.name} --reason …`."
        )
    else:
        lines.append(f"{said['budget_left']} more restarts are within the budget.")
    if said["maintenance"]:
        lines.append(
            f"Maintenance by {said['maintenance']['by']} ({said['maintenance']['reason']}): hands off for another "
            f"{seconds(said['maintenance']['seconds_left'])}."
        )
    if settings.mode == "observe":
        lines.append("Mode observe: it decides and records, and touches nothing.")
    return [line for line in lines if line]


def table(rows: list[dict[str, Any]]) -> str:
    """Status rows for people."""
    head = ("SERVER", "STATE", "FOR", "LOOKED", "LAST ACT", "BUDGET", "NOTE")
    cells = [head]
    for one in rows:
        last = one["last_act"]
        note = (
            f"LATCHED: {one['latched']}"
            if one["latched"]
            else f"{one['under_way']['action']}: {one['under_way']['phase']}"
            if one["under_way"]
            else f"maintenance: {one['maintenance']['reason']}"
            if one["maintenance"]
            else one["slow"] or one["reason"] or ""
        )
        cells.append(
            (
                one["name"],
                one["state"] or "not looked at",
                "-" if one["since_seconds"] is None else seconds(max(one["since_seconds"], 0)),
                "-" if one["looked_seconds_ago"] is None else seconds(max(one["looked_seconds_ago"], 0)) + " ago",
                f"{last['action']} {seconds(last['seconds_ago'])} ago" if last else "-",
                str(one["budget_left"]),
                note,
            )
        )
    widths = [max(len(line[n]) for line in cells) for n in range(len(head) - 1)]
    return "\n".join(
        "  ".join([*(text.ljust(width) for text, width in zip(line[:-1], widths, strict=True)), line[-1]])
        for line in cells
    )
