# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands that the documentation shows, and how each is run: in a folder with a server, a journal and a gate of its own.

Ours run for real. Other people's (systemctl, docker …) are stand-ins that know the units and targets we install and
refuse every other. Playbooks are read whole by ansible-playbook; what they do is held by the scenarios in molecule/.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tests.contract.scripted import MODELS, TOKEN, Say, Server, serving
from tests.contract.watchdog import recorded
from tests.lab.day import Lab

ROOT = Path(__file__).parents[3]
COMMANDS = {path.name: path for path in (ROOT / "roles").glob("*/files/llm-*") if path.name != "llm-stand-in"}
FOREIGN = ("systemctl", "journalctl", "docker", "podman", "kubectl", "nvidia-smi", "ps", "loginctl", "promtool")
PROGRAMS = (
    r"\./dev",
    r"\./quickstart",
    r"llm-[a-z-]+",
    "ansible",
    "ansible-playbook",
    "curl",
    "python",
    "pip",
    *FOREIGN,
)
_COMMAND = re.compile(rf"(?:sudo )?(?:{'|'.join(PROGRAMS)})(?=\s+\S)")
UNITS = (
    "llm-watchdog.timer",
    "llm-watchdog.service",
    "litellm.service",
    "prometheus.service",
    "grafana-server.service",
)
PAGE = """vllm:num_requests_running{engine="0"} 0
vllm:num_requests_waiting{engine="0"} 0
vllm:iteration_tokens_total_count{engine="0"} 5
llm_engine_steps_total{engine="0"} 9
"""


@dataclass(frozen=True)
class Shown:
    """A command on a page."""

    page: str
    line: str


def commands(page: str, text: str) -> list[Shown]:
    """All commands in code: in fences without a language or of a shell, in indented blocks, and between backticks."""
    fences = re.findall(r"^ *```(\w*)\n(.*?)```", text, re.S | re.M)
    rest = re.sub(r"^ *```.*?```", "", text, flags=re.S | re.M)
    lines = [line for kind, block in fences if kind in ("", "sh", "bash", "console") for line in block.splitlines()]
    lines += re.findall(r"^ {4,}(\S.*)$", rest, re.M)
    lines += re.findall(r"`([^`\n]+)`", rest)
    plain = [re.sub(r"\s+#\s.*$", "", line.strip().removeprefix("$ ")).strip() for line in lines]
    # a foreign program with one bare word is a mention (`docker run`), not a command to type
    mention = re.compile(rf"(?:{'|'.join(FOREIGN)}) (?:image )?[a-z][a-z-]*$")
    return [Shown(page, line) for line in dict.fromkeys(plain) if _COMMAND.match(line) and not mention.match(line)]


