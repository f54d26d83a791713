# SPDX-License-Identifier: GPL-3.0-or-later
"""The watchdog as the timer calls it, on a scripted engine that real scripts stop and start: crash it everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contract.scripted import until
from tests.contract.watchdog.bed import COMMAND, ROOT, Bed, killed_at

# every test here runs real processes through a whole restart: once, on the main pair of Python and ansible-core
pytestmark = pytest.mark.slow


@pytest.fixture
def bed(tmp_path):
    made = Bed(tmp_path)
    made.start()
    yield made
    made.end()


def test_busy_is_left_alone_and_never_posted_to(bed):
    (bed.folder / "busy").touch()
    for _ in range(6):
        bed.watchdog("run")
        time.sleep(0.3)
    assert bed.state()["state"] == "busy"
    assert (len(bed.starts), bed.lines("posts")) == (1, [])


def test_hung_is_restarted_once_with_evidence_and_serves_again(bed):
    bed.freeze()
    bed.until_settled()
    assert len(bed.starts) == 2
    (closed,) = bed.journal("closed")
    assert closed["outcome"] == "serving again"
    evidence = bed.folder / "state" / closed["evidence"]
    assert (evidence / "observations.jsonl").exists()
    assert (evidence / "processes.txt").exists()
    for _ in range(3):
        bed.watchdog("run")
    assert len(bed.starts) == 2
    assert len(bed.lines("posts")) == 1, "one last proof, and no probe of a server that has work"
    said = bed.watchdog("explain", "qwen").stdout
    assert "The last restart was" in said
    assert "it is hung" in said
    assert "serving again" in bed.watchdog("history").stdout


def test_what_cannot_be_restarted_is_asked_for_no_proof_and_refused_once(bed):
    bed.start_script.chmod(0o644)
    bed.freeze()
    bed.run_until(lambda: bed.journal("refused"))
    for _ in range(3):
        assert "refused" in bed.watchdog("run").stdout
    (refused,) = bed.journal("refused")
    assert refused["reason"] == f"{bed.start_script}: is not a program that can be run; mend restart.command"
    assert (len(bed.starts), bed.lines("posts"), bed.journal("decided", "proof")) == (1, [], [])
    bed.start_script.chmod(0o755)
    bed.until_settled()
    assert len(bed.starts) == 2 and bed.journal("closed")[0]["outcome"] == "serving again"


def test_a_look_that_takes_a_while_does_not_shorten_the_last_proof(bed, monkeypatch, tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nsleep 1.5\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    bed.describe({"last_proof_s": 2.0})
    bed.start()
    bed.freeze()
    bed.run_until(lambda: bed.journal("decided"))
    within = [proof["within_s"] for proof in bed.journal("proof")]
    assert within, "it was asked"
    assert min(within) > 1.9


def test_of_a_host_that_only_observes_nothing_is_touched_and_nothing_asked(bed):
    bed.describe({"mode": "observe"})
    bed.freeze()
    bed.run_until(lambda: bed.journal("alert"))
    for _ in range(3):
        bed.watchdog("run")
    assert (len(bed.starts), bed.lines("posts"), bed.journal("decided", "closed")) == (1, [], [])
    (alert,) = bed.journal("alert")
    assert alert["reason"].startswith("would restart: it is hung")


def test_the_stacks_are_kept_where_py_spy_is_and_no_command_line_with_them(bed, monkeypatch):
    py_spy = Path(sys.executable).with_name("py-spy")
    assert py_spy.exists(), "the requirements of this environment have it"
    monkeypatch.setenv("PATH", f"{py_spy.parent}:{os.environ['PATH']}")
    said = bed.start_script.read_text()
    bed.start_script.write_text(said.replace(f" {bed.port} ", f" {bed.port} --api-key verysecret 'x\nThread 1' "))
    bed.end()
    bed.start()
    until(lambda: len(bed.starts) == 2)
    bed.freeze()
    bed.until_settled()
    (closed,) = bed.journal("closed")
    evidence = bed.folder / "state" / closed["evidence"]
    stacks = (evidence / "stacks.txt").read_text()
    assert f"Process {bed.starts[1]}:\nPython v" in stacks and "serve_forever" in stacks
    for file in evidence.iterdir():
        assert "verysecret" not in file.read_text(), file.name


def test_an_answer_after_a_restart_is_its_fruit_though_nobody_has_looked_since(bed):
    bed.freeze()
    bed.run_until(lambda: bed.journal("decided"))
    (bed.folder / "busy").unlink()  # its clients have gone: what is started again is idle, and asked for one answer
    bed.until_settled()
    assert bed.journal("closed")[0]["outcome"] == "serving again"
    assert [act["fruitful"] for act in bed.state()["memory"]["acts"]] == [True]


def test_what_it_learns_belongs_to_what_the_server_runs(bed):
    def learned_of():
        bed.watchdog("run")
        return bed.state()["memory"]["identity"]

    def again():
        subprocess.run([str(bed.stop_script)], check=True)
        until(lambda: not bed.answers())
        bed.start()

    first = learned_of()
    assert first is not None
    again()
    assert learned_of() == first
    text = bed.start_script.read_text()
    bed.start_script.write_text(text.replace(" >/dev/null", " --max-num-seqs 4 >/dev/null"))
    again()
    assert learned_of() not in (first, None)


def test_killed_at_every_write_it_neither_forgets_nor_doubles(bed, tmp_path_factory):
    """One restart takes so many writes; each of them is once the last thing that a watchdog did, or the first it did not."""
    bed.freeze()
    bed.until_settled()
    cases = [(n, when) for n in range(1, len(bed.journal()) + 14) for when in ("before", "after")]
    folders = [tmp_path_factory.mktemp(f"killed-{n}-{when}") for n, when in cases]
    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(lambda one: killed_at(one[0], *one[1]), zip(folders, cases, strict=True)))
    assert sum(done) > len(cases) / 2, "the killer has to have killed"


def test_two_at_once_act_once(bed):
    bed.freeze()
    for _ in range(20):
        two = [
            subprocess.Popen([sys.executable, str(COMMAND), *bed.args, "run"], env=bed.env, stdout=subprocess.PIPE)
            for _ in range(2)
        ]
        for one in two:
            one.communicate(timeout=90)
        if bed.journal("closed"):
            break
        time.sleep(0.3)
    assert len(bed.journal("decided")) == 1
    assert len(bed.starts) == 2


def test_another_process_is_not_stopped_for_the_old_ones_silence(bed):
    bed.freeze()
    n = 1
    while not bed.journal("decided"):
        bed.watchdog("run", killed=(n, "after"))
        n = n + 1 if n < 12 else 4
        time.sleep(0.2)
    assert not bed.journal("closed"), "killed before it was through"
    subprocess.run([str(bed.stop_script)], check=True)
    until(lambda: not bed.answers())
    bed.start()
    bed.until_settled()
    assert len(bed.starts) == 2, "the new process was left alone"
    assert "first" in bed.journal("aborted")[0]["reason"]


@pytest.fixture
def disk(bed):
    """The folder of the watchdog's state, on a disk of its own."""
    state = bed.folder / "state"
    state.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(state)], capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here")
    yield state
    subprocess.run(["umount", str(state)], check=True)


