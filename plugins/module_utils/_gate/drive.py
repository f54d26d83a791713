# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Asking many times in a row, as the hook would, and adding up: what ``llm-gate ask`` does."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .config import GateConfig
from .gate import Gate
from .outcome import FAILED, Checked, Outcome
from .verdict import Question

#: Seconds a source may take for its first list before the questions begin anyway, and say no_endpoints.
FIRST_LIST_S = 5.0
#: Seconds between two looks at who is left out: far below any cool-down.
LOOK_S = 0.05


@dataclass(frozen=True)
class Until:
    """Go on until ``file`` is there and then, for ``settle_s`` at most, until nobody is left out any more."""

    file: Path
    settle_s: float = 0.0

    def has_come(self) -> bool:
        """Whether the file is there. One that cannot be looked for is not: an error would end the watch, never the drive."""
        with contextlib.suppress(OSError):
            return self.file.exists()
        return False


@dataclass(frozen=True)
class Turn:
    """An endpoint changed its state, so many seconds after the first question."""

    after_s: float
    endpoint: str
    state: str


@dataclass
class Tally:
    """How all the questions went."""

    checks: list[Checked] = field(default_factory=list)
    ejections: int = 0
    turns: list[Turn] = field(default_factory=list)

    def all_answered(self) -> bool:
        """Whether every question got a verdict, or needed none."""
        return not any(check.outcome in FAILED for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """The contract's JSON: every key always there, the outcomes adding up to asked."""
        outcomes = {outcome.value: 0 for outcome in Outcome}
        for check in self.checks:
            outcomes[check.outcome.value] += 1
        times_ms = sorted(check.took_s * 1_000 for check in self.checks)
        return {
            "asked": len(self.checks),
            "allowed": outcomes["allowed"],
            "denied": outcomes["denied"],
            "failed_open": outcomes["failed_open"],
            "failed_closed": outcomes["failed_closed"],
            "retries": sum(check.retries for check in self.checks),
            "hedges": sum(check.hedges for check in self.checks),
            "ejections": self.ejections,
            "latency_ms": {
                "p50": _quantile(times_ms, 0.5),
                "p99": _quantile(times_ms, 0.99),
                "max": _quantile(times_ms, 1.0),
            },
            "outcomes": outcomes,
        }

    def causes(self) -> dict[str, int]:
        """Why questions got no verdict from an endpoint, with how often."""
        causes: dict[str, int] = {}
        for check in self.checks:
            if check.cause is not None:
                causes[check.cause.value] = causes.get(check.cause.value, 0) + 1
        return causes


def _quantile(ordered: list[float], share: float) -> float:
    """The smallest value that at least this share of all does not exceed; 0 of none."""
    if not ordered:
        return 0.0
    position = max(0, -int(-share * len(ordered) // 1) - 1)
    return round(ordered[min(position, len(ordered) - 1)], 3)


async def drive(
    config: GateConfig,
    question: Question,
    count: int,
    rate_per_s: float | None,
    use_cache: bool = True,
    until: Until | None = None,
) -> Tally:
    """Ask ``count`` times: one after another, or as an open loop at ``rate_per_s`` in which late answers delay nothing.

    ``until`` may end an open loop sooner.
    """
    gate = Gate(config, use_cache=use_cache)
    gate.start()
    ended = asyncio.Event()
    turns: list[Turn] = []
    watch = asyncio.create_task(_watch(gate, until, ended, turns))
    try:
        if gate.is_capped(question.model):
            await gate.first_list(FIRST_LIST_S)
        if rate_per_s is None:
            checks = [await gate.check(question) for dummy in range(count)]
        else:
            checks = await _open_loop(gate, question, count, rate_per_s, ended)
        await gate.asker.drain()  # a losing hedge that fails after the last answer still ejects
        return Tally(checks, sum(gate.pool.ejections.values()), turns)
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await gate.stop()


async def _open_loop(
    gate: Gate, question: Question, count: int, rate_per_s: float, ended: asyncio.Event
) -> list[Checked]:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    tasks = []
    for number in range(count):
        # Against the start, not the last question: lateness of one does not lower the rate.
        await asyncio.sleep(max(0.0, began_s + number / rate_per_s - loop.time()))
        if ended.is_set():
            break
        tasks.append(loop.create_task(gate.check(question)))
    return list(await asyncio.gather(*tasks))


async def _watch(gate: Gate, until: Until | None, ended: asyncio.Event, turns: list[Turn]) -> None:
    """Notes who is left out and who is asked again, and when it is time to end."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    seen: dict[str, bool] = {}
    told_s: float | None = None
    while True:
        for member in gate.pool.members:
            url = member.endpoint.url
            if seen.get(url, False) != member.out:
                turns.append(Turn(round(loop.time() - began_s, 2), url, "left out" if member.out else "asked again"))
            seen[url] = member.out
        if until is not None and (told_s is not None or until.has_come()):
            told_s = loop.time() if told_s is None else told_s
            if loop.time() - told_s >= until.settle_s or not any(member.out for member in gate.pool.members):
                ended.set()
        await asyncio.sleep(LOOK_S)
