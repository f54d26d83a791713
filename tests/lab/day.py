#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Some minutes in the life of two model servers, as the watchdog records them, and the report's picture for the docs.

usage: day.py FOLDER [--minutes 10] [--picture docs/report.png]

Everything is real but the engines: two stand-ins without a model, the watchdog looking every 3 seconds with a patience of
20 (600 by default), a lease of llm-busy, restarts through the same transaction. --minutes 0: only the picture, of what FOLDER holds.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / ".collections")]
COMMANDS = {path.name: path for path in (ROOT / "roles").glob("*/files/llm-*")}
EVERY_S = 3.0
SETTINGS = {
    "patience_s": 20.0,
    "proof_readings": 4,
    "last_proof_s": 3.0,
    "cooldown_s": 60.0,
    "gap_void_s": 120.0,
    "start_ceiling_s": 60.0,
    "probe_every_s": 60.0,
}


class Lab:
    """A folder with the servers' scripts and the watchdog's state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {
            **os.environ,
            "PYTHONPATH": str(ROOT / ".collections"),
            "GB10_BUSY_DIR": str(folder / "leases"),
        }

    def describe(self) -> None:
        servers = []
        for name, mode in (("qwen", "act"), ("glm", "observe")):
            home = self.folder / name
            home.mkdir(parents=True, exist_ok=True)
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            start, stop = home / "start", home / "stop"
            stand_in = f"{sys.executable} {COMMANDS['llm-stand-in']} --port {port} --folder {home}"
            start.write_text(f"#!/bin/sh\nsetsid {stand_in} >/dev/null 2>&1 &\n")
            stop.write_text(f"#!/bin/sh\nkill $(tail -n 1 {home}/starts) 2>/dev/null\nexit 0\n")
            for script in (start, stop):
                script.chmod(0o755)
            subprocess.run([str(start)], check=True)
            restart = {"command": {"stop": [str(stop)], "start": [str(start)]}}
            servers.append({"name": name, "url": f"http://127.0.0.1:{port}", "restart": restart, "mode": mode})
        text = json.dumps({"llm_servers": servers, "settings": SETTINGS})
        (self.folder / "servers.yml").write_text(text)

    def command(self, name: str, *args: str) -> None:
        where = [] if name != "llm-watchdog" else ["--config", f"{self.folder}/servers.yml"]
        where += [] if name != "llm-watchdog" else ["--state-dir", f"{self.folder}/state"]
        subprocess.run(
            [sys.executable, str(COMMANDS[name]), *where, *args], env=self.env, check=True, stdout=subprocess.DEVNULL
        )

    def tell(self, name: str, *files: str) -> None:
        """What the stand-in is to do now: these files are there and no others."""
        for known in ("busy", "prefill", "frozen"):
            (self.folder / name / known).unlink(missing_ok=True)
        for file in files:
            pid = (self.folder / name / "starts").read_text().split()[-1]
            (self.folder / name / file).write_text(pid if file == "frozen" else "")

    def journal(self) -> str:
        path = self.folder / "state/journal.jsonl"
        return path.read_text() if path.exists() else ""

    def look_until(self, condition: Callable[[], bool], most_s: float) -> None:
        end = time.monotonic() + most_s
        while time.monotonic() < end and not condition():
            self.command("llm-watchdog", "run")
            time.sleep(EVERY_S)

    def look_for(self, seconds: float) -> None:
        self.look_until(lambda: False, seconds)

    def stop(self) -> None:
        for name in ("qwen", "glm"):
            for pid in (self.folder / name / "starts").read_text().split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    continue

    def live(self, minutes: float) -> None:
        part = 60.0 * minutes / 20  # twentieths of the time
        self.look_for(2 * part)
        self.tell("qwen", "busy")
        self.look_for(2 * part)
        self.command("llm-busy", "hold", "--name", "nightly-eval", "--for", "1h")
        self.tell("glm", "busy")
        self.look_for(3 * part)
        self.command("llm-busy", "release", "--name", "nightly-eval")
        self.tell("qwen", "prefill")  # one long prompt: nothing moves but KV use
        self.look_for(3 * part)
        self.tell("qwen", "busy")
        self.look_for(2 * part)
        self.tell("qwen", "busy", "frozen")  # its requests hang; proven, evidence, restarted
        self.tell("glm", "busy", "frozen")  # the same, but only observed
        self.look_until(lambda: '"event": "closed", "server": "qwen"' in self.journal(), 240)
        self.tell("qwen")
        self.look_for(3 * part)
        self.command("llm-watchdog", "maintenance", "glm", "--for", "2h", "--reason", "new driver tonight")
        self.tell("glm", "busy")
        self.look_for(2 * part)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=Path)
    p.add_argument("--minutes", type=float, default=10.0)
    p.add_argument("--picture", type=Path, default=None)
    args = p.parse_args()
    folder = args.folder.resolve()
    lab = Lab(folder)
    if args.minutes:
        lab.describe()
        try:
            lab.live(args.minutes)
            # the page is of these minutes, as the last look left them
            lab.command(
                "llm-watchdog", "report", "--since", f"{args.minutes + 2:.0f}m", "--html", f"{folder}/page.html"
            )
        finally:
            lab.stop()
    if args.picture:
        from tests.contract import browser

        page = (folder / "page.html").read_text(encoding="utf-8")
        browser.picture(folder, page, args.picture.resolve(), 390, 1750)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
