# SPDX-License-Identifier: GPL-3.0-or-later
"""What a check found, as a table for people. Standard library alone: a filter on any controller can use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def table(reports: Sequence[Mapping[str, Any]]) -> str:
    """Reports (as JSON objects) as a table for people; one line a server, no trailing newline."""

    def cell(value: Any) -> str:
        if value is None:
            return "-"
        return f"{value:.1f}" if isinstance(value, float) and value != int(value) else f"{value:.0f}"

    head = ("SERVER", "STATE", "RUNNING", "WAITING", "TOKENS/S", "REASON")
    rows = [
        (
            str(r["name"]),
            str(r["state"]),
            cell(r["running"]),
            cell(r["waiting"]),
            cell(r["tokens_per_second"]),
            str(r["reason"]),
        )
        for r in reports
    ]
    widths = [max(len(row[n]) for row in [head, *rows]) for n in range(len(head) - 1)]
    lines = []
    for row in [head, *rows]:
        cells = [
            text.rjust(width) if n in (2, 3, 4) else text.ljust(width)
            for n, (text, width) in enumerate(zip(row[:-1], widths, strict=True))
        ]
        lines.append("  ".join([*cells, row[-1]]))
    return "\n".join(lines)
