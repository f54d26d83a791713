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


def busy(env, *argv, **how):
    return subprocess.run([*COMMAND, *argv], env=env, capture_output=True, text=True, **how)


def test_a_command_that_cannot_be_run_takes_nobody_elses_lease(env, tmp_path):
    job = tmp_path / "job"
    job.write_text("no program\n")
    job.chmod(0o755)
    busy(env, "hold", "nightly", check=True)
    assert busy(env, "run", "--name", "nightly", "--", str(job)).returncode == 126
    assert held(env) == ["nightly"]


def test_a_block_within_the_same_lease_does_not_end_it(env, tmp_path):
    job = tmp_path / "job.py"
    job.write_text(
        "import sys\n"
        "from ansible_collections.gb10.serving.plugins.module_utils._busy.store import busy, held\n"
        "def names(): return [one.name for one in held()]\n"
        "with busy('nightly'):\n"
        "    with busy('nightly'): pass\n"
        "    inner = names()\n"
        "print(inner, names())\n"
    )
    alone = subprocess.run([sys.executable, str(job)], env=env, capture_output=True, text=True, check=True)
    assert alone.stdout == "['nightly'] []\n"
    within = busy(env, "run", "--name", "nightly", "--", sys.executable, str(job), check=True)
    assert within.stdout == "['nightly'] ['nightly']\n"
    assert held(env) == []


def test_a_job_is_ended_by_signals_as_it_is_without_a_lease(env):
    line = "yes | head -1 > /dev/null; echo ${PIPESTATUS[0]}"
    assert busy(env, "run", "--", "bash", "-c", line).stdout == f"{128 + signal.SIGPIPE}\n"


def test_a_job_runs_without_a_standard_output_and_under_any_name(env, tmp_path):
    job = tmp_path / "größe.sh"
    job.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    job.chmod(0o755)
    line = f"exec '{sys.executable}' '{COMMAND[1]}' run --strict -- '{job}' >&-"
    done = subprocess.run(["sh", "-c", line], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "ran").exists()


def test_a_job_that_is_over_holds_nothing_though_nobody_has_waited_for_it(env):
    process = subprocess.Popen([*COMMAND, "run", "--name", "job", "--", "sleep", "60"], env=env)
    until(lambda: held(env) == ["job"])
    process.kill()
    until(lambda: held(env) == [])
    state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    assert state == "Z", "it is there until it is waited for, and the lease went before"
    process.wait(timeout=10)


def test_a_name_is_one_line(env):
    done = busy(env, "hold", "x\n")
    assert (done.returncode, held(env)) == (3, [])
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_what_belongs_to_another_is_left_to_him(env, tmp_path):
    folder = tmp_path / "busy"
    busy(env, "hold", "mine", check=True)
    for parent in (tmp_path, *tmp_path.parents[:3]):  # one more where several run at once
        parent.chmod(parent.stat().st_mode | 0o055)
    code = (
        "import os, sys\n"
        "from ansible_collections.gb10.serving.plugins.module_utils._busy import store\n"
        "os.setuid(65534)\n"
        "print(store.release('mine'), [lease.name for path, lease in store.releasable('mine')])\n"
    )
    lease = next(folder.glob("*.json"))
    lease.rename(folder / "65534-mine-held.json")  # root's file with another's number in its name
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout == "0 ['mine']\n", done.stderr
