# SPDX-License-Identifier: GPL-3.0-or-later
"""The watchdog's clock: in a container, whose machine has been up for longer, and where the wall clock jumps."""

from __future__ import annotations

import os
import time

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.clock import Anchor, Now, advance, uptime_s


def test_a_rebooted_container_is_as_old_as_its_init(tmp_path):
    stat = tmp_path / "stat"
    ticks = int((time.clock_gettime(time.CLOCK_BOOTTIME) - 5.0) * os.sysconf("SC_CLK_TCK"))
    stat.write_text("1 (systemd (x)) S " + " ".join(["0"] * 18) + f" {ticks} 0")
    assert 4.5 < uptime_s(stat) < 6.5
    assert uptime_s(tmp_path / "none") > 0
    before = Anchor(t=1000.0, boot="a", uptime_s=900.0, wall=5000.0)
    after = advance(before, Now(boot="b", uptime_s=5.0, wall=5020.0, sure=True))
    assert after.t == 1020.0, "the budget is not given back by the machine's uptime"


A_DAY = 86_400.0
BEFORE = Anchor(t=1000.0, boot="a", uptime_s=900.0, wall=5000.0)


@pytest.mark.parametrize("jump", [A_DAY, -A_DAY, 0.0])
@pytest.mark.parametrize("sure", [True, False])
def test_within_a_boot_it_follows_no_jump(jump, sure):
    assert advance(BEFORE, Now("a", 960.0, 5060.0 + jump, sure)).t == 1060.0


@pytest.mark.parametrize(
    ("jump", "sure", "passed"),
    [
        (0.0, True, 120.0),
        (A_DAY, True, 120.0 + A_DAY),  # a synchronised clock says so: it was off for a day
        (A_DAY, False, 30.0),
        (-A_DAY, True, 30.0),
        (-A_DAY, False, 30.0),
    ],
)
def test_across_a_reboot_an_unsure_clock_is_worth_the_uptime(jump, sure, passed):
    assert advance(BEFORE, Now("b", 30.0, 5120.0 + jump, sure)).t == 1000.0 + passed


def test_it_never_runs_backwards():
    assert advance(BEFORE, Now("a", 10.0, 0.0, True)).t == 1000.0
