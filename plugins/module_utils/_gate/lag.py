# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How late the event loop runs. A time-out seen by a loop that was itself asleep proves nothing about an endpoint."""

from __future__ import annotations

import asyncio
from collections import deque

#: Seconds between two looks at the clock: twenty wake-ups a second cost a worker less than 0.1 % of a core.
TICK_S = 0.05
#: Share of an attempt that the loop may have been asleep before its time-out is excused.
EXCUSED_SHARE = 0.2
#: Seconds below which lateness is ordinary scheduling.
NOISE_S = 0.01


class LagMeter:
    """Sums how late the loop was. ``note`` is fed by ``run``; both times are the loop's."""

    def __init__(self) -> None:
        self._late: deque[tuple[float, float]] = deque(maxlen=256)
        self._next_tick_s: float | None = None

    def note(self, expected_s: float, now_s: float) -> None:
        """The loop was to wake us at ``expected_s`` and did at ``now_s``."""
        if now_s - expected_s > NOISE_S:
            self._late.append((now_s, now_s - expected_s))

    def excuses(self, began_s: float, now_s: float) -> bool:
        """Whether the loop was asleep for so much of this span that a time-out in it proves nothing."""
        asleep_s = sum(min(late_s, at_s - began_s) for at_s, late_s in self._late if at_s > began_s)
        if self._next_tick_s is not None:
            # The ticker itself may not have had its turn yet.
            asleep_s += max(0.0, now_s - max(self._next_tick_s, began_s) - NOISE_S)
        return asleep_s >= EXCUSED_SHARE * (now_s - began_s)

    async def run(self) -> None:
        """Watches the loop until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._next_tick_s = loop.time() + TICK_S
                await asyncio.sleep(TICK_S)
                self.note(self._next_tick_s, loop.time())
        finally:
            self._next_tick_s = None
