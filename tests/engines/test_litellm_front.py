"""llm-health on a real LiteLLM proxy: only /models is asked of it, and nothing reaches the backend behind it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from tests.engines.vllm_server import READY_LIMIT_S, STOP_LIMIT_S, free_port, session_members, wait_until

CHECKOUT = Path(__file__).resolve().parents[2]
COMMAND = CHECKOUT / "roles" / "health_check" / "files" / "llm-health"
KEY = "sk-of-the-test"
COMPLETION = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "tiny",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "x"}}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


@dataclass
class Backend:
    """Answers like a model server and keeps what it was asked."""

    asked: list[str] = field(default_factory=list)

    def __enter__(self) -> Backend:
        backend = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *arguments: object) -> None:
                pass

            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                backend.asked.append(f"{self.command} {self.path}")
                body = json.dumps(COMPLETION).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    with Backend() as running:
        yield running


@dataclass
class Proxy:
    url: str
    log: Path

    def asked(self) -> list[str]:
        """What it was asked, by its own access log."""
        return re.findall(r'"((?:GET|POST) \S+) HTTP', self.log.read_text())


@pytest.fixture(scope="module")
def proxy(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A real LiteLLM in front of it, its prometheus callback on, a master key set."""
    venv = Path(os.environ.get("GB10_LITELLM_VENV") or CHECKOUT / ".dev" / "litellm")
    if not (venv / "bin" / "litellm").exists():
        pytest.skip(f"no real LiteLLM at {venv} (GB10_LITELLM_VENV)")
    folder = tmp_path_factory.mktemp("litellm")
    models = [{"model_name": "tiny", "litellm_params": {"model": "openai/tiny", "api_base": f"{backend.url}/v1", "api_key": "none"}}]  # fmt: skip
    settings = {"model_list": models, "litellm_settings": {"callbacks": ["prometheus"], "num_retries": 0}}
    (folder / "config.yaml").write_text(json.dumps(settings))
    port = free_port()
    environment = {
        "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
        "HOME": str(folder),
        "LITELLM_MASTER_KEY": KEY,
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it asks the net for prices
    }
    command = [str(venv / "bin" / "litellm"), "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        assert process.poll() is None, log.read_text()[-4000:]
        with suppress(httpx.TransportError):
            return httpx.get(f"{url}/health/liveliness", trust_env=False).status_code == 200
        return False

    try:
        wait_until(ready, "LiteLLM is ready", READY_LIMIT_S)
        yield Proxy(url, log)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_LIMIT_S)
        for pid in session_members(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(STOP_LIMIT_S)


def check(url: str, *options: str) -> tuple[int, dict[str, object]]:
    command = [sys.executable, str(COMMAND), url, "--format", "json", "--wait", "1", *options]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT / ".collections")}
    done = subprocess.run(command, env=environment, text=True, capture_output=True)
    assert done.stdout.startswith("{"), done.stderr
    [report] = json.loads(done.stdout)["servers"]
    return done.returncode, report


@pytest.fixture
def key(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_text(KEY)
    file.chmod(0o600)
    return file


@pytest.mark.parametrize("role", ["auto", "proxy"])
def test_it_is_reachable_and_no_completion_reaches_the_backend(
    proxy: Proxy, backend: Backend, key: Path, role: str
) -> None:
    before, asked_before = list(backend.asked), len(proxy.asked())
    status, report = check(proxy.url, "--role", role, "--api-key-file", str(key))
    assert (status, report["state"], report["role"], report["probe_sent"]) == (0, "reachable", "proxy", False), report
    assert backend.asked == before
    asked = proxy.asked()[asked_before:]
    # Its /health would call every model behind it.
    assert asked and not [line for line in asked if line.startswith("POST") or line == "GET /health"], asked


def test_without_a_key_nothing_is_known_and_nothing_is_asked(proxy: Proxy, backend: Backend) -> None:
    before = list(backend.asked)
    status, report = check(proxy.url)
    assert (status, report["state"], report["healthy"]) == (3, "unknown", None), report
    assert backend.asked == before


def test_the_backend_is_really_behind_it(proxy: Proxy, backend: Backend) -> None:
    """Else the others prove nothing: a completion through the proxy does reach it."""
    before = len(backend.asked)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
    headers = {"Authorization": f"Bearer {KEY}"}
    answer = httpx.post(f"{proxy.url}/v1/chat/completions", json=body, headers=headers, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    assert backend.asked[before:] == ["POST /v1/chat/completions"]
