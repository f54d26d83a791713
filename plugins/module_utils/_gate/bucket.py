# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The allowance for hedges."""

from __future__ import annotations


class HedgeBucket:
    """Every question adds ``share`` of a token, a hedge takes a whole one, at most ``burst`` are kept.

    It starts full: a plain 10 % share would forbid hedging exactly when a node has just died [measured].
    Invariant: hedges ever taken <= burst + share × questions ever asked; none at all with share 0.
    """

    def __init__(self, share: float, burst: int) -> None:
        self._share = share
        self._burst = float(burst)
        self._tokens = self._burst if share > 0 else 0.0

    def add(self) -> None:
        """A question was asked."""
        # A bucket smaller than one whole token could never pay for a hedge.
        self._tokens = min(max(self._burst, 1.0), self._tokens + self._share)

    def take(self) -> bool:
        """Whether a hedge is allowed now; takes its token."""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
