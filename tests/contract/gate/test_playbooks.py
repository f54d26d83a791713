"""The playbooks that touch a platform API, run for real: the drill, and the rollout on hosts and in Kubernetes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.gate.conftest import COLLECTION, LLM_GATE
from tests.contract.gate.kube_api import KubeApi, slice_of
from tests.contract.gate.servers import free_port
from tests.contract.litellm.play import Outcome, run_playbook

# Slow: playbooks take seconds to start, so they are run for one pair of Python and ansible-core only.
pytestmark = pytest.mark.slow

#: Restarts one replica: ends the process named in a file, waits for its end, starts another on the same port.
RESTART = """
import os, pathlib, signal, subprocess, sys, time
file, host, port = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
if sys.argv[4:] == ["broken"]:
    port = "0"  # any other; not 1, which other tests take for a port where nothing listens
old = int(file.read_text())
os.kill(old, signal.SIGTERM)
while os.path.exists(f"/proc/{old}") and "Z" not in pathlib.Path(f"/proc/{old}/stat").read_text().rpartition(")")[2].split()[0]:
    time.sleep(0.02)
new = subprocess.Popen(
    [sys.executable, "-m", "tests.contract.gate.replica_main", host, port, "alone"],
    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
)
file.write_text(str(new.pid))
"""


class Replicas:
    """Processes, each with its pid in a file that others may change."""

    def __init__(self, root: Path, hosts: list[str], port: int | None = None) -> None:
        self.root = root
        self.at = [(host, port or free_port(host)) for host in hosts]
        self.script = root / "restart.py"
        self.script.write_text(RESTART)
        self.started: list[subprocess.Popen[str]] = []
        for number, (host, its_port) in enumerate(self.at):
            command = [sys.executable, "-m", "tests.contract.gate.replica_main", host, str(its_port), "alone"]
            process = subprocess.Popen(command, cwd=COLLECTION, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            self.started.append(process)
            self.file(number).write_text(str(process.pid))

    def file(self, number: int) -> Path:
        return self.root / f"pid{number}"

    def pid(self, number: int) -> int:
        return int(self.file(number).read_text())

    def restart(self, number: int, *more: str) -> list[str]:
        host, port = self.at[number]
        return [sys.executable, str(self.script), str(self.file(number)), host, str(port), *more]

    @property
    def urls(self) -> list[str]:
        return [f"http://{host}:{port}" for host, port in self.at]

    def close(self) -> None:
        for number in range(len(self.at)):
            for wake in (signal.SIGCONT, signal.SIGKILL):
                try:
                    os.kill(self.pid(number), wake)
                except ProcessLookupError:
                    pass
        for process in self.started:
            process.kill()
            process.wait(10)


@pytest.fixture
def replicas(tmp_path):
    three = Replicas(tmp_path, ["127.0.0.1"] * 3)
    yield three
    three.close()


@pytest.fixture
def asking(tmp_path):
    """Starts ``llm-gate ask`` at 40 questions a second; ends it and gives its sums."""
    end, started = tmp_path / "end", []

    def start(config: str) -> None:
        command = ["ask", "--config", config, "--model", "glm5.2", "--key", "sk-1", "--rate", "40", "--until", str(end)]
        command += ["--settle", "20", "--no-cache", "--timeline", "--format", "json"]
        started.append(subprocess.Popen([sys.executable, str(LLM_GATE), *command], stdout=subprocess.PIPE, text=True))

    def stop() -> dict[str, Any]:
        end.touch()
        return json.loads(started[0].communicate(timeout=60)[0])

    yield start, stop
    for process in started:
        process.kill()
        process.wait(10)


def inventory_of(tmp_path: Path, document: dict[str, Any]) -> Path:
    inventory = tmp_path / "inventory.json"
    # Its first modules come to a fresh interpreter in a folder of its own, whatever the machine has.
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
    inventory.write_text(json.dumps({"all": {"vars": local}, **document}))
    return inventory


# -- the drill -------------------------------------------------------------------------------------------------------


def drill(tmp_path: Path, config: str, **more: Any) -> Outcome:
    said = {
        "drill_consent": True,
        "drill_gate": [sys.executable, str(LLM_GATE)],
        "drill_gate_config": config,
        "drill_model": "glm5.2",
        "drill_cut_s": 3,
        **more,
    }
    inventory = inventory_of(tmp_path, {"gateways": {"hosts": {"gw1": {}}}})
    said_file = tmp_path / "said.json"
    said_file.write_text(json.dumps({name: value for name, value in said.items() if value is not None}))
    return run_playbook(tmp_path, "gb10.serving.drill_node_loss", inventory, "-e", f"@{said_file}")


def test_the_drill_says_that_a_lost_node_opened_nothing(tmp_path, replicas, write_config):
    pid = str(replicas.pid(2))
    done = drill(tmp_path, write_config(replicas.urls), drill_node="spark3", drill_cut_command=["kill", "-STOP", pid], drill_heal_command=["kill", "-CONT", pid])  # fmt: skip
    assert done.status == 0, done.text
    assert f"cut off: spark3 with {replicas.urls[2]}" in done.words
    assert "0 without a verdict" in done.words
    assert f"{replicas.urls[2]} left out" in done.words and f"{replicas.urls[2]} asked again" in done.words


def test_the_drill_fails_where_requests_would_be_served_unchecked(tmp_path, replicas, write_config):
    blind = write_config(
        replicas.urls,
        limits={"retries": 0, "hedge_share": 0, "attempt_s": 0.2, "connect_s": 0.1},
        ejection={"after_errors": 4, "cooldown_s": 0.3, "cooldown_max_s": 1},
    )
    pid = str(replicas.pid(2))
    done = drill(tmp_path, blind, drill_cut_command=["kill", "-STOP", pid], drill_heal_command=["kill", "-CONT", pid])
    assert done.status != 0
    assert "the drill has failed" in done.words and "questions went without a verdict" in done.words, done.text


def test_a_drill_in_which_nothing_was_cut_proves_nothing(tmp_path, replicas, write_config):
    done = drill(tmp_path, write_config(replicas.urls), drill_cut_command=["true"], drill_heal_command=["true"])
    assert done.status != 0
    assert "never left out: was 127.0.0.1 really cut off?" in done.words, done.text


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"drill_consent": None}, "say -e drill_consent=yes"),
        ({"drill_cut_command": ["true"]}, "drill_cut_command and drill_heal_command go together"),
        ({"drill_gate": ["/nowhere/llm-gate"]}, "llm-gate is not on gw1; run gb10.serving.site first"),
        ({"only": 1}, "two replicas or more must give verdicts before one is cut off"),
    ],
)
def test_a_drill_that_must_not_begin(tmp_path, replicas, write_config, more, said):
    urls = replicas.urls[: more.pop("only", 3)]
    done = drill(tmp_path, write_config(urls), **more)
    assert done.status != 0 and said in done.words, done.text


# -- the rollout -----------------------------------------------------------------------------------------------------


def hosts_of(replicas: Replicas, *broken: int) -> dict[str, Any]:
    hosts = {
        f"api{number}": {
            "platform_api_url": url,
            "platform_api_restart": ["env", "-C", str(COLLECTION), *replicas.restart(number, *(["broken"] if number in broken else []))],
            "platform_api_settle_s": 3,
            "platform_api_retries": 3,
        }
        for number, url in enumerate(replicas.urls)
    }  # fmt: skip
    return {"platform_api": {"hosts": hosts}}


def test_hosts_are_replaced_one_by_one_and_every_question_gets_a_verdict(tmp_path, replicas, write_config, asking):
    start, stop = asking
    start(write_config(replicas.urls, ejection={"cooldown_s": 0.3, "cooldown_max_s": 2}))
    inventory = inventory_of(tmp_path, hosts_of(replicas))
    before = [replicas.pid(number) for number in range(3)]
    would = run_playbook(tmp_path, "gb10.serving.platform_api_rollout", inventory, "--check")
    assert would.status == 0, would.text
    assert before == [replicas.pid(number) for number in range(3)]
    done = run_playbook(tmp_path, "gb10.serving.platform_api_rollout", inventory)
    assert done.status == 0, done.text
    sums = stop()
    assert sums["failed_open"] == 0 and sums["allowed"] == sums["asked"] > 100, sums
    assert all(replicas.pid(number) != before[number] for number in range(3))


def test_a_replica_that_does_not_come_back_ends_it(tmp_path, replicas, write_config, asking):
    start, stop = asking
    start(write_config(replicas.urls))
    third = replicas.pid(2)
    done = run_playbook(tmp_path, "gb10.serving.platform_api_rollout", inventory_of(tmp_path, hosts_of(replicas, 1)))
    assert done.status != 0
    assert replicas.pid(2) == third, "the third must stay as it is"
    assert stop()["failed_open"] == 0


#: What kubectl does of it: notes each call, and waits where kubectl waits. PATCHED holds what was applied.
KUBECTL = """#!{python}
import json, pathlib, sys, time
root = pathlib.Path({root!r})
words = sys.argv[1:]
with (root / "kubectl.log").open("a") as log:
    print(json.dumps(words), file=log)
