# SPDX-License-Identifier: GPL-3.0-or-later
"""`llm-watchdog report` as a user calls it: what is on the page, what never is, and one sentence for what cannot be."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.contract.watchdog import recorded

ROOT = Path(__file__).parents[3]
COMMAND = ROOT / "roles/watchdog/files/llm-watchdog"
VOID = {"meta", "br", "link"}


class Bed:
    def __init__(self, folder):
        self.folder = folder
        self.config = recorded.write(folder)
        self.page = folder / "page.html"

    def report(self, *args, html=None, **env):
        command = [sys.executable, str(COMMAND), "report", "--config", str(self.config)]
        command += ["--state-dir", str(self.folder / "state"), "--html", str(html or self.page), *args]
        there = {
            **os.environ,
            "PYTHONPATH": str(ROOT / ".collections"),
            "GB10_BUSY_DIR": str(self.folder / "leases"),
            "TZ": "UTC",
            **env,
        }
        done = subprocess.run(command, env=there, capture_output=True, text=True, timeout=60)
        assert "Traceback" not in done.stderr
        return done


@pytest.fixture
def bed(tmp_path):
    return Bed(tmp_path)


class Well(HTMLParser):
    """Every element is closed, in order; and what there is of them."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.attributes = [], set(), []

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.seen.add(tag)
        self.attributes += attrs


def read(path):
    parsed = Well()
    parsed.feed(path.read_text())
    parsed.close()
    assert parsed.open == []
    return parsed


def test_the_page_says_what_happened(bed):
    done = bed.report("--since", "2h")
    assert done.returncode == 0, done.stderr
    text = bed.page.read_text()
    read(bed.page)
    for said in (
        "no sign of progress for 10 min",
        "serving again after 30 s",
        "not looked at 1 h 30 min",  # before the first look and after the last
        "1 left (2 in 6 h, 3 in 24 h)",
        "ActiveState=active",
        "VLLM::EngineCore",
        "3 lines, 1 of them of errors",
        "at most 22 W",
        "KV cache",
        "No busy lease is held",
        "a line of the trace is not whole",
    ):
        assert said in text, said


def test_nothing_on_it_is_a_secret_a_prompt_or_markup_of_others(bed):
    assert bed.report("--since", "2h").returncode == 0
    text = bed.page.read_text()
    for never in (*recorded.SECRETS, "eve:", "<script", "Environment=", "surprise"):
        assert never not in text, never
    assert "&lt;script&gt;alert(1)" in text, "the test has to hold something to escape"


def test_it_asks_for_nothing_from_elsewhere(bed):
    assert bed.report("--since", "2h").returncode == 0
    parsed = read(bed.page)
    assert not parsed.seen & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    assert {name for name, dummy in parsed.attributes} & {"src", "href", "onclick", "onload"} <= {"href"}
    assert all(value.startswith("#") for name, value in parsed.attributes if name == "href")
    assert "default-src 'none'" in bed.page.read_text()
    assert not re.search(r"url\(|@import", bed.page.read_text())


def test_a_window_before_anything_happened_and_one_of_a_year(bed):
    assert bed.report("--since", "1s").returncode == 0
    short = bed.page.read_text()
    assert "None in this time" in short
    assert bed.report("--since", "365d").returncode == 0
    assert "serving again after 30 s" in bed.page.read_text()
    assert len(bed.page.read_text()) < 3 * len(short)


def test_a_lease_and_a_host_without_records(bed):
    (bed.folder / "leases").mkdir()
    busy = [sys.executable, str(ROOT / "roles/busy_flag/files/llm-busy"), "hold", "--name", "nightly", "--for", "2h"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".collections"), "GB10_BUSY_DIR": str(bed.folder / "leases")}
    subprocess.run(busy, env=env, check=True, capture_output=True)
    shutil.rmtree(bed.folder / "state")
    (bed.folder / "state").mkdir()
    done = bed.report()
    assert done.returncode == 0, done.stderr
    read(bed.page)
    assert "Busy lease nightly of" in bed.page.read_text()
    assert "not looked at yet" in bed.page.read_text()


