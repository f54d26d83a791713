# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The last known verdicts: read only when no endpoint gave one, before failing open."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from .config import VerdictCache
from .verdict import Question, Verdict

#: Entries. Some 300 bytes each: 3 MB in the worst case, for more keys than one proxy sees in an outage.
MAX_ENTRIES = 10_000


@dataclass
class _Entry:
    verdict: Verdict
    learned_at_s: float
    uses: int = 0


class LastVerdicts:
    """Bounded memory, least recently learned forgotten first. Times are seconds of one monotonic clock.

    "Denied" stands until its reset, at most ``denied_s``: the API itself said so. "Allowed" stands for ``allowed_s``
    and ``allowed_uses`` requests only: money is being spent meanwhile.
    """

    def __init__(self, limits: VerdictCache) -> None:
        self.limits = limits
        self._entries: OrderedDict[Question, _Entry] = OrderedDict()

    def learn(self, question: Question, verdict: Verdict, now_s: float) -> None:
        """A verdict came in."""
        if (self.limits.allowed_s if verdict.allowed else self.limits.denied_s) <= 0:
            self._entries.pop(question, None)
            return
        self._entries[question] = _Entry(verdict, now_s)
        self._entries.move_to_end(question)
        if len(self._entries) > MAX_ENTRIES:
            self._entries.popitem(last=False)

    def inherit(self, other: LastVerdicts) -> None:
        """Takes over what another one knows, its uses included; for how long is judged by our own limits."""
        self._entries.update(other._entries)

    def recall(self, question: Question, now_s: float) -> Verdict | None:
        """The verdict that may still stand in, its retry_after_s shortened by its age; each recall is a use."""
        entry = self._entries.get(question)
        if entry is None:
            return None
        age_s = now_s - entry.learned_at_s
        if entry.verdict.allowed:
            if age_s >= self.limits.allowed_s or entry.uses >= self.limits.allowed_uses:
                return None
            entry.uses += 1
            return entry.verdict
        reset_s = entry.verdict.retry_after_s
        if age_s >= self.limits.denied_s or (reset_s is not None and age_s >= reset_s):
            return None
        entry.uses += 1
        return replace(entry.verdict, retry_after_s=None if reset_s is None else reset_s - age_s)
