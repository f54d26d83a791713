# SPDX-License-Identifier: GPL-3.0-or-later
"""Puts a benchmark's table into docs/benchmarks.md, between the markers that bear its name."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def put(name: str, text: str) -> None:
    """Replaces what is between `<!-- bench:NAME begin -->` and its end; appends both where they are not there yet."""
    begin, end = f"<!-- bench:{name} begin -->", f"<!-- bench:{name} end -->"
    page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else "# Benchmarks\n"
    if begin in page:
        head, rest = page.split(begin, 1)
        tail = rest.split(end, 1)[1]
    else:
        head, tail = page.rstrip("\n") + f"\n\n## {name}\n\n", "\n"
    PAGE.write_text(f"{head}{begin}\n{text.strip()}\n{end}{tail}", encoding="utf-8")
