# SPDX-License-Identifier: GPL-3.0-or-later
"""One HTTP question with one deadline for the whole answer. Every failure is a word and a sentence, never an exception."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

try:
    import httpx
except ImportError:  # the module or command that needs it says so
    pass

# A page is about 50 kB; 8 MB is 160 of them. More is not a metrics page.
MAX_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class Answer:
    """`how`: ok (a whole answer, whatever its status), refused, timeout, connect timeout, reset, or unreachable.

    `status`: of a whole answer, or of the headers where the body then failed. `detail`: what went wrong, a sentence.
    `sent`: the question left this machine.
    """

    how: str
    status: int | None = None
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    detail: str | None = None
    sent: bool = True

    @property
    def text(self) -> str:
        """The body; bytes that are no UTF-8 become replacement characters."""
        return self.body.decode("utf-8", "replace")


def client(https: bool = True, trust_env: bool = False) -> httpx.AsyncClient:
    """One client for all servers of a run. Proxies named in the environment are ignored unless `trust_env`."""
    # an SSL context costs 15 ms of CPU: made only where a server needs one
    verify: ssl.SSLContext | bool = ssl.create_default_context() if https else False
    return httpx.AsyncClient(
        verify=verify,
        trust_env=trust_env,
        follow_redirects=False,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        headers={"User-Agent": "gb10-serving"},
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    todo: list[BaseException] = [error]
    while todo:
        one = todo.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        todo += [e for e in (one.__cause__, one.__context__) if e is not None]
        todo += list(getattr(one, "exceptions", ()) or ())


def _connect_failure(error: BaseException) -> Answer:
    for one in _causes(error):  # the outer errors only repeat its words
        if isinstance(one, ssl.SSLCertVerificationError):
            return Answer("unreachable", detail=f"its certificate is not accepted: {one.verify_message}")
    for one in _causes(error):
        if isinstance(one, ssl.SSLError) or "SSL" in str(one):
            if "WRONG_VERSION_NUMBER" in str(one) or "record layer failure" in str(one) or "HTTP_REQUEST" in str(one):
                return Answer("unreachable", detail="this port does not speak TLS: use http:// instead of https://")
            return Answer("unreachable", detail=f"TLS failed: {getattr(one, 'reason', None) or one}")
        if isinstance(one, socket.gaierror):
            return Answer("unreachable", detail="its host name was not found")
    numbers = {one.errno for one in _causes(error) if isinstance(one, OSError) and one.errno is not None}
    if errno.ECONNREFUSED in numbers:
        return Answer("refused", detail="nothing listens there")
    if numbers & {errno.EHOSTUNREACH, errno.ENETUNREACH}:
        return Answer("unreachable", detail="there is no route to its host")
    if numbers & {errno.ECONNRESET, errno.EPIPE}:
        return Answer("reset", detail="it closed the connection without an answer")
    if errno.ETIMEDOUT in numbers:
        return Answer("connect timeout", detail="connecting to it timed out")
    if numbers & {errno.EACCES, errno.EPERM}:
        return Answer("unreachable", detail="this machine does not permit a connection to it")
    return Answer("unreachable", detail=f"it could not be connected to ({error})")


NOT_HTTP = "what answers there is not HTTP; is it a TLS port, or another service's?"
# Another service says its greeting or its complaint at once.
GREETING_WITHIN_S = 2.0


class _Heard(asyncio.Protocol):
    """Keeps the first bytes that came, also where the connection is reset right after them."""

    def __init__(self) -> None:
        self.bytes = b""
        self.done = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.bytes += data[:64]
        if len(self.bytes) >= len(b"HTTP/"):
            self.done.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.done.set()


async def told_apart(answer: Answer, url: str, connect_s: float) -> Answer:
    """A connection that was closed without an answer: was it silence, or another protocol's words?

    The HTTP client does not say which, so the plain port is asked once more, and what comes is looked at.
    """
    parts = urlsplit(url)
    if answer.how != "reset" or answer.status is not None or parts.scheme != "http" or not parts.hostname:
        return answer
    heard = _Heard()
    try:
        async with asyncio.timeout(connect_s):
            transport, dummy = await asyncio.get_running_loop().create_connection(
                lambda: heard, parts.hostname, parts.port or 80
            )
    except (OSError, TimeoutError):
        return answer
    try:
        transport.write(
            f"GET {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc.rpartition('@')[2]}\r\nConnection: close\r\n\r\n".encode()
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(GREETING_WITHIN_S):
                await heard.done.wait()
    finally:
        transport.abort()
    if heard.bytes and not heard.bytes.startswith(b"HTTP/"[: len(heard.bytes)]):
        return Answer("unreachable", detail=NOT_HTTP)
    return answer


async def ask(
    http: httpx.AsyncClient,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    connect_s: float,
    read_s: float,
    json: object = None,
    max_bytes: int = MAX_BYTES,
) -> Answer:
    """Sends one question. `connect_s` limits connecting, `read_s` everything from then to the last byte of the answer."""
    status: int | None = None
    got: dict[str, str] = {}
    body = bytearray()
    last = "connection.start_tls.complete" if url.startswith("https:") else "connection.connect_tcp.complete"
    try:
        async with asyncio.timeout(connect_s + read_s) as deadline:

            async def connected(event: str, info: object) -> None:
                if event == last:
                    deadline.reschedule(asyncio.get_running_loop().time() + read_s)

            limits = httpx.Timeout(read_s, connect=connect_s, pool=None)
            request = http.build_request(
                method,
                url,
                headers={**headers, "Connection": "close"},
                json=json,
                timeout=limits,
                extensions={"trace": connected},
            )
            response = await http.send(request, stream=True)
            try:
                status, got = response.status_code, {k.lower(): v for k, v in response.headers.items()}
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > max_bytes:
                        return Answer(
                            "too large",
                            status,
                            headers=got,
                            detail=f"its answer is larger than {max_bytes // 1024 // 1024} MB",
                        )
            finally:
                await response.aclose()
        return Answer("ok", status, bytes(body), got)
    except httpx.ConnectTimeout:
        return Answer("connect timeout", detail="connecting to it timed out", sent=False)
    except (httpx.TimeoutException, TimeoutError):
        begun = f" whole within {read_s:g} s" if body or status is not None else f" within {read_s:g} s"
        return Answer("timeout", status, headers=got, detail=f"it takes connections but did not answer{begun}")
    except (httpx.ConnectError, OSError) as error:  # httpx 0.23 lets TLS errors through as they are
        return replace(_connect_failure(error), sent=False)
    except (httpx.ReadError, httpx.WriteError, httpx.CloseError):
        return Answer("reset", status, headers=got, detail="it closed the connection without an answer")
    except httpx.RemoteProtocolError as error:
        if status is not None:
            return Answer("truncated", status, headers=got, detail="its answer was cut off before its end")
        if "disconnected" in str(error).lower():
            return Answer("reset", detail="it closed the connection without an answer")
        return Answer("unreachable", detail=NOT_HTTP)
    except (httpx.DecodingError, httpx.HTTPError, httpx.InvalidURL, UnicodeError, ValueError) as error:
        detail = f"its answer could not be read ({type(error).__name__})"
        return Answer("unreachable", status, detail=detail, sent=status is not None)
