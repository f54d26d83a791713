"""The cordon in a real LiteLLM: what a watchdog holds gets nothing new, and gets its share again."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import threading
import time
import types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from tests.contract.gate.backend import Backend
from tests.contract.gate.proxy import MASTER, Proxy, eventually
from tests.contract.gate.servers import free_port
from tests.contract.litellm.play import CHECKOUT

HOOK = CHECKOUT / "roles/litellm/files/llm_cordon.py"


def page_of(server: str = "qwen", state: str = "idle", latched: int = 0, under_way: int = 0, age_s: float = 10) -> str:
    """As the watchdog writes it, among other things that a node_exporter shows."""
    states = ("busy", "idle", "hung", "dead", "starting", "unknown")
    rows = [f'llm_server_state{{server="{server}",state="{name}"}} {float(name == state)}' for name in states]
    rows += ['llm_server_state{server="other",state="hung"} 1.0', "node_load1 0.3"]
    rows += [f'llm_watchdog_latched{{server="{server}"}} {float(latched)}']
    rows += [f'llm_watchdog_restart_under_way{{server="{server}"}} {float(under_way)}']
    return "\n".join([*rows, f"llm_watchdog_last_run_timestamp_seconds {time.time() - age_s}", ""])


@pytest.fixture
def hook(monkeypatch):
    """The file itself, with a stand-in for LiteLLM's base class."""
    base = types.ModuleType("litellm.integrations.custom_logger")
    base.CustomLogger = object
    for name in ("litellm", "litellm.integrations"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, base.__name__, base)
    spec = importlib.util.spec_from_file_location("llm_cordon", HOOK)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "llm_cordon", module)
    spec.loader.exec_module(module)
    return module


#: (what the page says, why nothing new comes)
PAGES = [
    ({}, None),
    ({"state": "busy"}, None),
    ({"state": "hung"}, "it is hung"),
    ({"state": "dead"}, "it is dead"),
    ({"state": "starting", "under_way": 1}, "it is being restarted"),
    ({"state": "idle", "under_way": 1}, "it is being restarted"),  # its warm-up answer is not there yet
    ({"state": "unknown", "latched": 1}, "it is latched"),
    ({"state": "busy", "latched": 1}, None),  # it serves, whatever was given up about it
    ({"state": "unknown"}, None),
    ({"state": "starting"}, None),
    ({"state": "hung", "age_s": 301}, None),  # said long ago
    ({"server": "another", "state": "hung"}, None),
    ({"server": 'qwen\\"x', "state": "hung"}, None),
]


@pytest.mark.parametrize(("said", "why"), PAGES)
def test_what_a_page_says(hook, said, why):
    assert hook.held(page_of(**said), "qwen", time.time()) == why


@pytest.mark.parametrize("page", ["", "<html>", 'llm_server_state{server="qwen",state="hung"} 1.0\n'])
def test_a_page_that_says_nothing_holds_nobody(hook, page):
    assert hook.held(page, "qwen", time.time()) is None


class Pages:
    """What node_exporter would show: by path, a page or None for no answer worth anything."""

    def __init__(self) -> None:
        pages = self
        self.shown: dict[str, str | None] = {}

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_args: object) -> None:
                pass

            def do_GET(self) -> None:
                page = pages.shown.get(self.path)
                content = (page or "no").encode()
                self.send_response(500 if page is None else 200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.mark.alone
@pytest.mark.slow  # a proxy of its own
def test_a_server_that_is_held_gets_nothing_new_and_returns(tmp_path):
    backends, pages = [Backend(), Backend()], Pages()
    folder = tmp_path / "proxy"
    folder.mkdir()
    shutil.copy(HOOK, folder)
    names = ["/one", "/two"]
    rows = [
        {"api_base": b.url, "page": pages.url + name, "server": "qwen"} for b, name in zip(backends, names, strict=True)
    ]
    (folder / "llm-cordon.json").write_text(json.dumps({"every_s": 0.2, "backends": rows}))
    models = [
        {"model_name": "qwen", "litellm_params": {"model": "hosted_vllm/qwen", "api_base": b.url, "api_key": "none"}}
        for b in backends
    ]
    config = {
        "model_list": models,
        "litellm_settings": {"callbacks": ["llm_cordon.cordon"]},
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
        "general_settings": {"master_key": MASTER},
    }
    pages.shown = {name: page_of() for name in names}
    proxy = Proxy(folder, config, None, free_port())

    def ask(count: int) -> tuple[list[int], list[int]]:
        """Which statuses the clients saw, and how many requests each server got."""
        before = [backend.hits["qwen"] for backend in backends]
        with httpx.Client(timeout=30, headers={"Authorization": f"Bearer {MASTER}"}) as client:
            body = {"model": "qwen", "messages": [{"role": "user", "content": "x"}]}
            answers = [client.post(f"{proxy.url}/v1/chat/completions", json=body) for dummy in range(count)]
        self_said.extend(answer.text for answer in answers if answer.status_code != 200)
        return [a.status_code for a in answers], [b.hits["qwen"] - was for b, was in zip(backends, before, strict=True)]

    self_said: list[str] = []

    def said(number: int, end: str):
        return lambda: proxy.text().count(f"{backends[number].url} {end}")

    try:
        proxy.wait_ready()
        statuses, hits = ask(40)
        assert set(statuses) == {200} and min(hits) > 0

        pages.shown["/one"] = page_of(state="hung")
        eventually(said(0, "gets nothing new: it is hung"), what=proxy.text()[-2000:])
        assert ask(40) == ([200] * 40, [0, 40])

        # Being restarted, it is idle before its warm-up answer: not yet.
        pages.shown["/one"] = page_of(state="idle", under_way=1)
        assert ask(20) == ([200] * 20, [0, 20])

        pages.shown["/one"] = page_of()
        eventually(said(0, "gets its share again"))
        statuses, hits = ask(40)
        assert set(statuses) == {200} and min(hits) > 0

        # Nobody left: clients are told at once, and nothing is sent.
        pages.shown = {name: page_of(state="hung") for name in names}
        eventually(lambda: said(0, "gets nothing new")() == 2 and said(1, "gets nothing new")() == 1)
        began = time.monotonic()
        statuses, hits = ask(2)
        print(statuses, hits, time.monotonic() - began, self_said)
        assert hits == [0, 0] and 200 not in statuses

        # Nobody speaks of them any more: they get their share.
        pages.shown = {}
        eventually(lambda: said(0, "gets its share again")() == 2 and said(1, "gets its share again")() == 1)
        statuses, hits = ask(40)
        assert set(statuses) == {200} and min(hits) > 0
    finally:
        proxy.stop()
        pages.close()
        for backend in backends:
            backend.close()
