# SPDX-License-Identifier: GPL-3.0-or-later
"""Puts a benchmark's text into docs/benchmarks.md, between the markers that bear its name."""

from __future__ import annotations

from pathlib import Path

from .markers import write_between

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def put(name: str, text: str) -> None:
    """Replaces the part of that name, or adds it at the end."""
    write_between(PAGE, f"bench:{name}", text, "Benchmarks")
