# SPDX-License-Identifier: GPL-3.0-or-later
"""What is saved before a restart, by allow-list: what proves it, and what explains it. No prompts, no keys, no arguments."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
from pathlib import Path

from .._core import urls
from .._core.boot import of_this_boot
from .._core.servers import Restart, Server
from .._health import proc
from .._health.witness import output_of, server_tree, unit_of
from .containers import client_of, of_compose
from .scrub import scrubbed

KEPT = 20  # per server; the oldest go
LOG_LINES = 300
TRACE_LINES = 120
WITHIN_S = 8.0


def stacks_alone(text: str) -> str:
    """py-spy's dump without the command lines above each process's stacks: an argument may be a key."""
    kept, shown = [], False
    for line in text.splitlines():
        if process := re.match(r"Process \d+:", line):
            shown = False
            kept.append(process[0])
        shown = shown or re.match(r"Python v\d", line) is not None
        if shown:
            kept.append(line)
    return "\n".join(kept) + ("\n" if kept else "")


async def _said(*argv: str) -> str | None:
    said = await output_of(*argv, within_s=WITHIN_S)
    return None if said is None else said[1]


UNIT_PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "MainPID",
    "ExecMainStartTimestamp",
    "ExecMainStatus",
    "NRestarts",
    "MemoryCurrent",
    "TasksCurrent",
    "Restart",
    "StateChangeTimestamp",
)


def _tree_text(url: str) -> tuple[str | None, int | None, str | None]:
    """(process tree without arguments, the server's pid, its unit)."""
    seen = proc.Snapshot()
    found = seen.listener(urls.host_and_port(url)[1])
    if found is None:
        return None, None, None
    members = sorted(server_tree(found[0], seen), key=lambda one: one.pid)
    rows = [f"{one.pid}\t{one.parent}\t{one.name}\t{one.cpu_s:.1f} s of CPU" for one in members]
    unit = unit_of(found[0])
    return "pid\tparent\tname\n" + "\n".join(rows) + "\n", found[0], unit[0] if unit else None


async def _containers(restart: Restart) -> list[str]:
    if restart.kind in ("docker", "podman"):
        return [restart.target]
    if restart.kind != "compose":
        return []
    said = await output_of(*of_compose(restart), within_s=WITHIN_S)
    return said[1].split() if said else []


async def collect(server: Server, store_folder: Path, stamp: str) -> str | None:
    """Saves the evidence; the folder's name, or None when nothing could be written. Never takes more than some seconds."""
    folder = store_folder / "evidence" / server.name / stamp
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError:
        return None

    def put(name: str, text: str | None) -> None:
        if text:
            with contextlib.suppress(OSError):
                (folder / name).write_text(text, encoding="utf-8")

    with contextlib.suppress(OSError):
        lines = (store_folder / "traces" / f"{server.name}.jsonl").read_text(encoding="utf-8").splitlines()
        put("observations.jsonl", "\n".join([*lines[:1], *lines[1:][-TRACE_LINES:]]) + "\n")
    tree, pid, unit = await asyncio.to_thread(_tree_text, server.url)
    put("processes.txt", tree)
    restart = server.restart
    scope: list[str] = []
    if restart is not None and restart.kind == "systemd":
        unit = restart.target
        scope = ["--user", f"--machine={restart.user}@.host"] if restart.user else []
    questions: dict[str, tuple[str, ...]] = {
        "gpu.txt": ("nvidia-smi",),
        "kernel.txt": (
            "journalctl",
            "--dmesg",
            of_this_boot(),
            "--no-pager",
            "--quiet",
            "--lines=200",
            "--grep=NVRM|Xid|mlx5|PCIe|oom|Out of memory",
        ),
    }
    if unit is not None:
        questions["unit.txt"] = ("systemctl", *scope, "show", unit, f"--property={','.join(UNIT_PROPERTIES)}")
        field = "_SYSTEMD_USER_UNIT" if scope else "_SYSTEMD_UNIT"
        questions["log.txt"] = ("journalctl", f"{field}={unit}", "--no-pager", "--quiet", f"--lines={LOG_LINES}")
    if restart is not None:
        for container in await _containers(restart):
            client = client_of(restart)
            questions["container.txt"] = (*client, "inspect", "--format", "{{json .State}}", container)
            # an engine's log is on both of its outputs, and docker keeps them apart
            both = ("sh", "-c", 'exec "$@" 2>&1', "sh")
            questions["log.txt"] = (*both, *client, "logs", "--tail", str(LOG_LINES), container)
    if pid is not None and shutil.which("py-spy"):
        questions["stacks.txt"] = ("py-spy", "dump", "--pid", str(pid), "--subprocesses", "--nonblocking")
    answers = await asyncio.gather(*(_said(*argv) for argv in questions.values()))
    for name, text in zip(questions, answers, strict=True):
        put(name, scrubbed(stacks_alone(text) if name == "stacks.txt" else text) if text else None)
    _forget_old(folder.parent)
    return str(folder.relative_to(store_folder))


def _forget_old(parent: Path) -> None:
    with contextlib.suppress(OSError):
        for old in sorted(one for one in parent.iterdir() if one.is_dir())[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
