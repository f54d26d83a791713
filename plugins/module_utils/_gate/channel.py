# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One HTTP client per endpoint, and one question over it."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import httpx

from .config import Request
from .endpoint import Endpoint
from .verdict import Blame, Cause, Fault, Question, Verdict, read_answer

#: Bytes. A verdict is some 100; whatever is larger is not one, and must not fill the memory.
MAX_ANSWER_BYTES = 65_536
#: Seconds. Below uvicorn's 5 s: then it is we who close an idle connection, not the server under our question.
KEEPALIVE_S = 4.0
#: Idle connections kept per endpoint: enough for a burst, few enough for 300 endpoints.
KEEPALIVE_CONNECTIONS = 20
#: Seconds after which a token file is looked at again; Kubernetes rotates tokens hourly, with overlap.
TOKEN_REREAD_S = 10.0


class Token:
    """A bearer token in a file that is rotated. A file that vanishes or empties leaves the last token in use."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._value = self._path.read_text(encoding="utf-8").strip()
        self._read_at_s = monotonic()

    def value(self) -> str:
        """The token, at most ten seconds old."""
        now_s = monotonic()
        if now_s - self._read_at_s >= TOKEN_REREAD_S:
            self._read_at_s = now_s
            with contextlib.suppress(OSError, UnicodeDecodeError):
                self._value = self._path.read_text(encoding="utf-8").strip() or self._value
        return self._value


@dataclass
class _Line:
    """A client for one endpoint and what is under way on it."""

    transport: httpx.AsyncHTTPTransport
    in_flight: int = 0
    retired: bool = False


@dataclass
class _Watch:
    """What httpcore's trace said about one request."""

    fresh: bool = False
    answered: bool = False

    async def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        if event == "connection.connect_tcp.started":
            self.fresh = True
        elif event == "http11.receive_response_headers.complete":
            self.answered = True


@dataclass
class _Target:
    """What is the same for every question to one endpoint."""

    url: httpx.URL
    headers: list[tuple[bytes, bytes]]
    extensions: dict[str, Any] = field(default_factory=dict)


