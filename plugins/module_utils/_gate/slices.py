# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The EndpointSlices of one service, merged into a list of endpoints. Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from .endpoint import Endpoint


class Rank(IntEnum):
    """How fit for use an endpoint is; only the best rank present is used, the worst being better than nobody."""

    READY = 0
    LEAVING = 1  # terminating, still serving: a rollout's old pods
    NOT_READY = 2  # its probe fails; a wrong probe must not leave us with nobody to ask


@dataclass(frozen=True)
class _Candidate:
    rank: Rank
    address_type: str  # IPv4 sorts before IPv6: of a dual-stack pod's two addresses, the first
    endpoint: Endpoint
    pod: str | None


class Slices:
    """What LIST and WATCH said so far."""

    def __init__(self, port: str, scheme: str, server_name: str | None) -> None:
        self._port = port
        self._scheme = scheme
        self._server_name = server_name
        self._slices: dict[str, dict[str, Any]] = {}

    def replace(self, items: list[dict[str, Any]]) -> None:
        """A whole list."""
        self._slices = {_name(item): item for item in items}

    def apply(self, kind: str, item: dict[str, Any]) -> None:
        """One event: ADDED, MODIFIED or DELETED."""
        if kind == "DELETED":
            self._slices.pop(_name(item), None)
        else:
            self._slices[_name(item)] = item

    def endpoints(self) -> list[Endpoint]:
        """One endpoint per pod, the best rank only, in a steady order."""
        best: dict[str, _Candidate] = {}
        for item in self._slices.values():
            for candidate in self._candidates(item):
                # The same pod may be in two slices while it moves, and in one per address family.
                key = candidate.pod or candidate.endpoint.url
                known = best.get(key)
                if known is None or (candidate.rank, candidate.address_type, candidate.endpoint.url) < (
                    known.rank,
                    known.address_type,
                    known.endpoint.url,
                ):
                    best[key] = candidate
        if not best:
            return []
        rank = min(candidate.rank for candidate in best.values())
        unique = {c.endpoint.url: c.endpoint for c in best.values() if c.rank is rank}
        return [unique[url] for url in sorted(unique)]

    def _candidates(self, item: dict[str, Any]) -> list[_Candidate]:
        port = self._port_of(item)
        address_type = item.get("addressType")
        if port is None or address_type not in ("IPv4", "IPv6"):
            return []
        found = []
        for entry in mappings(item.get("endpoints")):
            bare = _address(entry.get("addresses"), address_type)
            if bare is None:
                continue
            endpoint = Endpoint(f"{self._scheme}://{bare}:{port}", server_name=self._server_name)
            pod = mapping(entry.get("targetRef")).get("uid")
            rank = _rank(mapping(entry.get("conditions")))
            found.append(_Candidate(rank, address_type, endpoint, pod if isinstance(pod, str) else None))
        return found

    def _port_of(self, item: dict[str, Any]) -> int | None:
        for port in mappings(item.get("ports")):
            number = port.get("port")
            if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= 65_535:
                continue
            if port.get("protocol") not in (None, "TCP"):
                continue
            if self._port in (port.get("name") or "", str(number)):
                return number
        return None


def _rank(conditions: dict[str, Any]) -> Rank:
    # Absent means unknown, which the API's own rules read as ready, and serving as ready is.
    ready = conditions.get("ready") is not False
    terminating = conditions.get("terminating") is True
    serving = conditions.get("serving", ready)
    if ready and not terminating:
        return Rank.READY
    return Rank.LEAVING if terminating and serving is not False else Rank.NOT_READY


def _name(item: dict[str, Any]) -> str:
    return str(mapping(item.get("metadata")).get("name"))


def _address(addresses: Any, address_type: str) -> str | None:
    """The first of an endpoint's addresses, which stand for the same pod, as a URL holds it."""
    first = addresses[0] if isinstance(addresses, list) and addresses else None
    if not isinstance(first, str):
        return None
    try:
        return f"[{ipaddress.IPv6Address(first)}]" if address_type == "IPv6" else str(ipaddress.IPv4Address(first))
    except ValueError:
        return None


# What is malformed is passed over: one slice that nobody understands must not take the others away.


def mapping(value: Any) -> dict[str, Any]:
    """The mapping that should be there."""
    return value if isinstance(value, dict) else {}


def mappings(value: Any) -> list[dict[str, Any]]:
    """The list of mappings that should be there."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
