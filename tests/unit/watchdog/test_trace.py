# SPDX-License-Identifier: GPL-3.0-or-later
"""Traces: the examples replay right, bad ones are refused by file and key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._core.errors import ConfigError
from ansible_collections.gb10.serving.plugins.module_utils._health.reading import EngineReading
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.replay import replay
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.trace import parse

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"

RIGHT = {
    "idle-night": ({"idle"}, 0),
    "stopped-on-purpose": ({"stopped"}, 0),
    "starting-870s": ({"starting", "busy"}, 0),
    "frozen-12-days": ({"busy", "stalled", "hung"}, 1),
    "long-prefill-kv-rises": ({"busy"}, 0),
    "metrics-401": ({"unknown"}, 0),
    "restarted-by-someone": ({"busy"}, 0),
    "jit-with-compiler-520s": ({"busy", "stalled"}, 0),
}


@pytest.mark.parametrize("name", RIGHT)
def test_example_traces(name):
    text = (TRACES / f"{name}.jsonl").read_text()
    rows = list(replay(parse(text, name)))
    states, restarts = RIGHT[name]
    assert set(rows[-1]["summary"]["states"]) == states
    assert rows[-1]["summary"]["restarts"] == restarts
    assert rows[-1]["summary"]["latched"] is False
    if restarts:
        assert 100 <= rows[-1]["summary"]["first_restart_t"] <= 700
    assert [json.dumps(row) for row in rows] == [json.dumps(row) for row in replay(parse(text, name))]


BAD_TRACES = [
    ("", "is empty"),
    ("{}\n", "header"),
    ('{"trace": 2}\n', "version"),
    ('{"trace": 1, "settings": []}\n', "settings: must be an object"),
    ('{"trace": 1, "settings": {"patince_s": 3}}\n', "settings.patince_s"),
    ('{"trace": 1, "settings": {"patience_s": "x"}}\n', "settings.patience_s"),
    ('{"trace": 1, "settings": {"busy_policy": "maybe"}}\n', "settings.busy_policy"),
    ('{"trace": 1}\nnonsense\n{"t": 1}\n', "line 2"),
    ('{"trace": 1}\n{"metrics": "ok"}\n{"t": 1}\n', "line 2: t"),
    ('{"trace": 1}\n{"t": 5}\n{"t": 1}\n', "backwards"),
    ('{"trace": 1}\n[1]\n{"t": 1}\n', "line 2"),
    ('{"trace": 1}\nnull\n{"t": 1}\n', "line 2"),
]


@pytest.mark.parametrize(("text", "word"), BAD_TRACES, ids=[case[1] for case in BAD_TRACES])
def test_bad_traces_are_refused_by_file_and_key(text, word):
    with pytest.raises(ConfigError) as refused:
        parse(text, "x.jsonl")
    assert word in str(refused.value)
    assert "x.jsonl" in str(refused.value)


def test_a_line_cut_off_at_the_end_is_dropped_with_a_note():
    read = parse('{"trace": 1}\n{"t": 1}\n{"t": 2, "met', "x.jsonl")
    assert len(read.observations) == 1
    assert "line 3" in read.note


def test_any_json_of_an_observation_is_read():
    row = {"t": 1, "service": {"state": "a\u2028b"}, "reading": {"engines": {"0": {"steps": 10**400, "running": 1}}}}
    read = parse('{"trace": 1}\r\n' + json.dumps(row, ensure_ascii=False) + "\r\n", "x.jsonl")
    assert read.observations[0].reading.engines["0"] == EngineReading(running=1.0)
