"""A real LiteLLM proxy with the hook, as a deployment has it: three files in a folder."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest
import yaml

COLLECTION = Path(__file__).resolve().parents[3]
MASTER = "sk-master-of-the-test-proxy-0123456789"
#: Who the keys are: the proxy has no database, so an authentication of our own says it, as LiteLLM provides for.
AUTH = """
from litellm.proxy._types import UserAPIKeyAuth
async def user_api_key_auth(request, api_key):
    name = api_key.removeprefix("sk-")
    if not api_key.startswith("sk-"):
        raise Exception("no key")
    more = {}
    if "keyalias" in name:
        more["aliases"] = {"my-alias": "glm5.2"}
    if "teamalias" in name:
        more.update(team_id="team-1", team_model_aliases={"team-alias": "glm5.2"})
    return UserAPIKeyAuth(api_key=api_key, user_id="u-" + name, **more)
"""


def litellm_python() -> Path:
    """The Python of LiteLLM's environment; skips with one line when there is none."""
    named = os.environ.get("GB10_LITELLM_VENV")
    folder = Path(named) if named else COLLECTION / ".dev/litellm"
    python = folder / "bin/python"
    if not (folder / "bin/litellm").exists():
        pytest.skip(f"no LiteLLM in {folder}; set GB10_LITELLM_VENV to an environment with litellm[proxy]==1.108.4")
    return python


def deployment(name: str, upstream: str, backend_url: str, **info: object) -> dict:
    params = {"model": f"openai/{upstream}", "api_base": backend_url, "api_key": "none"}
    return {"model_name": name, "litellm_params": params, **({"model_info": info} if info else {})}


class Proxy:
    """Runs in its own process group; ``prefix`` runs it elsewhere (ip netns exec …)."""

    def __init__(
        self,
        folder: Path,
        config: dict,
        gate: dict | None,
        port: int,
        host: str = "127.0.0.1",
        workers: int = 1,
        prefix: list[str] | None = None,
        hook: Path | None = None,
        environment: dict[str, str] | None = None,
        home: Path | None = None,
    ) -> None:
        python = litellm_python()
        self.folder, self.url = folder, f"http://{host}:{port}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        (folder / "who.py").write_text(AUTH)
        shutil.copy(hook or COLLECTION / "roles/usage_gate/files/usage_gate.py", folder / "usage_gate.py")
        (folder / "gb10-serving-lib").symlink_to(COLLECTION / ".collections")
        self.gate_file = folder / "usage-gate.yml"
        if gate is not None:
            self.gate_file.write_text(yaml.safe_dump(gate))
        (folder / "state").mkdir()
        multiprocess = folder / "prometheus"
        multiprocess.mkdir()
        env = {
            "PATH": f"{python.parent}:/usr/bin:/bin",
            "HOME": str(folder),
            "LITELLM_MASTER_KEY": MASTER,
            "USAGE_GATE_STATE_DIR": str(folder / "state"),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "NO_DOCS": "True",
            **({"PROMETHEUS_MULTIPROC_DIR": str(multiprocess)} if workers > 1 else {}),
            **(environment or {}),
        }
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(prefix or []), str(python.parent / "litellm"), "--config", "config.yaml", "--host", host, "--port",
                    str(port), "--num_workers", str(workers), "--telemetry", "False",
                    "--timeout_worker_healthcheck", "60",
                ],
                cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def wait_ready(self, timeout_s: float = 120) -> None:
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise AssertionError(f"LiteLLM ended with {self.process.returncode}:\n{self.text()[-3000:]}")
            try:
                if httpx.get(f"{self.url}/health/readiness", timeout=2).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.2)
        raise AssertionError(f"LiteLLM was not ready in {timeout_s} s:\n{self.text()[-3000:]}")

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def post(self, path: str, body: dict, key: str = "sk-allowed", **more) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}", **more.pop("headers", {})}
        return httpx.post(self.url + path, json=body, headers=headers, timeout=20, **more)

    def chat(self, model: str, key: str = "sk-allowed", **more) -> httpx.Response:
        return self.post(
            "/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": "x"}], **more}, key
        )

    def metrics(self) -> dict[str, float]:
        """Series of the gate by their text: ``usage_gate_checks_total{outcome="allowed"}`` -> value."""
        text = httpx.get(f"{self.url}/metrics/", headers={"Authorization": f"Bearer {MASTER}"}, timeout=20).text
        found = re.findall(r"^(usage_gate\w+(?:\{[^}]*\})?) ([-+0-9.eE]+)$", text, re.MULTILINE)
        return {name: float(value) for name, value in found}

    def stop(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(10)


def eventually(condition, timeout_s: float = 20, what: str = "condition"):
    """Polls until the condition holds; its value."""
    until = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < until, f"never within {timeout_s} s: {what}"
        time.sleep(0.05)
