# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Endpoints written down one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from .endpoint import Endpoint
from .source_dns import host_and_port, lookup_addresses
from .sources import Listener


class FixedSource:
    """Endpoints written down. Host names among them are resolved in the background, so that no request waits for it."""

    REFRESH_S = 30.0  # an address written into a configuration changes rarely; a dead one is ejected meanwhile

    def __init__(
        self,
        endpoints: tuple[Endpoint, ...],
        lookup: Callable[[str, int], Awaitable[list[str]]] = lookup_addresses,
    ) -> None:
        self._endpoints = endpoints
        self._lookup = lookup
        self._hosts = {endpoint.url: host_and_port(endpoint.url) for endpoint in endpoints}

    async def run(self, listener: Listener) -> None:
        listener.publish(list(self._endpoints))
        named = {url: host_port for url, host_port in self._hosts.items() if host_port is not None}
        if not named:
            while True:  # a written list is never out of date
                await asyncio.sleep(self.REFRESH_S)
                listener.heard()
        addresses: dict[str, str] = {}
        while True:
            for url, (host, port) in named.items():
                try:
                    found = await self._lookup(host, port)
                except OSError as error:
                    listener.failed(f"{host}: {error.strerror or error}")
                    continue
                if addresses.get(url) not in found:
                    addresses[url] = found[0]
            listener.publish([Endpoint(e.url, e.server_name, addresses.get(e.url)) for e in self._endpoints])
            await asyncio.sleep(self.REFRESH_S)
