# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Endpoints from the EndpointSlices of a service: LIST, then WATCH, on httpx alone.

The watch serves rollouts. A dead node stays in the slices for 45 s and more; finding that out is the pool's work.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from .config import KubernetesEndpoints
from .errors import GateError, SourceError
from .slices import Slices, mapping, mappings
from .sources import Listener
from .token_file import read_token

try:
    import httpx
except ImportError:  # the module or command that needs it says so
    pass

ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: Seconds without a byte on a watch. A healthy API server sends a bookmark every minute; a black-holed one sends
#: nothing for ever, and the client libraries we tried wait for it for ever [measured].
WATCH_SILENCE_S = 90.0
#: Seconds after which everything is listed anew, whatever the watch says: a missed event costs minutes, not for ever.
RELIST_S = 300.0
#: Seconds for connecting, and for a whole LIST.
CONNECT_S = 5.0
LIST_S = 15.0
#: Seconds between attempts after a failure, doubled up to the second value.
BACKOFF_S = (1.0, 30.0)
#: Bytes of one watch event. A slice holds at most 1,000 endpoints, some 500 kB.
MAX_EVENT_BYTES = 8_000_000
#: Seconds a WATCH that the server ends at once is spaced by.
MIN_WATCH_S = 1.0


class _ListAgain(Exception):
    """The history we watch from is gone (410) or cannot be trusted: list anew."""


