# SPDX-License-Identifier: GPL-3.0-or-later
"""llm-busy as jobs use it: whatever ends the job ends its lease."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.contract.scripted import until

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, str(ROOT / "roles/busy_flag/files/llm-busy")]


@pytest.fixture
def env(tmp_path):
    return {**os.environ, "PYTHONPATH": str(ROOT / ".collections"), "GB10_BUSY_DIR": str(tmp_path / "busy")}


def held(env):
    said = subprocess.run([*COMMAND, "list", "--format", "json"], env=env, capture_output=True, text=True, check=True)
    return [row["name"] for row in json.loads(said.stdout)["leases"]]


@pytest.mark.parametrize(
    ("argv", "end"),
    [
        pytest.param(["run", "--name", "job", "--", "sleep", "60"], signal.SIGTERM, id="a job that is ended"),
        pytest.param(["run", "--name", "job", "--", "sleep", "60"], signal.SIGKILL, id="a job that is killed"),
        pytest.param(["keep", "job"], signal.SIGTERM, id="the unit beside a job is stopped"),
        pytest.param(["keep", "job"], signal.SIGKILL, id="the unit beside a job is killed"),
    ],
)
def test_the_lease_ends_with_its_process(env, argv, end):
    process = subprocess.Popen([*COMMAND, *argv], env=env)
    try:
        until(lambda: held(env) == ["job"])
        process.send_signal(end)
        process.wait(timeout=10)
        assert held(env) == []
    finally:
        process.kill()
        process.wait()


def test_systemd_is_told_once_the_lease_is_there(env, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(tmp_path / "notify"))
        told.settimeout(10)
        process = subprocess.Popen([*COMMAND, "keep", "job"], env={**env, "NOTIFY_SOCKET": str(tmp_path / "notify")})
        try:
            assert told.recv(100) == b"READY=1"
            assert held(env) == ["job"]
        finally:
            process.kill()
            process.wait()


def test_one_that_is_kept_does_not_give_back_another_of_its_name(env):
    subprocess.run([*COMMAND, "hold", "job"], env=env, check=True)
    process = subprocess.Popen([*COMMAND, "keep", "job"], env=env)
    try:
        until(lambda: len(held(env)) == 2)
    finally:
        process.terminate()
        process.wait(timeout=10)
    assert held(env) == ["job"]


ODD_FILES = [
    ("nested too deep", "[" * 4000),
    ("no UTF-8", b"\xff\xfe"),
    ("huge", b"\0" * 1_000_000),
    ("no object", "[]"),
    ("a number too large", json.dumps({"name": "x", "owner": "o", "host": "h", "created": 10**400, "expires": 1})),
    (
        "an owner that moves the cursor",
        json.dumps({"name": "x", "owner": "\x1b[2J", "host": "h", "created": time.time(), "expires": 9e9}),
    ),
]


@pytest.mark.parametrize("content", [case[1] for case in ODD_FILES], ids=[case[0] for case in ODD_FILES])
def test_what_others_put_into_the_folder_stops_nobody(env, content):
    subprocess.run([*COMMAND, "hold", "mine"], env=env, check=True)
    folder = Path(env["GB10_BUSY_DIR"])
    (folder / "odd.json").write_bytes(content.encode() if isinstance(content, str) else content)
    os.mkfifo(folder / "fifo.json")
    (folder / "loop.json").symlink_to("loop.json")
    (folder / "folder.json").mkdir()
    assert held(env) == ["mine"]
