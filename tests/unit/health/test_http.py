# SPDX-License-Identifier: GPL-3.0-or-later
"""One question with one deadline, and what a failed connection is called."""

from __future__ import annotations

import asyncio
import ssl
import time

import httpx
import pytest
from ansible_collections.gb10.serving.plugins.module_utils._health import http


async def answered(pieces, read_s):
    """What is answered in pieces, 0.3 s apart, and how long we listened."""

    async def serve(reader, writer):
        await reader.readline()
        for piece in pieces:
            await asyncio.sleep(0.3)
            writer.write(piece)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, http.client(https=False) as client:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        begun = time.monotonic()
        found = await http.ask(client, "GET", url, headers={}, connect_s=5.0, read_s=read_s)
        return found, time.monotonic() - begun


HEAD = [b"HTTP/1.1 200 OK\r\n", b"Content-Length: 3\r\n\r\n"]


@pytest.mark.parametrize(("read_s", "how"), [(0.8, "timeout"), (5.0, "ok")])
async def test_the_read_timeout_is_for_headers_and_body_together(read_s, how):
    found, took = await answered([*HEAD, b"a", b"b", b"c"], read_s)
    assert found.how == how
    assert took < read_s + 0.5


def test_a_certificate_that_is_not_accepted_is_said_though_outer_errors_repeat_it():
    inner = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    inner.verify_message = "self-signed certificate"
    outer = httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    outer.__cause__ = inner
    assert http._connect_failure(outer).detail == "its certificate is not accepted: self-signed certificate"
