# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One pool of kept connections per endpoint, and one question over it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from urllib.parse import urlsplit

from .config import Request
from .connection import Connection, ConnectionClosed, NotHttp
from .endpoint import Endpoint
from .errors import GateError
from .token_file import read_token
from .verdict import Blame, Cause, Fault, Question, Verdict, read_answer

#: Seconds. Below uvicorn's 5 s: then it is we who close an idle connection, not the server under our question.
KEEPALIVE_S = 4.0
#: Idle connections kept per endpoint: enough for a burst, few enough for 300 endpoints.
KEEPALIVE_CONNECTIONS = 20
#: Seconds after which a token file is looked at again; Kubernetes rotates tokens hourly, with overlap.
TOKEN_REREAD_S = 10.0


class Token:
    """A bearer token in a file that is rotated. One that vanishes, empties or breaks leaves the last token in use."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._value = read_token(path)
        self._read_at_s = monotonic()

    def value(self) -> str:
        """The token, at most ten seconds old."""
        now_s = monotonic()
        if now_s - self._read_at_s >= TOKEN_REREAD_S:
            self._read_at_s = now_s
            with contextlib.suppress(OSError, GateError):
                self._value = read_token(self._path)
        return self._value


@dataclass
class _Line:
    """The idle connections to one endpoint, the longest idle first."""

    idle: list[tuple[Connection, float]] = field(default_factory=list)
    retired: bool = False

    def take(self, now_s: float) -> Connection | None:
        while self.idle:
            connection, since_s = self.idle.pop()
            if connection.usable and now_s - since_s < KEEPALIVE_S:
                return connection
            connection.close()
        return None

    def put(self, connection: Connection, now_s: float) -> None:
        if self.retired or len(self.idle) >= KEEPALIVE_CONNECTIONS:
            connection.close()
            return
        self.idle.append((connection, now_s))
        while now_s - self.idle[0][1] >= KEEPALIVE_S:
            self.idle.pop(0)[0].close()

    def retire(self) -> None:
        self.retired = True
        for connection, dummy in self.idle:
            connection.close()
        self.idle.clear()


@dataclass(frozen=True)
class _Target:
    """What is the same for every question to one endpoint."""

    host: str
    port: int
    tls_name: str | None
    head: bytes  # request line and headers, up to Content-Length


class Channels:
    """Sends questions. No redirects, cookies, proxies or environment: every question is one small POST."""

    def __init__(self, request: Request, connect_s: float) -> None:
        self._request = request
        self._connect_s = connect_s
        # One context for all: making one costs 18 ms [measured], more than all the rest of a check.
        self._tls = ssl.create_default_context(cafile=request.ca_file)
        self._token = Token(request.token_file) if request.token_file else None
        self._lines: dict[str, _Line] = {}
        self._targets: dict[tuple[Endpoint, str], _Target] = {}

    async def send(self, endpoint: Endpoint, question: Question, limit_s: float) -> Verdict | Fault:
        """The answer of one endpoint. A kept connection that the server had closed is replaced by a fresh one once."""
        result = await self._post(endpoint, self._request.path, question.body(), limit_s)
        return result if isinstance(result, Fault) else read_answer(*result)

    async def post(
        self, endpoint: Endpoint, path: str, body: bytes, limit_s: float, headers: Mapping[str, str]
    ) -> int | Fault:
        """Some other POST (a report of unchecked requests): the status, or why there is none."""
        result = await self._post(endpoint, path, body, limit_s, headers)
        return result if isinstance(result, Fault) else result[0]

    def reset(self, endpoint: Endpoint) -> None:
        """Forget the endpoint's connections. What is under way on them ends by itself."""
        line = self._lines.pop(endpoint.url, None)
        if line is not None:
            line.retire()

    def close(self) -> None:
        """Close every idle connection."""
        self.keep_only(frozenset())

    def keep_only(self, urls: frozenset[str] | set[str]) -> None:
        """Forget connections to endpoints that are no longer in the list."""
        for url in [url for url in self._lines if url not in urls]:
            self._lines.pop(url).retire()
        self._targets = {key: target for key, target in self._targets.items() if key[0].url in urls}

    async def _post(
        self, endpoint: Endpoint, path: str, body: bytes, limit_s: float, more_headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes] | Fault:
        target = self._target(endpoint, path)
        request = b"%bContent-Length: %d\r\n" % (target.head, len(body))
        if self._token is not None:
            request += b"Authorization: Bearer %b\r\n" % self._token.value().encode()
        for name, value in (more_headers or {}).items():
            request += f"{name}: {value}\r\n".encode()
        request += b"\r\n" + body
        if not target.host:
            return Fault(Cause.UNREACHABLE, Blame.CONNECTION, "its name could not be resolved")
        line = self._lines.setdefault(endpoint.url, _Line())
        kept = line.take(monotonic())
        if kept is not None:
            try:
                return await self._exchange(line, kept, request)
            except NotHttp as error:
                return Fault(Cause.BAD_ANSWER, Blame.ANSWER, str(error))
            except ConnectionClosed as error:
                if not error.silent:
                    return Fault(Cause.UNREACHABLE, Blame.CONNECTION, f"closed in mid-answer: {error}")
                # Closed by the server, most likely before our question reached it. The others are as old.
                self.reset(endpoint)
                line = self._lines.setdefault(endpoint.url, _Line())
        try:
            async with asyncio.timeout(min(self._connect_s, limit_s)):
                fresh = await self._connect(target)
        except TimeoutError:
            return Fault(Cause.TIMEOUT, Blame.CONNECTION, "did not connect in time")
        except OSError as error:  # ssl.SSLError is one
            reason = str(error) if isinstance(error, ssl.SSLError) else error.strerror or str(error)
            return Fault(Cause.UNREACHABLE, Blame.CONNECTION, f"cannot connect: {' '.join(reason.split())[:200]}")
        try:
            return await self._exchange(line, fresh, request)
        except NotHttp as error:
            return Fault(Cause.BAD_ANSWER, Blame.ANSWER, str(error))
        except ConnectionClosed as error:
            when = "without an answer" if error.silent else "in mid-answer"
            return Fault(Cause.UNREACHABLE, Blame.CONNECTION, f"closed {when}: {error}")

    async def _exchange(self, line: _Line, connection: Connection, request: bytes) -> tuple[int, bytes]:
        answer = await connection.exchange(request)
        if connection.usable:
            line.put(connection, monotonic())
        return answer

    async def _connect(self, target: _Target) -> Connection:
        dummy, connection = await asyncio.get_running_loop().create_connection(
            Connection,
            target.host,
            target.port,
            ssl=self._tls if target.tls_name is not None else None,
            server_hostname=target.tls_name,
        )
        return connection

    def _target(self, endpoint: Endpoint, path: str) -> _Target:
        target = self._targets.get((endpoint, path))
        if target is not None:
            return target
        parts = urlsplit(endpoint.url)
        host, port = parts.hostname or "", parts.port or 80
        # Found under that name: speak to it by it. No certificate has the dot that may end a name.
        name = (endpoint.server_name or host).rstrip(".")
        shown = f"[{name}]" if ":" in name else name
        head = f"POST {parts.path}{path} HTTP/1.1\r\nHost: {shown}:{port}\r\n"
        head += "Content-Type: application/json\r\n"
        if "accept" not in {key.lower() for key, dummy in self._request.headers}:
            head += "Accept: application/json\r\n"
        head += "".join(f"{key}: {value}\r\n" for key, value in self._request.headers)
        target = _Target(
            host=host if endpoint.address is None else endpoint.address,
            port=port,
            tls_name=name if parts.scheme == "https" else None,
            head=head.encode(),
        )
        self._targets[(endpoint, path)] = target
        return target
