# SPDX-License-Identifier: GPL-3.0-or-later
"""How fast a server usually is, when it is called slow, and what another program makes forgotten."""

from __future__ import annotations

import json
from dataclasses import replace

from ansible_collections.gb10.serving.plugins.module_utils._core.codec import decode, encode
from ansible_collections.gb10.serving.plugins.module_utils._core.settings import Settings
from ansible_collections.gb10.serving.plugins.module_utils._health.observation import (
    Host,
    Observation,
    Service,
    from_json,
    to_json,
)
from ansible_collections.gb10.serving.plugins.module_utils._health.reading import EngineReading, Reading
from ansible_collections.gb10.serving.plugins.module_utils._watchdog import explain, speed
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.decide import Action, step
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.memory import Memory
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.store import ServerState
from hypothesis import given
from hypothesis import strategies as st

SETTINGS = Settings()
A_DAY = int(speed.A_DAY_S)
HOUR_OF_LOOKS = SETTINGS.usual_looks


def learned(per_second, looks=HOUR_OF_LOOKS, running=8.0, begin=0.0, speeds=None):
    speeds = speeds or speed.Speeds()
    for number in range(looks):
        speeds = speed.learn(SETTINGS, speeds, begin + 60.0 * number, running, per_second)
    return speeds


def test_what_is_usual_is_the_median_at_like_concurrency():
    speeds = learned(40.0)
    for alike in (8.0, 11.0, 15.0):
        assert abs(speed.usual(SETTINGS, speeds, alike) / 40.0 - 1) < 0.05
    for other in (0.0, 1.0, 7.0, 16.0):
        assert speed.usual(SETTINGS, speeds, other) is None
    assert speed.usual(SETTINGS, learned(40.0, looks=HOUR_OF_LOOKS - 1), 8.0) is None, "too little was seen"


def test_it_is_slow_when_it_has_been_for_ten_looks_and_no_longer_when_it_is_not():
    speeds = learned(40.0, looks=200)
    for looks in range(1, SETTINGS.slow_looks + 1):
        assert speed.note(SETTINGS, speeds, 8.0, 15.0) is None
        speeds = speed.learn(SETTINGS, speeds, 12_000.0 + 60 * looks, 8.0, 15.0)
    said = speed.note(SETTINGS, speeds, 8.0, 15.0)
    assert said is not None and "slow: 15 tokens/s with 8 running" in said and "GPU" not in said
    assert (
        speed.note(SETTINGS, learned(25.0, looks=20, begin=13_000.0, speeds=learned(40.0, looks=200)), 8.0, 25.0)
        is None
    )
    speeds = speed.learn(SETTINGS, speeds, 13_000.0, 8.0, 39.0)
    assert speed.note(SETTINGS, speeds, 8.0, 39.0) is None


def test_its_numbers_are_settings():
    """Of 40 tokens a second as usual, 30 are slow for whom three quarters are, at the second look."""
    speeds = learned(40.0, looks=20)
    assert speed.usual(SETTINGS, speeds, 8.0) is None
    keen = replace(SETTINGS, slow_share=0.8, slow_looks=2, usual_looks=20)
    for _look in range(2):
        assert speed.note(keen, speeds, 8.0, 30.0) is None
        speeds = speed.learn(keen, speeds, 2_000.0, 8.0, 30.0)
    assert "less than 80 % of the usual 4" in (speed.note(keen, speeds, 8.0, 30.0) or "")
    draws = (60.0,) * SETTINGS.power_samples
    assert "draws 40 W" not in (speed.note(keen, speeds, 8.0, 30.0, 40.0, draws) or "draws 40 W")
    careful = replace(keen, low_power_share=0.7)
    assert "draws 40 W" in (speed.note(careful, speeds, 8.0, 30.0, 40.0, draws) or "")
    numb = replace(keen, slow_share=0.0)
    assert speed.learn(numb, speeds, 2_060.0, 8.0, 0.1).slow_looks == 0, "a share of nothing is never undercut"


def test_looks_of_a_prefill_and_of_an_idle_server_say_nothing():
    speeds = learned(40.0)
    assert speed.learn(SETTINGS, speeds, 9_000.0, 8.0, 0.0) is speeds
    assert speed.learn(SETTINGS, speeds, 9_000.0, 8.0, None) is speeds
    assert speed.learn(SETTINGS, speeds, 9_000.0, 0.0, 3.0) is speeds


