# SPDX-License-Identifier: GPL-3.0-or-later
"""What a window of time is made into: spans without a hole, rates, restarts; and the plots of any length of it."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._watchdog import page, timeline
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.clock import Anchor
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.timeline import Restart, Span
from hypothesis import given
from hypothesis import strategies as st

BEGUN = 1_790_000_000.0


def row(at, event, **more):
    return {"time": datetime.fromtimestamp(BEGUN + at, UTC).isoformat(), "event": event, "server": "qwen", **more}


def look(t, tokens=None, start=1.0, **engine):
    engines = {"0": {"generation_tokens": tokens, "running": 1, "waiting": 0, **engine}}
    return json.dumps({"t": t, "reading": {"start_time": start, "engines": engines}})


def states(found):
    return [(one.begin - BEGUN, one.end - BEGUN, one.state) for one in found]


EVERY_MINUTE = [BEGUN + at for at in range(0, 3601, 60)]
SPANS = [
    # what it is, the state records, when somebody looked, restarts, what the window of an hour shows
    ("a state that began before the window", [(-500, "busy")], EVERY_MINUTE, [], [(0, 3600, "busy")]),
    ("nothing recorded at all", [], [], [], [(0, 3600, None)]),
    ("first seen in the middle", [(600, "idle")], EVERY_MINUTE, [], [(0, 600, None), (600, 3600, "idle")]),
    (
        "the watchdog was away for twenty minutes",
        [(-1, "busy"), (2400, "idle")],
        [BEGUN + at for at in (*range(0, 1201, 60), *range(2400, 3601, 60))],
        [],
        [(0, 1200, "busy"), (1200, 2400, None), (2400, 3600, "idle")],
    ),
    (
        "it waited for memory in a restart, which is no absence",
        [(-1, "hung")],
        [BEGUN + at for at in (*range(0, 1201, 60), *range(2400, 3601, 60))],
        [Restart("a", "restart", BEGUN + 1200, "hung", "watchdog", BEGUN + 2380)],
        [(0, 3600, "hung")],
    ),
    ("the watchdog has stopped", [(-1, "busy")], EVERY_MINUTE[:11], [], [(0, 600, "busy"), (600, 3600, None)]),
    ("no trace: the journal alone speaks", [(-1, "busy")], [], [], [(0, 3600, "busy")]),
    ("records after the window", [(-1, "busy"), (4000, "dead")], EVERY_MINUTE, [], [(0, 3600, "busy")]),
]


@pytest.mark.parametrize(
    ("records", "looks", "acts", "right"), [one[1:] for one in SPANS], ids=[one[0] for one in SPANS]
)
def test_spans(records, looks, acts, right):
    rows = [row(at, "state", state=state, reason="r") for at, state in records]
    assert states(timeline.spans(rows, looks, acts, BEGUN, BEGUN + 3600)) == right


@given(
    st.lists(st.tuples(st.integers(-4000, 8000), st.sampled_from(["busy", "idle", "hung", "odd"])), max_size=12),
    st.lists(st.integers(-100, 4000), max_size=30),
    st.lists(st.tuples(st.integers(-900, 4000), st.integers(0, 900)), max_size=3),
)
def test_spans_fill_the_window_and_no_two_overlap(records, looks, acts):
    rows = [row(at, "state", state=state) for at, state in records]
    done = [Restart(str(n), "restart", BEGUN + a, "", "", BEGUN + a + b) for n, (a, b) in enumerate(acts)]
    found = timeline.spans(rows, sorted(BEGUN + at for at in looks), done, BEGUN, BEGUN + 3600)
    assert found[0].begin == BEGUN
    assert found[-1].end == BEGUN + 3600
    assert all(a.end == b.begin for a, b in itertools.pairwise(found))
    assert all(one.begin < one.end for one in found)


def test_the_trace_is_put_on_the_wall_clock_by_the_anchor_before_it():
    clocks = timeline.Clocks([Anchor(1000.0, "", 0.0, BEGUN), Anchor(5000.0, "", 0.0, BEGUN + 9000)])
    assert clocks.wall(1060.0) == BEGUN + 60
    assert clocks.wall(5060.0) == BEGUN + 9060
    assert clocks.wall(900.0) == BEGUN - 100
    assert timeline.Clocks([]).wall(7.0) == 7.0


TOKENS = [
    ("it grows", [look(0, 100), look(60, 700)], [None, 10.0]),
    ("another process", [look(0, 100), look(60, 700, start=2.0)], [None, None]),
    ("a counter that falls", [look(0, 700), look(60, 100)], [None, None]),
    ("not exported", [look(0), look(60)], [None, None]),
    ("nobody looked in between", [look(0, 100), look(900, 700)], [None, None]),
]


@pytest.mark.parametrize(("lines", "right"), [one[1:] for one in TOKENS], ids=[one[0] for one in TOKENS])
def test_tokens_a_second(lines, right):
    looks, lost = timeline.observations(lines, timeline.Clocks([]), 0, 3600)
    assert [one.tokens for one in timeline.samples(looks)] == right
    assert lost == 0


@pytest.mark.parametrize("line", ['{"t": 1', "[]", '"t"', '{"t": "x"}', "{}", "null", '{"t": NaN}', "[" * 20_000])
def test_lines_that_are_not_whole_are_left_out_and_counted(line):
    looks, lost = timeline.observations(['{"trace": 1}', look(1), line, look(2)], timeline.Clocks([]), 0, 10)
    assert (len(looks), lost) == (2, 1)


def test_a_restart_is_told_with_how_it_ended_and_where_its_evidence_is():
    rows = [
        row(10, "decided", action="restart", reason="hung", transaction={"id": "a", "by": "watchdog"}),
        row(12, "phase", phase="recheck", transaction={"id": "a", "evidence": "evidence/qwen/x"}),
        row(90, "closed", id="a", outcome="serving again"),
        row(100, "decided", action="start", reason="given up", transaction={"id": "b"}),
        row(110, "aborted", id="b", reason="docker was first"),
        row(200, "decided", action="restart", reason="asked", transaction={"id": "c", "by": "ann"}),
    ]
    found = timeline.restarts(rows, BEGUN, BEGUN + 3600)
    assert [(one.action, one.outcome, one.evidence, one.by) for one in found] == [
        ("restart", "serving again", "x", "watchdog"),
        ("start", "called off: docker was first", None, "watchdog"),
        ("restart", None, None, "ann"),
    ]
    assert [one.id for one in timeline.restarts(rows, BEGUN + 95, BEGUN + 3600)] == ["b", "c"]


def test_what_would_have_been_done_is_a_decision_too():
    rows = [
        row(10, "alert", reason="would restart: it is hung"),
        row(15, "alert", reason="restart: it is hung"),
        row(20, "alert", reason="memory is short"),
        row(30, "phase", phase="stop"),
        row(40, "maintenance", reason="new driver", by="ann"),
    ]
    found = [(one.kind, one.what, one.text) for one in timeline.events(rows, BEGUN, BEGUN + 3600)]
    assert found == [
        ("would", "would", "restart: it is hung"),
        ("alert", "alert", "memory is short"),
        ("maintenance", "maintenance", "new driver (by ann)"),
    ]


def test_an_evidence_folder_is_a_name_and_never_a_way_out():
    rows = [
        row(1, "decided", transaction={"id": "a"}),
        row(2, "phase", transaction={"id": "a", "evidence": "../../../etc"}),
    ]
    assert timeline.restarts(rows, BEGUN, BEGUN + 10)[0].evidence == "etc"
    rows[1]["transaction"]["evidence"] = "evidence/.."
    assert timeline.restarts(rows, BEGUN, BEGUN + 10)[0].evidence is None


@given(st.lists(st.tuples(st.floats(0, 86_000), st.floats(0.001, 9000)), max_size=200))
def test_a_plot_is_of_the_same_size_whatever_the_window_holds(pieces):
    found = [Span(at, at + length, "hung" if n % 2 else "busy") for n, (at, length) in enumerate(pieces)]
    runs = page.columns(found, 0, 86_400)
    assert runs[0][0] == 0
    assert runs[-1][1] == page.COLUMNS
    assert all(a[1] == b[0] for a, b in itertools.pairwise(runs))


def test_a_minute_of_hung_is_seen_in_a_week():
    runs = page.columns(
        [Span(0, 300_000, "busy"), Span(300_000, 300_060, "hung"), Span(300_060, 604_800, "busy")], 0, 604_800
    )
    assert [state for dummy, dummy_last, state in runs] == ["busy", "hung", "busy"]


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0 s"), (59, "59 s"), (60, "1 min"), (7500, "2 h 05 min"), (190_000, "2 d 4 h")]
)
def test_durations(seconds, said):
    assert page.lasted(seconds) == said


@pytest.mark.parametrize(
    ("looks", "right"),
    [
        ([(0, True), (67, True), (134, True), (201, False), (268, False)], [(0, 201)]),
        ([(0, False), (60, True), (120, False), (180, True), (240, False)], [(60, 120), (180, 240)]),
        ([(0, True), (60, True)], [(0, 360)]),  # the last look: as long as a look may be missing, and no longer
        ([(0, True), (1200, True)], [(0, 300), (1200, 1500)]),  # nobody knows what was between
        ([(3540, True)], [(3540, 3600)]),
        ([(0, False), (60, False)], []),
    ],
)
def test_a_lease_that_every_look_saw_is_one_stretch(looks, right):
    samples = [timeline.Sample(BEGUN + at, leases=("nightly (root)",) if held else ()) for at, held in looks]
    spans = timeline.held(samples, BEGUN + 3600)
    runs = []
    for one in spans:
        if runs and runs[-1][1] == one.begin - BEGUN:
            runs[-1] = (runs[-1][0], one.end - BEGUN)
        else:
            runs.append((one.begin - BEGUN, one.end - BEGUN))
    assert runs == right
    found = timeline.Timeline(BEGUN, BEGUN + 3600, samples=tuple(samples))
    drawn = page._lease_lane(found)
    assert "".join(drawn).count("<rect") == len(right)


HALF_DONE = [Restart("a", "restart", BEGUN + 600, "hung", "watchdog")]
LOOKED = [BEGUN + at for at in range(0, 601, 60)]


@pytest.mark.parametrize(
    ("wrote", "right"),
    [
        # the timer was stopped in the middle of it; it waits for the server, and writes nothing
        (660, [(0, 4260, "hung"), (4260, 7200, None)]),
        (3600, [(0, 7200, "hung")]),
    ],
)
def test_a_restart_that_nobody_works_on_any_more_is_no_look(wrote, right):
    now = Anchor(BEGUN + wrote, "b", 0.0, BEGUN + wrote)
    found = timeline.spans([row(-1, "state", state="hung")], LOOKED, HALF_DONE, BEGUN, BEGUN + 7200, now)
    assert states(found) == right


def placed(t, wall, state):
    """A state's row as the watchdog writes it: on its own clock, with an anchor by the wall clock of that moment."""
    anchor = {"t": BEGUN + t, "boot": "b", "uptime_s": t, "wall": BEGUN + wall}
    return row(wall, "state", state=state, t=BEGUN + t, anchor=anchor)


