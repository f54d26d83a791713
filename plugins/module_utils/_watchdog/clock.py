# SPDX-License-Identifier: GPL-3.0-or-later
"""The watchdog's clock: seconds that never run backwards, go on across reboots, and follow no jump of the wall clock.

Within a boot it is the boot clock. Across a reboot it goes on by the wall clock's difference, but where the wall clock
is unsure only by this boot's uptime: what happened in an earlier boot is never taken to be older than that, so a clock
that jumps a day ahead cannot give the restart budget back.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from .._core.boot import boot_id


@dataclass(frozen=True)
class Anchor:
    """Where the clock stood when it was last read. `wall`: seconds since the epoch."""

    t: float
    boot: str
    uptime_s: float
    wall: float


@dataclass(frozen=True)
class Now:
    """This machine's clocks at one moment. `sure`: the wall clock is known to be synchronised."""

    boot: str
    uptime_s: float
    wall: float
    sure: bool


def advance(anchor: Anchor | None, now: Now) -> Anchor:
    """The clock now. Pure."""
    if anchor is None:
        return Anchor(now.wall, now.boot, now.uptime_s, now.wall)
    if anchor.boot == now.boot:
        t = anchor.t + max(now.uptime_s - anchor.uptime_s, 0.0)
    else:
        passed = now.wall - anchor.wall
        if not now.sure or passed < now.uptime_s:
            passed = now.uptime_s
        t = anchor.t + max(passed, 0.0)
    return Anchor(t, now.boot, now.uptime_s, now.wall)


def read() -> Now:
    """This machine's clocks."""
    sure = Path("/run/systemd/timesync/synchronized").exists() or Path("/run/chrony").exists()
    return Now(boot_id() or "unknown", uptime_s(), time.time(), sure)


def uptime_s(stat: Path = Path("/proc/1/stat")) -> float:
    """Since when this system's init runs. In a container that is not the machine's uptime, which would let a reboot of
    the container look like weeks gone by, and give the restart budget back."""
    machine = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        text = stat.read_text(errors="replace")
        return machine - int(text[text.rfind(")") + 2 :].split()[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return machine
