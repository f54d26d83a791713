"""A DNS server for SRV records, over UDP and TCP, that misbehaves as told."""

from __future__ import annotations

import asyncio
import struct


def name_bytes(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


class DnsServer(asyncio.DatagramProtocol):
    host = "127.0.0.1"

    def __init__(self, records: dict[str, list[tuple[int, int, int, str]]], mode: str = "good") -> None:
        self.records, self.mode, self.over_tcp = records, mode, 0

    async def __aenter__(self):
        loop = asyncio.get_running_loop()
        self._tcp = await asyncio.start_server(self._serve_tcp, self.host, 0)
        self.port = self._tcp.sockets[0].getsockname()[1]
        self._udp, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(self.host, self.port))
        return self

    async def __aexit__(self, *_):
        self._udp.close()
        self._tcp.close()

    def connection_made(self, transport) -> None:
        self._transport = transport

    def datagram_received(self, data, addr) -> None:
        if self.mode != "silent":
            answer = self._answer(data)
            if len(answer) > 1232:
                answer = data[:2] + struct.pack("!HHHHH", 0x8780, 1, 0, 0, 0) + data[12 : self._question_end(data)]
            self._transport.sendto(answer, addr)

    async def _serve_tcp(self, reader, writer) -> None:
        self.over_tcp += 1
        (length,) = struct.unpack("!H", await reader.readexactly(2))
        answer = self._answer(await reader.readexactly(length))
        writer.write(struct.pack("!H", len(answer)) + answer)
        await writer.drain()
        writer.close()

    def _question_end(self, data: bytes) -> int:
        return data.index(b"\0", 12) + 5

    def _answer(self, data: bytes) -> bytes:
        end = self._question_end(data)
        labels, position = [], 12
        while data[position]:
            labels.append(data[position + 1 : position + 1 + data[position]].decode())
            position += 1 + data[position]
        number, question = data[:2], data[12:end]
        if self.mode == "nxdomain":
            return number + struct.pack("!HHHHH", 0x8183, 1, 0, 0, 0) + question
        if self.mode == "servfail":
            return number + struct.pack("!HHHHH", 0x8182, 1, 0, 0, 0) + question
        if self.mode == "garbage":
            return number + b"\x81"
        if self.mode == "other":
            return bytes([number[0] ^ 1, number[1]]) + struct.pack("!HHHHH", 0x8180, 0, 0, 0, 0)
        if self.mode == "loop":
            return number + struct.pack("!HHHHH", 0x8180, 0, 1, 0, 0) + b"\xc0\x0c"
        body = b""
        found = self.records.get(".".join(labels), [])
        for priority, weight, port, target in found:
            data_part = struct.pack("!HHH", priority, weight, port) + name_bytes(target)
            body += b"\xc0\x0c" + struct.pack("!HHIH", 33, 1, 30, len(data_part)) + data_part
        return number + struct.pack("!HHHHH", 0x8180, 1, len(found), 0, 0) + question + body
