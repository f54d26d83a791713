# SPDX-License-Identifier: GPL-3.0-or-later
"""Every series of real pages in tests/fixtures/captures, judged in order at the gaps they were taken at; patience 10 s."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._health.judge import Limits, judge
from ansible_collections.gb10.serving.plugins.module_utils._health.observation import Observation
from ansible_collections.gb10.serving.plugins.module_utils._health.progress import advance
from ansible_collections.gb10.serving.plugins.module_utils._health.reading import parse

CAPTURES = Path(__file__).parents[2] / "fixtures" / "captures"

V, L = "vllm-0.32.0-", "llama.cpp-b11434-"
# series, seconds between its readings, the states that are right (patience 10 s)
CASES = [
    (V + "fresh", 3, ["idle", "idle"]),
    (V + "idle", 3, ["idle", "idle"]),
    (V + "busy", 4, ["busy", "busy", "busy"]),
    (V + "queue-full", 8, ["busy", "busy", "busy"]),
    (V + "prefill-chunk512", 5, ["busy", "busy", "busy"]),
    (V + "prefill-chunk512-mfu", 4, ["busy", "busy", "busy"]),
    (V + "prefill-chunk512-with-decode", 4, ["busy", "busy", "busy"]),
    (V + "prefill-default", 5, ["idle", "busy", "busy"]),
    (V + "prefill-onestep", 5, ["idle", "idle", "idle"]),
    (V + "hung-enginecore-sigstop", 5, ["busy", "stalled", "hung"]),
    (V + "hung-worker-sigstop", 5, ["busy", "stalled", "hung"]),
    (V + "recovered", 2, ["busy", "busy"]),
    (V + "idle-but-hung", 3, ["idle", "idle"]),
    (V + "restart", 5, ["busy", "idle", "busy"]),
    (V + "paused-keep", 4, ["busy", "stalled", "stalled"]),
    (V + "api-server-count-2-fresh", 1, ["idle", "idle", "idle"]),
    (V + "api-server-count-2-busy", 5, ["busy", "busy", "busy"]),
    (V + "api-server-count-2-hung", 5, ["busy", "stalled", "hung"]),
    (V + "dp2-fresh", 1, ["idle", "idle"]),
    (V + "dp2-busy", 2, ["busy", "busy", "busy"]),
    (V + "dp2-one-engine-hung", 5, ["busy", "stalled", "hung"]),
    (V + "disable-log-stats-busy", 2, ["unknown", "unknown"]),
    (L + "fresh", 2, ["idle", "idle"]),
    (L + "idle", 2, ["idle", "idle"]),
    (L + "busy", 2, ["busy", "busy", "busy"]),
    (L + "queue-full", 2, ["busy", "busy", "busy"]),
    (L + "restart", 5, ["busy", "idle", "busy"]),
    (L + "prefill-b2048", 1, ["busy", "stalled", "stalled", "stalled", "stalled"]),
    (L + "prefill-b256", 1, ["busy", "busy", "busy", "busy", "busy"]),
]


def series(name: str) -> list[str]:
    return [path.read_text() for path in sorted(CAPTURES.glob(f"{name}-[0-9].prom"))]


def run(pages: list[str], gap_s: float, patience_s: float, **extra):
    track, verdicts = None, []
    for n, text in enumerate(pages):
        page = parse(text)
        word = "ok" if page.reading else "unreadable"
        seen = Observation(t=n * gap_s, metrics=word, reading=page.reading, detail=page.problem, **extra)
        track = advance(track, seen)
        verdicts.append(judge(track, seen, Limits(default_patience_s=patience_s)))
    return verdicts


@pytest.mark.parametrize(("name", "gap_s", "right"), CASES, ids=[case[0] for case in CASES])
def test_series(name, gap_s, right):
    pages = series(name)
    assert len(pages) == len(right), "the fixture is not whole"
    assert [verdict.state.value for verdict in run(pages, gap_s, 10)] == right


@pytest.mark.parametrize("name", [case[0] for case in CASES if case[2][-1] == "hung"])
def test_the_same_hang_is_only_stalled_at_the_usual_patience(name):
    assert run(series(name), 5, 600)[-1].state.value == "stalled"


def test_the_stuck_rank_is_named_though_the_sum_moves():
    verdict = run(series(V + "dp2-one-engine-hung"), 5, 10)[-1]
    assert verdict.accused == "0"
    assert "engine 0" in verdict.reason
    assert [(engine.engine, engine.state.value) for engine in verdict.engines] == [("0", "hung"), ("1", "busy")]


def test_a_killed_engine_is_dead_by_its_own_word():
    verdict = run(series(V + "engine-killed"), 1, 10, health="dead")[-1]
    assert verdict.state.value == "dead"
    assert verdict.restart_justified


def test_every_page_of_every_capture_is_read():
    names = {path.name.rsplit("-", 1)[0] for path in CAPTURES.glob("*.prom")}
    assert len(names) > 50
    for path in CAPTURES.glob("*.prom"):
        page = parse(path.read_text())
        if "litellm" in path.name:
            assert page.proxy == "litellm"
        elif "disable-log-stats" in path.name:
            assert page.reading is None
            assert page.problem
        else:
            assert page.engine.name == ("vllm" if "vllm" in path.name else "llamacpp"), path.name
            assert page.reading.engines, path.name