class Channels:
    """Sends questions. Uses httpx's transport without its client: no redirects, cookies, proxies or environment, and
    half the cost. Every question is one small POST."""

    def __init__(self, request: Request, connect_s: float) -> None:
        self._request = request
        self._connect_s = connect_s
        # One context for all: making one costs 18 ms [measured], more than the rest of a check together.
        self._tls = ssl.create_default_context(cafile=request.ca_file)
        self._token = Token(request.token_file) if request.token_file else None
        self._lines: dict[str, _Line] = {}
        self._targets: dict[tuple[Endpoint, str], _Target] = {}

    async def send(self, endpoint: Endpoint, question: Question, limit_s: float) -> Verdict | Fault:
        """The answer of one endpoint. A kept connection that the server had closed is replaced by a fresh one once."""
        result, stale = await self._post(endpoint, self._request.path, question.body(), limit_s)
        if stale:
            self.reset(endpoint)
            result, _ = await self._post(endpoint, self._request.path, question.body(), limit_s)
        return result if isinstance(result, Fault) else read_answer(*result)

    async def post(
        self, endpoint: Endpoint, path: str, body: bytes, limit_s: float, headers: Mapping[str, str]
    ) -> int | Fault:
        """Some other POST (a report of unchecked requests): the status, or why there is none."""
        result, _ = await self._post(endpoint, path, body, limit_s, headers)
        return result if isinstance(result, Fault) else result[0]

    def reset(self, endpoint: Endpoint) -> None:
        """Forget the endpoint's connections. What is under way on them ends by itself."""
        line = self._lines.pop(endpoint.url, None)
        if line is not None:
            line.retired = True

    async def close(self) -> None:
        """Close every connection."""
        for line in list(self._lines.values()):
            await line.transport.aclose()
        self._lines.clear()

    def keep_only(self, urls: set[str]) -> None:
        """Forget connections to endpoints that are no longer in the list."""
        for url in [url for url in self._lines if url not in urls]:
            self._lines.pop(url).retired = True
        self._targets = {key: target for key, target in self._targets.items() if key[0].url in urls}

    async def _post(
        self, endpoint: Endpoint, path: str, body: bytes, limit_s: float, more_headers: Mapping[str, str] | None = None
    ) -> tuple[tuple[int, bytes] | Fault, bool]:
        """(status and body, or a fault), and whether a kept connection turned out to be closed."""
        target = self._target(endpoint, path)
        headers = [*target.headers, (b"Content-Length", b"%d" % len(body))]
        if self._token is not None:
            headers.append((b"Authorization", b"Bearer " + self._token.value().encode()))
        for name, value in (more_headers or {}).items():
            headers.append((name.encode(), value.encode()))
        watch = _Watch()
        timeout = {"connect": min(self._connect_s, limit_s), "read": limit_s, "write": limit_s, "pool": limit_s}
        request = httpx.Request(
            "POST",
            target.url,
            headers=headers,
            stream=httpx.ByteStream(body),
            extensions={**target.extensions, "timeout": timeout, "trace": watch},
        )
        line = self._line(endpoint)
        line.in_flight += 1
        try:
            response = await line.transport.handle_async_request(request)
            try:
                answer = bytearray()
                async for chunk in response.stream:  # type: ignore[union-attr]
                    answer += chunk
                    if len(answer) > MAX_ANSWER_BYTES:
                        return Fault(
                            Cause.BAD_ANSWER, Blame.ANSWER, f"answered more than {MAX_ANSWER_BYTES} bytes"
                        ), False
                return (response.status_code, bytes(answer)), False
            finally:
                await response.aclose()
        except httpx.TimeoutException as error:
            what = "connect" if isinstance(error, httpx.ConnectTimeout) else "answer"
            return Fault(Cause.TIMEOUT, Blame.CONNECTION, f"did not {what} in time"), False
        except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
            stale = not watch.fresh and not watch.answered and not isinstance(error, httpx.ConnectError)
            return _connection_fault(error), stale and _closed(error)
        except (httpx.TransportError, httpx.InvalidURL, OSError) as error:
            return Fault(Cause.UNREACHABLE, Blame.CONNECTION, f"{type(error).__name__}: {_line_of(error)}"), False
        finally:
            line.in_flight -= 1
            if line.retired and line.in_flight == 0:
                await line.transport.aclose()

    def _line(self, endpoint: Endpoint) -> _Line:
        line = self._lines.get(endpoint.url)
        if line is None:
            limits = httpx.Limits(
                max_connections=None,  # a queue for connections would be waiting nobody sees
                max_keepalive_connections=KEEPALIVE_CONNECTIONS,
                keepalive_expiry=KEEPALIVE_S,
            )
            line = _Line(httpx.AsyncHTTPTransport(verify=self._tls, limits=limits, trust_env=False))
            self._lines[endpoint.url] = line
        return line

    def _target(self, endpoint: Endpoint, path: str) -> _Target:
        target = self._targets.get((endpoint, path))
        if target is None:
            url = httpx.URL(endpoint.url + path)
            host = url.netloc.decode()
            name = endpoint.server_name
            if name is not None:  # found under this name: speak to it by name
                host = name if url.port is None else f"{name}:{url.port}"
            elif endpoint.address is not None:
                name = url.host
                url = url.copy_with(host=endpoint.address)
            headers = [
                (b"Host", host.encode()),
                (b"Content-Type", b"application/json"),
                (b"Accept", b"application/json"),
                *((key.encode(), value.encode()) for key, value in self._request.headers),
            ]
            extensions = {"sni_hostname": name} if name is not None else {}
            target = self._targets[(endpoint, path)] = _Target(url, headers, extensions)
        return target


def _closed(error: Exception) -> bool:
    """Whether the connection was gone, rather than the answer being wrong."""
    return not isinstance(error, httpx.RemoteProtocolError) or "disconnected" in str(error)


def _connection_fault(error: Exception) -> Fault:
    text = _line_of(error)
    if isinstance(error, httpx.RemoteProtocolError) and "disconnected" not in text and "closed" not in text:
        return Fault(Cause.BAD_ANSWER, Blame.ANSWER, f"did not speak HTTP: {text}")
    return Fault(Cause.UNREACHABLE, Blame.CONNECTION, f"{type(error).__name__}: {text}")


def _line_of(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or "no reason given"
