"""Reading HTTP answers: whole, in pieces, broken."""

from __future__ import annotations

import asyncio

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._gate.connection import (
    MAX_ANSWER_BYTES,
    Connection,
    NotHttp,
    read_answer_bytes,
)
from hypothesis import given
from hypothesis import strategies as st

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
WHOLE = [
    ("length", OK, (200, b"{}", True)),
    ("no reason", b"HTTP/1.1 429 \r\ncontent-length:2\r\n\r\n{}", (429, b"{}", True)),
    ("no space either", b"HTTP/1.1 429\r\ncontent-length:2\r\n\r\n{}", (429, b"{}", True)),
    ("closing", b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}", (200, b"{}", False)),
    ("old", b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", (200, b"{}", False)),
    ("old, kept", b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\n{}", (200, b"{}", True)),
    ("empty", b"HTTP/1.1 204 No Content\r\n\r\n", (204, b"", True)),
    ("after 100", b"HTTP/1.1 100 Continue\r\n\r\n" + OK, (200, b"{}", True)),
    ("after 103", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + OK, (200, b"{}", True)),
    (
        "chunked",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1;x=y\r\n}\r\n0\r\n\r\n",
        (200, b"{}", True),
    ),
    (
        "chunked with a trailer",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: y\r\n\r\n",
        (200, b"{}", True),
    ),
    ("more than asked for", OK + b"HTTP/1.1", (200, b"{}", False)),
]


@pytest.mark.parametrize(("received", "right"), [case[1:] for case in WHOLE], ids=[case[0] for case in WHOLE])
def test_whole_answers_and_every_beginning_of_them(received, right):
    assert read_answer_bytes(received, ended=False) == right
    if right[2]:
        for end in range(len(received)):
            assert read_answer_bytes(received[:end], ended=False) is None, received[:end]


def test_an_answer_without_a_length_ends_with_the_connection():
    received = b"HTTP/1.1 200 OK\r\n\r\n{}"
    assert read_answer_bytes(received, ended=False) is None
    assert read_answer_bytes(received, ended=True) == (200, b"{}", False)


@pytest.mark.parametrize(
    "received",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5_000 + b"\r\n\r\n{}",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"\x16\x03\x01",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n",
    ],
)
def test_what_is_no_http_is_said_at_once(received):
    with pytest.raises(NotHttp):
        read_answer_bytes(received, ended=False)


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_an_answer_no_answer_yet_or_not_http(received, ended):
    for prefix in (b"", b"HTTP/1.1 200 OK\r\n"):
        try:
            read = read_answer_bytes(prefix + received, ended)
        except NotHttp:
            continue
        assert read is None or 100 <= read[0] <= 999


async def _exchange(*pieces: bytes, limit_s: float = 5):
    async def serve(reader, writer):
        await reader.readuntil(b"end")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
        try:
            async with asyncio.timeout(limit_s):
                return await connection.exchange(b"end"), connection.usable
        finally:
            connection.close()


async def test_one_exchange_over_a_socket():
    assert await _exchange(OK[:7], OK[7:30], OK[30:]) == ((200, b"{}"), True)


async def test_an_endless_answer_is_cut():
    with pytest.raises(NotHttp):
        await _exchange(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * MAX_ANSWER_BYTES, b"x" * 100)


async def test_a_connection_given_up_is_not_used_again():
    with pytest.raises(TimeoutError):
        await _exchange(OK[:20], limit_s=0.05)
