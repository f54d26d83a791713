# SPDX-License-Identifier: GPL-3.0-or-later
"""What a silence is measured by, and what must not lengthen, shorten or excuse it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._core.settings import Settings
from ansible_collections.gb10.serving.plugins.module_utils._health.observation import Host, Lease, Observation, Service
from ansible_collections.gb10.serving.plugins.module_utils._health.reading import EngineReading, Reading

from tests.unit.watchdog.looks import UP, actions, seen, walk


def restarts(observations, settings=None):
    return [t for t, action in actions(observations, settings) if action == "restart"]


def beats(t, steps, running=1.0, **more):
    """A server with a true step counter."""
    return seen(t, engine={"running": running, "steps": None, "heartbeat": float(steps)}, **more)


def ranks(t, zero, one, **more):
    """Two data-parallel ranks with work, their step counters at `zero` and `one`."""
    engines = {
        label: EngineReading(running=1.0, waiting=0.0, steps=float(steps)) for label, steps in (("0", zero), ("1", one))
    }
    return Observation(t=float(t), metrics="ok", reading=Reading(engines=engines, start_time=1.0), service=UP, **more)


def test_a_gap_between_our_own_runs_is_no_pause_of_the_server():
    looks = [beats(t, 0, running=0.0) for t in range(0, 201, 20)]
    looks += [beats(t, 0) for t in (220,)]
    looks += [beats(t, t) for t in range(820, 1001, 20)]
    looks += [beats(t, 1000) for t in range(1020, 1400, 20)]
    assert restarts(looks) == [1180.0]


@pytest.mark.parametrize("read_until", [0, 100])
def test_a_gap_before_looks_that_read_no_page_voids_too(read_until):
    """The first page after it begins the silence, and counts as the first of five readings."""
    looks = [seen(t) for t in range(0, read_until + 1, 20)]
    looks += [seen(t, metrics="http 401") for t in range(400, 1000, 20)]
    assert restarts([*looks, *(seen(t) for t in range(1000, 1800, 20))]) == [1600.0]
    with_heartbeat = [seen(t, engine={"heartbeat": 7.0}) for t in range(1000, 1800, 60)]
    looks = [seen(0, engine={"heartbeat": 7.0}), *looks[1:]]
    assert restarts([*looks, *with_heartbeat]) == [1240.0]


def test_a_step_of_eighty_seconds_lengthens_the_patience_by_heartbeat():
    looks = [beats(t, t // 80) for t in range(0, 1601, 20)]
    looks += [beats(t, 20) for t in range(1620, 1881, 20)]  # one step of 280 s
    looks += [beats(t, t // 80) for t in range(1900, 2400, 20)]
    assert restarts(looks) == []


def test_the_longest_step_of_a_start_is_not_the_engines_own():
    """Autotuning takes 70 s once; what the page shows of it when the server is ready lengthens no patience."""
    begun = Service("active", 0.0, True)
    looks = [seen(t, metrics="refused", service=begun) for t in range(0, 201, 20)]
    looks += [
        seen(t, engine={"running": 1.0, "heartbeat": float(t), "longest_step_s": 70.0}, service=begun)
        for t in range(220, 601, 20)
    ]
    assert walk(looks)[-1].memory.longest_step_s == 0.0


def test_a_patience_by_heartbeat_that_somebody_gives_is_used():
    looks = [beats(t, 5) for t in range(0, 1000, 20)]
    assert restarts(looks, Settings(patience_heartbeat_s=900.0)) == [900.0]
    assert restarts(looks) == [180.0]
    assert restarts(looks, Settings(patience_s=100.0)) == [100.0]


def test_five_readings_are_of_the_silence_not_of_the_idle_time_before():
    looks = [beats(t, 5, running=0.0) for t in (0, 60)] + [beats(t, 5) for t in range(120, 700, 60)]
    assert restarts(looks)[0] == 360.0


@pytest.mark.parametrize(
    "excuse",
    [
        {"host": Host(compilers=("nvcc",))},
        {"host": Host(memory_pressure=0.4)},
        {"busy_leases": (Lease(owner="nightly", alive=True, expires=1e9),)},
        {"service": replace(UP, wanted=False)},
    ],
    ids=["compiler", "memory", "lease", "maintenance"],
)
def test_the_excuse_of_one_ranks_pause_outlives_its_sisters_progress(excuse):
    looks, one = [], 1
    for t in range(0, 2400, 20):
        paused = 100 <= t < 600 or 700 <= t < 1200 or t >= 1200
        one = one if paused else t
        more = excuse if 100 <= t < 500 or 700 <= t < 1100 else {}
        looks.append(replace(ranks(t, t, one), **more))
        if t == 1200:
            looks[-1] = ranks(t, t, t)
            one = t
    assert restarts(looks)[0] == 1800.0


def test_a_sisters_progress_makes_no_restart_fruitful():
    looks = [ranks(t, t, 7) for t in range(0, 9001, 20)]
    done = actions(looks, Settings(budget_6h=10, budget_24h=10))
    assert [t for t, action in done if action == "restart"] == [600.0, 3300.0]
    assert ("latched" in {action for _, action in done}) and min(t for t, a in done if a == "latched") == 6000.0


def still(t, cpu, pressure=0.0):
    return seen(t, metrics="timeout", host=Host(cpu_seconds=cpu, memory_pressure=pressure))


def healthy(t):
    return seen(t, moved=t, host=Host(cpu_seconds=float(t), memory_pressure=0.0))


@pytest.mark.parametrize(
    ("odd", "restart"),
    [
        (lambda t: still(t, 100.0 + max(t - 120, 0) if t <= 200 else 180.0), 800.0),
        (lambda t: still(t, 100.0, 0.3 if t == 160 else 0.0), 780.0),
        (lambda t: still(t, None if t == 160 else 100.0), 780.0),
    ],
    ids=["CPU time", "short of memory", "CPU time unknown"],
)
def test_one_look_that_is_not_still_begins_the_stillness_anew(odd, restart):
    looks = [healthy(t) for t in range(0, 101, 20)] + [odd(t) for t in range(120, 1000, 20)]
    assert restarts(looks)[0] == restart


def test_one_that_was_put_to_sleep_burns_no_cpu_and_is_left_alone():
    looks = [seen(t, engine={"sleeping": True}, host=Host(cpu_seconds=100.0)) for t in range(0, 101, 20)]
    looks += [still(t, 100.0) for t in range(120, 3000, 20)]
    assert restarts(looks) == []
    # another process than the one that slept
    anew = [replace(look, service=Service("active", 110.0, True)) if look.t > 100 else look for look in looks]
    assert restarts(anew, Settings(start_ceiling_s=300.0)) == [1020.0]


def test_a_rank_that_burns_cpu_is_no_still_server():
    from ansible_collections.gb10.serving.plugins.module_utils._health.observation import Rank

    looks = [healthy(t) for t in range(0, 101, 20)]
    looks += [
        replace(still(t, 100.0), ranks=(Rank(host="spark2", reachable=True, cpu_seconds=float(t)),))
        for t in range(120, 2000, 20)
    ]
    assert restarts(looks) == []


def down(t, gib):
    return seen(t, metrics="refused", service=Service("failed", None, True), host=Host(memory_available_gib=gib))


def test_memory_that_was_short_once_latches_nothing_later():
    settings = Settings(memory_needed_gib=40.0)
    looks = [down(t, 30.0) for t in range(0, 401, 20)]
    looks += [seen(t, moved=t, host=Host(memory_available_gib=30.0)) for t in range(420, 9001, 20)]
    looks += [down(t, 30.0) for t in range(9020, 10501, 20)]
    done = actions(looks, settings)
    assert [action for _, action in done if action != "latched"] == []
    assert min(t for t, _ in done) >= 9020 + 1200


@pytest.mark.parametrize("first", ["CPU time", "power"])
def test_the_witnesses_count_from_where_both_speak(first):
    """A hang falls between two looks: the first one after it still shows the CPU time, or the power, of work."""
    looks = [seen(t, moved=t, host=Host(cpu_seconds=float(t), gpu_power_w=45.0)) for t in range(0, 1401, 20)]
    for t in range(1420, 2400, 20):
        cpu = 1400.0 if first == "power" else 1410.0
        watts = 45.0 if first == "power" and t == 1420 else 20.0
        looks.append(seen(t, moved=1400, host=Host(cpu_seconds=cpu, gpu_power_w=watts)))
    # both have said "stopped" for 420 s at 1840: CPU time from 1420 on, power from 1440 on, seen against the look before
    assert restarts(looks)[0] == 1840.0


def worked_then_stopped(until, **more):
    """Work with its power and CPU time up to 1400, then a standstill that both witnesses see."""
    looks = [seen(t, moved=t, host=Host(cpu_seconds=float(t), gpu_power_w=45.0)) for t in range(0, 1401, 20)]
    stopped = Host(cpu_seconds=1400.0, gpu_power_w=20.0, **more)
    return looks + [seen(t, moved=1400, host=stopped) for t in range(1420, until, 20)]


def test_without_a_ranks_witnesses_the_patience_of_the_witnesses_does_not_hold():
    from ansible_collections.gb10.serving.plugins.module_utils._health.observation import Rank

    def with_rank(look, known=True):
        cpu, watts = look.host.cpu_seconds, look.host.gpu_power_w
        rank = Rank(host="spark2", reachable=True, cpu_seconds=cpu, gpu_power_w=watts)
        return replace(look, ranks=(rank,) if known else ())

    looks = worked_then_stopped(2400)
    assert restarts([with_rank(look) for look in looks])[0] == 1820.0
    assert restarts([with_rank(look, known=look.t <= 1400) for look in looks])[0] == 2000.0


def test_after_a_compiler_the_witnesses_and_a_stall_count_from_its_last_sighting():
    looks = worked_then_stopped(2600)
    with_compiler = [
        replace(look, host=replace(look.host, compilers=("nvcc",))) if 1400 < look.t <= 1680 else look for look in looks
    ]
    assert restarts(with_compiler)[0] == 1680.0 + 420
    looks = [seen(t, host=Host(compilers=("nvcc",))) for t in range(0, 401, 20)]
    looks += [seen(t, engine={"running": 0.0, "waiting": 3.0}) for t in range(420, 1400, 20)]
    assert restarts(looks)[0] == 420.0 + 300


@pytest.mark.parametrize("pressure", [0.10, 0.11])
def test_a_host_is_short_of_memory_above_its_share(pressure):
    looks = [seen(t, host=Host(memory_pressure=pressure)) for t in range(0, 700, 20)]
    assert restarts(looks) == ([600.0] if pressure <= 0.10 else [])


@pytest.mark.parametrize(("heartbeat", "restart"), [(None, 1600.0), (7.0, 1180.0)])
def test_a_host_that_thrashed_proves_nothing_of_the_time_before(heartbeat, restart):
    """PSI falls before the server has its memory back: it gets the patience that any server gets."""
    looks = [
        seen(t, engine={"heartbeat": heartbeat}, host=Host(memory_pressure=0.4 if t <= 1000 else 0.02))
        for t in range(0, 1800, 20)
    ]
    assert restarts(looks)[0] == restart
    assert restarts([look if look.t <= 1040 else seen(look.t, moved=look.t) for look in looks]) == []


def test_thrashing_longer_than_a_compiler_may_take_proves_nothing_either():
    looks = [seen(t, host=Host(memory_pressure=0.4 if t <= 3000 else 0.0)) for t in range(0, 4000, 20)]
    assert restarts(looks) == [3600.0]


def test_a_compiler_on_another_rank_excuses_a_server_that_does_not_answer():
    from ansible_collections.gb10.serving.plugins.module_utils._health.observation import Rank

    looks = [healthy(t) for t in range(0, 101, 20)]
    looks += [
        replace(still(t, 100.0), ranks=(Rank("spark2", True, compilers=("cicc",) if t <= 600 else ()),))
        for t in range(120, 1400, 20)
    ]
    assert restarts(looks) == [1220.0]


def test_who_else_started_the_service_was_first_though_the_page_shows_the_same_start():
    looks = [seen(t, service=Service("active", -7200.0 if t < 300 else 290.0, True)) for t in range(0, 1000, 20)]
    assert restarts(looks) == [900.0]
    # what comes of two clocks is no other start
    looks = [seen(t, service=Service("active", -7200.0 + t % 3, True)) for t in range(0, 700, 20)]
    assert restarts(looks) == [600.0]


def test_the_unanswered_probe_of_a_suspect_counts_from_when_it_was_sent():
    """Stale gauges: before the probe there was nothing that could be silent."""
    alone = Host(clients=0, gpu_utilization=0.0)
    looks = [seen(t, moved=0.0, host=alone) for t in range(0, 601, 60)]
    looks += [seen(660, host=alone, probe="timeout", probe_begin=660.0)]
    looks += [seen(t, host=alone) for t in range(720, 1500, 60)]
    assert restarts(looks)[0] == 1260.0


def test_the_power_of_an_idle_machine_is_not_that_of_work():
    looks = [seen(t, moved=t, host=Host(cpu_seconds=float(t), gpu_power_w=45.0)) for t in range(0, 1401, 20)]
    looks += [
        seen(
            t,
            moved=1400 + t // 100,
            engine={"running": 0.0},
            probe="ok",
            host=Host(cpu_seconds=1400.0, gpu_power_w=12.0),
        )
        for t in range(1420, 1620, 20)
    ]
    memory = walk(looks)[-1].memory
    assert set(memory.power_w) == {45.0}


def test_stale_gauges_that_were_cleared_hide_no_later_hang():
    idle_gpu = Host(clients=0, gpu_power_w=12.0, gpu_utilization=0.0)
    busy_gpu = Host(clients=0, gpu_power_w=45.0, gpu_utilization=0.96)
    looks = [seen(t, host=idle_gpu) for t in (0, 20, 40)] + [seen(60, host=idle_gpu, probe="ok")]
    looks += [seen(t, host=idle_gpu) for t in (80, 100)]
    assert [done.verdict.state.value for done in walk(looks)][-3:] == ["idle"] * 3
    looks += [seen(t, moved=t, host=busy_gpu) for t in range(120, 601, 20)]
    assert [done.verdict.state.value for done in walk(looks)][-1] == "busy"
    looks += [seen(t, moved=600, host=busy_gpu) for t in range(620, 1300, 20)]
    assert restarts(looks)[0] == 1200.0


def test_an_automatic_restart_is_a_start_though_its_manager_shows_the_one_before():
    looks = [seen(t, moved=t) for t in range(0, 101, 20)]
    looks += [seen(t, metrics="refused", service=Service("activating", UP.since, True)) for t in range(120, 1500, 20)]
    done = walk(looks)
    assert restarts(looks) == []
    assert {one.verdict.state.value for one in done[6:]} == {"starting"}


def test_a_start_that_was_over_when_we_first_looked_was_not_seen_to_fail():
    looks = [seen(t, metrics="refused", service=Service("failed", -500.0, True)) for t in (0, 20)]
    for begun in (40, 70, 310):
        looks += [
            seen(t, metrics="refused", service=Service("active", float(begun), True))
            for t in range(begun + 5, begun + 25, 10)
        ]
    looks += [seen(t, moved=t, service=Service("active", 310.0, True)) for t in range(820, 2000, 20)]
    assert walk(looks)[-1].memory.never_ready_t == (75.0, 315.0)


def test_a_first_reading_says_so_also_where_a_probe_was_answered():
    done = walk([seen(0, probe="ok")])[0]
    assert done.verdict.state.value == "busy"
    assert done.verdict.reason.startswith("first reading") and "answered the probe" in done.verdict.reason
