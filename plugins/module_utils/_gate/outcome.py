# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How one check ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .verdict import Cause, Verdict


class Outcome(StrEnum):
    """The values of the ``outcome`` label."""

    ALLOWED = "allowed"  # an endpoint said yes
    DENIED = "denied"  # an endpoint said no
    CACHED_ALLOWED = "cached_allowed"  # none answered; the last known verdict, still good, was yes
    CACHED_DENIED = "cached_denied"  # none answered; the last known verdict, still good, was no
    FAILED_OPEN = "failed_open"  # none answered, nothing known: served unchecked
    FAILED_CLOSED = "failed_closed"  # none answered, nothing known: refused, as on_failure: closed says
    NOT_CAPPED = "not_capped"  # the model has no cap; nobody was asked


SERVED = frozenset({Outcome.ALLOWED, Outcome.CACHED_ALLOWED, Outcome.FAILED_OPEN, Outcome.NOT_CAPPED})
FAILED = frozenset({Outcome.FAILED_OPEN, Outcome.FAILED_CLOSED})


@dataclass(frozen=True)
class Checked:
    """One check. ``cause`` and ``detail`` say why no endpoint gave a verdict; ``took_s`` is the whole wait."""

    outcome: Outcome
    verdict: Verdict | None = None
    cause: Cause | None = None
    detail: str | None = None
    retries: int = 0
    hedges: int = 0
    took_s: float = 0.0

    @property
    def served(self) -> bool:
        return self.outcome in SERVED
