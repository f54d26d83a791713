# SPDX-License-Identifier: GPL-3.0-or-later
"""The textfile: what Prometheus's own linter says of it, how many series a server makes, and what the restarts count."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._core.settings import Settings
from ansible_collections.gb10.serving.plugins.module_utils._watchdog import metrics
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.memory import Act, Memory
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.store import ServerState

RECORDS = [
    {"event": "decided", "server": "qwen", "rule": "hung", "transaction": {"id": "a"}},
    {"event": "closed", "server": "qwen", "id": "a", "outcome": "serving again"},
    {"event": "decided", "server": "qwen", "rule": "engine_says_dead", "transaction": {"id": "b"}},
    {"event": "closed", "server": "qwen", "id": "b", "outcome": "never ready"},
    {"event": "decided", "server": "qwen", "rule": "hung", "transaction": {"id": "c"}},
    {"event": "aborted", "server": "qwen", "id": "c", "reason": "docker was first"},
]


def state(name, **more):
    return ServerState(
        name,
        Memory(acts=(Act(50.0, "restart", "hung", True),), latched="budget"),
        state="hung",
        running=2.0,
        waiting=0.0,
        tokens_per_second=3.5,
        steps_per_second=1.0,
        silence_s=12.0,
        patience_s=600.0,
        looked_wall=90.0,
        **more,
    )


@pytest.fixture
def text(tmp_path):
    made = metrics.registry(Settings(), [(state("qwen"), 100.0), (state("glm"), 100.0)], RECORDS, leases=1, wall=100.0)
    metrics.write(tmp_path / "llm.prom", made)
    return (tmp_path / "llm.prom").read_text()


def test_what_it_says(text):
    assert 'llm_server_state{server="qwen",state="hung"} 1.0' in text
    assert 'llm_server_state{server="qwen",state="busy"} 0.0' in text
    assert 'llm_watchdog_latched{server="qwen"} 1.0' in text
    assert 'llm_watchdog_budget_left{server="qwen"} 1.0' in text
    assert 'llm_watchdog_restarts_total{outcome="serving",reason="hung",server="qwen"} 1.0' in text
    assert 'llm_watchdog_restarts_total{outcome="failed",reason="dead",server="qwen"} 1.0' in text
    assert 'llm_watchdog_restarts_total{outcome="aborted",reason="hung",server="qwen"} 1.0' in text
    assert 'llm_watchdog_restarts_total{outcome="serving",reason="hung",server="glm"} 0.0' in text


def test_a_server_makes_at_most_40_series(text):
    lines = [line for line in text.splitlines() if 'server="' in line and "_created" not in line]
    assert 0 < max(Counter(line.split('server="')[1].split('"')[0] for line in lines).values()) <= 40


def test_promtool_has_nothing_to_say(text):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed here (package prometheus)")
    plain = "\n".join(line for line in text.splitlines() if "_created" not in line) + "\n"
    done = subprocess.run([promtool, "check", "metrics"], input=plain, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    bad = subprocess.run(
        [promtool, "check", "metrics"], input="# TYPE x_total gauge\nx_total 1\n", capture_output=True, text=True
    )
    assert bad.returncode != 0, "the linter has to be able to complain"
