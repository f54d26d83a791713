"""The role usage_gate run for real, on a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from tests.contract.gate.proxy import MASTER, eventually, litellm_python
from tests.contract.gate.servers import free_port
from tests.contract.litellm.play import CHECKOUT, Play

pytest.importorskip("ruamel.yaml", reason="ruamel.yaml is not in this environment")
# Slow: each run of a play takes seconds, so they are run for one pair of Python and ansible-core only.
pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="the role asks for root")]

SECRET = "Bearer-9f2c-of-the-platform"
CONFIG = """\
# ours
model_list:
  - model_name: glm5.2
    litellm_params: {model: hosted_vllm/glm, api_base: "http://10.0.0.1:8000/v1", timeout: 900, stream_timeout: 900}
  - model_name: qwen  # the small one
    litellm_params: {model: hosted_vllm/qwen, api_base: "http://10.0.0.2:8000/v1", timeout: 900, stream_timeout: 900}
litellm_settings:
  callbacks: [prometheus]  # for Grafana
general_settings: {master_key: os.environ/LITELLM_MASTER_KEY}
"""


@pytest.fixture
def ready():
    """A proxy that is ready, and how often it was asked."""

    class Handler(BaseHTTPRequestHandler):
        asked: list[str] = []

        def log_message(self, *_args: object) -> None:
            pass

        def do_GET(self) -> None:
            self.asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    Handler.url = f"http://127.0.0.1:{server.server_address[1]}/health/readiness"
    yield Handler
    server.shutdown()
    server.server_close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "litellm"
    folder.mkdir()
    (folder / "config.yaml").write_text(CONFIG)
    return folder


@pytest.fixture
def variables(folder: Path, ready: Any) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "group": "root",
        "command": False,  # it would go into this machine's /usr/local/bin; molecule/gateway has it
        "endpoints": ["http://127.0.0.1:9", "http://127.0.0.2:9"],
        "capped_models": ["glm5.2"],
        "request": {"headers": {"authorization": SECRET}},
        "readiness_url": ready.url,
    }


def contents(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): p.read_text()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.suffix != ".pyc"
    }


def test_it_is_put_in_once_and_taken_out_again(tmp_path, folder, variables, ready):
    play = Play(tmp_path, "usage_gate")
    before = contents(folder)
    would = play.run(variables, check=True)
    assert would.status == 0, would.text
    assert would.changed > 0 and contents(folder) == before

    first = play.run(variables)
    assert first.status == 0, first.text
    after = contents(folder)
    assert after["config.yaml"] == CONFIG.replace("[prometheus]", "[prometheus, usage_gate.usage_gate]")
    assert after["usage_gate.py"] == (CHECKOUT / "roles/usage_gate/files/usage_gate.py").read_text()
    core = {Path(name).name: text for name, text in after.items() if name.startswith("gb10-serving-lib/")}
    source = {p.name: p.read_text() for p in (CHECKOUT / "plugins/module_utils/_gate").glob("*.py")}
    assert {"hook.py", "ask.py", "__init__.py"} < set(core) and core.items() <= source.items()
    assert (folder / "usage-gate.yml").stat().st_mode & 0o777 == 0o640
    assert "restart litellm.service" in play.asked()
    assert ready.asked == ["/health/readiness"]
    # The core as it lies there is whole: the hook's own imports work with nothing else on the path.
    script = f"import sys; sys.path.insert(0, {str(folder / 'gb10-serving-lib/lib')!r})\nfrom ansible_collections.gb10.serving.plugins.module_utils._gate import hook, releases, retry_after"
    done = subprocess.run(
        [sys.executable, "-B", "-c", script], capture_output=True, text=True, cwd="/", env={"PATH": "/usr/bin"}
    )
    assert done.returncode == 0, done.stderr

    again = play.run(variables)
    assert (again.status, again.changed) == (0, 0), again.text
    assert play.asked() == []

    # A changed usage-gate.yml is taken over while the proxy runs.
    capped = play.run({**variables, "capped_models": ["glm5.2", "qwen"]})
    assert capped.status == 0 and capped.changed == 1, capped.text
    assert play.asked() == []

    (
        folder / "gb10-serving-lib/lib/ansible_collections/gb10/serving/plugins/module_utils/_gate/of_before.py"
    ).write_text("")
    assert play.run({**variables, "capped_models": ["glm5.2", "qwen"]}).changed == 2  # and the restart
    assert "restart litellm.service" in play.asked()

    gone = play.run({**variables, "state": "absent"})
    assert gone.status == 0, gone.text
    assert " ".join((folder / "config.yaml").read_text().split()) == " ".join(CONFIG.split())
    assert {p.name for p in folder.iterdir() if not p.name.endswith("~")} == {"config.yaml"}
    assert "restart litellm.service" in play.asked()
    assert play.run({**variables, "state": "absent"}).changed == 0
    for outcome in (would, first, again, capped, gone):
        assert SECRET not in outcome.text


#: (variables over the good ones, the configuration, what is said)
REFUSED = [
    ({"capped_models": []}, CONFIG, "usage_gate_endpoints and usage_gate_capped_models: both are needed"),
    ({"group": "no-such-group"}, CONFIG, "usage_gate_group: there is no group no-such-group here"),
    ({"restart": {"systemd": "a.service", "docker": "b"}}, CONFIG, "one of systemd, docker and command is enough"),
    ({"limits": {"attempt_s": 2}}, CONFIG, "does not fit into budget_s"),
    ({}, CONFIG + "router_settings: {fallbacks: [{qwen: [glm5.2]}]}\n", "qwen (not capped) falls back to the capped group glm5.2"),
    ({"strict": True}, CONFIG, "num_retries is not set"),
    ({}, CONFIG + "x: [\n", "line 11, column 1"),
    ({"endpoints": ["http://127.0.0.1:9"], "verify": True}, CONFIG, "http://127.0.0.1:9"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "config", "said"), REFUSED, ids=[case[2][:40] for case in REFUSED])
def test_what_cannot_work_is_refused_and_nothing_is_put_in_place(tmp_path, folder, variables, more, config, said):
    (folder / "config.yaml").write_text(config)
    play = Play(tmp_path, "usage_gate")
    refused = play.run({**variables, **more})
    assert refused.status != 0
    assert said in refused.words, refused.text
    assert contents(folder) == {"config.yaml": config}
    assert play.asked() == [] and SECRET not in refused.text


def test_a_container_and_several_hosts_one_after_another(tmp_path, folder, variables):
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.yaml").write_text(CONFIG)
    log = tmp_path / "log"
    hosts = {
        name: {
            "usage_gate_folder": str(where),
            "usage_gate_restart": {"command": ["/bin/sh", "-c", f"echo {name} >> {log}"]},
            "usage_gate_readiness_url": "http://127.0.0.1:9/health/readiness",
        }
        for name, where in (("one", folder), ("two", other))
    }
    given = {key: value for key, value in variables.items() if key not in ("folder", "readiness_url")}
    given["endpoints"] = {
        "kubernetes": {"namespace": "llm", "service": "platform-api", "port": "http", "api_url": "http://127.0.0.1:9"}
    }
    play = Play(tmp_path, "usage_gate")
    # Whichever is the first does not come back: the other is left as it runs.
    stuck = play.run({**given, "readiness_tries": 1}, hosts=hosts)
    assert stuck.status != 0
    assert log.read_text() in ("one\n", "two\n")
    assert "namespace: llm" in stuck.text and "endpointslices" in stuck.text


def test_a_real_proxy_runs_the_gate_from_what_the_role_put_there(tmp_path, folder, variables):
    python = litellm_python()
    variables["readiness_url"] = ""
    outcome = Play(tmp_path, "usage_gate").run(variables)
    assert outcome.status == 0, outcome.text
    port, log = free_port(), tmp_path / "log"
    (tmp_path / "state").mkdir()
    environment = {
        "PATH": f"{python.parent}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "LITELLM_MASTER_KEY": MASTER,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "USAGE_GATE_STATE_DIR": str(tmp_path / "state"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [str(python.parent / "litellm"), "--config", str(folder / "config.yaml"), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd="/", env=environment, stdout=out, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + 120
        while "Application startup complete" not in log.read_text(errors="replace"):
            assert process.poll() is None and time.monotonic() < until, log.read_text(errors="replace")[-3000:]
            time.sleep(0.2)
        active = "usage gate active: 1 capped models, 2 endpoints, on failure open"
        eventually(lambda: active in log.read_text(errors="replace"), what=log.read_text(errors="replace")[-3000:])
    finally:
        process.terminate()
        process.wait(20)


def test_defaults_and_specification_say_the_same():
    role = CHECKOUT / "roles" / "usage_gate"
    defaults = yaml.safe_load((role / "defaults/main.yml").read_text())
    options = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    assert set(defaults) == set(options)
    stated = {name: option["default"] for name, option in options.items() if "default" in option}
    assert {name: defaults[name] for name in stated} == stated