class KubernetesSource:
    """Follows one service. ``pace`` scales every wait; tests shorten it."""

    def __init__(self, config: KubernetesEndpoints, pace: float = 1.0) -> None:
        self._config = config
        self._pace = pace
        server_name = f"{config.service}.{config.namespace}.svc" if config.scheme == "https" else None
        self._slices = Slices(config.port, config.scheme, server_name)

    async def run(self, listener: Listener) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            began_s = loop.time()
            try:
                async with self._client() as client:
                    version = await self._list(client, listener)
                    await self._follow(client, version, listener)
                failures = 0
                continue  # the time to list anew has come
            except _ListAgain as reason:
                listener.failed(f"{self._where()}: {reason}; listing anew")
            except (SourceError, OSError) as error:
                listener.failed(f"{self._where()}: {error}")
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                what = str(error) or type(error).__name__
                listener.failed(f"{self._where()}: the Kubernetes API: {what}")
            # A LIST that succeeds is no success yet: where WATCH is forbidden, each second would bring another one.
            if loop.time() - began_s > BACKOFF_S[1] * self._pace:
                failures = 0
            wait_s = min(BACKOFF_S[0] * 2**failures, BACKOFF_S[1])
            failures = min(failures + 1, 10)
            await asyncio.sleep(wait_s * self._pace * random.uniform(0.5, 1.0))

    def _where(self) -> str:
        return f"endpoints.kubernetes {self._config.namespace}/{self._config.service}"

    def _client(self) -> httpx.AsyncClient:
        config = self._config
        if config.api_url is not None:
            base = config.api_url
        else:
            host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
            if not host:
                raise SourceError(
                    "not in a cluster (KUBERNETES_SERVICE_HOST is unset); set endpoints.kubernetes.api_url"
                )
            base = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        in_cluster_ca = ACCOUNT_FOLDER / "ca.crt"
        authority = config.ca_file or (str(in_cluster_ca) if in_cluster_ca.exists() else None)
        try:
            # Made anew with every LIST, so that a rotated authority is taken up.
            tls = ssl.create_default_context(cafile=authority)
        except OSError as error:
            raise SourceError(f"cannot use the authority {authority}: {error.strerror or error}") from None
        timeout = httpx.Timeout(LIST_S * self._pace, connect=CONNECT_S * self._pace)
        return httpx.AsyncClient(base_url=base, verify=tls, timeout=timeout, trust_env=False)

    def _headers(self) -> dict[str, str]:
        """Read for every request: the kubelet rotates the token."""
        path = Path(self._config.token_file) if self._config.token_file else ACCOUNT_FOLDER / "token"
        try:
            token = read_token(str(path))
        except FileNotFoundError:
            if self._config.token_file is None and self._config.api_url is not None:
                return {}  # an API without authentication, such as a kubectl proxy
            raise SourceError(f"no token at {path}") from None
        except OSError as error:
            raise SourceError(f"cannot read the token {path}: {error.strerror}") from None
        except GateError as error:
            raise SourceError(f"the token cannot be used: {error}") from None
        return {"Authorization": f"Bearer {token}", "Accept": "application/json"}

    def _url(self) -> str:
        return f"/apis/discovery.k8s.io/v1/namespaces/{self._config.namespace}/endpointslices"

    def _selector(self) -> dict[str, str]:
        return {"labelSelector": f"kubernetes.io/service-name={self._config.service}"}

    async def _list(self, client: httpx.AsyncClient, listener: Listener) -> str:
        """Reads everything; the version to watch from."""
        items: list[dict[str, Any]] = []
        params = self._selector()
        try:
            async with asyncio.timeout(LIST_S * self._pace):
                while True:
                    response = await client.get(self._url(), params=params, headers=self._headers())
                    _check_status(response.status_code)
                    page = _json(response.content)
                    items += mappings(page.get("items"))
                    metadata = mapping(page.get("metadata"))
                    if not metadata.get("continue"):
                        break
                    params = {**self._selector(), "continue": str(metadata["continue"])}
        except TimeoutError:
            raise SourceError("the Kubernetes API did not answer a LIST in time") from None
        self._slices.replace(items)
        listener.publish(self._slices.endpoints())
        return str(metadata.get("resourceVersion") or "")

    async def _follow(self, client: httpx.AsyncClient, version: str, listener: Listener) -> None:
        """Watches until the next LIST is due."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + RELIST_S * self._pace * random.uniform(0.8, 1.2)
        while (left_s := until_s - loop.time()) > 0:
            began_s = loop.time()
            params = {
                **self._selector(),
                "watch": "1",
                "allowWatchBookmarks": "true",
                "resourceVersion": version,
                "timeoutSeconds": str(max(1, int(left_s))),
            }
            silence = httpx.Timeout(WATCH_SILENCE_S * self._pace, connect=CONNECT_S * self._pace)
            try:
                async with asyncio.timeout(left_s):
                    async with client.stream(
                        "GET", self._url(), params=params, headers=self._headers(), timeout=silence
                    ) as response:
                        _check_status(response.status_code)
                        async for line in _lines(response):
                            version = self._event(line, version, listener)
            except TimeoutError:
                return  # time to list anew
            # A watch ends by itself now and then. One that ends at once must not become a busy loop.
            await asyncio.sleep(max(0.0, MIN_WATCH_S * self._pace - (loop.time() - began_s)))

    def _event(self, line: bytes, version: str, listener: Listener) -> str:
        event = _json(line)
        kind, item = event.get("type"), event.get("object")
        if not isinstance(item, dict):
            raise _ListAgain("a watch event without an object")
        if kind == "ERROR":
            code = item.get("code")
            raise _ListAgain("the history is gone (410)" if code == 410 else f"the watch ended with error {code}")
        newer = str(mapping(item.get("metadata")).get("resourceVersion") or version)
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            self._slices.apply(kind, item)
            listener.publish(self._slices.endpoints())
        elif kind == "BOOKMARK":
            listener.heard()
        else:
            raise _ListAgain(f"a watch event of an unknown type {str(kind)[:40]!r}")
        return newer


def _check_status(status: int) -> None:
    if status == 410:
        raise _ListAgain("the history is gone (410)")
    if status in (401, 403):
        raise SourceError(
            f"the Kubernetes API answered {status}; the service account needs get, list and watch on endpointslices"
        )
    if status != 200:
        raise SourceError(f"the Kubernetes API answered {status}")


def _json(content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise SourceError("the Kubernetes API answered something that is no JSON") from None
    if not isinstance(document, dict):
        raise SourceError("the Kubernetes API answered JSON that is no object")
    return document


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """Whole lines of a stream, each bounded."""
    held = b""
    async for chunk in response.aiter_bytes():
        held += chunk
        *whole, held = held.split(b"\n")
        for line in whole:
            if line.strip():
                yield line
        if len(held) > MAX_EVENT_BYTES:
            raise SourceError("a watch event is larger than any slice can be")
