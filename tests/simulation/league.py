# SPDX-License-Identifier: GPL-3.0-or-later
"""The league's table: what each policy does to the same servers over the same years."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from .policies import league, run
from .world import DAY_S

HEAD = (
    "policy",
    "false restarts",
    "hangs found",
    "median to find",
    "p99",
    "service lost",
    "POSTs to a working server",
    "most restarts in a day",
)


@dataclass(frozen=True)
class Line:
    """One policy over all years."""

    name: str
    false: int
    found: int
    hangs: int
    median_s: float | None
    p99_s: float | None
    lost_min_per_year: float
    busy_probes: int
    storm: int

    def cells(self) -> tuple[str, ...]:
        """For a table."""

        def minutes(value: float | None) -> str:
            return "-" if value is None else f"{value / 60:.1f} min"

        return (
            self.name,
            str(self.false),
            f"{self.found} of {self.hangs}",
            minutes(self.median_s),
            minutes(self.p99_s),
            f"{self.lost_min_per_year:.0f} min a year",
            str(self.busy_probes),
            str(self.storm),
        )


def storm(restarts: list[float]) -> int:
    """Most restarts within any 24 hours."""
    return max((sum(1 for t in restarts if 0 <= t - first < DAY_S) for first in restarts), default=0)


def play(years: float, seed: int = 1) -> list[Line]:
    """Every policy on servers of one year each (or a part of one), the same seeds for all."""
    lines = []
    parts = max(int(years), 1)
    for index in range(len(league())):
        worlds = [run(league()[index], seed + n, 365.0 * years / parts) for n in range(parts)]
        found = sorted(t for world in worlds for t in world.found)
        lines.append(
            Line(
                name=league()[index].name,
                false=sum(world.false for world in worlds),
                found=len(found),
                hangs=sum(world.hangs for world in worlds),
                median_s=median(found) if found else None,
                p99_s=found[min(int(0.99 * len(found)), len(found) - 1)] if found else None,
                lost_min_per_year=sum(world.lost_s for world in worlds) / 60 / years,
                busy_probes=sum(world.busy_probes for world in worlds),
                storm=max(storm(world.restarts) for world in worlds),
            )
        )
    return lines


def table(lines: list[Line]) -> str:
    """Markdown."""
    rows = [HEAD, tuple("---" for _ in HEAD), *(line.cells() for line in lines)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