@pytest.mark.parametrize(
    ("rows", "right"),
    [
        # it booted with the clock two hours behind; one row was written while the clock was two hours ahead
        ([placed(0, -7200, "hung"), placed(60, 60, "idle")], [(0, 60, "hung"), (60, 3600, "idle")]),
        (
            [placed(0, 0, "busy"), placed(60, 7260, "unresponsive"), placed(120, 120, "idle")],
            [(0, 60, "busy"), (60, 120, "unresponsive"), (120, 3600, "idle")],
        ),
    ],
)
def test_a_wall_clock_that_was_set_right_moves_no_state(rows, right):
    now = Anchor(BEGUN + 3600, "b", 3600.0, BEGUN + 3600)
    assert states(timeline.spans(rows, EVERY_MINUTE, [], BEGUN, BEGUN + 3600, now)) == right


def test_a_state_whose_record_the_journal_has_forgotten_is_still_known():
    now, kept = Anchor(BEGUN + 3600, "b", 0.0, BEGUN + 3600), (BEGUN - 9e5, "busy", "progress was seen")
    assert states(timeline.spans([], EVERY_MINUTE, [], BEGUN, BEGUN + 3600, now, kept)) == [(0, 3600, "busy")]
    assert states(timeline.spans([], EVERY_MINUTE, [], BEGUN, BEGUN + 3600, now)) == [(0, 3600, None)]
    newer = [row(600, "state", state="idle")]
    found = timeline.spans(newer, EVERY_MINUTE, [], BEGUN, BEGUN + 3600, now, kept)
    assert states(found) == [(0, 600, None), (600, 3600, "idle")]
