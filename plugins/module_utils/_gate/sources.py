# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where endpoints come from. A source runs in the background and hands over whole lists; whoever holds a list keeps it
while the source fails or has nothing."""

from __future__ import annotations

from typing import Protocol

from .endpoint import Endpoint


class Listener(Protocol):
    """Who a source reports to."""

    def publish(self, endpoints: list[Endpoint]) -> None:
        """A whole list, just read; an empty one is not taken over."""

    def heard(self) -> None:
        """The source is alive, nothing has changed."""

    def failed(self, sentence: str) -> None:
        """The source could not be read; the sentence says why. What that means for questions the listener knows."""


class EndpointSource(Protocol):
    """Runs until cancelled; never raises for what the network does."""

    async def run(self, listener: Listener) -> None: ...
