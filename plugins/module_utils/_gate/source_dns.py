# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Endpoints from DNS: A/AAAA records of a headless service, or its SRV records. Refreshed in the background."""

from __future__ import annotations

import asyncio
import ipaddress
import random
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

from .config import DnsEndpoints
from .dns_wire import Service, read_srv, srv_query
from .endpoint import Endpoint
from .errors import SourceError
from .sources import Listener

#: Seconds. The system's resolver gives up after some 10 s; a lookup that hangs longer is not waited for.
LOOKUP_LIMIT_S = 12.0
#: Seconds for one SRV question to one server.
SRV_LIMIT_S = 2.0


def host_and_port(url: str) -> tuple[str, int] | None:
    """The host name in an endpoint's URL that must be resolved; None when it is an address or this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host == "localhost":
        return None
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host, parts.port or 80
    return None


async def lookup_addresses(host: str, port: int) -> list[str]:
    """The addresses of a host, as the system resolves it (hosts file, search list); OSError when there are none."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(LOOKUP_LIMIT_S):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise OSError(0, "the DNS lookup hangs") from None
    except UnicodeError:  # what an SRV record names may be anything
        raise OSError(0, "is no host name") from None
    return list(dict.fromkeys(str(address[0]) for dummy1, dummy2, dummy3, dummy4, address in found))


def system_nameservers(path: str = "/etc/resolv.conf") -> list[str]:
    """The servers of the system's resolver; SourceError when none is named."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from None
    servers = [words[1] for words in map(str.split, lines) if len(words) > 1 and words[0] == "nameserver"]
    if not servers:
        raise SourceError(f"{path} names no nameserver")
    return servers


class _Reply(asyncio.DatagramProtocol):
    """Waits for one datagram."""

    def __init__(self) -> None:
        self.packet: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, addr: object) -> None:
        if not self.packet.done():
            self.packet.set_result(data)

    def error_received(self, exc: Exception) -> None:
        if not self.packet.done():
            self.packet.set_exception(exc)


async def lookup_services(name: str, servers: list[str] | None = None, port: int = 53) -> list[tuple[str, int]]:
    """Host and port of each SRV record, most wanted first; SourceError when no server gives any."""
    problem = SourceError("no DNS server")
    for server in servers or system_nameservers():
        try:
            async with asyncio.timeout(SRV_LIMIT_S):
                services = await _ask_srv(name, server, port)
        except TimeoutError:
            problem = SourceError(f"the DNS server {server} does not answer")
        except (OSError, SourceError) as error:
            problem = SourceError(f"{name}: {error} (from {server})")
        else:
            return [(service.target, service.port) for service in sorted(services)]
    raise problem


async def _ask_srv(name: str, server: str, port: int) -> list[Service]:
    number = random.randrange(65_536)
    query = srv_query(name, number)
    transport, reply = await asyncio.get_running_loop().create_datagram_endpoint(_Reply, remote_addr=(server, port))
    try:
        transport.sendto(query)
        services, cut_short = read_srv(await reply.packet, number)
    finally:
        transport.close()
    if not cut_short:
        return services
    reader, writer = await asyncio.open_connection(server, port)
    try:
        writer.write(struct.pack("!H", len(query)) + query)
        (length,) = struct.unpack("!H", await reader.readexactly(2))
        services, dummy = read_srv(await reader.readexactly(length), number)
    except asyncio.IncompleteReadError:
        raise SourceError("the DNS server closed the connection") from None
    finally:
        writer.close()
    return services


class DnsSource:
    """Looks the name up every ``refresh_s``."""

    def __init__(
        self,
        config: DnsEndpoints,
        addresses: Callable[[str, int], Awaitable[list[str]]] = lookup_addresses,
        services: Callable[[str], Awaitable[list[tuple[str, int]]]] = lookup_services,
    ) -> None:
        self._config = config
        self._addresses = addresses
        self._services = services
        self._known: dict[str, list[str]] = {}  # host -> its last addresses

    async def run(self, listener: Listener) -> None:
        told: list[Endpoint] = []
        while True:
            try:
                endpoints, problem = await self._read()
            except (OSError, SourceError) as error:
                problem = _reason(error)
            else:
                if problem is None or endpoints != told:
                    listener.publish(endpoints)
                    told = endpoints
            if problem is not None:
                listener.failed(f"endpoints.dns {self._config.name}: {problem}")
            # Spread, so that the workers of a proxy do not ask in step.
            await asyncio.sleep(self._config.refresh_s * random.uniform(0.9, 1.1))

    async def _read(self) -> tuple[list[Endpoint], str | None]:
        """The endpoints, and what is wrong with some of them; OSError, SourceError when there are none."""
        config = self._config
        if config.port is not None:
            places = [(config.name, config.port)]
        else:
            places = await self._services(config.name)
        endpoints: dict[str, Endpoint] = {}
        failure: OSError | None = None
        problem = None
        for host, port in places:
            try:
                self._known[host] = await self._addresses(host, port)
            except OSError as error:
                # One of several SRV targets must not take the others away. One that is gone goes, else it stays as it was.
                failure, problem = error, f"{host}: {_reason(error)}"
                if error.errno == socket.EAI_NONAME:
                    self._known.pop(host, None)
            for address in self._known.get(host, ()):
                bare = f"[{address}]" if ":" in address else address
                endpoint = Endpoint(f"{config.scheme}://{bare}:{port}", server_name=host.rstrip("."))
                endpoints.setdefault(endpoint.url, endpoint)
        if failure is not None and (len(places) == 1 or not endpoints):
            raise failure
        self._known = {host: self._known[host] for host, dummy in places if host in self._known}
        return sorted(endpoints.values(), key=lambda endpoint: endpoint.url), problem


def _reason(error: OSError | SourceError) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
