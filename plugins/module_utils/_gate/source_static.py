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
    AGAIN_S = 5.0  # while a name cannot be resolved

    def __init__(
        self,
        endpoints: tuple[Endpoint, ...],
        lookup: Callable[[str, int], Awaitable[list[str]]] = lookup_addresses,
    ) -> None:
        self._endpoints = endpoints
        self._lookup = lookup
        hosts = {endpoint.url: host_and_port(endpoint.url) for endpoint in endpoints}
        self._named = {url: host_port for url, host_port in hosts.items() if host_port is not None}
        self._addresses: dict[str, str] = {}  # url -> where to connect; empty: could not be resolved
        self._told: list[Endpoint] = []

    async def run(self, listener: Listener) -> None:
        self._told = []
        while True:
            self._tell(listener)
            lookups = (self._resolve(url, host, port, listener) for url, (host, port) in self._named.items())
            problems = [problem for problem in await asyncio.gather(*lookups) if problem]
            if problems:
                listener.failed("; ".join(problems))
            else:
                listener.heard()  # a written list is never out of date
            await asyncio.sleep(self.AGAIN_S if problems else self.REFRESH_S)

    async def _resolve(self, url: str, host: str, port: int, listener: Listener) -> str | None:
        """Takes over the name's address; what is wrong when it has none."""
        problem = None
        try:
            found = await self._lookup(host, port)
        except OSError as error:
            problem = f"{host}: {error.strerror or error}"
            self._addresses.setdefault(url, "")
        else:
            if self._addresses.get(url) not in found:
                self._addresses[url] = found[0]
        self._tell(listener)  # at once: another name's lookup may hang
        return problem

    def _tell(self, listener: Listener) -> None:
        """The endpoints, without those whose name is still being looked up for the first time; only what is new: a
        name that cannot be resolved would else be back every time."""
        known = [
            Endpoint(one.url, one.server_name, self._addresses.get(one.url, one.address))
            for one in self._endpoints
            if one.url in self._addresses or one.url not in self._named
        ]
        if known and known != self._told:
            self._told = known
            listener.publish(known)