class Folder:
    """Where a reader stands: the files that the pages speak of, and the programs on the path."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self.server = folder, server
        self.config = recorded.write(folder)
        described = {"llm_servers": [{"name": "qwen", "url": server.url}]}
        self.config.write_text(json.dumps(described))
        for name in ("trace.jsonl", "FILE"):
            (folder / name).write_text((recorded.TRACES / "idle-night.jsonl").read_text())
        for name in ("nightly.sh", "job.sh"):
            (folder / name).write_text("#!/bin/sh\nexit 0\n")
            (folder / name).chmod(0o755)
        gate = {"endpoints": {"static": [server.url]}, "capped_models": ["glm5.2"]}
        (folder / "usage-gate.yml").write_text(json.dumps(gate))
        backend = {"model_name": "glm5.2", "litellm_params": {"model": "hosted_vllm/glm", "api_base": server.url}}
        (folder / "config.yaml").write_text(json.dumps({"model_list": [backend]}))
        (folder / "docker-compose.yml").write_text("services: {}\n")
        (folder / "requirements.txt").write_text("litellm==1.108.4\n")
        inventory = {"model_hosts": {"hosts": {"spark1": {"ansible_connection": "local", **described}}}}
        for name in ("inventory.yml", "inventory"):
            (folder / name).write_text(json.dumps(inventory))
        bin_ = folder / "bin"
        bin_.mkdir()
        where = f" --config {self.config} --state-dir {folder}/state"
        for name, path in COMMANDS.items():
            self._program(name, f'exec {sys.executable} {path}{where if name == "llm-watchdog" else ""} "$@"')
        gate_config = f'case "$*" in *--config*|check-config*) set -- "$@";; *) set -- "$@" --config {folder}/usage-gate.yml;; esac'
        self._program("llm-gate", f'{gate_config}\nexec {sys.executable} {COMMANDS["llm-gate"]} "$@"')
        for name in FOREIGN:
            self._program(name, f'exec {sys.executable} {Path(__file__).with_name("foreign.py")} {name} "$@"')
        self.env = {
            **os.environ,
            "PATH": f"{bin_}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": f"{ROOT / '.collections'}:{ROOT}",
            "GB10_BUSY_DIR": str(folder / "leases"),
            "GB10_KNOWN_UNITS": " ".join(UNITS),
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".collections"),
            "ANSIBLE_LOCALHOST_WARNING": "false",
            "ANSIBLE_INVENTORY_UNPARSED_WARNING": "false",
        }

    def _program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)

    def here(self, line: str) -> str:
        """The line with this folder's paths and addresses for the reader's."""
        line = line.removeprefix("sudo ")
        line = line.replace("/etc/gb10-serving/servers.yml", str(self.config))
        line = line.replace("/etc/gb10-serving/usage-gate.yml", f"{self.folder}/usage-gate.yml")
        line = line.replace("/var/lib/gb10-serving", f"{self.folder}/state").replace("…", "reason")
        line = re.sub(r"http://(?:127\.0\.0\.1|spark\d|localhost):\d+", self.server.url, line)
        line = re.sub(r"\bURL\b", self.server.url, re.sub(r"\bNAME\b", "qwen", line))
        if line.startswith("llm-gate"):
            line = re.sub(r"\bFILE\b", "usage-gate.yml", line)
        return line

    def run(self, line: str) -> str | None:
        """Why the command is broken, or None."""
        words = shlex.split(self.here(line).replace("|", " | "))
        name = words[0]
        if name.startswith("llm-") and name not in COMMANDS:
            return f"there is no command {name}"
        if name == "./dev":
            return self._dev(words[1:])
        if name == "./quickstart":
            return None if os.access(ROOT / "quickstart", os.X_OK) else "quickstart cannot be run"
        if name in ("python", "pip"):
            return self._module(words)
        line = self.here(line)
        if line.startswith("llm-watchdog restart"):
            return self._restart(line)
        if name == "ansible-playbook":
            line += " --syntax-check" if " -i " in line else f" -i {self.folder}/inventory.yml --syntax-check"
            wrong = self._unknown_variables(words)
            if wrong:
                return wrong
        if name == "ansible" and " -i " not in line:
            line += f" -i {self.folder}/inventory.yml"
        return self._shell(line, name)

    def _restart(self, line: str) -> str | None:
        """On a server that can be restarted: a stand-in with a script to stop it and one to start it."""
        lab = Lab(self.folder / "lab")
        lab.describe()
        try:
            self.config.write_text((self.folder / "lab/servers.yml").read_text())
            return self._shell(line, "llm-watchdog")
        finally:
            lab.stop()

    def _shell(self, line: str, name: str) -> str | None:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=self.folder,
            env=self.env,
            input="sk-a-key-of-a-test\n",
            capture_output=True,
            text=True,
            timeout=180,
        )
        # 1 and 2 are answers (a server that is hung, an audit that found something); 3 is usage, 126 and 127 no program
        good = (0, 1, 2) if name.startswith("llm-") else (0,)
        if "No hosts matched" in done.stderr:
            return f"it does nothing: {done.stderr.strip()}"
        if done.returncode not in good or "Traceback" in done.stderr or "usage:" in done.stderr:
            return f"status {done.returncode}: {(done.stderr or done.stdout).strip()[-600:]}"
        return None

    def _unknown_variables(self, words: list[str]) -> str | None:
        """Variables given with -e that no playbook and no role reads: a misspelt one would silently do nothing."""
        files = [*(ROOT / "playbooks").glob("**/*.yml"), *(ROOT / "roles").glob("*/*/*.yml")]
        known = "\n".join(path.read_text(encoding="utf-8") for path in files)
        for before, word in itertools.pairwise(words):
            if before == "-e" and not re.search(rf"\b{re.escape(word.split('=')[0])}\b", known):
                return f"nothing reads the variable {word.split('=')[0]}"
        return None

    def _dev(self, words: list[str]) -> str | None:
        """`./dev` makes environments and takes minutes; its words are looked up. Commands of ours are run."""
        text = (ROOT / "dev").read_text(encoding="utf-8")
        if words[0] in COMMANDS:
            return self.run(shlex.join(words))
        if words[0] == "shell":
            return self._module(words[1:])
        if not re.search(rf"^  (?:[\w|-]+\|)?{re.escape(words[0])}(?:\|[\w|-]+)?\)", text, re.M):
            return f"./dev has no {words[0]}"
        if words[0] == "test":
            rungs = [word for word in words[1:] if not re.search(rf"^    {re.escape(word)}\)", text, re.M)]
            return f"./dev test has no rung {rungs[0]}" if rungs else None
        if words[0] == "bench":
            missing = [word for word in words[1:] if not (ROOT / f"tests/benchmark/bench_{word}.py").exists()]
            return f"there is no benchmark {missing[0]}" if missing else None
        if words[0] == "molecule":
            missing = [word for word in words[1:] if not (ROOT / "molecule" / word / "molecule.yml").exists()]
            return f"there is no scenario {missing[0]}" if missing else None
        return None

    def _module(self, words: list[str]) -> str | None:
        if words[:2] == ["python", "-m"]:
            path = ROOT / words[2].replace(".", "/")
            there = path.with_suffix(".py").exists() or (path / "__main__.py").exists()
            return None if there else f"there is no module {words[2]}"
        if words[0] == "python":
            return None if (ROOT / words[1]).exists() else f"there is no file {words[1]}"
        if words[:2] == ["pip", "install"] and words[2] == "/opt/gb10-serving/heartbeat":
            return None
        if words[:2] == ["pip", "install"]:  # every environment here is made by installing what this file names
            named = re.findall(r"^[\w-]+", (ROOT / "requirements/run.txt").read_text(), re.M)
            return None if len(words) == 3 and words[2] in named else f"requirements/run.txt does not name {words[2:]}"
        return f"nothing here runs {shlex.join(words)}"


def stand_in() -> AbstractContextManager[Server]:
    """One address that answers as a vLLM and as a verdict API."""
    return serving(
        {
            "GET /metrics": Say(PAGE),
            "GET /health": Say(""),
            "GET /v1/models": Say(MODELS),
            "POST /v1/completions": Say(TOKEN),
            "POST /v1/chat/completions": Say(TOKEN),
            "POST /v1/usage/check": Say(b'{"allowed": true}'),
        }
    )
