# SPDX-License-Identifier: GPL-3.0-or-later
"""The judgement, case by case and by property. Each case: what was seen, in order, and the state that is right last."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._health.judge import Limits, judge
from ansible_collections.gb10.serving.plugins.module_utils._health.observation import (
    Host,
    Observation,
    Service,
    from_json,
    to_json,
)
from ansible_collections.gb10.serving.plugins.module_utils._health.progress import advance, took_up
from ansible_collections.gb10.serving.plugins.module_utils._health.reading import EngineReading, Reading
from hypothesis import given
from hypothesis import strategies as st

UP = Service("active", -7200.0, True)
IDLE_GPU = Host(gpu_utilization=0.0, clients=0, gpu_present=True)


def page(start=1000.0, in_flight=None, **engine):
    values = {"running": 0.0, "waiting": 0.0, "steps": 10.0, "generation_tokens": 50.0, "kv_usage": 0.1, **engine}
    return Reading(engines={"0": EngineReading(**values)}, start_time=start, in_flight=in_flight)


def at(t, reading=None, metrics=None, **more):
    word = metrics or ("ok" if reading is not None else "refused")
    return Observation(t=float(t), metrics=word, reading=reading, **{"service": UP, **more})


def states(observations, patience=100.0, **limits):
    track, found = None, []
    for seen in observations:
        track = advance(track, seen, limits.get("gap_s"))
        rest = {k: v for k, v in limits.items() if k != "gap_s"}
        found.append(judge(track, seen, Limits(default_patience_s=patience, dead_patience_s=patience, **rest)))
    return found


def last(observations, patience=100.0, **limits):
    return states(observations, patience, **limits)[-1].state.value


W = {"running": 2.0}
CASES = [
    ("first reading with work", [at(0, page(**W))], "busy"),
    ("nothing moves, too short", [at(0, page(**W)), at(99, page(**W))], "stalled"),
    ("nothing moves for the patience", [at(0, page(**W)), at(100, page(**W))], "hung"),
    ("a step", [at(0, page(**W)), at(100, page(**W, steps=11.0))], "busy"),
    ("only KV use, a new maximum", [at(0, page(**W)), at(100, page(**W, kv_usage=0.2))], "busy"),
    ("only KV use, falling", [at(0, page(**W)), at(100, page(**W, kv_usage=0.05))], "hung"),
    (
        "only KV use, swinging below its maximum",
        [at(0, page(**W, kv_usage=0.5)), at(50, page(**W, kv_usage=0.2)), at(100, page(**W, kv_usage=0.4))],
        "hung",
    ),
    (
        "KV maximum counted anew after a preemption, twice at most",
        [
            at(0, page(**W, kv_usage=0.9, preemptions=0.0)),
            at(40, page(**W, kv_usage=0.1, preemptions=1.0)),
            at(80, page(**W, kv_usage=0.3, preemptions=1.0)),
        ],
        "busy",
    ),
    ("only the queue grows", [at(0, page(**W)), at(100, page(running=2.0, waiting=9.0))], "hung"),
    ("only aborts", [at(0, page(**W, aborted=0.0)), at(100, page(**W, aborted=9.0))], "hung"),
    ("scheduler stall: waiting without running", [at(0, page(waiting=1.0)), at(100, page(waiting=1.0))], "hung"),
    ("flops move", [at(0, page(**W, flops=1.0)), at(100, page(**W, flops=2.0))], "busy"),
    ("heartbeat moves", [at(0, page(**W, heartbeat=1.0)), at(100, page(**W, heartbeat=2.0))], "busy"),
    ("12 running and 80 waiting, moving", [at(0, page()), at(9, page(running=12.0, waiting=80.0, steps=11.0))], "busy"),
    ("idle for hours, then one request", [at(0, page()), at(9000, page()), at(9020, page(**W))], "stalled"),
    (
        "/load says work that the engine has not picked up",
        [at(0, page(in_flight=2.0)), at(100, page(in_flight=2.0))],
        "hung",
    ),
    (
        "/load counts our own probe too, which is no other work",
        [at(0, page()), at(9, page(in_flight=1.0), probe="timeout"), at(10, page(in_flight=0.0), probe="ok")],
        "idle",
    ),
    ("idle, not probed", [at(0, page())], "idle"),
    ("idle, probe answered", [at(0, page(), probe="ok")], "idle"),
    ("idle, counters moved", [at(0, page()), at(9, page(steps=11.0))], "idle"),
    ("idle, probe unanswered", [at(0, page(), probe="timeout")], "stalled"),
    ("frozen while idle", [at(0, page(), probe="timeout"), at(50, page()), at(100, page())], "hung"),
    ("probe unanswered, then a step", [at(0, page(), probe="timeout"), at(50, page(steps=11.0))], "idle"),
    ("probe unanswered, then answered", [at(0, page(), probe="timeout"), at(150, page(), probe="ok")], "idle"),
    ("probe refused with 401", [at(0, page(), probe="http 401")], "unknown"),
    ("a 400 to the probe does not acquit", [at(0, page(), probe="timeout"), at(100, page(), probe="http 400")], "hung"),
    ("dead-engine 500 to the probe", [at(0, page(), probe="http 500", probe_says_dead=True)], "dead"),
    ("some other 500 to the probe", [at(0, page(), probe="http 500", probe_says_dead=False)], "unknown"),
    ("/health says dead, nothing moves", [at(0, page(**W)), at(5, page(**W), health="dead")], "dead"),
    ("/health says dead, work moves", [at(0, page(**W)), at(5, page(**W, steps=11.0), health="dead")], "busy"),
    ("/health says 503, work moves", [at(0, page(**W)), at(5, page(**W, steps=11.0), health="http 503")], "busy"),
    ("start time changed", [at(0, page(**W)), at(500, page(start=2000.0, **W))], "busy"),
    (
        "counters fell, no start time",
        [at(0, page(start=None, **W)), at(500, page(start=None, running=2.0, steps=1.0))],
        "busy",
    ),
    (
        "start time flips back: a load balancer",
        [at(0, page(start=1.0, **W)), at(9, page(start=2000.0, **W)), at(18, page(start=1.0, **W))],
        "unknown",
    ),
    ("asleep", [at(0, page(sleeping=True))], "sleeping"),
    ("asleep with stale gauges", [at(0, page(sleeping=True, **W)), at(500, page(sleeping=True, **W))], "sleeping"),
    (
        "awake again, the sleep was no silence",
        [at(0, page(sleeping=True, **W)), at(500, page(**W)), at(599, page(**W))],
        "stalled",
    ),
    ("hung since it awoke", [at(0, page(sleeping=True, **W)), at(500, page(**W)), at(600, page(**W))], "hung"),
    (
        "resumed, the pause was no silence",
        [at(0, page(**W)), at(500, page(**W), paused=True), at(520, page(**W), paused=False)],
        "stalled",
    ),
    ("a page without any engine", [at(0, Reading(engines={}))], "unknown"),
    ("running not known, none waiting", [at(0, page(running=None))], "unknown"),
    ("first reading with work, probe unanswered", [at(0, page(**W), probe="timeout")], "busy"),
    (
        "hung, and a 500 of unknown words to the last proof",
        [at(0, page(**W)), at(100, page(**W), probe="http 500")],
        "hung",
    ),
    (
        "an Xid's number is not the bus address before it",
        [at(0, page(**W), host=Host(kernel_faults=("NVRM: Xid (PCI:0000:79:00): 31, pid=1",)))],
        "busy",
    ),
    (
        "a fatal Xid behind one that a restart cures",
        [at(0, page(**W), host=Host(kernel_faults=("Xid 31, Xid 79",)))],
        "host_fault",
    ),
    (
        "a fatal Xid in the kernel's own words",
        [at(0, page(**W), host=Host(kernel_faults=("NVRM: Xid (PCI:000f:01:00): 79, pid='<unknown>'",)))],
        "host_fault",
    ),
    ("paused on purpose", [at(0, page(**W)), at(500, page(**W), paused=True)], "sleeping"),
    ("stale gauges, first time", [at(0, page(**W)), at(20, page(**W), host=IDLE_GPU)], "stalled"),
    (
        "stale gauges, twice",
        [at(0, page(**W)), at(20, page(**W), host=IDLE_GPU), at(40, page(**W), host=IDLE_GPU)],
        "suspect",
    ),
    (
        "stale gauges for an hour are not a hang",
        [at(0, page(**W)), *[at(t, page(**W), host=IDLE_GPU) for t in range(20, 3600, 20)]],
        "suspect",
    ),
    (
        "stale gauges, probe answered",
        [
            at(0, page(**W)),
            *[at(t, page(**W), host=IDLE_GPU) for t in (20, 40)],
            at(60, page(**W), host=IDLE_GPU, probe="ok"),
            at(80, page(**W), host=IDLE_GPU),
        ],
        "idle",
    ),
    (
        "stale gauges, probe unanswered for the patience",
        [
            at(0, page(**W)),
            *[at(t, page(**W), host=IDLE_GPU) for t in (20, 40)],
            at(60, page(**W), host=IDLE_GPU, probe="timeout"),
            at(161, page(**W), host=IDLE_GPU),
        ],
        "hung",
    ),
    (
        "clients unknown is not clients 0",
        [at(t, page(**W), host=Host(gpu_utilization=0.0)) for t in (0, 50, 100)],
        "hung",
    ),
    (
        "no client, but the GPU is at work",
        [at(t, page(**W), host=Host(gpu_utilization=0.96, clients=0)) for t in (0, 50, 100)],
        "hung",
    ),
    ("refused, within its grace", [at(0, None, service=Service("active", -60.0, True))], "starting"),
    ("refused for ever, never ready", [at(0, None, service=Service("active", -9000.0, True))], "dead"),
    ("500s while it loads", [at(0, None, "http 500", service=Service("active", -60.0, True))], "starting"),
    ("its own page says loading", [at(0, None, "loading", service=Service())], "starting"),
    ("401 within the grace", [at(0, None, "http 401", service=Service("active", -60.0, True))], "unknown"),
    ("stopped on purpose", [at(0, None, service=Service("inactive", -60.0, False))], "stopped"),
    ("down though wanted", [at(0, None, service=Service("failed", None, True))], "dead"),
    ("on demand and not loaded", [at(0, None, service=Service())], "dead"),
    ("refused, from elsewhere", [at(0, None, service=Service())], "dead"),
    ("connect timed out", [at(0, None, "connect timeout")], "unknown"),
    ("takes connections, no answer", [at(0, page()), at(20, None, "timeout")], "unresponsive"),
    ("resets", [at(0, page()), at(20, None, "reset")], "unresponsive"),
    ("no counters, probe asked for and answered", [at(0, None, "http 404", probe="ok")], "idle"),
    ("no counters, probe asked for and unanswered", [at(0, None, "http 404", probe="timeout")], "stalled"),
    ("GPU gone", [at(0, page(**W)), at(500, page(**W), host=Host(gpu_present=False))], "host_fault"),
    (
        "Xid 79 and the GPU not seen since",
        [at(0, page(**W)), at(500, page(**W), host=Host(kernel_faults=("Xid 79",)))],
        "host_fault",
    ),
    (
        "Xid 79 long ago, the GPU answers",
        [at(0, page(**W)), at(500, page(**W), host=Host(kernel_faults=("Xid 79",), gpu_present=True))],
        "hung",
    ),
    (
        "Xid 43 is cured by a restart",
        [at(0, page(**W)), at(500, page(**W), host=Host(kernel_faults=("Xid 43",)))],
        "hung",
    ),
    ("gauges unreadable, nothing moves", [at(t, page(running=None, waiting=None)) for t in (0, 500)], "unknown"),
    (
        "gauges unreadable, tokens move",
        [at(0, page(running=None, waiting=None)), at(9, page(running=None, waiting=None, steps=11.0))],
        "busy",
    ),
]


@pytest.mark.parametrize(("seen", "right"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_case(seen, right):
    assert last(seen) == right


def test_on_demand_refused_is_sleeping():
    assert last([at(0, None, service=Service())], lifecycle="on_demand") == "sleeping"


def test_ready_then_refused_for_the_whole_patience_justifies_a_restart():
    found = states([at(0, page()), at(10, None), at(60, None), at(110, None)])
    assert [v.state.value for v in found[1:]] == ["dead"] * 3
    assert [v.restart_justified for v in found[1:]] == [False, False, True]


def test_from_elsewhere_refused_never_justifies_a_restart():
    found = states([at(0, page(), service=Service()), *[at(t, None, service=Service()) for t in (10, 5000)]])
    assert not found[-1].restart_justified
    assert "may still be loading" in found[-1].reason


def test_silence_alone_convicts_no_ik_llamacpp():
    seen = [replace(at(t, page(**W)), engine="ik_llamacpp") for t in (0, 5000)]
    assert last(seen) == "stalled"


def test_another_ranks_answer_does_not_acquit():
    def two(a, b):
        return Reading(engines={"0": EngineReading(running=1.0, steps=a), "1": EngineReading(running=1.0, steps=b)})

    seen = [at(0, two(1.0, 1.0)), at(100, two(1.0, 9.0), probe="ok")]
    assert last(seen) == "hung"
    pinned = replace(seen[1], probe_engine="0")
    assert last([seen[0], pinned]) == "busy"


def ranks(**engines):
    """One engine a keyword: r0={…}. What is not given is that of an idle engine that is awake."""
    idle = {"running": 0.0, "waiting": 0.0, "steps": 10.0, "sleeping": False}
    return Reading(engines={name[1:]: EngineReading(**{**idle, **said}) for name, said in engines.items()})


ASLEEP, STEPPED = {"sleeping": True}, {**W, "steps": 11.0}
NOT_SAID = {"running": None, "waiting": None}
RANKS = [
    ("every rank sleeps", [ranks(r0=ASLEEP, r1=ASLEEP)], "sleeping", "put to sleep"),
    ("one sleeps, the others do not say", [ranks(r0=ASLEEP, r1={"sleeping": None})], "sleeping", "put to sleep"),
    ("one sleeps, its sister is frozen", [ranks(r0=ASLEEP, r1=W)] * 2, "hung", "engine 1 is hung"),
    ("one sleeps with stale gauges, its sister is idle", [ranks(r0={**ASLEEP, **W}, r1={})] * 2, "idle", "nothing"),
    ("one sleeps, its sister steps", [ranks(r0=ASLEEP, r1=W), ranks(r0=ASLEEP, r1=STEPPED)], "busy", "progress"),
    ("one awoke, its sleep was no silence", [ranks(r0={**ASLEEP, **W}, r1={}), ranks(r0=W, r1={})], "stalled", "0 s"),
    ("one cannot be read, its sister is idle", [ranks(r0={}, r1=NOT_SAID)] * 2, "unknown", "in engine 1"),
    (
        "one cannot be read, its sister steps",
        [ranks(r0=W, r1=NOT_SAID), ranks(r0=STEPPED, r1=NOT_SAID)],
        "unknown",
        "in engine 1",
    ),
    ("one cannot be read, its sister is frozen", [ranks(r0=W, r1=NOT_SAID)] * 2, "hung", "engine 0"),
    (
        "one cannot be read and steps",
        [ranks(r0=W, r1=NOT_SAID), ranks(r0=STEPPED, r1={**NOT_SAID, "steps": 11.0})],
        "busy",
        "progress",
    ),
]


@pytest.mark.parametrize(("pages", "right", "word"), [case[1:] for case in RANKS], ids=[case[0] for case in RANKS])
def test_ranks(pages, right, word):
    verdict = states([at(100 * n, reading) for n, reading in enumerate(pages)])[-1]
    assert (verdict.state.value, word in verdict.reason) == (right, True), verdict.reason


IDLE_PAIR = ranks(r0={}, r1={})
# engine, rank that the probe is pinned to, the pages before and after it, and the engines that are not to blame for it
TAKEN = [
    ("vLLM: only a step's end shows what runs", "vllm", None, page(), page(running=1.0), {"0"}),
    ("vLLM: a queue may be our own probe", "vllm", None, page(), page(waiting=1.0), set()),
    ("a queue acquits nobody, however long", "vllm", None, page(), page(waiting=9.0), set()),
    ("work that was there before", "vllm", None, page(**W), page(**W), set()),
    ("vLLM: a sister's work", "vllm", "0", IDLE_PAIR, ranks(r0={}, r1=W), {"1"}),
    ("vLLM: its own work", "vllm", "0", IDLE_PAIR, ranks(r0=W, r1={}), {"0"}),
    ("llama.cpp: our own probe", "llamacpp", None, page(), page(running=1.0), set()),
    ("llama.cpp: our own probe is deferred", "llamacpp", None, page(), page(waiting=1.0), set()),
    ("llama.cpp: another's request before ours", "llamacpp", None, page(), page(running=1.0, waiting=1.0), {"0"}),
    ("SGLang: our own probe", "sglang", None, page(), page(running=1.0), set()),
    (
        "SGLang: which rank has our probe is not known",
        "sglang",
        None,
        IDLE_PAIR,
        ranks(r0={"running": 1.0}, r1={}),
        set(),
    ),
    ("SGLang: more than our probe", "sglang", None, IDLE_PAIR, ranks(r0={}, r1=W), {"1"}),
    ("TGI: our own probe", "tgi", None, page(), page(running=1.0), set()),
    ("LMDeploy: our own probe", "lmdeploy", None, page(), page(running=1.0), set()),
    ("an engine nobody knows", None, None, page(), page(running=1.0), set()),
]


@pytest.mark.parametrize(
    ("engine", "rank", "before", "after", "right"), [case[1:] for case in TAKEN], ids=[case[0] for case in TAKEN]
)
def test_what_was_taken_up_while_our_probe_waited(engine, rank, before, after, right):
    first = advance(None, at(0, before, engine=engine))
    seen = at(9, after, engine=engine, probe="timeout", probe_begin=1.0, probe_engine=rank)
    plain = advance(first, seen)
    track = took_up(first, plain, seen)
    assert {label for label, known in track.engines.items() if known.moved and label != "*"} == right
    assert all(track.engines[label].debt_t is None for label in right)
    if not right:
        assert track == plain
        assert judge(track, seen, Limits(default_patience_s=5.0)).state.value == "hung"


def test_a_gap_in_our_own_runs_voids_the_silence():
    seen = [at(0, page(**W)), at(90, page(**W)), at(400, page(**W)), at(450, page(**W))]
    assert last(seen) == "hung"
    assert last(seen, gap_s=180.0) == "stalled"


def test_a_proof_needs_its_readings():
    seen = [at(0, page(**W)), at(150, page(**W))]
    assert last(seen, proof_readings=5) == "stalled"
    assert last([at(t, page(**W)) for t in range(0, 160, 20)], proof_readings=5) == "hung"


COUNTERS = ("heartbeat", "steps", "generation_tokens", "prompt_tokens", "finished", "flops")
rows = st.lists(
    st.fixed_dictionaries(
        {
            "gap": st.floats(1, 400),
            "running": st.sampled_from([None, 0.0, 1.0, 4.0]),
            "waiting": st.sampled_from([None, 0.0, 3.0]),
            "kv_usage": st.sampled_from([None, 0.1, 0.2, 0.3]),
            "rise": st.lists(st.integers(0, 3), min_size=6, max_size=6),
            "aborted": st.integers(0, 3),
            "preemptions": st.integers(0, 2),
            "probe": st.sampled_from([None, None, "ok", "timeout", "http 400"]),
            "in_flight": st.sampled_from([None, 0.0, 2.0]),
            "metrics": st.sampled_from(["ok", "ok", "ok", "ok", "timeout", "refused", "http 401"]),
            "clients": st.sampled_from([None, 0, 2]),
            "gpu": st.sampled_from([None, 0.0, 0.9]),
        }
    ),
    min_size=1,
    max_size=12,
)


def build(rows, label="0", more=0):
    t, totals, aborted, preempted, seen = 0.0, [0] * 6, 0, 0, []
    for row in rows:
        t += row["gap"]
        totals = [a + b + more for a, b in zip(totals, row["rise"], strict=True)]
        aborted, preempted = aborted + row["aborted"], preempted + row["preemptions"]
        engine = EngineReading(
            running=row["running"],
            waiting=row["waiting"],
            kv_usage=row["kv_usage"],
            aborted=float(aborted),
            preemptions=float(preempted),
            **{name: float(value) for name, value in zip(COUNTERS, totals, strict=True)},
        )
        reading = Reading(engines={label: engine}, start_time=1.0, in_flight=row["in_flight"])
        host = Host(clients=row["clients"], gpu_utilization=row["gpu"])
        seen.append(
            Observation(
                t=t,
                metrics=row["metrics"],
                reading=reading if row["metrics"] == "ok" else None,
                probe=row["probe"],
                host=host,
                service=UP,
            )
        )
    return seen


BAD = {"hung": 3, "stalled": 2}


CHECKED = [
    ("GPU gone", at(500, page(**W), host=Host(gpu_present=False)), "hung"),
    ("stopped on purpose", at(500, None, service=Service("inactive", -60.0, False)), "dead"),
]


@pytest.mark.parametrize(("seen", "right"), [c[1:] for c in CHECKED], ids=[c[0] for c in CHECKED])
def test_a_check_knows_no_states_of_the_watchdogs(seen, right):
    first = at(0, page(**W))
    track = advance(advance(None, first), seen)
    verdict = judge(track, seen, Limits(default_patience_s=100.0, watchdog=False))
    assert verdict.state.value == right
    assert verdict.restart_justified is (right == "hung")


@given(rows)
def test_hung_only_with_work_in_flight_and_silence_of_the_patience(rows):
    seen = build(rows)
    progress_t, work_t = seen[0].t, None
    for n, verdict in enumerate(states(seen)):
        moved = n > 0 and any(row_value for row_value in rows[n]["rise"]) and rows[n]["metrics"] == "ok"
        if moved:
            progress_t = seen[n].t
        if work_t is None and (
            rows[n]["probe"] == "timeout" or rows[n]["running"] or rows[n]["waiting"] or rows[n]["in_flight"]
        ):
            work_t = seen[n].t
        if verdict.state.value == "hung":
            assert seen[n].t - progress_t >= 100 - 0.01
            assert work_t is not None
            assert seen[n].metrics == "ok"


@given(rows)
def test_more_progress_never_makes_a_verdict_worse(rows):
    plain, better = states(build(rows)), states(build(rows, more=1))
    for n, (a, b) in enumerate(zip(plain, better, strict=True)):
        if n > 0 and rows[n]["metrics"] == "ok":
            assert BAD.get(b.state.value, 0) <= BAD.get(a.state.value, 0)


def test_a_hang_that_is_older_than_our_looking_is_told():
    then = replace(page(**W, heartbeat=9.0, last_step=5000.0), page_time=7600.0)
    told = [verdict.reason for verdict in states([at(0, then), at(50, replace(then, page_time=7650.0))])]
    assert told[0].endswith("nothing to compare with yet; the heartbeat saw its last step 43 min ago")
    assert told[1].endswith("(not proven before 100 s); the heartbeat saw its last step 44 min ago")
    fresh = replace(page(**W, heartbeat=9.0, last_step=5000.0), page_time=5001.0)
    aged = replace(fresh, page_time=5051.0)
    assert "last step" not in "".join(v.reason for v in states([at(0, fresh), at(50, aged)]))


@given(rows, st.sampled_from(["1", "7", "rank-b"]))
def test_another_label_changes_nothing(rows, label):
    a = [verdict.state for verdict in states(build(rows))]
    assert a == [verdict.state for verdict in states(build(rows, label=label))]


@given(rows)
def test_a_trace_line_reads_back_to_the_same_observation(rows):
    import json

    for seen in build(rows):
        again = from_json(json.loads(json.dumps(to_json(seen))))
        assert replace(again, reading=None) == replace(seen, reading=None)
        assert (again.reading and again.reading.engines) == (seen.reading and seen.reading.engines)


def test_a_trace_keeps_what_the_servers_clock_said():
    seen = at(0, replace(page(**W, last_step=5000.0), page_time=7600.0))
    assert from_json(to_json(seen)).reading.page_time == 7600.0
