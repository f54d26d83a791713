"""A Kubernetes API server that speaks LIST and WATCH of EndpointSlices, and misbehaves as told."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import parse_qs, urlsplit


def slice_of(name, *addresses, port=8080, port_name="http", kind="IPv4", version="1", **conditions):
    """One EndpointSlice; conditions hold for all of its endpoints."""
    endpoints = [{"addresses": [a], "conditions": {"ready": True, **conditions}} for a in addresses]
    return {
        "metadata": {"name": name, "resourceVersion": version},
        "addressType": kind,
        "ports": [{"name": port_name, "port": port, "protocol": "TCP"}],
        "endpoints": endpoints,
    }


class KubeApi:
    def __init__(self) -> None:
        self.items = [slice_of("a", "10.0.0.1", "10.0.0.2")]
        self.version = 10
        self.requests: list[tuple[str, dict, dict]] = []  # list or watch, parameters, headers
        self.list_status = self.watch_status = 200
        self.silent = False  # black hole: takes the connection, says nothing
        self.list_body: bytes | None = None
        self.page_size: int | None = None
        self.watchers: list[asyncio.StreamWriter] = []
        self.token: str | None = None

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        self.drop()

    def drop(self) -> None:
        """Every watch is cut."""
        for writer in self.watchers:
            writer.transport.abort()
        self.watchers.clear()

    @property
    def lists(self) -> int:
        return sum(kind == "list" for kind, _, _ in self.requests)

    async def send(self, kind: str, item: dict) -> None:
        await self.send_line(json.dumps({"type": kind, "object": item}).encode())

    async def send_line(self, line: bytes) -> None:
        data = line + b"\n"
        for writer in self.watchers:
            # In two pieces: a line is not a chunk.
            for piece in (data[: len(data) // 2], data[len(data) // 2 :]):
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()

    async def _serve(self, reader, writer) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
                url = urlsplit(first.split()[1])
                params = {key: values[0] for key, values in parse_qs(url.query).items()}
                kind = "watch" if params.get("watch") else "list"
                self.requests.append((kind, {**params, "path": url.path}, headers))
                if self.silent:
                    await asyncio.sleep(3_600)
                if self.token is not None and headers.get("authorization") != f"Bearer {self.token}":
                    self._answer(writer, 401, b"{}")
                elif kind == "watch" and self.watch_status == 200:
                    writer.write(
                        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
                    )
                    self.watchers.append(writer)
                    await reader.read()
                    return
                elif kind == "watch":
                    self._answer(writer, self.watch_status, b"{}")
                else:
                    self._answer(writer, self.list_status, self._page(params))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _page(self, params) -> bytes:
        if self.list_body is not None:
            return self.list_body
        start = int(params.get("continue", 0))
        end = start + (self.page_size or len(self.items))
        metadata = {"resourceVersion": str(self.version)}
        if end < len(self.items):
            metadata["continue"] = str(end)
        return json.dumps({"kind": "EndpointSliceList", "metadata": metadata, "items": self.items[start:end]}).encode()

    def _answer(self, writer, status, body) -> None:
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
