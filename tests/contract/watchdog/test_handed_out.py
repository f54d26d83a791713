# SPDX-License-Identifier: GPL-3.0-or-later
"""What people take from the watchdog, bundles and pages, and what they write into it; and records that they may not read."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.contract.scripted import until
from tests.contract.watchdog.bed import COMMAND, Bed

pytestmark = pytest.mark.slow


@pytest.fixture
def bed(tmp_path):
    made = Bed(tmp_path)
    yield made
    made.end()


def bundle_of(path):
    with tarfile.open(path) as archive:
        return {
            one.name.removeprefix("bundle/qwen/"): archive.extractfile(one).read().decode()
            for one in archive.getmembers()
        }


def test_a_bundle_holds_the_proof_and_no_key(bed):
    bed.start()
    bed.watchdog("run")
    bed.watchdog("maintenance", "qwen", "--reason", "rotated the key, Authorization: Bearer tok-abc123def456")
    trace = (bed.folder / "state/traces/qwen.jsonl").read_text()
    assert '"prompt_tokens"' in trace  # a name that is no prompt
    out = bed.folder / "b.tar.gz"
    bed.watchdog("bundle", "--output", str(out))
    files = bundle_of(out)
    assert [json.loads(line) for line in files["trace.jsonl"].splitlines()] == [
        json.loads(line) for line in trace.splitlines()
    ]
    assert "rotated the key, Authorization: [removed]" in files["journal.jsonl"]
    assert "tok-abc" not in "".join(files.values())
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


@pytest.mark.parametrize("command", [("bundle", "--output"), ("report", "--html")])
def test_what_is_there_stays_when_it_cannot_be_replaced(bed, command):
    bed.watchdog("run")
    pipe = bed.folder / "pipe"
    os.mkfifo(pipe)
    for path, said in ((pipe, "is no file that could be replaced"), (bed.folder, "is a folder"), ("", "is a folder")):
        done = bed.watchdog(*command, str(path), check=False)
        assert (done.returncode, done.stdout) == (3, "")
        assert said in done.stderr and len(done.stderr.splitlines()) == 1
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    old = bed.folder / "old"
    old.write_text("as it was")
    (bed.folder / "state/evidence/qwen/1/a folder").mkdir(parents=True)
    bed.watchdog(*command, str(old))
    assert old.read_bytes() != b"as it was"
    assert not list(bed.folder.glob(".old*"))


def test_bytes_that_are_no_text_are_recorded_as_text(bed):
    bed.watchdog("run")
    words = [sys.executable, str(COMMAND), *bed.args, "maintenance", "qwen", "--reason", b"disk \xff\nswap"]
    subprocess.run(words, env=bed.env, check=True, capture_output=True)
    assert bed.journal("maintenance")[0]["reason"] == "disk ? swap"
    with (bed.folder / "state/journal.jsonl").open("a") as file:  # as an older version wrote it
        file.write('{"time": "2026-01-01", "event": "maintenance", "server": "qwen", "reason": "x \\udcff"}\n')
    strict = {**bed.env, "PYTHONIOENCODING": "utf-8:strict"}
    for command in (("history",), ("report", "--html", str(bed.folder / "r.html")), ("bundle", "--output", str(bed.folder / "b"))):  # fmt: skip
        done = subprocess.run([sys.executable, str(COMMAND), *bed.args, *command], env=strict, capture_output=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("broken", ["[" * 200_000, '{"name": "qwen", "state_since": 1' + "0" * 400 + "}", '{"name": "qwen", "state_since": NaN}'])  # fmt: skip
def test_a_memory_that_is_no_memory_stops_nothing(bed, broken):
    bed.start()
    bed.watchdog("run")
    (bed.folder / "state/memory/qwen.json").write_text(broken)
    for command in (("status",), ("explain", "qwen"), ("run", "--textfile", str(bed.folder / "metrics.prom"))):
        assert "cannot be read (it is not whole)" in bed.watchdog(*command).stderr
    assert bed.state()["state"] and (bed.folder / "metrics.prom").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_who_may_not_read_the_records_is_told_so(bed):
    bed.watchdog("run")
    state = bed.folder / "state"
    for path in (bed.folder, *state.rglob("*"), state):
        os.chown(path, 65534, 65534)
    # root without the right to read what is others': as a person who is not root, with an interpreter that may be root's
    other = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search")
    commands = [("status",), ("explain", "qwen"), ("history",), ("bundle", "--output", str(bed.folder / "b")), ("report", "--html", "-")]  # fmt: skip
    for closed in (state, state / "memory", state / "journal.jsonl"):
        mode = stat.S_IMODE(closed.stat().st_mode)
        closed.chmod(mode & 0o700)
        for command in commands:
            done = bed.watchdog(*command, check=False, inside=other)
            assert done.returncode == 3, (closed, command, done.stdout)
            assert "cannot be read (Permission denied)" in done.stderr, (closed, command, done.stderr)
        closed.chmod(mode | 0o055)


def test_the_command_under_the_lock_ends_with_who_holds_it(bed):
    bed.watchdog("run")
    words = [sys.executable, str(COMMAND), *bed.args, "lock", "qwen", "--", "sh", "-c", f"echo $$ > {bed.folder}/pid; exec sleep 60"]  # fmt: skip
    holder = subprocess.Popen(words, env=bed.env)
    pid = bed.folder / "pid"
    until(lambda: pid.exists() and pid.read_text().strip())
    assert "lock" in bed.watchdog("run").stdout
    holder.send_signal(signal.SIGTERM)
    assert holder.wait(20) == 128 + signal.SIGTERM
    assert not Path("/proc", pid.read_text().strip()).exists()
    killed = bed.watchdog("lock", "qwen", "--", "sh", "-c", "kill -9 $$", check=False)
    assert killed.returncode == 137


def test_who_waits_for_the_lock_is_told(bed):
    bed.watchdog("run")
    words = [sys.executable, str(COMMAND), *bed.args, "lock", "qwen", "--", "sh", "-c", f"touch {bed.folder}/held; read line"]  # fmt: skip
    holder = subprocess.Popen(words, env=bed.env, stdin=subprocess.PIPE)
    until((bed.folder / "held").exists)
    waiting = subprocess.Popen(
        [sys.executable, str(COMMAND), *bed.args, "maintenance", "qwen"], env=bed.env, stderr=subprocess.PIPE, text=True
    )
    assert "waiting for the lock of qwen" in waiting.stderr.readline()
    holder.communicate(b"\n", timeout=20)
    waiting.communicate(timeout=20)
    assert (holder.returncode, waiting.returncode) == (0, 0)
    assert bed.state()["maintenance"]


def test_traces_of_like_names_stay_apart(bed):
    described = json.loads(bed.config.read_text())
    one = described["llm_servers"][0]
    other = {"name": "qwen.1", "url": "http://127.0.0.1:9"}
    described["llm_servers"] = [one, other]
    bed.config.write_text(json.dumps(described))
    bed.watchdog("run")
    there = bed.folder / "state/traces/qwen.1.jsonl"
    before = there.read_text()
    described["settings"]["patience_s"] = 7.0
    bed.config.write_text(json.dumps(described))
    bed.watchdog("run")
    assert (bed.folder / "state/traces/qwen~1.jsonl").exists()
    assert there.with_name("qwen.1~1.jsonl").read_text() == before


def test_a_restart_that_could_not_be_done_is_refused_before_it_is_recorded(bed):
    bed.start()
    bed.watchdog("run")
    bed.stop_script.chmod(0o644)
    done = bed.watchdog("restart", "qwen", check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert (
        done.stderr
        == f"llm-watchdog: qwen: {bed.stop_script}: is not a program that can be run; mend restart.command\n"
    )
    assert bed.journal("decided") == [] and bed.state()["memory"]["acts"] == []
