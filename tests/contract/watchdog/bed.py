# SPDX-License-Identifier: GPL-3.0-or-later
"""A scripted engine with its description and the watchdog's state, in one folder, and the watchdog run as the timer does."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.contract.scripted import until

ROOT = Path(__file__).parents[3]
COMMAND = ROOT / "roles/watchdog/files/llm-watchdog"
HERE = Path(__file__).parent
# shortened for the test; their order is the real ones'
SETTINGS = {
    "patience_s": 1.0,
    "proof_readings": 3,
    "last_proof_s": 1.0,
    "cooldown_s": 600.0,
    "gap_void_s": 60.0,
    "start_ceiling_s": 60.0,
}


class Bed:
    """A folder with a scripted engine, its description, and the watchdog's state."""

    def __init__(self, folder: Path):
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        start, stop = folder / "start", folder / "stop"
        start.write_text(
            f"#!/bin/sh\nsetsid {sys.executable} {HERE / 'engine.py'} {folder} {self.port} >/dev/null 2>&1 &\n"
        )
        stop.write_text(f"#!/bin/sh\nkill $(tail -n 1 {folder}/starts) 2>/dev/null\nexit 0\n")
        for script in (start, stop):
            script.chmod(0o755)
        self.start_script, self.stop_script = start, stop
        self.config = folder / "servers.yml"
        self.describe()

    def describe(self, settings=None, notify=None, **server):
        self.config.write_text(
            json.dumps(
                {
                    **({"notify_command": notify} if notify else {}),
                    "llm_servers": [
                        {
                            "name": "qwen",
                            "url": f"http://127.0.0.1:{self.port}",
                            "restart": {
                                "command": {"stop": [str(self.stop_script)], "start": [str(self.start_script)]}
                            },
                            **server,
                        }
                    ],
                    "settings": {**SETTINGS, **(settings or {})},
                }
            )
        )

    @property
    def env(self):
        # not as if systemd ran it: then it reaches podman by systemd
        inherited = {name: value for name, value in os.environ.items() if name != "INVOCATION_ID"}
        return {
            **inherited,
            "PYTHONPATH": f"{ROOT / '.collections'}:{ROOT}",
            "GB10_BUSY_DIR": str(self.folder / "leases"),
        }

    @property
    def args(self):
        return ["--config", str(self.config), "--state-dir", str(self.folder / "state")]

    def watchdog(self, *args, killed=None, clock_off_s=None, check=True, inside=()):
        command = [str(COMMAND)] if killed is None else [str(HERE / "killer.py"), *map(str, killed)]
        if clock_off_s is not None:
            command = [str(HERE / "clock_set.py"), str(clock_off_s)]
        done = subprocess.run(
            [*inside, sys.executable, *command, *self.args, *args],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert "please report" not in done.stdout, done.stdout
        if check and killed is None:
            assert done.returncode == 0, done.stderr
        return done

    def start(self):
        subprocess.run([str(self.start_script)], check=True)
        until(self.answers)

    def answers(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), 0.2).close()
        except OSError:
            return False
        return True

    def lines(self, name):
        path = self.folder / name
        return path.read_text().split() if path.exists() else []

    @property
    def starts(self):
        return self.lines("starts")

    def freeze(self):
        (self.folder / "busy").touch()
        (self.folder / "frozen").write_text(self.starts[-1])

    def journal(self, *events):
        path = self.folder / "state/journal.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [row for row in rows if not events or row["event"] in events]

    def state(self):
        return json.loads((self.folder / "state/memory/qwen.json").read_text())

    def run_until(self, condition, runs=60, **how):
        """Runs the watchdog until the condition holds."""
        for _ in range(runs):
            self.watchdog("run", **how)
            if condition():
                return
            time.sleep(0.3)
        raise AssertionError("it did not come to that: " + json.dumps(self.journal()[-5:]))

    def until_settled(self):
        """Runs the watchdog until a restart was closed."""
        self.run_until(lambda: self.journal("closed", "aborted"))

    def end(self):
        for pid in self.starts:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue


def killed_at(folder: Path, n: int, when: str, made=Bed) -> bool:
    """One restart during which one watchdog is killed at its n-th write; whether the killing took place."""
    bed, left, killed = made(folder), n, False
    bed.start()
    try:
        bed.freeze()
        for _ in range(40):
            if killed or bed.journal("closed"):
                break
            before = len(bed.journal())
            killed = bed.watchdog("run", killed=(left, when)).returncode == -signal.SIGKILL
            left = max(left - (len(bed.journal()) - before) - 1, 1)
            time.sleep(0.2)
        bed.until_settled()
        assert len(bed.starts) == 2, (n, when, bed.journal())
        assert len(bed.journal("closed")) == 1, (n, when)
        assert len(bed.journal("decided")) == 1, (n, when)
        acts = bed.state()["memory"]["acts"]
        assert len(acts) == 1, (n, when, acts)
        bed.watchdog("run")
        assert bed.state()["ended"] == {"hung serving": 1}, (n, when)
        assert bed.answers()
        return killed
    finally:
        bed.end()
