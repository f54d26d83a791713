"""A platform API that does as told: raw sockets, so that it can also misbehave below HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

YES = {"allowed": True}
NO = {"allowed": False, "reason": "monthly cap reached", "retry_after_s": 3600}


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


@dataclass
class Replica:
    """One server. ``mode`` may change at any time; ``seen`` holds the questions it read."""

    host: str = "127.0.0.1"
    port: int = 0
    mode: str = "good"
    delay_s: float = 0.0
    decide: Callable[[dict], dict] = lambda question: YES
    seen: list[dict] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    connections: int = 0
    tls: ssl.SSLContext | None = None
    _server: asyncio.Server | None = None
    _busy: int = 0
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.host, self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            for writer in list(self._open):
                writer.transport.abort()

    async def drain(self) -> None:
        """Stops listening and lets what is under way be answered."""
        if self._server is not None:
            self._server.close()
        for _ in range(100):
            if not self._busy:
                break
            await asyncio.sleep(0.02)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            while await self._answer(reader, writer):
                pass
        self._open.discard(writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Reads one question and answers in the present mode; whether the connection goes on."""
        if self.mode == "rst":
            await reader.read(1)
            _reset(writer)
            return False
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line.split(":")[1]) for line in head.lower().split("\r\n") if line.startswith("content-length")
        )
        body = await reader.readexactly(length)
        self.heads.append(head)
        if head.split()[1] != "/health":
            self.seen.append(json.loads(body))
        self._busy += 1
        try:
            return await self._reply(writer)
        finally:
            self._busy -= 1

    async def _reply(self, writer: asyncio.StreamWriter) -> bool:
        mode = self.mode
        if mode == "rst after question":
            _reset(writer)
            return False
        if mode == "silent":
            await asyncio.sleep(3_600)
        await asyncio.sleep(self.delay_s)
        if mode == "close before answer":
            return False
        status, answer = self._content(mode)
        if mode == "close idle":
            writer.write(_response(status, answer))
            await writer.drain()
            return False
        if mode == "dripping":
            for byte in _response(status, answer):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.05)
            return True
        whole = _response(status, answer, "Location: http://127.0.0.1:1/x\r\n" if status == 302 else "")
        if mode == "not http":
            whole = b"SSH-2.0-OpenSSH_9.6\r\n\r\n"
        writer.write(whole[:-5] if mode == "closed mid-answer" else whole)
        await writer.drain()
        return mode not in ("closed mid-answer", "not http")

    def _content(self, mode: str) -> tuple[int, bytes]:
        if mode.isdigit():
            return int(mode), b'{"detail": "so it is"}'
        if mode == "redirect":
            return 302, b""
        if mode == "garbage":
            return 200, b"<html>welcome</html>"
        if mode == "huge":
            return 200, b'{"allowed": true, "x": "' + b"x" * 200_000 + b'"}'
        question = self.seen[-1] if self.seen else {}
        verdict = self.decide(question)
        return (429 if mode == "verdict as 429" else 200), json.dumps(verdict).encode()


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _response(status: int, body: bytes, headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Api:
    """Some replicas in a thread of their own."""

    def __init__(self, count: int = 3, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.replicas = [Replica(host=host, tls=tls) for _ in range(count)]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Api:
        self._thread.start()
        for replica in self.replicas:
            self.call(replica.open())
        return self

    def __exit__(self, *_: object) -> None:
        for replica in self.replicas:
            self.call(replica.close())

        async def end() -> None:
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()

        self.call(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    def __getitem__(self, number: int) -> Replica:
        return self.replicas[number]

    def stop(self, number: int) -> None:
        """Nothing listens any more, as when the process has died."""
        self.call(self.replicas[number].close())

    def start(self, number: int) -> None:
        self.call(self.replicas[number].open())

    @property
    def urls(self) -> list[str]:
        return [replica.url for replica in self.replicas]

    @property
    def questions(self) -> int:
        return sum(len(replica.seen) for replica in self.replicas)