def test_one_server_of_two_and_the_standard_output(bed):
    described = json.loads(bed.config.read_text())
    described["llm_servers"].append({"name": "glm", "url": "http://127.0.0.1:8001"})
    bed.config.write_text(json.dumps(described))
    done = bed.report("--server", "glm", html="-")
    assert done.returncode == 0
    assert done.stdout.startswith("<!DOCTYPE html>")
    assert 'id="glm"' in done.stdout
    assert 'id="qwen"' not in done.stdout
    assert "observe" in done.stdout, "a server without `restart` is only watched, and the page says so"


def broken_memory(bed):
    (bed.folder / "state/memory/qwen.json").write_text('{"name": "qw')


def binary_trace(bed):
    (bed.folder / "state/traces/qwen.jsonl").write_bytes(os.urandom(20_000))


def binary_journal(bed):
    (bed.folder / "state/journal.jsonl").write_bytes(os.urandom(20_000))


def odd_journal(bed):
    rows = [
        {"time": 3, "event": "state"},
        {"time": "2026-01-01T00:00:00+00:00", "event": ["state"], "server": "qwen"},
        {"time": "2026-01-01T00:00:00+00:00", "event": "state", "server": "qwen", "anchor": {"t": "x", "wall": None}},
        {"time": "9999-12-31T23:59:59-14:00", "event": "decided", "server": "qwen", "transaction": {"id": None}},
        {"event": "decided", "server": "qwen", "transaction": 3},
    ]
    (bed.folder / "state/journal.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    "harm", [broken_memory, binary_trace, binary_journal, odd_journal], ids=lambda one: one.__name__
)
def test_what_is_broken_is_left_out_and_left_where_it_is(bed, harm):
    harm(bed)
    before = {path: path.read_bytes() for path in (bed.folder / "state").rglob("*") if path.is_file()}
    done = bed.report("--since", "2h")
    assert done.returncode == 0, done.stderr
    read(bed.page)
    assert {path: path.read_bytes() for path in (bed.folder / "state").rglob("*") if path.is_file()} == before


BAD = [
    ("a server that is not described", ["--server", "nobody"], {}, "nobody: is not described"),
    ("no duration", ["--since", "yesterday"], {}, "'yesterday' is no duration"),
    ("a duration of nothing", ["--since", "0"], {}, "must be more than 0"),
    ("more than a year", ["--since", "400d"], {}, "more than a year"),
    ("more than anybody lives through", ["--since", "9999999d"], {}, "is too long; at most 3650d"),
    ("no such state folder", ["--state-dir", "/nonexistent/x"], {}, "there is no such folder"),
    ("no such description", ["--config", "/nonexistent.yml"], {}, "there is no such file"),
    ("a folder to write to", [], {"html": "/tmp"}, "is a folder"),
    ("a folder that is not there", [], {"html": "/nonexistent/page.html"}, "cannot be written"),
    ("an unknown option", ["--pdf", "x"], {}, "unrecognized arguments"),
]


@pytest.mark.parametrize(("args", "more", "says"), [one[1:] for one in BAD], ids=[one[0] for one in BAD])
def test_one_clear_sentence_and_status_3(bed, args, more, says):
    done = bed.report(*args, **more)
    assert done.returncode == 3
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not bed.page.exists()


def test_without_a_file_to_write_to_it_says_so(bed):
    done = subprocess.run([sys.executable, str(COMMAND), "report"], capture_output=True, text=True)
    assert done.returncode == 3
    assert "--html" in done.stderr


def test_a_page_that_cannot_be_written_leaves_the_old_one(bed):
    assert bed.report().returncode == 0
    old = bed.page.read_text()
    limit = (
        f"ulimit -f 4; exec {sys.executable} {COMMAND} report --config {bed.config} --state-dir {bed.folder / 'state'}"
    )
    done = subprocess.run(
        ["bash", "-c", f"trap '' XFSZ; {limit} --since 2h --html {bed.page}"],
        env={**os.environ, "PYTHONPATH": str(ROOT / ".collections")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3
    assert "cannot be written" in done.stderr
    assert bed.page.read_text() == old
    assert sorted(path.name for path in bed.folder.iterdir()) == ["page.html", "servers.yml", "state"]
    assert bed.page.stat().st_mode & 0o077 == 0
