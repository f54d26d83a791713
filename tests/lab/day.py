#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""A day in the life of two model servers, as the watchdog records it, and the report's picture for the docs.

usage: day.py FOLDER [--minutes 10] [--clock 1] [--picture docs/report.png]

Everything is real but the engines: two stand-ins without a model, the watchdog looking every 60 seconds with its default
settings, a lease of llm-busy, restarts through the same transaction. Below 180 minutes the watchdog looks every 3 seconds
and has a patience of 20, so that all of it happens. --minutes 1440 --clock 24: a day, and all clocks of all these processes
run 24 times as fast (Debian's package faketime). --minutes 0: only the picture, of what FOLDER holds.
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
CLOCK = ("LD_PRELOAD", "FAKETIME", "FAKETIME_SHARED")
# faketime leaves alone what the kernel writes, by which is known when a process began: its uptime and its ticks
KERNEL = """import os, pathlib
tick, text = os.sysconf, pathlib.Path.read_text

def read_text(path, *args, **more):
    said = text(path, *args, **more)
    return f"{{float(said.split()[0]) * {clock}}}" if str(path) == "/proc/uptime" else said

pathlib.Path.read_text = read_text
os.sysconf = lambda name: tick(name) / {clock} if name == "SC_CLK_TCK" else tick(name)
"""
SHORT_MIN = 180.0
SHORT = {
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

    def __init__(self, folder: Path, minutes: float = 10.0, clock: int = 1) -> None:
        self.folder, self.minutes, self.clock = folder, minutes, clock
        self.every_s, self.settings = (3.0, SHORT) if minutes < SHORT_MIN else (60.0, {})
        self.env = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}/.collections:{folder}/clock",
            "GB10_BUSY_DIR": str(folder / "leases"),
        }

    def describe(self) -> None:
        if self.clock > 1:
            (self.folder / "clock").mkdir(parents=True)
            (self.folder / "clock/sitecustomize.py").write_text(KERNEL.format(clock=self.clock))
        servers = []
        for name, mode in (("qwen", "act"), ("glm", "observe")):
            home = self.folder / name
            home.mkdir(parents=True, exist_ok=True)
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            start, stop = home / "start", home / "stop"
            stand_in = f"{sys.executable} {COMMANDS['llm-stand-in']} --port {port} --folder {home}"
            # a start command gets no environment of the watchdog's, and so would get no fast clock
            clock = " ".join(f"{name}='{value}'" for name, value in os.environ.items() if name in CLOCK)
            start.write_text(f"#!/bin/sh\n{clock} setsid {stand_in} >/dev/null 2>&1 &\n")
            stop.write_text(f"#!/bin/sh\nkill $(tail -n 1 {home}/starts) 2>/dev/null\nexit 0\n")
            for script in (start, stop):
                script.chmod(0o755)
            subprocess.run([str(start)], check=True)
            restart = {"command": {"stop": [str(stop)], "start": [str(start)]}}
            servers.append({"name": name, "url": f"http://127.0.0.1:{port}", "restart": restart, "mode": mode})
        text = json.dumps({"llm_servers": servers, "settings": self.settings})
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
        while (begun := time.monotonic()) < end and not condition():
            self.command("llm-watchdog", "run")
            time.sleep(max(begun + self.every_s - time.monotonic(), 0.0))

    def look_for(self, seconds: float) -> None:
        self.look_until(lambda: False, seconds)

    def stop(self) -> None:
        for name in ("qwen", "glm"):
            for pid in (self.folder / name / "starts").read_text().split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    continue

    def live(self) -> None:
        part = 60.0 * self.minutes / 20  # twentieths of the time
        self.look_for(2 * part)
        self.tell("qwen", "busy")
        self.look_for(2 * part)
        self.command("llm-busy", "hold", "--name", "nightly-eval", "--for", "6h")
        self.tell("glm", "busy")
        self.look_for(3 * part)
        self.command("llm-busy", "release", "--name", "nightly-eval")
        self.tell("qwen", "prefill")  # one long prompt: nothing moves but KV use
        prefill = min(3 * part, 720.0)
        self.look_for(prefill)
        self.tell("qwen", "busy")
        self.look_for(5 * part - prefill)
        self.tell("qwen", "busy", "frozen")  # its requests hang; proven, evidence, restarted
        self.tell("glm", "busy", "frozen")  # the same, but only observed
        self.look_until(lambda: '"event": "closed", "server": "qwen"' in self.journal(), 80 * self.every_s)
        self.tell("qwen")
        self.look_for(3 * part)
        self.command("llm-watchdog", "maintenance", "glm", "--for", "6h", "--reason", "new driver tonight")
        self.tell("glm", "busy")
        self.look_for(2 * part)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=Path)
    p.add_argument("--minutes", type=float, default=10.0)
    p.add_argument("--clock", type=int, default=1)
    p.add_argument("--picture", type=Path, default=None)
    args = p.parse_args()
    if args.clock > 1 and "FAKETIME_SHARED" not in os.environ:
        back = time.time() % 86400 + 86400  # it begins at yesterday's midnight
        fast = ["faketime", "-f", f"-{back:.0f} x{args.clock}", sys.executable, __file__, *sys.argv[1:]]
        return subprocess.call(fast)
    folder = args.folder.resolve()
    lab = Lab(folder, args.minutes, args.clock)
    if args.minutes:
        lab.describe()
        try:
            lab.live()
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
