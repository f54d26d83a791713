# SPDX-License-Identifier: GPL-3.0-or-later
"""A scripted HTTP server for states that real ones cannot be put in. Counts every request; what it says is a function."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODELS = b'{"object":"list","data":[{"id":"tiny","object":"model","owned_by":"vllm"}]}'
TOKEN = b'{"choices":[{"index":0,"text":"x","message":{"role":"assistant","content":"x"}}]}'


@dataclass
class Say:
    """One answer. `wait_s`: before anything is sent; `drip_s`: between single bytes of the body; `cut`: close half way."""

    body: bytes | str = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    wait_s: float = 0.0
    drip_s: float = 0.0
    cut: bool = False
    reset: bool = False


Answer = Say | Callable[[int], Say]


class Server:
    """`answers`: by "METHOD /path" (a Say, or a function of how often it was asked before); others are what "*" says, or 404."""

    def __init__(self, answers: dict[str, Answer], host: str = "127.0.0.1") -> None:
        self.answers, self.log, self.lock = answers, [], threading.Lock()
        self.bodies: list[tuple[str, bytes, dict[str, str]]] = []
        self.closing = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def answer(self):
                key = f"{self.command} {self.path}"
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(length) if length else b""
                with outer.lock:
                    before = outer.log.count(key)
                    outer.log.append(key)
                    outer.bodies.append((key, body, {k.lower(): v for k, v in self.headers.items()}))
                rule = outer.answers.get(key) or outer.answers.get("*", Say(b'{"detail":"Not Found"}', 404))
                say = rule(before) if callable(rule) else rule
                outer.closing.wait(say.wait_s)
                if say.reset:
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
                    self.close_connection = True
                    self.connection.close()
                    return
                data = say.body.encode() if isinstance(say.body, str) else say.body
                with suppress(OSError):
                    self.send_response(say.status)
                    for name, value in say.headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    if say.cut:
                        self.wfile.write(data[: len(data) // 2])
                        self.close_connection = True
                        return
                    if say.drip_s:
                        for n in range(len(data)):
                            self.wfile.write(data[n : n + 1])
                            self.wfile.flush()
                            if outer.closing.wait(say.drip_s):
                                return
                        return
                    self.wfile.write(data)

            do_GET = do_POST = do_HEAD = do_PUT = answer

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

            def handle_error(self, request, client_address):
                pass

        self.server = Quiet((host, 0), Handler)
        self.port = self.server.server_address[1]
        self.url = f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def posts(self) -> list[str]:
        """What was posted."""
        return [line for line in self.log if line.startswith("POST ")]

    def close(self) -> None:
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def serving(answers: dict[str, Answer], host: str = "127.0.0.1"):
    server = Server(answers, host)
    server.thread.start()
    try:
        yield server
    finally:
        server.close()


def vllm_page(**values) -> str:
    """A small vLLM page; every keyword is a series without its `vllm:`; `start` is the process's start time."""
    start = values.pop("start", 1000.0)
    rows = {
        "num_requests_running": 0.0,
        "num_requests_waiting": 0.0,
        "iteration_tokens_total_count": 10.0,
        "generation_tokens_total": 50.0,
        "prompt_tokens_total": 70.0,
        "kv_cache_usage_perc": 0.1,
        **values,
    }
    text = "".join(f'vllm:{name}{{engine="0",model_name="tiny"}} {value}\n' for name, value in rows.items())
    return text + (f"process_start_time_seconds {start}\n" if start is not None else "")


def pages(*texts: str) -> Callable[[int], Say]:
    """Each reading the next page; the last for ever."""
    return lambda n: Say(texts[min(n, len(texts) - 1)])


def vllm(page: Answer | str, **more: Answer) -> dict[str, Answer]:
    """Answers of a vLLM: its page, its models, its /health, and a token to a chat."""
    page = Say(page) if isinstance(page, str) else page
    return {
        "GET /metrics": page,
        "GET /health": Say(),
        "GET /v1/models": Say(MODELS),
        "POST /v1/chat/completions": Say(TOKEN),
        **more,
    }


def until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    """Polls until the condition holds."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.02)
