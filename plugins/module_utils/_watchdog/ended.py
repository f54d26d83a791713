# SPDX-License-Identifier: GPL-3.0-or-later
"""How often restarts and starts ended, and how: the few reasons and outcomes that a graph can show. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

REASONS = ("hung", "dead", "unresponsive", "asked")
OUTCOMES = ("serving", "failed", "aborted")


def key(rule: str | None, event: str, outcome: str | None) -> str:
    """What one end counts as: of a decision by `rule`, in the journal's words."""
    reason = rule if rule in REASONS else "dead"
    how = "aborted" if event == "aborted" else "serving" if "serving" in str(outcome) else "failed"
    return f"{reason} {how}"


def one_more(counts: Mapping[str, int] | None, what: str) -> dict[str, int]:
    """The counts with one end more."""
    return {**(counts or {}), what: (counts or {}).get(what, 0) + 1}


def count(records: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Of one server's journal, as far back as it goes."""
    rules: dict[str, str] = {}
    counts: dict[str, int] = {}
    for row in records:
        transaction = row.get("transaction")
        if row.get("event") == "decided" and isinstance(transaction, Mapping):
            rules[str(transaction.get("id"))] = str(row.get("rule"))
        if row.get("event") in ("closed", "aborted"):
            rule = rules.get(str(row.get("id")))
            counts = one_more(counts, key(rule, str(row["event"]), row.get("outcome")))
    return counts
