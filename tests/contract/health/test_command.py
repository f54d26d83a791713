# SPDX-License-Identifier: GPL-3.0-or-later
"""What llm-health prints, its exit status, and what it refuses: files, arguments."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time

import pytest

from tests.contract.health.command import COMMAND, QUICK, ROOT, STILL, W, judged, llm_health, one
from tests.contract.scripted import Say, pages, serving, vllm, vllm_page


def test_json_has_every_key_and_stdout_nothing_else():
    with serving(vllm(pages(STILL, vllm_page(**W, iteration_tokens_total_count=11.0)))) as server:
        status, said = one(server.url + "/", *QUICK)
    assert status == 0
    assert list(said) == [
        "name",
        "url",
        "engine",
        "role",
        "state",
        "healthy",
        "restart_justified",
        "reason",
        "running",
        "waiting",
        "in_flight",
        "steps_per_second",
        "tokens_per_second",
        "probe_sent",
        "no_progress_seconds",
        "engines",
    ]
    assert (said["healthy"], said["restart_justified"], said["running"], said["engine"]) == (True, False, 2, "vllm")
    assert said["steps_per_second"] > 0


def test_of_several_servers_the_worst_counts():
    def moving(n):
        return Say(vllm_page(**W, iteration_tokens_total_count=10.0 + n))

    with serving(vllm(moving)) as good, serving(vllm(Say(status=404))) as unknown, serving(vllm(STILL)) as stalled:
        assert judged(good.url, *QUICK)[0] == 0
        assert judged(good.url, unknown.url, *QUICK)[0] == 3
        assert judged(good.url, unknown.url, stalled.url, *QUICK)[0] == 1
        assert judged(good.url, unknown.url, stalled.url, "http://127.0.0.1:1", *QUICK)[0] == 2


def test_servers_from_a_file(tmp_path):
    with serving(vllm(vllm_page())) as server:
        config = tmp_path / "servers.yml"
        config.write_text(f"llm_servers:\n  - {{name: qwen, url: '{server.url}', probe: never}}\n")
        status, said = one("--config", str(config), *QUICK)
        assert (status, said["name"], said["state"], server.posts) == (0, "qwen", "idle", [])


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "empty"),
        ("llm_servers: [", "line 1"),
        ("llm_servers: {a: 1}", "a list of servers"),
        ("llm_servers: [{name: a, url: 'http://h', nam: b}]", "llm_servers[0].nam"),
        ("llm_servers: [{name: a, url: 'ftp://h'}]", "llm_servers[0].url"),
        ("llm_servers: [{name: a, url: 'http://h'}, {name: a, url: 'http://i'}]", "llm_servers[1].name"),
        ("llm_servers: [{name: a, url: 'http://h:1'}, {name: b, url: 'http://h:1/'}]", "llm_servers[1].url"),
        ("llm_servers: [{name: a, url: 'http://h', restart: {sysd: x}}]", "llm_servers[0].restart"),
        ("llm_servers: [{name: a, url: 'http://h', engine: vlmm}]", "llm_servers[0].engine"),
        ("llm_servers: [{name: a, url: 'http://h', name: b}]", "given twice"),
        ("servers: []\nllm_servers: []", "llm_servers"),
    ],
)
def test_a_bad_file_is_refused_by_path(tmp_path, text, word):
    config = tmp_path / "servers.yml"
    config.write_text(text)
    status, out, err = llm_health("--config", str(config), *QUICK)
    assert (status, out) == (3, "")
    assert word in err
    assert "servers.yml" in err


@pytest.mark.parametrize(
    "args",
    [
        ["--wait"],
        ["ftp://h"],
        ["http://h", "--wait", "-1"],
        ["http://h", "--wait", "1", "--wait", "1", "--wait", "1"],
        ["http://h", "--engine", "gpt"],
        ["http://h", "--patience", "nan"],
        ["--config", "/nonexistent"],
        ["--nonsense"],
        ["http://h:99999"],
        ["http://"],
        ["http://h", "--read-timeout", "0"],
        ["--config", "/"],
    ],
    ids=str,
)
def test_bad_usage_is_one_sentence_and_3(args):
    status, out, err = llm_health(*args)
    assert (status, out) == (3, "")
    assert err.startswith("llm-health: ")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("ago", "said"), [(2600.0, "the heartbeat saw its last step 43 min ago"), (2.0, ""), (None, "")], ids=str
)
def test_what_the_heartbeat_knows_of_the_time_before_we_looked_is_said_and_proves_nothing(ago, said):
    beat = 'llm_engine_steps_total{engine="0"} 5\n'
    if ago is not None:
        beat += f'llm_engine_last_step_timestamp_seconds{{engine="0"}} {time.time() - ago}\n'
    with serving(vllm(STILL + beat)) as server:
        status, seen = one(server.url, *QUICK)
    assert (status, seen["state"]) == (1, "stalled")
    assert ("the heartbeat saw" in seen["reason"]) == bool(said)
    assert said in seen["reason"]


def test_text_and_nagios():
    with serving(vllm(pages(STILL, vllm_page(**W, iteration_tokens_total_count=11.0)))) as server:
        status, out, _ = llm_health(server.url, *QUICK)
        assert status == 0
        assert out.splitlines()[0].split() == ["SERVER", "STATE", "RUNNING", "WAITING", "TOKENS/S", "REASON"]
        assert "busy" in out.splitlines()[1]
    status, out, _ = llm_health("http://127.0.0.1:1", *QUICK, "--format", "nagios")
    assert status == 2
    assert out.startswith("LLM CRITICAL - ")


def test_every_fault_of_an_invocation_is_told(tmp_path):
    config = tmp_path / "servers.yml"
    config.write_text(
        "servers:\n" + "".join(f"  - {{name: s{n}, url: 'http://h{n}', api_key_file: /no/{n}}}\n" for n in (1, 2))
    )
    status, out, err = llm_health(
        "http://a..b:8000", "ftp://h", "--engine", "gpt", "--api-key-file", "/no/key", "--config", str(config)
    )
    assert (status, out) == (3, "")
    for word in ("a..b", "ftp", "--engine", "--api-key-file", "/no/1", "/no/2"):
        assert word in err
    assert len(err.splitlines()) == 6


@pytest.mark.parametrize(
    ("url", "key"), [("http://u:s3cret/x@h:80", False), ("http://u:s3cret@h", True)], ids=["no port", "and a key"]
)
def test_a_password_in_an_address_is_never_said(tmp_path, url, key):
    file = tmp_path / "key"
    file.write_text("sk-1")
    file.chmod(0o600)
    status, out, err = llm_health(url, *(["--api-key-file", str(file)] if key else []))
    assert (status, out, len(err.splitlines())) == (3, "", 1)
    assert "s3cret" not in err


def test_the_patience_of_a_files_settings(tmp_path):
    with serving(vllm(STILL)) as server:
        config = tmp_path / "servers.yml"
        config.write_text(f"settings: {{patience_s: 0.4}}\nservers: [{{name: qwen, url: '{server.url}'}}]\n")
        assert one("--config", str(config), *QUICK)[1]["state"] == "hung"
        assert one("--config", str(config), *QUICK, "--patience", "60")[1]["state"] == "stalled"


@pytest.mark.parametrize("to", [">/dev/full", ">&-"])
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_result_that_cannot_be_written_is_an_error(to, form):
    command = shlex.join([sys.executable, str(COMMAND), "http://127.0.0.1:1", "--format", form])
    done = subprocess.run(
        ["sh", "-c", f"{command} {to}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / ".collections")},
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (3, 1), done.stderr
    assert "standard output cannot be written" in done.stderr


LOADS = ["NaN", "Infinity", "-3", "1" + "0" * 400]


@pytest.mark.parametrize("load", LOADS, ids=["NaN", "infinite", "negative", "huge"])
def test_a_load_that_is_no_count_is_unknown(load):
    with serving(vllm(vllm_page(), **{"GET /load": Say(f'{{"server_load": {load}}}')})) as server:
        said = one(server.url, *QUICK)[1]
    assert (said["state"], said["in_flight"]) == ("idle", None)


def test_counters_that_overflow_cost_no_verdict():
    page = lambda n: Say(vllm_page(**W, generation_tokens_total=1e308 if n else 1.0, prompt_tokens_total=70.0 + n))  # noqa: E731
    with serving(vllm(page)) as server:
        said = one(server.url, *QUICK)[1]
    assert (said["state"], said["tokens_per_second"]) == ("busy", None)
