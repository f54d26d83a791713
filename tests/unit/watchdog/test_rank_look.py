# SPDX-License-Identifier: GPL-3.0-or-later
"""What another node's rank shows, and which of the ranks this host is."""

from __future__ import annotations

import subprocess

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._core.servers import validate
from ansible_collections.gb10.serving.plugins.module_utils._health.observation import Rank
from ansible_collections.gb10.serving.plugins.module_utils._watchdog import ranks

SHOWN = """ActiveState=active
ExecMainStartTimestampMonotonic=4000000
Uptime=100.50
CpuUsec=2500000
Process=vllm
Process=cicc
Process=ptxas
PowerW=16.2
"""


def test_a_rank_is_read_on_the_heads_clock():
    assert ranks.parse("spark2", SHOWN, t=1000.0) == Rank(
        host="spark2",
        reachable=True,
        state="active",
        since=903.5,
        compilers=("cicc", "ptxas"),
        gpu_power_w=16.2,
        cpu_seconds=2.5,
    )


@pytest.mark.parametrize("text", ["", "Uptime=\nCpuUsec=\nPowerW=[N/A]\n", "Last login: never\n=\n"])
def test_what_cannot_be_told_is_unknown_and_never_zero(text):
    assert ranks.parse("spark2", text, t=1000.0) == Rank(host="spark2", reachable=True)


def test_no_compiler_among_the_processes_is_known_to_be_none():
    assert ranks.parse("spark2", "Process=vllm\n", t=0.0).compilers == ()


@pytest.mark.parametrize(("state", "word"), [("running", "active"), ("exited", "exited"), ("deactivating", "inactive")])
def test_docker_and_systemd_say_it_in_the_same_words(state, word):
    assert ranks.parse("spark2", f"ActiveState={state}\n", t=0.0).state == word


def test_the_look_is_a_script_that_sh_runs():
    """Of a unit that is not there nothing can be told but the machine's own."""
    server = described({"host": "spark2", "restart": {"systemd": "no-such.service"}})
    argv = ranks._look_argv(server.ranks[0])
    done = subprocess.run([*argv[:5], "true", *argv[6:]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seen = ranks.parse("spark2", done.stdout, t=0.0)
    assert (seen.state, seen.cpu_seconds) == (None, None)
    assert "Uptime=" in done.stdout


def described(*rows):
    (server,) = validate([{"name": "pair", "url": "http://127.0.0.1:8000", "ranks": list(rows)}])
    return server


HEAD = {"host": "spark1", "restart": {"systemd": "vllm.service"}}
WORKER = {"host": "spark2", "restart": {"systemd": "vllm-worker.service"}}


@pytest.mark.parametrize(
    ("rows", "here", "workers"),
    [
        ([HEAD, WORKER], "spark1", ["spark2"]),
        ([HEAD, WORKER], "spark2", None),
        ([WORKER], "spark1", ["spark2"]),
        ([HEAD, WORKER, {**WORKER, "host": "spark3"}], "spark1", ["spark2", "spark3"]),
        ([HEAD, WORKER, {**WORKER, "host": "spark3"}], "spark3", None),
        ([HEAD], "spark1", []),
    ],
)
def test_each_host_finds_itself_in_the_list(rows, here, workers):
    found = ranks.workers_of(described(*rows), lambda host: host == here)
    assert (None if found is None else [rank.host for rank in found]) == workers


def test_the_heads_own_row_may_hold_what_restarts_it():
    assert described(HEAD, WORKER).restart.target == "vllm.service"
    assert described(WORKER).restart is None, "a list without the head says nothing of it"


@pytest.mark.parametrize("host", ["spark1", "root@spark1", "localhost", "127.0.0.1", "::1"])
def test_this_machine_is_known_by_its_names_and_addresses(host, monkeypatch):
    monkeypatch.setattr(ranks.socket, "gethostname", lambda: "spark1.local")
    assert ranks.is_here(host)


def test_another_is_not():
    assert not ranks.is_here("192.0.2.7")
