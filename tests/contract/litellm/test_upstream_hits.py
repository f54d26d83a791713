"""Counted at the backend: what one client request costs a backend that is slow, full or silent, against a real LiteLLM."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.contract.gate.proxy import MASTER, Proxy
from tests.contract.gate.servers import free_port
from tests.contract.litellm.play import Play

pytestmark = [pytest.mark.slow, pytest.mark.alone]  # two proxies of their own

ANSWER = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
#: How a backend meets a request: seconds until it answers, and the status it answers with.
MEETS = {
    "slow": (2.0, 200),
    "full": (0.0, 429),
    "overloaded": (0.0, 503),
    "broken": (0.0, 500),
    "silent": (20.0, 200),  # longer than the time-out of both proxies here
}
TIMEOUT_S = 4
#: Two ways of LiteLLM's to one server, which is broken.
EMBEDDINGS = ("openai/broken", "hosted_vllm/broken")


class Server:
    """A model server that meets each request as its model name says, and counts."""

    def __init__(self) -> None:
        self.hits: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_args: object) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.hits.append(body["model"])
                wait_s, status = MEETS[body["model"]]
                time.sleep(wait_s)
                content = json.dumps(ANSWER if status == 200 else {"error": {"message": "no", "code": str(status)}})
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content.encode())
                except OSError:
                    pass  # nobody waits any more

        class Threads(ThreadingHTTPServer):
            daemon_threads = True

        self._server = Threads(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def deployments(servers: list[Server], **params: Any) -> list[dict[str, Any]]:
    return [
        {
            "model_name": meets,
            "litellm_params": {"model": f"hosted_vllm/{meets}", "api_base": server.url, "api_key": "none", **params},
        }
        for meets in MEETS
        for server in servers
    ]


def by_the_role(root: Path, servers: list[Server]) -> dict[str, Any]:
    """What the role litellm makes of the defaults: their configuration, put right where it is."""
    file = root / "config.yaml"
    file.write_text(
        yaml.safe_dump(
            {"model_list": deployments(servers, timeout=TIMEOUT_S), "general_settings": {"master_key": MASTER}}
        )
    )
    backends = [{"url": server.url, "slots": 12} for server in servers]
    outcome = Play(root, "litellm").run(
        {
            "install": False,
            "config": str(file),
            "models": [{"name": meets, "backends": backends, "longest_answer_s": TIMEOUT_S} for meets in MEETS],
        }
    )
    assert outcome.status == 0, outcome.text
    return yaml.safe_load(file.read_text())


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, tuple[int, int]]]:
    """Upstream requests and the client's status for one request of each kind: with LiteLLM's defaults and the role's settings."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    # The defaults get a time-out too: theirs is 100 minutes, and the same 3 requests would come 200 minutes apart.
    for name in ("defaults", "role"):
        servers = [Server(), Server()]
        root = Path(tmp_path_factory.mktemp(name))
        if name == "defaults":
            config: dict[str, Any] = {
                "model_list": deployments(servers, timeout=TIMEOUT_S),
                "general_settings": {"master_key": MASTER},
            }
        else:
            config = by_the_role(root, servers)
            assert len(config["model_list"]) == len(MEETS) * len(servers)
            config["model_list"] += [
                {
                    "model_name": model,
                    "litellm_params": {
                        "model": model,
                        "api_base": servers[0].url,
                        "api_key": "none",
                        "timeout": TIMEOUT_S,
                        "num_retries": 0,
                        "max_retries": 0,
                    },
                }
                for model in EMBEDDINGS
            ]
        proxy = Proxy(root / "proxy", config, None, free_port())
        try:
            proxy.wait_ready()
            with httpx.Client(timeout=120, headers={"Authorization": f"Bearer {MASTER}"}) as client:
                found[name] = {}
                for meets in MEETS:
                    before = sum(server.hits.count(meets) for server in servers)
                    body = {"model": meets, "messages": [{"role": "user", "content": "x"}]}
                    status = client.post(f"{proxy.url}/v1/chat/completions", json=body).status_code
                    found[name][meets] = (sum(server.hits.count(meets) for server in servers) - before, status)
                for model in EMBEDDINGS if name == "role" else ():
                    before = sum(len(server.hits) for server in servers)
                    status = client.post(f"{proxy.url}/v1/embeddings", json={"model": model, "input": "x"}).status_code
                    found[name][model] = (sum(len(server.hits) for server in servers) - before, status)
            # Nothing reached a backend that no client sent.
            time.sleep(1)
            assert sum(len(server.hits) for server in servers) == sum(hits for hits, _status in found[name].values())
        finally:
            proxy.stop()
            for server in servers:
                server.close()
    return found


@pytest.mark.parametrize("meets", MEETS)
def test_one_client_request_is_one_upstream_request(counted, meets):
    hits, status = counted["role"][meets]
    assert hits == 1
    assert (status == 200) == (meets == "slow")


def test_the_defaults_make_three_of_one(counted):
    assert counted["defaults"]["slow"] == (1, 200)
    assert counted["defaults"]["silent"][0] == 3
    assert counted["defaults"]["broken"][0] == 3
    for meets in ("full", "overloaded"):
        assert counted["defaults"][meets][0] > counted["role"][meets][0]


def test_embeddings_through_openai_are_sent_three_times_whatever_is_set(counted):
    """What the rule embedding_retries says; where this fails, LiteLLM has been put right."""
    assert counted["role"]["openai/broken"] == (3, 500)
    assert counted["role"]["hosted_vllm/broken"] == (1, 500)
