# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One HTTP/1.1 connection that carries one small POST at a time.

httpx costs 0.83 ms of CPU and a dozen turns of the event loop per question, this 0.07 ms and two [measured]. The turns
matter more: in a proxy whose loop is busy each of them waits for its turn, and the answer that lay in the socket in
time is read after the time-out.
"""

from __future__ import annotations

import asyncio
import re
from typing import cast

#: Bytes. A verdict is some 100; whatever is larger is not one, and must not fill the memory.
MAX_ANSWER_BYTES = 65_536
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n]*)?")


class ConnectionClosed(Exception):
    """The connection ended before the whole answer. ``silent``: not one byte of it had come."""

    def __init__(self, text: str, silent: bool) -> None:
        super().__init__(text)
        self.silent = silent


class NotHttp(Exception):
    """What came is no HTTP answer, or one larger than any verdict."""


class Connection(asyncio.Protocol):
    """Made by ``loop.create_connection``; ``exchange`` is called by one task at a time."""

    def __init__(self) -> None:
        self.usable = False  # for another question
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    async def exchange(self, request: bytes) -> tuple[int, bytes]:
        """Sends a whole request; the status and body of its answer. ConnectionClosed, NotHttp. When cancelled the
        connection is given up, since its answer may still come."""
        transport = self._transport
        if transport is None or not self.usable:
            raise ConnectionClosed("the server had closed the kept connection", silent=True)
        self.usable = False
        self._received.clear()
        self._answer = asyncio.get_running_loop().create_future()
        transport.write(request)
        answer = self._answer
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                return answer.result()  # it came in the very turn in which the time was up
            raise
        finally:
            self._answer = None
            if not self.usable:
                transport.abort()

    def close(self) -> None:
        """Ends it at once."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    # -- what asyncio calls --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's transports, which LiteLLM has, are no asyncio.Transport by class.
        self._transport = cast(asyncio.Transport, transport)
        self.usable = True

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # nobody asked
            return
        self._received += data
        self._look(ended=False)

    def eof_received(self) -> bool:
        return False  # close: connection_lost follows

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        if self._answer is not None and not self._answer.done():
            self._look(ended=True, text=str(exc) if exc else "the server closed the connection")

    def _look(self, ended: bool, text: str = "") -> None:
        """Is the answer whole?"""
        waiting = self._answer
        if waiting is None:
            return
        try:
            read = read_answer_bytes(bytes(self._received), ended)
        except NotHttp as error:
            waiting.set_exception(error)
            return
        if read is None:
            if len(self._received) > MAX_ANSWER_BYTES:
                waiting.set_exception(NotHttp(f"the answer is longer than {MAX_ANSWER_BYTES} bytes"))
            elif ended:
                waiting.set_exception(ConnectionClosed(text, silent=not self._received))
            return
        status, body, reusable = read
        self.usable = reusable and not ended
        waiting.set_result((status, body))


def read_answer_bytes(received: bytes, ended: bool) -> tuple[int, bytes, bool] | None:
    """Status, body and whether the connection can go on, once the answer is whole; None before. NotHttp."""
    start = 0
    while True:
        end = received.find(b"\r\n\r\n", start)
        if end < 0:
            if not b"HTTP/1.".startswith(received[start : start + 7]) and not received[start:].startswith(b"HTTP/1."):
                raise NotHttp("the answer does not begin as HTTP does")
            return None
        first, *lines = received[start:end].split(b"\r\n")
        match = _STATUS.fullmatch(first)
        if match is None:
            raise NotHttp("the answer does not begin as HTTP does")
        status = int(match[2])
        if status >= 200 or status == 101:
            break
        start = end + 4  # 100, 103: the answer proper follows
    headers = {}
    for line in lines:
        name, dummy, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip().lower()
    keep = headers.get(b"connection", b"keep-alive" if match[1] == b"1" else b"close") != b"close"
    rest = received[end + 4 :]
    if status in (204, 304):
        return status, b"", keep and not rest
    if b"chunked" in headers.get(b"transfer-encoding", b""):
        return _chunked(status, rest, keep)
    length = headers.get(b"content-length")
    if length is None:
        return (status, rest, False) if ended else None
    if not length.isdigit() or len(length.lstrip(b"0")) > 12 or int(length) > MAX_ANSWER_BYTES:
        raise NotHttp(
            f"the answer is longer than {MAX_ANSWER_BYTES} bytes" if length.isdigit() else "a bad Content-Length"
        )
    size = int(length)
    if len(rest) < size:
        return None
    return status, rest[:size], keep and len(rest) == size


def _chunked(status: int, rest: bytes, keep: bool) -> tuple[int, bytes, bool] | None:
    body = b""
    while True:
        line, found, after = rest.partition(b"\r\n")
        if not found:
            return None
        try:
            size = int(line.split(b";")[0], 16)
        except ValueError:
            raise NotHttp("a broken chunk") from None
        if size < 0 or size > MAX_ANSWER_BYTES:
            raise NotHttp(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
        if size == 0:
            # Trailers end with an empty line; without any, that line is all there is.
            if after.startswith(b"\r\n"):
                return status, body, keep and len(after) == 2
            end = after.find(b"\r\n\r\n")
            return None if end < 0 else (status, body, keep and len(after) == end + 4)
        if len(after) < size + 2:
            return None
        if after[size : size + 2] != b"\r\n":
            raise NotHttp("a broken chunk")
        body += after[:size]
        rest = after[size + 2 :]