def fill(disk):
    subprocess.run(["dd", "if=/dev/zero", f"of={disk / 'filler'}", "bs=1k"], capture_output=True)


def make_read_only(disk):
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)


def mend(disk):
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    (disk / "filler").unlink(missing_ok=True)


@pytest.mark.parametrize("spoil", [fill, make_read_only], ids=["full", "read-only"])
def test_a_disk_that_takes_nothing_makes_it_refuse_to_act(bed, disk, spoil):
    bed.freeze()
    bed.watchdog("run")
    spoil(disk)
    said = ""
    for _ in range(8):
        said = bed.watchdog("run").stdout
        time.sleep(0.3)
    assert "nothing is done until it can" in said
    assert len(bed.starts) == 1
    mend(disk)
    bed.until_settled()
    assert len(bed.starts) == 2


A_DAY_S = 86_400


@pytest.mark.parametrize("off_s", [A_DAY_S, -A_DAY_S], ids=["forward", "back"])
def test_a_clock_that_jumps_a_day_proves_nothing_and_gives_no_budget_back(bed, off_s):
    bed.describe(settings={"patience_s": 600.0})
    bed.freeze()
    bed.watchdog("run")
    for _ in range(4):
        bed.watchdog("run", clock_off_s=off_s)
    assert (bed.state()["state"], bed.journal("decided")) == ("stalled", [])

    bed.describe()
    bed.until_settled()
    assert len(bed.starts) == 2
    bed.freeze()
    said = ""
    for _ in range(12):
        said = bed.watchdog("run", clock_off_s=off_s).stdout
        time.sleep(0.2)
    assert bed.state()["state"] == "hung", said
    assert (len(bed.starts), len(bed.journal("decided"))) == (2, 1), "the cool-down is not over"