if "patch" in words:
    patch, applied = pathlib.Path(words[words.index("--patch-file") + 1]).read_text(), root / "applied.yml"
    same = applied.exists() and applied.read_text() == patch
    applied.write_text(patch)
    if not same:
        (root / "go").touch()
    print("deployment.apps/platform-api patched" + (" (no change)" if same else ""))
elif "restart" in words:
    (root / "go").touch()
elif "status" in words:
    until = time.monotonic() + 60
    while not (root / "done").exists():
        if time.monotonic() > until:
            sys.exit("error: timed out waiting for the condition")
        time.sleep(0.05)
"""


class Cluster:
    """A deployment's controller and its pods, as the patch describes them, behind the scripted API server."""

    def __init__(self, root: Path) -> None:
        self.root, self.port = root, free_port("127.0.0.11")
        self.pods = Replicas(root, [f"127.0.0.{number}" for number in (11, 12, 13)], self.port)
        self.later: list[Replicas] = []
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),), daemon=True)
        self._stopped: asyncio.Event | None = None

    def __enter__(self) -> Cluster:
        (self.root / "bin").mkdir()
        kubectl = self.root / "bin/kubectl"
        kubectl.write_text(KUBECTL.format(python=sys.executable, root=str(self.root)))
        kubectl.chmod(0o755)
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._stopped is not None
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(10)
        for group in (self.pods, *self.later):
            group.close()

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.root / "kubectl.log").read_text().splitlines()]

    async def _run(self) -> None:
        self._stopped = asyncio.Event()
        async with KubeApi() as api:
            self.url = api.url
            api.items = [slice_of(f"pod{number}", f"127.0.0.{number}", port=self.port) for number in (11, 12, 13)]
            self._ready.set()
            control = asyncio.create_task(self._control(api))
            await self._stopped.wait()
            control.cancel()
            await asyncio.gather(control, return_exceptions=True)

    async def _change(self, api: KubeApi, kind: str, item: dict[str, Any]) -> None:
        api.version += 1
        item["metadata"]["resourceVersion"] = str(api.version)
        api.items = [other for other in api.items if other["metadata"]["name"] != item["metadata"]["name"]]
        api.items += [item] if kind != "DELETED" else []
        await api.send(kind, item)

    async def _control(self, api: KubeApi) -> None:
        while not (self.root / "go").exists():
            await asyncio.sleep(0.02)
        spec = yaml.safe_load((self.root / "applied.yml").read_text())["spec"]
        assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
        pause_s = spec["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > pause_s
        for number in range(3):
            old, new = 11 + number, 21 + number
            folder = self.root / f"new{number}"
            folder.mkdir()
            pods = await asyncio.to_thread(Replicas, folder, [f"127.0.0.{new}"], self.port)
            self.later.append(pods)
            await self._change(api, "ADDED", slice_of(f"pod{new}", f"127.0.0.{new}", port=self.port))
            leaving = {"ready": False, "serving": True, "terminating": True}
            await self._change(api, "MODIFIED", slice_of(f"pod{old}", f"127.0.0.{old}", port=self.port, **leaving))
            await asyncio.sleep(pause_s / 5)  # five times as fast as there
            os.kill(self.pods.pid(number), signal.SIGTERM)
            await self._change(api, "DELETED", slice_of(f"pod{old}", f"127.0.0.{old}", port=self.port))
        (self.root / "done").touch()


@pytest.mark.parametrize("again", [False, True], ids=["first", "patched already"])
def test_a_deployment_is_rolled_out_and_every_question_gets_a_verdict(tmp_path, write_config, asking, again):
    start, stop = asking
    (tmp_path / "token").write_text("t")
    with Cluster(tmp_path) as cluster:
        kubernetes = {"namespace": "llm", "service": "platform-api", "port": "http", "api_url": cluster.url, "token_file": str(tmp_path / "token")}  # fmt: skip
        start(write_config([], endpoints={"kubernetes": kubernetes}))
        if again:
            patch = COLLECTION / "playbooks/files/platform_api_patch.yml"
            (tmp_path / "applied.yml").write_text(patch.read_text())
        more = ["-e", "platform_api_deployment=platform-api platform_api_namespace=llm"]
        would = run_playbook(
            tmp_path, "gb10.serving.platform_api_rollout", inventory_of(tmp_path, {}), "--check", *more
        )
        assert would.status == 0, would.text
        assert not (tmp_path / "kubectl.log").exists()
        done = run_playbook(tmp_path, "gb10.serving.platform_api_rollout", inventory_of(tmp_path, {}), *more)
        assert done.status == 0, done.text
        sums = stop()
        named = ["--namespace", "llm"]
        assert [call[:4] for call in cluster.calls()] == [
            [*named, "patch", "deployment"],
            *([[*named, "rollout", "restart"]] if again else []),
            [*named, "rollout", "status"],
        ]
    assert sums["failed_open"] == 0 and sums["allowed"] == sums["asked"] > 100, sums
