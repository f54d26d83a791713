# SPDX-License-Identifier: GPL-3.0-or-later
"""Containers of docker, podman and compose: how they are reached, and what their engines' words mean. It runs nothing."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from .._core.servers import Restart

#: podman has no daemon: what it starts is its child, and would be confined as the watchdog's unit is, and end with it.
#: systemd runs it beside that unit; for a user in a session of theirs, which knows where rootless containers are.
_BESIDE = ("systemd-run", "--quiet", "--collect", "--wait", "--pipe")


def client_of(restart: Restart) -> tuple[str, ...]:
    """The command of a container's client, with its socket or user."""
    if restart.kind != "podman":
        return ("docker", "--host", restart.socket) if restart.socket else ("docker",)
    if restart.user is not None:
        return (*_BESIDE, f"--uid={restart.user}", "--property=PAMName=login", "--", "podman")
    # set by systemd for whatever it runs
    return (*_BESIDE, "--property=KillMode=process", "--", "podman") if "INVOCATION_ID" in os.environ else ("podman",)


def of_compose(restart: Restart) -> tuple[str, ...]:
    """The command that lists the ids of a compose service's containers."""
    label = "--filter=label=com.docker.compose"
    named = (f"{label}.project={restart.project}", f"{label}.service={restart.service}")
    return (*client_of(restart), "ps", "--all", "--quiet", *named)


def meant_to_be_up(events: Sequence[str], tells_stops: bool) -> bool | None:
    """Whether a container that is down ended by itself since its last start; False where somebody killed or stopped it.

    docker says "kill", "die", "stop" of one that was stopped, and "die" alone of one that ended by itself. podman (4.3.1)
    says "died" of both, and "stop" only of one that had to be killed: for it `tells_stops` is false.
    None where it cannot be told.
    """
    starts = [n for n, word in enumerate(events) if word == "start"]
    since_start = set(events[starts[-1] :] if starts else events)
    if since_start & {"kill", "stop"} and since_start & {"die", "died"}:
        return False
    return True if tells_stops and "die" in since_start else None


def published(inspected: Mapping[str, Any], port: int) -> int | None:
    """The container's own port that it publishes as this machine's `port`; None where it publishes none as that.

    docker and podman say it alike: {"NetworkSettings": {"Ports": {"8001/tcp": [{"HostIp": "", "HostPort": "8000"}]}}}.
    """
    ports = (inspected.get("NetworkSettings") or {}).get("Ports") or {}
    for inner, outer in ports.items():
        number, dummy, protocol = inner.partition("/")
        if protocol == "tcp" and any(str(one.get("HostPort")) == str(port) for one in outer or ()):
            return int(number)
    return None


_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)$")


def since(text: str, now: Callable[[], float]) -> float | None:
    """When that was on the clock `now`. docker writes UTC, podman the time where it was started: 02:49:19+01:00."""
    told = _RFC3339.match(text)
    if told is None:
        return None
    started = datetime.fromisoformat(told[1] + told[2].replace("Z", "+00:00")).timestamp()
    if started <= 0:  # the year 1: never
        return None
    return now() - max(time.time() - started, 0.0)
