# SPDX-License-Identifier: GPL-3.0-or-later
"""The textfile: what Prometheus's own linter says of it, how many series a server makes, and what the restarts count."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from dataclasses import replace

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._core.settings import Settings
from ansible_collections.gb10.serving.plugins.module_utils._health.progress import EngineTrack, Track
from ansible_collections.gb10.serving.plugins.module_utils._health.reading import EngineReading
from ansible_collections.gb10.serving.plugins.module_utils._watchdog import metrics
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.memory import Act, Memory
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.store import ServerState

ENDED = {"hung serving": 1, "dead failed": 1, "hung aborted": 1}


def state(name, **more):
    return ServerState(
        name,
        Memory(
            track=Track(
                90.0,
                {n: EngineTrack(90.0, EngineReading(kv_usage=kv)) for n, kv in (("0", 0.2), ("1", 0.7))},
            ),
            acts=(Act(50.0, "restart", "hung", True),),
            latched="budget",
        ),
        state="hung",
        running=2.0,
        waiting=0.0,
        tokens_per_second=3.5,
        steps_per_second=1.0,
        silence_s=12.0,
        patience_s=600.0,
        looked_wall=90.0,
        power_w=46.0,
        **more,
    )


@pytest.fixture
def text(tmp_path):
    states = [(state("qwen", ended=ENDED), 100.0), (state("glm", rule="never_ready"), 100.0)]
    others = {"qwen": 2, "glm": 0}
    made = metrics.registry(Settings(), states, leases=1, wall=100.0, competing=others)
    metrics.write(tmp_path / "llm.prom", made)
    return (tmp_path / "llm.prom").read_text()


def test_what_it_says(text):
    assert 'llm_server_state{server="qwen",state="hung"} 1.0' in text
    assert 'llm_server_state{server="qwen",state="busy"} 0.0' in text
    assert 'llm_server_kv_cache_usage_ratio{server="qwen"} 0.7' in text
    assert 'llm_server_gpu_power_watts{server="qwen"} 46.0' in text
    assert 'llm_watchdog_latched{server="qwen"} 1.0' in text
    assert 'llm_watchdog_budget_left{server="qwen"} 1.0' in text
    assert 'llm_watchdog_restarts_total{outcome="serving",reason="hung",server="qwen"} 1.0' in text
    assert 'llm_watchdog_restarts_total{outcome="failed",reason="dead",server="qwen"} 1.0' in text
    assert 'llm_watchdog_restarts_total{outcome="aborted",reason="hung",server="qwen"} 1.0' in text
    assert 'llm_watchdog_restarts_total{outcome="serving",reason="hung",server="glm"} 0.0' in text
    assert 'llm_server_never_ready{server="qwen"} 0.0' in text
    assert 'llm_server_never_ready{server="glm"} 1.0' in text


def samples(text):
    """Every sample is a series, whatever its name: what is left out here would be in Prometheus all the same."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_a_server_makes_at_most_40_series(text):
    lines = [line for line in samples(text) if 'server="' in line]
    counts = Counter(line.split('server="')[1].split('"')[0] for line in lines)
    assert counts == {"qwen": 40, "glm": 40}, "all that a server can have"


def test_a_thousand_servers_make_at_most_40_series_each(tmp_path):
    every = [(state(f"server-{n}"), 100.0) for n in range(1000)]
    others = {one.name: n % 3 for n, (one, dummy) in enumerate(every)}
    made = metrics.registry(Settings(), every, leases=1, wall=100.0, competing=others)
    metrics.write(tmp_path / "llm.prom", made)
    names = {line.split("{")[0] for line in samples((tmp_path / "llm.prom").read_text())}
    assert len(samples((tmp_path / "llm.prom").read_text())) <= 40 * 1000 + 3
    assert not {name for name in names if name.endswith("_created")}


def test_what_the_last_look_could_not_read_is_left_out_and_never_zero(tmp_path):
    blind = replace(state("qwen"), running=None, waiting=None, power_w=None, tokens_per_second=None)
    metrics.write(tmp_path / "llm.prom", metrics.registry(Settings(), [(blind, 1.0)], leases=0, wall=1.0))
    text = (tmp_path / "llm.prom").read_text()
    for name in ("requests_running", "requests_waiting", "kv_cache_usage_ratio", "gpu_power_watts"):
        assert f"llm_server_{name}{{" not in text


def test_promtool_has_nothing_to_say(text):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed here (package prometheus)")
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    bad = subprocess.run(
        [promtool, "check", "metrics"], input="# TYPE x_total gauge\nx_total 1\n", capture_output=True, text=True
    )
    assert bad.returncode != 0, "the linter has to be able to complain"
