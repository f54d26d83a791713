# SPDX-License-Identifier: GPL-3.0-or-later
"""A busy lease: who declared batch work, by which process, until when. Pure: what is alive and what time it is are arguments."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Longer than a day is forgotten, not meant; a lease can be renewed.
MOST_S = 24 * 3600.0
DEFAULT_S = 6 * 3600.0
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


@dataclass(frozen=True)
class Lease:
    """`pid` None: held by hand, until released. `start_ticks`: the process's start, so that a pid used again is not it.

    `created`, `expires`: seconds since the epoch. `boot`: the boot it was taken in.
    """

    name: str
    owner: str
    pid: int | None
    start_ticks: int | None
    host: str
    boot: str | None
    created: float
    expires: float


def holds(lease: Lease, *, now: float, boot: str | None, start_ticks_of: Mapping[int, int]) -> bool:
    """Whether the lease holds now. `start_ticks_of`: the processes there are, by pid."""
    if not lease.created - MOST_S <= now < min(lease.expires, lease.created + MOST_S):
        return False  # expired, or written by a clock that was a day ahead
    if lease.boot is not None and boot is not None and lease.boot != boot:
        return False
    return lease.pid is None or start_ticks_of.get(lease.pid) == lease.start_ticks


def as_json(lease: Lease) -> dict[str, Any]:
    """The lease file's content."""
    return dict(vars(lease))


def from_json(value: Any) -> Lease | None:
    """The lease in a file's content, or None when it is none: a file that anybody may write is believed in nothing."""
    if not isinstance(value, Mapping):
        return None
    name, owner, host, boot = (value.get(key) for key in ("name", "owner", "host", "boot"))
    numbers = [value.get("created"), value.get("expires")]
    if not isinstance(name, str) or not NAME.fullmatch(name) or not isinstance(owner, str) or not isinstance(host, str):
        return None
    if not owner.isprintable() or not host.isprintable():
        return None
    if any(isinstance(n, bool) or not isinstance(n, (int, float)) or not math.isfinite(n) for n in numbers):
        return None
    pid, ticks = value.get("pid"), value.get("start_ticks")
    if pid is not None and (not isinstance(pid, int) or not isinstance(ticks, int)):
        return None
    return Lease(
        name=name,
        owner=owner,
        pid=pid,
        start_ticks=ticks if isinstance(ticks, int) else None,
        host=host,
        boot=boot if isinstance(boot, str) else None,
        created=float(numbers[0] or 0),
        expires=min(float(numbers[1] or 0), float(numbers[0] or 0) + MOST_S),
    )
