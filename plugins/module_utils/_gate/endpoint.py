# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One replica of the platform API."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Endpoint:
    """Identity is the URL; what it takes to connect may change without making it another endpoint.

    url: ``scheme://host:port[/base]``, no slash at the end. Also the value of the ``endpoint`` label.
    server_name: the name for TLS and the Host header when ``url`` holds a bare address found under that name.
    address: where to connect when ``url`` holds a name: resolved in the background, never in the request path; empty
    while it could not be.
    """

    url: str
    server_name: str | None = None
    address: str | None = None

    @property
    def place(self) -> str:
        """The URL, but for the dot that may end a host's name: what is there is the same machine."""
        return re.sub(r"\.(?=:\d+(?:/|$))", "", self.url, count=1)
