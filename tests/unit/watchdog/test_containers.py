# SPDX-License-Identifier: GPL-3.0-or-later
"""What docker's and podman's words mean: was it stopped or did it end, and since when does it run."""

from __future__ import annotations

import time

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._core.servers import Restart
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.containers import (
    client_of,
    meant_to_be_up,
    published,
    since,
)

#: what docker 20.10 and podman 4.3.1 say, oldest first
DOCKER = [
    ("stopped", "create start kill kill die stop", False),
    ("killed", "create start kill die", False),
    ("ended by itself", "create start die", True),
    ("stopped, started, ended by itself", "start kill die stop start die", True),
    ("its health checks are no end", "start exec_create: exec_start: exec_die", None),
    ("health checks between a stop and its end", "start kill exec_die exec_create: exec_die die stop", False),
    ("restarted by its policy, then stopped", "start die start kill die stop", False),
    ("its events are gone", "", None),
    ("its start is gone", "die", True),
    ("a signal that ends nothing", "start kill", None),
]
PODMAN = [
    ("stopped in time", "create init start died cleanup", None),
    ("stopped by force", "create init start stop died cleanup", False),
    ("killed", "init start kill died cleanup", False),
    ("nothing", "create", None),
]


@pytest.mark.parametrize(("events", "right"), [case[1:] for case in DOCKER], ids=[case[0] for case in DOCKER])
def test_docker(events, right):
    assert meant_to_be_up(events.split(), tells_stops=True) is right


@pytest.mark.parametrize(("events", "right"), [case[1:] for case in PODMAN], ids=[case[0] for case in PODMAN])
def test_podman(events, right):
    assert meant_to_be_up(events.split(), tells_stops=False) is right


def test_podman_is_run_beside_the_watchdogs_unit(monkeypatch):
    """As a child of that unit it could make no container, and its containers would be confined as the unit is."""
    monkeypatch.delenv("INVOCATION_ID", raising=False)
    assert client_of(Restart("podman", "qwen")) == ("podman",)
    assert client_of(Restart("docker", "qwen", socket="unix:///x")) == ("docker", "--host", "unix:///x")
    monkeypatch.setenv("INVOCATION_ID", "5f0c")
    beside = client_of(Restart("podman", "qwen"))
    assert (beside[0], beside[-2:]) == ("systemd-run", ("--", "podman")) and "--property=KillMode=process" in beside
    ryders = client_of(Restart("podman", "qwen", user="ryder"))
    assert "--uid=ryder" in ryders
    assert "--property=KillMode=process" not in ryders, "systemd refuses it in a session"
    assert client_of(Restart("docker", "qwen")) == ("docker",)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("2026-12-02T01:49:17.126708269Z", 1000.0 - 60),
        ("2026-12-02T02:49:17.126708269+01:00", 1000.0 - 60),
        ("2026-12-01T20:49:17-05:00", 1000.0 - 60),
        ("2026-12-02T01:51:17Z", 1000.0),  # the clock was set back: not in the future
        ("0001-01-01T00:00:00Z", None),
        ("", None),
        ("2026-12-02 01:49:17.126708269 +0000 UTC", None),
    ],
)
def test_since_when_it_runs(text, right, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1796176217.0)  # 2026-12-02 01:50:17 UTC
    assert since(text, lambda: 1000.0) == right


@pytest.mark.parametrize(
    ("ports", "right"),
    [
        ({"8001/tcp": [{"HostIp": "", "HostPort": "8000"}]}, 8001),
        ({"8001/tcp": [{"HostIp": "0.0.0.0", "HostPort": "8000"}, {"HostIp": "::", "HostPort": "8000"}]}, 8001),
        ({"8001/udp": [{"HostIp": "", "HostPort": "8000"}], "9/tcp": None}, None),
        ({"8000/tcp": [{"HostIp": "", "HostPort": "18000"}]}, None),
        (None, None),
    ],
)
def test_the_port_inside_is_told_by_the_one_outside(ports, right):
    assert published({"NetworkSettings": {"Ports": ports}}, 8000) == right
    assert published({}, 8000) is None