def test_low_power_is_named_where_the_usual_is_known():
    speeds = learned(10.0, looks=SETTINGS.slow_looks, begin=12_000.0, speeds=learned(40.0, looks=200))
    said = speed.note(SETTINGS, speeds, 8.0, 10.0, 19.5, (60.0,) * 100)
    assert said is not None and "draws 19.5 W of its usual 60" in said
    for watts, known in ((50.0, (60.0,) * 100), (None, (60.0,) * 100), (19.5, (60.0,) * 10)):
        assert "draws" not in (speed.note(SETTINGS, speeds, 8.0, 10.0, watts, known) or "draws")


@given(st.lists(st.tuples(st.floats(1, 200), st.floats(0.01, 1e5), st.integers(0, 40)), max_size=200))
def test_it_stays_small_and_survives_the_disk(looks):
    speeds = speed.Speeds()
    for running, per_second, day in sorted(looks, key=lambda look: look[2]):
        speeds = speed.learn(SETTINGS, speeds, day * speed.A_DAY_S, running, per_second)
    assert len(speeds.days) <= speed.DAYS_KEPT
    assert decode(speed.Speeds, json.loads(json.dumps(encode(speeds)))) == speeds


# -- in the house -----------------------------------------------------------------------------------------------------


def walked(rates, program="one", memory=None, begin=0.0, watts=60.0):
    """The memory and the actions after looks of a minute, with eight requests at these speeds."""
    memory, generated, actions = memory or Memory(), begin * 100.0, set()
    for number, rate in enumerate(rates):
        generated += 60.0 * rate
        reading = Reading(
            engines={"0": EngineReading(running=8.0, waiting=0.0, steps=generated, generation_tokens=generated)},
            start_time=1000.0,
        )
        done = step(
            Settings(),
            memory,
            Observation(
                t=begin + 60.0 * number, metrics="ok", reading=reading, service=Service("active", -7200.0, True),
                host=Host(gpu_power_w=watts), program=program,
            ),
        )  # fmt: skip
        memory, actions = done.memory, actions | {done.decision.action}
    return memory, actions


def test_a_slow_server_is_never_acted_on():
    memory, actions = walked([40.0] * 100 + [2.0] * 30)
    assert actions == {Action.NONE}
    assert speed.note(SETTINGS, memory.speeds, 8.0, 2.0) is not None


def test_a_person_is_told_and_nothing_else():
    said = "slow: 2 tokens/s with 8 running, less than half of the usual 40"
    state = ServerState("qwen", state="busy", reason="it moves", rule="busy", slow=said)
    row = explain.row(Settings(), state, 0.0, 0.0)
    assert row["slow"] == said
    assert f"It is {said}. It moves, so it is left alone." in explain.sentences(Settings(), state, 0.0, 0.0)
    assert said in explain.table([row])
    assert said not in explain.table([explain.row(Settings(), replace(state, slow=None), 0.0, 0.0)])


def test_another_program_makes_it_forget_what_it_learned():
    memory, _actions = walked([40.0] * 100)
    same, _actions = walked([40.0], memory=memory, begin=6000.0)
    assert speed.usual(SETTINGS, same.speeds, 8.0) is not None and same.identity == "one"
    untold, _actions = walked([40.0], memory=memory, begin=6000.0, program=None)
    assert speed.usual(SETTINGS, untold.speeds, 8.0) is not None and untold.identity == "one"
    other, _actions = walked([40.0], memory=memory, begin=6000.0, program="two")
    assert speed.usual(SETTINGS, other.speeds, 8.0) is None and other.identity == "two"
    assert other.power_w == (*memory.power_w, 60.0), "the host's power is the host's"


def test_pauses_and_steps_of_another_program_are_forgotten_too():
    from ansible_collections.gb10.serving.plugins.module_utils._watchdog.memory import Pause

    memory, _actions = walked([40.0] * 3)
    memory = Memory(**{**vars(memory), "pauses": (Pause(100.0, 300.0),), "longest_step_s": 200.0})
    kept, _actions = walked([40.0], memory=memory, begin=180.0)
    assert (kept.pauses, kept.longest_step_s) == (memory.pauses, 200.0)
    lost, _actions = walked([40.0], memory=memory, begin=180.0, program="two")
    assert (lost.pauses, lost.longest_step_s) == ((), 0.0)


def test_the_program_is_part_of_the_trace():
    row = {"t": 1.0, "program": "a1"}
    assert from_json(row).program == "a1" and to_json(from_json(row))["program"] == "a1"
    assert from_json({"t": 1.0}).program is None and "program" not in to_json(from_json({"t": 1.0}))