def test_a_broken_memory_file_forgets_no_act(bed):
    bed.freeze()
    bed.until_settled()
    memory = bed.folder / "state/memory/qwen.json"
    for damage in ("", "{", '{"name": 5}', "\x00\x01"):  # empty, cut off, wrong, binary
        memory.write_text(damage)
        said = bed.watchdog("run").stderr
        assert "set aside" in said
        assert len(said.splitlines()) == 1
        assert len(bed.state()["memory"]["acts"]) == 1, damage
    bed.freeze()
    for _ in range(10):
        bed.watchdog("run")
        time.sleep(0.3)
    assert len(bed.starts) == 2, "the cool-down holds"


NEVER_ENOUGH_GIB = 90_000


def test_memory_that_does_not_come_back_latches_and_names_who_holds_it(bed):
    bed.describe(settings={"memory_alert_s": 0.5, "memory_wait_s": 3.0}, memory_needed_gib=NEVER_ENOUGH_GIB)
    bed.freeze()
    bed.run_until(lambda: bed.journal("latched"))
    (alert,) = [row["reason"] for row in bed.journal("alert") if "memory" in row["reason"]][:1]
    assert "waits for memory" in alert and "90000 GiB are needed" in alert
    (latched,) = bed.journal("latched")
    assert "memory did not come back" in latched["reason"] and "the largest process is" in latched["reason"]
    assert len(bed.starts) == 1 and not bed.answers()


#: A machine whose caches cannot be dropped.
WITHOUT_DROPPING = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o ro none /proc/sys/vm && exec "$@"', "sh")


@pytest.mark.skipif(os.geteuid() != 0, reason="mount namespaces need root")
def test_it_is_started_when_memory_is_back_though_its_caches_could_not_be_dropped(bed):
    bed.describe(memory_needed_gib=NEVER_ENOUGH_GIB, drop_caches=True)
    bed.freeze()
    bed.run_until(lambda: "memory" in [row["phase"] for row in bed.journal("phase")], inside=WITHOUT_DROPPING)
    assert "drop_caches" in bed.journal("failed")[-1]["reason"]
    bed.watchdog("run", inside=WITHOUT_DROPPING)
    assert len(bed.starts) == 1, "it waits"
    bed.describe(memory_needed_gib=0.001)
    bed.until_settled()
    assert len(bed.starts) == 2


def test_a_server_without_a_restart_target_is_only_watched(bed):
    bed.describe(restart=None)
    bed.freeze()
    for _ in range(10):
        bed.watchdog("run")
        time.sleep(0.3)
    assert bed.state()["state"] == "hung"
    assert len(bed.starts) == 1


def test_maintenance_and_clear(bed):
    bed.watchdog("maintenance", "qwen", "--for", "1h", "--reason", "new weights")
    bed.freeze()
    for _ in range(10):
        bed.watchdog("run")
        time.sleep(0.3)
    assert len(bed.starts) == 1
    assert "new weights" in bed.watchdog("status").stdout
    bed.watchdog("maintenance", "qwen", "--end")
    bed.until_settled()
    assert len(bed.starts) == 2
    assert "not latched" in bed.watchdog("clear", "qwen", "--reason", "looked").stdout


def test_a_lease_keeps_probes_away(bed):
    env = bed.env
    busy = ROOT / "roles/busy_flag/files/llm-busy"
    job = subprocess.Popen([sys.executable, str(busy), "run", "--name", "nightly", "--", "sleep", "60"], env=env)
    try:
        until(lambda: (bed.folder / "leases").exists() and any((bed.folder / "leases").iterdir()))
        for _ in range(3):
            bed.watchdog("run")
        assert bed.lines("posts") == []
    finally:
        job.kill()
        job.wait()
    bed.watchdog("run")
    assert len(bed.lines("posts")) == 1, "the killed job's lease is gone: the idle server is probed"


def test_who_is_to_be_told_is_told_once_of_each_thing(bed):
    told, program = bed.folder / "told", bed.folder / "tell"
    program.write_text(f"#!/bin/sh\ncat >> {told}\necho >> {told}\nexit 1\n")
    program.chmod(0o755)
    bed.describe(notify=[str(program), "3 a.m."], api_key_file=None)
    bed.freeze()
    bed.until_settled()
    for _ in range(3):
        bed.watchdog("run")
    rows = [json.loads(line) for line in told.read_text().splitlines() if line]
    assert [(row["event"], row["server"]) for row in rows] == [("restart", "qwen")], rows
    assert rows[0]["url"] == f"http://127.0.0.1:{bed.port}" and rows[0]["message"]


def test_a_persons_restart_is_the_same_transaction(bed):
    said = bed.watchdog("restart", "qwen").stdout
    assert "serving again" in said
    assert len(bed.starts) == 2
    assert len(bed.journal("decided")) == 1


