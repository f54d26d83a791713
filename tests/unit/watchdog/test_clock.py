# SPDX-License-Identifier: GPL-3.0-or-later
"""The watchdog's clock in a container, whose machine has been up for longer."""

from __future__ import annotations

import os
import time

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
