# SPDX-License-Identifier: GPL-3.0-or-later
"""A server-year under every policy: ours restarts nothing that is well, finds everything, and leads the league."""

from __future__ import annotations

import pytest

from .league import play, table


@pytest.fixture(scope="module")
def lines():
    found = play(1.0, seed=11)
    print("\n" + table(found))
    return {line.name: line for line in found}


OURS = "gb10.serving, heartbeat and /load"
STOCK = "gb10.serving, stock vLLM"


@pytest.mark.parametrize("name", [OURS, STOCK])
def test_no_false_restart_and_every_hang_found(lines, name):
    line = lines[name]
    assert line.hangs > 10, "the year has to have hangs, or nothing is shown"
    assert line.false == 0
    assert line.found == line.hangs


def test_with_the_heartbeat_no_working_server_is_posted_to(lines):
    assert lines[OURS].busy_probes == 0


def test_storms_stay_within_the_budget(lines):
    assert max(lines[OURS].storm, lines[STOCK].storm) <= 3


def test_the_heartbeat_finds_sooner_within_five_minutes_mostly(lines):
    """Simulated time, so this is a property of the policy and no timing of this machine."""
    assert lines[OURS].median_s < 300
    assert lines[OURS].median_s < lines[STOCK].median_s


def test_the_others_are_what_they_are(lines):
    """The control: a league in which everybody restarts nothing wrongly would show nothing."""
    others = [line for name, line in lines.items() if name not in (OURS, STOCK)]
    assert len(others) == 9
    assert sum(line.false > 0 for line in others) >= 6
    chat = lines["chat probe, 5 min, 45 s, 5 fails"]
    assert chat.false > 10
    assert lines["the same and a counter of 500s"].storm > chat.storm
    assert min(line.lost_min_per_year for line in others) > lines[OURS].lost_min_per_year