def test_lock_keeps_the_watchdog_away(bed):
    held = subprocess.Popen([sys.executable, str(COMMAND), *bed.args, "lock", "qwen", "--", "sleep", "60"], env=bed.env)
    try:
        until(lambda: bool(bed.journal("lock")))
        assert "lock" in bed.watchdog("run").stdout
    finally:
        subprocess.run(["pkill", "-P", str(held.pid)], check=False)
        held.wait(10)


def test_a_server_that_cannot_be_looked_at_does_not_stay_as_it_was_seen_last(bed, tmp_path):
    bed.start()
    bed.watchdog("run")
    assert bed.state()["state"] == "idle"
    heard = tmp_path / "heard"
    program = tmp_path / "notify"
    program.write_text(f"#!/bin/sh\ncat >> {heard}\n")
    program.chmod(0o755)
    key = tmp_path / "key"
    key.write_text("sk-1")
    key.chmod(0o644)
    for alert_after_s, told in ((600.0, False), (0.1, True)):
        bed.describe(settings={"alert_after_s": alert_after_s}, notify=[str(program)], api_key_file=str(key))
        bed.watchdog("run")
        done = bed.watchdog("run", "--textfile", str(tmp_path / "m.prom"))
        assert "qwen: unknown: " in done.stdout and str(key) in done.stdout
        assert (bed.state()["state"], bed.state()["rule"]) == ("unknown", "not_seen")
        assert 'llm_server_state{server="qwen",state="unknown"} 1.0' in (tmp_path / "m.prom").read_text()
        assert heard.exists() == told
    assert "cannot be looked at" in json.loads(heard.read_text())["message"]
    assert [row["state"] for row in bed.journal("state")] == ["idle", "unknown"]
    key.chmod(0o600)
    bed.watchdog("run")
    assert bed.state()["state"] == "idle"


def test_bundle_has_no_secret(bed):
    bed.describe(settings={})
    bed.freeze()
    bed.until_settled()
    with (bed.folder / "state/journal.jsonl").open("a") as file:
        file.write('{"event": "alert", "server": "qwen", "reason": "Authorization: Bearer sk-topsecret123"}\n')
    out = bed.folder / "bundle.tar.gz"
    bed.watchdog("bundle", "--output", str(out))
    text = subprocess.run(["tar", "-xOzf", str(out)], capture_output=True, check=True).stdout
    assert b"sk-topsecret123" not in text
    assert b"it is hung" in text


BAD = [
    (["explain", "nobody"], "nobody"),
    (["maintenance", "qwen", "--for", "soon"], "--for"),
    (["lock", "qwen"], "command is needed"),
    (["replay", "/nonexistent"], "/nonexistent"),
    (["backtest", "/nonexistent"], "/nonexistent"),
    (["backtest", "/tmp", "--set", "patince_s=3"], "patince_s"),
    (["clear", "qwen"], "--reason"),
    ([], "command"),
]


@pytest.mark.parametrize(("args", "word"), BAD, ids=[" ".join(case[0]) or "nothing" for case in BAD])
def test_bad_usage_is_one_sentence_and_3(tmp_path, args, word):
    bed = Bed(tmp_path)
    done = bed.watchdog(*args, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert word in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_description_may_be_named_before_or_behind_the_sub_command(tmp_path):
    bed = Bed(tmp_path)
    for args in (["--config", "/nonexistent", "status"], ["status", "--config", "/nonexistent"]):
        done = subprocess.run([sys.executable, str(COMMAND), *args], env=bed.env, capture_output=True, text=True)
        assert done.returncode == 3
        assert "/nonexistent" in done.stderr


def test_a_bad_description_is_refused_whole(tmp_path):
    bed = Bed(tmp_path)
    bed.describe(settings={"patince_s": 1, "cooldown_s": -4})
    done = bed.watchdog("run", check=False)
    assert done.returncode == 3
    assert "settings.patince_s" in done.stderr
    assert "settings.cooldown_s" in done.stderr


def test_started_again_by_others_while_it_stopped_is_neither_killed_nor_stopped(bed):
    """A reboot in the middle of a restart: the unit is up again by itself, and the watchdog still believes it stops."""
    bed.freeze()
    n = 1
    while not [row for row in bed.journal("phase") if row["phase"] == "stopping"]:
        bed.watchdog("run", killed=(n, "after"))
        # once it is decided, one write a run: killed right after it has asked for the stop
        n = 1 if bed.journal("decided") else n + 1 if n < 12 else 4
        time.sleep(0.2)
    assert not bed.journal("closed", "aborted"), "killed before it was through"
    until(lambda: not bed.answers())
    bed.start()
    bed.until_settled()
    assert len(bed.starts) == 2, "the new process was left alone"
    assert "started again by others" in bed.journal("aborted")[0]["reason"]
    assert not bed.journal("kill", "latched")
