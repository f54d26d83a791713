# SPDX-License-Identifier: GPL-3.0-or-later
"""llm-watchdog as people call it: what it says of names, times and files that are wrong, and what outlives a broken file."""

from __future__ import annotations

import json

import pytest

from tests.contract.watchdog.bed import Bed

pytestmark = pytest.mark.slow


@pytest.fixture
def bed(tmp_path):
    made = Bed(tmp_path)
    yield made
    made.end()


def memory_of(bed):
    return bed.folder / "state/memory/qwen.json"


@pytest.mark.parametrize("broken", ["cut off", "gone", "no JSON"])
def test_maintenance_outlives_the_memory_file(bed, broken):
    bed.start()
    bed.watchdog("maintenance", "qwen", "--for", "2h", "--reason", "disk swap")
    bed.watchdog("run")
    if broken == "gone":
        memory_of(bed).unlink()
    else:
        memory_of(bed).write_text(memory_of(bed).read_text()[:500] if broken == "cut off" else "{")
    bed.freeze()
    for _ in range(8):
        bed.watchdog("run")
    assert bed.state()["maintenance"]["reason"] == "disk swap"
    assert bed.journal("decided") == []
    bed.watchdog("maintenance", "qwen", "--end")
    memory_of(bed).unlink()
    bed.watchdog("run")
    assert bed.state()["maintenance"] is None


def test_a_broken_memory_is_said_by_who_only_looks_and_set_aside_by_the_run(bed):
    bed.start()
    bed.watchdog("run")
    memory_of(bed).write_text("{")
    for words in (("status",), ("explain", "qwen")):
        done = bed.watchdog(*words)
        assert f"{memory_of(bed)}: cannot be read (it is not whole)" in done.stderr
        assert memory_of(bed).read_text() == "{"
    done = bed.watchdog("run")
    assert done.stderr.count("cannot be read (it is not whole)") == 1
    assert memory_of(bed).with_suffix(".broken").exists()


def test_a_recorded_trace_replays_to_what_was_done(bed):
    bed.start()
    bed.freeze()
    bed.until_settled()
    path = bed.folder / "state/traces/qwen.jsonl"
    assert json.loads(path.read_text().splitlines()[0])["settings"]["patience_s"] == 1.0
    rows = [json.loads(line) for line in bed.watchdog("replay", str(path)).stdout.splitlines()]
    assert rows[-1]["summary"]["restarts"] == 1
    decided = bed.journal("decided")[0]["t"]
    assert abs(rows[-1]["summary"]["first_restart_t"] - decided) < 1.0
    # under another policy a trace of its own
    bed.describe(settings={"patience_s": 7.0})
    bed.watchdog("run")
    assert json.loads(path.read_text().splitlines()[0])["settings"]["patience_s"] == 7.0
    assert path.with_name("qwen~1.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("maintenance", "qwen", "--for", "3000000d"), "--for: '3000000d' is too long; at most 3650d"),
        (("history", "nope"), "nope: is not described in"),
        (("bundle", "nope"), "nope: is not described in"),
        (("lock", "qwen"), "lock: a command is needed after --"),
        (("lock", "qwen", "--nonsense", "--", "true"), "unrecognized arguments: --nonsense"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_wrong_is_said_and_nothing_done(bed, words, said):
    done = bed.watchdog(*words, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert bed.journal() == []


def test_every_fault_of_the_description_is_named_at_once(bed):
    described = json.loads(bed.config.read_text())
    described["llm_servers"][0]["colour"] = "red"
    described["settings"] = {"patience": 3, "cooldown_s": -1}
    bed.config.write_text(json.dumps(described))
    done = bed.watchdog("run", check=False)
    assert done.returncode == 3
    for fault in ("colour", "settings.patience: is not a setting", "settings.cooldown_s: -1 must be at least 0"):
        assert fault in done.stderr


def test_options_of_lock_may_stand_behind_the_name(bed):
    bare = bed.watchdog("lock", "qwen", "--", "echo", "--", "x")
    assert bare.stdout == "-- x\n"
    where = ("--config", str(bed.config), "--state-dir", str(bed.folder / "state"))
    done = bed.watchdog("lock", "qwen", *where, "--", "echo", "held")
    assert done.stdout == "held\n"


def test_a_backtest_reads_what_a_replay_reads(bed):
    """A trace with a byte order mark, and one that was cut off in the middle of a letter while it was written."""
    (bed.folder / "traces").mkdir()
    header = b'{"trace": 1, "server": {}, "settings": {}}\n'
    (bed.folder / "traces/mark.jsonl").write_bytes(b"\xef\xbb\xbf" + header)
    (bed.folder / "traces/cut.jsonl").write_bytes(header + '{"t": 0.0}\n{"t": 20.0, "x": "é'.encode()[:-1])
    done = bed.watchdog("backtest", str(bed.folder / "traces"))
    assert "line 3 is cut off and was left out" in done.stderr and "is not JSON" not in done.stderr
    assert "mark.jsonl" in done.stdout and "cut.jsonl" in done.stdout
    for name in ("mark", "cut"):
        bed.watchdog("replay", str(bed.folder / f"traces/{name}.jsonl"))


def test_the_last_restart_stays_in_sight_however_often_the_state_has_changed(bed):
    bed.start()
    bed.watchdog("run")
    path = bed.folder / "state/journal.jsonl"
    row = {"time": "2026-11-30T03:12:00+00:00", "server": "qwen", "event": "closed", "outcome": "serving again"}
    changes = [{**row, "event": "state", "state": ("busy", "idle")[n % 2], "reason": "changed"} for n in range(60)]
    nested = '{"time": ' + "[" * 100_000
    path.write_text(nested + "\n" + "".join(json.dumps(one) + "\n" for one in (row, *changes)))
    lines = bed.watchdog("history", "qwen").stdout.splitlines()
    assert "closed" in lines[0] and "serving again" in lines[0], lines[0]
    assert len(lines) == 51
    assert len(bed.watchdog("history", "qwen", "--last", "3").stdout.splitlines()) == 3


@pytest.mark.parametrize("given", [{"mode": "observe"}, {"restart": None}])
def test_a_server_that_is_only_observed_is_said_to_be(bed, given):
    bed.start()
    document = json.loads(bed.config.read_text())
    one = document["llm_servers"][0]
    for key, value in given.items():
        one.pop(key, None)
        if value is not None:
            one[key] = value
    bed.watchdog("run")
    assert "Mode observe" not in bed.watchdog("explain", "qwen").stdout
    bed.config.write_text(json.dumps(document))
    assert "Mode observe" in bed.watchdog("explain", "qwen").stdout
