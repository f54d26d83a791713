# SPDX-License-Identifier: GPL-3.0-or-later
"""llm-health and what lies before a server: names, ports, TLS, other protocols, path prefixes, proxies, the key."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from contextlib import suppress

import pytest

from tests.contract.health.command import QUICK, STILL, W, llm_health, one
from tests.contract.scripted import MODELS, Say, pages, serving, vllm, vllm_page


def test_nothing_listens():
    status, said = one("http://127.0.0.1:1", *QUICK)
    assert (status, said["state"], said["restart_justified"]) == (2, "dead", False)
    assert "may still be loading" in said["reason"]


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("http://no-such-host.invalid:8000", "not found"),
        ("http://203.0.113.1:8000", ""),
    ],
)
def test_hosts_that_cannot_be_reached_are_unknown(url, word):
    status, said = one(url, *QUICK, "--connect-timeout", "0.3")
    assert (status, said["state"]) == (3, "unknown")
    assert word in said["reason"]


def test_tls_to_a_plain_port():
    with serving(vllm(STILL)) as server:
        status, said = one(server.url.replace("http", "https"), *QUICK)
    assert (status, said["state"]) == (3, "unknown")
    assert "http://" in said["reason"]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-keyout",
            str(folder / "key"),
            "-out",
            str(folder / "cert"),
        ],
        check=True,
        capture_output=True,
    )
    return folder


def test_a_bad_certificate_and_plain_http_to_a_tls_port(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert", certificate / "key")
    with serving(vllm(STILL)) as server:
        server.server.socket = context.wrap_socket(server.server.socket, server_side=True)
        status, said = one(f"https://127.0.0.1:{server.port}", *QUICK)
        assert (status, said["state"]) == (3, "unknown")
        assert "certificate" in said["reason"]
        status, said = one(f"http://127.0.0.1:{server.port}", *QUICK)
        assert said["state"] in ("unknown", "unresponsive")


REDIS = b"-ERR wrong number of arguments for 'get' command\r\n"
# what is said before the question, and after it; state
OTHERS = [
    ("SSH, which speaks first", b"SSH-2.0-OpenSSH_9.2\r\n", b"", "unknown"),
    ("SSH, which waits for a line", b"", b"SSH-2.0-OpenSSH_9.2\r\nInvalid SSH identification string.\r\n", "unknown"),
    ("Redis", b"", REDIS, "unknown"),
    ("a single byte", b"", b"\x15", "unknown"),
    ("not a byte", b"", b"", "unresponsive"),
    ("the beginning of an answer", b"", b"HTTP/1.1 200 OK\r\nContent-", "unresponsive"),
]


@pytest.mark.parametrize("role", ["server", "proxy"])
@pytest.mark.parametrize(("first", "then", "state"), [case[1:] for case in OTHERS], ids=[case[0] for case in OTHERS])
def test_a_port_that_speaks_something_else(first, then, state, role):
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with suppress(OSError):
                connection.sendall(first)
                if not first:
                    connection.recv(4096)
                connection.sendall(then)
            connection.close()

    threading.Thread(target=serve, daemon=True).start()
    said = one(f"http://127.0.0.1:{listener.getsockname()[1]}", *QUICK, "--role", role)[1]
    listener.close()
    assert said["state"] == state, said["reason"]
    assert ("is not HTTP" in said["reason"]) is (state == "unknown")


def test_ipv6_a_path_prefix_and_a_trailing_slash():
    moving = pages(STILL, vllm_page(**W, iteration_tokens_total_count=11.0))
    answers = {"GET /llm/metrics": moving, "GET /llm/v1/models": Say(MODELS)}
    with serving(answers, host="::1") as server:
        assert one(server.url + "/llm/", *QUICK)[1]["state"] == "busy"
        assert one(server.url + "/llm/v1", *QUICK)[1]["state"] == "stalled"  # the page's last version, for ever


def test_proxies_in_the_environment_are_ignored_unless_asked():
    with serving(vllm(vllm_page())) as server:
        env = {"http_proxy": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1", "no_proxy": ""}
        assert one(server.url, *QUICK, env=env)[1]["state"] == "idle"
        assert one(server.url, *QUICK, "--proxy-env", env=env)[1]["state"] == "dead"


def test_the_key_goes_to_the_server_and_nowhere_else(tmp_path):
    key = tmp_path / "key"
    key.write_text("sk-very-secret\n")
    key.chmod(0o600)
    with serving(vllm(vllm_page())) as server:
        status, out, err = llm_health(server.url, *QUICK, "--api-key-file", str(key), "--format", "json")
        assert status == 0
        assert all(headers.get("authorization") == "Bearer sk-very-secret" for _, _, headers in server.bodies)
        key.chmod(0o644)
        bad, bad_out, bad_err = llm_health(server.url, *QUICK, "--api-key-file", str(key))
    assert bad == 3
    assert "chmod" in bad_err
    assert "sk-very-secret" not in out + err + bad_out + bad_err
