# SPDX-License-Identifier: GPL-3.0-or-later
"""The policy, case by case."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._core.settings import Settings
from ansible_collections.gb10.serving.plugins.module_utils._health.observation import (
    Host,
    Lease,
    Rank,
    Service,
    from_json,
)
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.decide import Action, Surroundings
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.memory import Memory

from tests.unit.watchdog.looks import actions, frozen, seen, walk


def test_a_frozen_server_is_restarted_once_and_not_again_within_the_cooldown():
    assert actions(frozen(600 + 2680)) == [(600.0, "restart")]


def test_frozen_for_a_day_the_second_fruitless_restart_latches():
    found = actions(frozen(30_000, every=60))
    assert [action for _, action in found[:2]] == ["restart", "restart"]
    assert {action for _, action in found[2:]} == {"latched"}


def test_progress_between_restarts_spends_the_budget_and_then_latches():
    settings = Settings(cooldown_s=600.0, budget_6h=2, budget_24h=9)
    observations, moved = [], 0.0
    for t in range(0, 8000, 20):
        moved += 1.0 if t % 2000 < 100 else 0.0
        observations.append(seen(t, moved))
    found = actions(observations, settings)
    assert [action for _, action in found if action == "restart"] == ["restart"] * 2
    assert found[-1][1] == "latched"


PATIENCE = [
    ("stock vLLM", {}, {}, 600),
    ("heartbeat", {"heartbeat": 7.0}, {}, 180),
    ("heartbeat, a step of 100 s was seen", {"heartbeat": 7.0, "longest_step_s": 100.0}, {}, 400),
    ("heartbeat, capped", {"heartbeat": 7.0, "longest_step_s": 2000.0}, {}, 2700),
    ("scheduler stall", {"running": 0.0, "waiting": 3.0}, {}, 300),
    ("the engine's own step limit", {}, {"step_limit_s": 1800.0}, 2160),
    ("a setting", {}, {"patience_s": 100.0}, 100),
]


@pytest.mark.parametrize(("engine", "settings", "right"), [c[1:] for c in PATIENCE], ids=[c[0] for c in PATIENCE])
def test_patience(engine, settings, right):
    found = actions(frozen(3000, engine=engine), Settings(**settings))
    assert found[0][1] == "restart"
    assert right <= found[0][0] <= right + 20


def test_a_queue_seen_for_a_moment_shortens_no_long_prefill():
    moment = {"engine": {"running": 0.0, "waiting": 1.0, "aborted": 1.0}}
    observations = [*frozen(400), seen(420, **moment), *frozen(580, start=440, engine={"aborted": 1.0})]
    assert actions(observations) == []
    stall = [*frozen(200), *frozen(900, start=220, engine={"running": 0.0, "waiting": 1.0})]
    assert actions(stall)[0] == (520.0, "restart")
    assert actions(frozen(900, engine={"running": None, "waiting": 1.0}))[0] == (600.0, "restart"), "unknown is not 0"


def test_time_with_a_compiler_does_not_count_up_to_its_cap():
    compiling = Host(compilers=("cicc",))
    found = actions([*frozen(500, host=compiling), *frozen(3000, start=520)])
    assert found[0] == (1100.0, "restart")
    assert actions(frozen(6000, host=compiling))[0] == (2700.0, "restart")


def test_a_compiler_on_another_rank_counts_too():
    from ansible_collections.gb10.serving.plugins.module_utils._health.observation import Rank

    ranks = (Rank(host="spark2", compilers=("nvcc",)),)
    assert actions([*frozen(500, ranks=ranks), *frozen(1080, start=520, ranks=())]) == []


def working(until, watts, every=20):
    return [seen(t, t, host=Host(gpu_power_w=watts + t % 7, cpu_seconds=float(t))) for t in range(0, until, every)]


def test_two_independent_witnesses_shorten_the_patience():
    before = working(2000, 45.0)
    still = [seen(t, 1980, host=Host(gpu_power_w=20.0, cpu_seconds=1980.0)) for t in range(2000, 2600, 20)]
    assert actions([*before, *still])[0][0] == pytest.approx(1980 + 420, abs=20)
    power_alone = [seen(t, 1980, host=Host(gpu_power_w=20.0, cpu_seconds=float(t))) for t in range(2000, 2700, 20)]
    assert actions([*before, *power_alone])[0][0] == pytest.approx(1980 + 600, abs=20)
    few = working(1000, 45.0)
    still = [seen(t, 980, host=Host(gpu_power_w=20.0, cpu_seconds=980.0)) for t in range(1000, 1700, 20)]
    assert actions([*few, *still])[0][0] == pytest.approx(980 + 600, abs=20)


def test_innocent_pauses_are_learned_but_not_those_with_an_excuse():
    def pauses(**more):
        observations, moved = [], 0.0
        for n in range(3):
            for t in range(0, 500, 20):
                moved += 1.0 if t == 0 else 0.0
                observations.append(seen(n * 500 + t, moved, **more))
        return walk([*observations, seen(1500, moved + 1)])[-1].memory.pauses

    assert len(pauses()) == 3
    assert pauses(busy_leases=(Lease("nightly", True, 9e9),)) == ()
    assert pauses(host=Host(memory_pressure=0.5)) == ()
    assert pauses(host=Host(compilers=("ninja",))) == ()
    longer = Settings(patience_s=550.0)
    after = walk([*[seen(t, t // 500) for t in range(0, 1520, 20)]], longer)[-1].memory
    assert actions(frozen(3000, start=1520), longer, memory=after)[0][0] > 1520 + 600


def test_a_gap_in_our_own_runs_voids_the_proof():
    assert actions([*frozen(580), *frozen(1300, start=800)]) == []
    assert actions([*frozen(580), *frozen(1400, start=800)])[0][0] == 1400.0


LAST_PROOF = [
    ("ok", []),
    (None, [(600.0, "restart")]),
    ("timeout", [(600.0, "restart")]),
    ("http 503", [(600.0, "restart")]),
    ("http 400", []),
]


@pytest.mark.parametrize(("probe", "right"), LAST_PROOF, ids=[str(case[0]) for case in LAST_PROOF])
def test_the_last_proof(probe, right):
    observations = [*frozen(580), seen(600, probe=probe)]
    if probe == "http 503":
        # as a trace has it: what the answer said is not known, whatever /health says
        for health in ("ok", "timeout", None):
            assert actions([*observations[:-1], replace(observations[-1], health=health)]) == right
        observations[-1] = replace(observations[-1], health="ok", probe_says_dead=False)
    assert actions(observations) == right


def test_where_it_can_be_sent_the_last_proof_is_asked_for_first():
    done = walk(frozen(600), sends_proof=True)[-1]
    assert done.decision.prove
    assert done.decision.action is Action.NONE
    assert not done.memory.acts


HANDS_OFF = [
    ("not wanted", {"service": Service("active", -7200.0, False)}),
    ("intent unknown", {"service": Service("active", -7200.0, None)}),
    ("no service known", {"service": Service()}),
    ("GPU gone", {"host": Host(gpu_present=False)}),
    ("thrashing", {"host": Host(memory_pressure=0.4)}),
    ("asleep", {"engine": {"sleeping": True}}),
    ("paused", {"paused": True}),
    ("401", {"metrics": "http 401"}),
    ("no answer, CPU unknown", {"metrics": "timeout"}),
    ("stale gauges", {"host": Host(clients=0, gpu_utilization=0.0)}),
    ("refused and never ready", {"metrics": "refused", "service": Service("active", -99_999.0, True)}),
    ("down, intent unknown", {"metrics": "refused", "service": Service("inactive", None, None)}),
    ("stopped", {"metrics": "refused", "service": Service("inactive", None, False)}),
]


@pytest.mark.parametrize("more", [case[1] for case in HANDS_OFF], ids=[case[0] for case in HANDS_OFF])
def test_hands_off_for_ever(more):
    assert actions(frozen(20_000, every=60, **more)) == []


def test_down_but_wanted_is_started_when_seen_twice():
    down = {"metrics": "refused", "service": Service("inactive", None, True)}
    found = walk([seen(0), *frozen(80, start=20, **down)])
    assert [done.decision.action.value for done in found] == ["none", "none", "start", "none", "none"]


def test_down_but_wanted_needs_no_port_to_be_asked():
    down = {"metrics": None, "service": Service("failed", None, True)}
    assert actions([seen(0), *frozen(60, start=20, **down)]) == [(40.0, "start")]
    assert actions(frozen(60, **down), Settings(lifecycle="on_demand")) == []


def test_down_but_wanted_is_started_though_its_address_went_with_it():
    down = {"metrics": "connect timeout", "service": Service("inactive", None, True)}
    assert actions([seen(0), *frozen(60, start=20, **down)]) == [(40.0, "start")]
    assert actions([seen(0), *frozen(900, start=20, metrics="connect timeout")]) == []


def test_its_manager_starting_it_anew_begins_a_new_grace():
    anew = {"metrics": "refused", "service": Service("activating", None, True)}
    found = walk([seen(0), *frozen(900, start=20, **anew)])
    assert {done.verdict.state.value for done in found[1:]} == {"starting"}


def test_dead_by_its_own_word_when_seen_twice():
    assert actions([seen(0), seen(20, health="dead"), seen(40, health="dead"), seen(60, health="dead")]) == [
        (40.0, "restart")
    ]


def test_ready_then_refused_for_the_patience():
    assert actions([seen(0), *frozen(2000, start=20, metrics="refused")])[0] == (620.0, "restart")


def test_silent_and_burning_no_cpu_for_the_patience():
    still = {"metrics": "timeout", "host": Host(cpu_seconds=50.0, memory_pressure=0.0)}
    assert actions([seen(0), *frozen(2000, start=20, **still)])[0] == (620.0, "restart")
    twice = [o for o in frozen(2000, start=20, **still) for _ in range(2)]
    assert actions([seen(0), *twice])[0] == (620.0, "restart"), "two observations at one t"
    burning = [
        replace(o, host=Host(cpu_seconds=o.t, memory_pressure=0.0)) for o in frozen(2000, start=20, metrics="timeout")
    ]
    assert actions([seen(0), *burning]) == []


def test_busy_leases():
    lease = (Lease("nightly", True, 9e9),)
    assert actions(frozen(700, busy_leases=lease))[0] == (600.0, "restart")
    assert actions(frozen(5000, busy_leases=lease), Settings(busy_policy="never")) == []
    dead_jobs = (Lease("nightly", False, 9e9),)
    assert actions(frozen(700, busy_leases=dead_jobs), Settings(busy_policy="never"))[0] == (600.0, "restart")
    expired = (Lease("nightly", True, 10.0),)
    assert actions(frozen(700, busy_leases=expired), Settings(busy_policy="never"))[0] == (600.0, "restart")


def test_put_off_while_a_sister_does_not_serve_but_not_for_ever():
    found = actions(frozen(2000), around=Surroundings("b", 500.0))
    assert found[0][0] == 1100.0


def test_observe_decides_and_touches_nothing():
    done = walk(frozen(700), Settings(mode="observe"))
    assert not done[-1].memory.acts
    assert "would restart" in done[-1].decision.reason


def test_observe_asks_a_hung_server_nothing_though_it_could_send_the_last_proof():
    done = walk(frozen(3000), Settings(mode="observe"), sends_proof=True)
    assert not any(one.decision.prove for one in done)
    assert "would restart" in done[-1].decision.reason
    acting = walk(frozen(3000), sends_proof=True)
    assert any(one.decision.prove for one in acting), "who acts does send it"


def test_three_starts_that_were_never_ready_latch_whoever_made_them():
    down = [
        seen(t, metrics="refused", service=Service("active", float(t // 600 * 600), True)) for t in range(0, 2400, 20)
    ]
    assert walk(down)[-1].memory.latched
    assert (
        actions([*down, *frozen(2500, start=2400, metrics="refused", service=Service("failed", None, True))])[-1][1]
        == "latched"
    )


def test_the_third_that_was_never_ready_is_not_followed_by_a_fourth():
    """Its manager gives up on each: loading, failed, started again by somebody."""
    looks = [seen(0)]
    for n, begun in enumerate((300, 1260, 2220)):
        up = Service("active", float(begun), True)
        looks += [seen(t, metrics="refused", service=up) for t in range(begun, begun + 900, 60)]
        looks += [seen(begun + 900, metrics="refused", service=Service("failed", None if n else up.since, True))]
    looks += [seen(t, metrics="refused", service=Service("failed", None, True)) for t in (3180, 3240)]
    done = walk(looks)
    assert [step.decision.action.value for step in done[-2:]] == ["latched", "latched"]
    assert done[-1].memory.latched == "it was started 3 times in 120 min and was never ready"
    assert all(step.decision.action is Action.NONE for step in done[:-2])
    stopped = [
        replace(o, service=replace(o.service, wanted=False)) if o.service.state == "failed" else o for o in looks
    ]
    assert walk(stopped[:-3])[-1].memory.latched is None


NOTHING = {"steps": None, "kv_usage": None}


@pytest.mark.parametrize(
    ("engine_at", "right"),
    [
        (lambda t: NOTHING, []),
        (lambda t: NOTHING if t > 300 else {}, []),
        # one page that leaves something out hides no hang: what is read again is compared with what was known
        (lambda t: NOTHING if t == 300 else {}, [(600.0, "restart")]),
        (lambda t: {"running": None} if t == 300 else {}, [(600.0, "restart")]),
        (lambda t: {"steps": 1000.0 + (t > 300), **(NOTHING if t == 300 else {})}, [(920.0, "restart")]),
        # tokens are not finished requests: those stand still through any long answer
        (lambda t: {**NOTHING, "finished": 7.0, "prompt_tokens": 90.0}, []),
    ],
    ids=["never any", "none any more", "once none", "running once unknown", "moved unseen", "only finished"],
)
def test_a_silence_that_could_not_be_heard_is_no_proof(engine_at, right):
    looks = [seen(t, engine=engine_at(t)) for t in range(0, 1001, 20)]
    assert actions(looks) == right


def test_an_engine_that_its_page_leaves_out_once_is_no_new_one():
    bare = replace(seen(300).reading, engines={})
    looks = [replace(one, reading=bare) if one.t == 300 else one for one in frozen(700)]
    done = walk(looks)
    assert done[15].verdict.state.value == "unknown"
    assert actions(looks) == [(600.0, "restart")]
    both = [
        replace(one, reading=replace(one.reading, engines={**one.reading.engines, "1": one.reading.engines["0"]}))
        for one in frozen(100)
    ]
    track = walk([*both, *frozen(400, start=120)])[-1].memory.track
    assert "1" not in track.engines  # taken away for good


def test_another_request_is_not_measured_against_the_kv_use_of_the_one_before():
    looks = [seen(0, engine={"kv_usage": 0.3})]
    looks += [seen(t, engine={"running": 0.0, "kv_usage": 0.0}) for t in range(60, 600, 60)]
    looks += [seen(t, engine={"running": 1.0, "kv_usage": t / 10_000}) for t in range(600, 2400, 60)]
    assert actions(looks) == []


def test_a_rank_that_cannot_be_reached_is_waited_for():
    gone = (Rank(host="spark2", reachable=False),)
    looks = [*frozen(900, ranks=gone), *frozen(1000, start=920, ranks=(Rank(host="spark2", reachable=True),))]
    done = walk(looks)
    assert done[45].decision.rule == "rank_unreachable"
    assert "spark2 cannot be reached" in done[45].decision.alert
    assert actions(looks) == [(920.0, "restart")]


DOWN = Service("failed", None, True)


def test_a_start_waits_for_memory_and_not_for_ever():
    settings = Settings(memory_needed_gib=40.0)

    def down(t, there):
        return seen(t, metrics="refused", service=DOWN, host=Host(memory_available_gib=there))

    looks = [seen(0), *(down(t, 5.0) for t in range(60, 600, 60)), down(600, 41.0)]
    assert actions(looks, settings) == [(600.0, "start")]
    waiting = walk(looks, settings)
    assert waiting[2].decision.alert is None
    assert waiting[-2].decision.alert == "waits for memory to start it: 40 GiB are needed and 5.0 are there"
    assert actions([seen(0), *(down(t, None) for t in (60, 120))], settings) == [(120.0, "start")]
    late = walk([seen(0), *(down(t, 5.0) for t in range(60, 1400, 60))], settings)
    assert late[-1].decision.action is Action.LATCHED
    assert late[-1].memory.latched.startswith("memory did not come back within 20 min")
    # it holds the memory itself while it runs
    busy = [seen(t, host=Host(memory_available_gib=5.0)) for t in range(0, 601, 20)]
    assert actions(busy, settings) == [(600.0, "restart")]


def test_an_answered_last_proof_acquits_the_accused_of_several():
    def pair(t, **more):
        one = seen(t, moved=float(t))
        other = seen(t).reading.engines["0"]
        return replace(one, reading=replace(one.reading, engines={**one.reading.engines, "1": other}), **more)

    looks = [pair(t) for t in range(0, 600, 20)]
    assert actions([*looks, pair(600, probe="ok"), *(pair(t) for t in range(620, 1200, 20))]) == []
    assert actions([*looks, pair(600)]) == [(600.0, "restart")]
    # where it is known that it went to another rank, it acquits nobody
    astray = [*looks, pair(600, probe="ok", probe_engine="0"), pair(620)]
    assert actions(astray) == [(620.0, "restart")]


def test_compilers_may_be_counted_or_only_known_to_be_there():
    for given, right in [(2, ("a compiler",)), (True, ("a compiler",)), (0, ()), (False, ()), ("nvcc", ("nvcc",))]:
        assert from_json({"t": 0, "host": {"compilers": given}}).host.compilers == right
    assert from_json({"t": 0, "host": {"compilers": None}}).host.compilers is None


def test_a_doubt_becomes_a_persons_after_15_minutes():
    found = walk(frozen(1000, metrics="http 401"))
    assert found[40].decision.alert is None
    assert found[46].decision.alert


def test_an_idle_server_is_probed_now_and_then_and_not_under_a_lease():
    idle = {"engine": {"running": 0.0}}
    assert walk([seen(0, **idle)])[-1].decision.probe
    assert not walk([seen(0, **idle, busy_leases=(Lease("x", True, 9e9),))])[-1].decision.probe
    memory = replace(Memory(), probed_t=0.0)
    assert not walk(frozen(580, **idle), memory=memory)[-1].decision.probe
    assert walk(frozen(600, **idle), memory=memory)[-1].decision.probe
    assert not walk([seen(0), seen(20)])[-1].decision.probe, "a server with work in flight is never probed"
    first, pair = seen(0, **idle), seen(0, **idle).reading.engines["0"]
    for sleeping, due in ((None, True), (False, True), (True, False)):
        engines = {"0": replace(pair, sleeping=False), "1": replace(pair, sleeping=sleeping)}
        sisters = replace(first, reading=replace(first.reading, engines=engines))
        assert walk([sisters])[-1].decision.probe is due, "a probe might reach the rank that sleeps"
