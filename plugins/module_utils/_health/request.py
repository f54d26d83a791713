# SPDX-License-Identifier: GPL-3.0-or-later
"""What a user asked to have checked, validated: the same for the command and the module."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from .._core import urls
from .._core.errors import ConfigError, Faults
from .._core.keys import read_key
from .._core.servers import Description, Server
from .check import DEFAULT_WAIT_S, Options, Subject

# A day: anything longer is a mistyped number.
MOST_S = 86_400.0


def waits(given: Sequence[float] | None) -> tuple[float, ...]:
    """The two waits: none given is the default twice, one is used twice."""
    if not given:
        return (DEFAULT_WAIT_S, DEFAULT_WAIT_S)
    return (given[0], given[0]) if len(given) == 1 else tuple(given)


def options(
    *,
    wait: Sequence[float] | None = None,
    patience: float | None = None,
    connect_timeout: float = 3.0,
    read_timeout: float = 15.0,
    probe: str | None = None,
    probe_timeout: float = 20.0,
    trust_env: bool = False,
    names: Mapping[str, str] | None = None,
) -> Options:
    """Checked options of a run, in seconds. `names`: how the user calls each (for messages). Raises ConfigError."""
    call = {
        name: (names or {}).get(name, name)
        for name in ("wait", "patience", "connect_timeout", "read_timeout", "probe_timeout")
    }
    faults = []
    if wait is not None and len(wait) > 2:
        faults.append(f"{call['wait']}: is given {len(wait)} times; it takes one wait, or the two waits")
    rows: list[tuple[str, float | None, float]] = [
        *((call["wait"], value, 0.0) for value in wait or ()),
        (call["patience"], patience, 0.0),
        (call["connect_timeout"], connect_timeout, 0.001),
        (call["read_timeout"], read_timeout, 0.001),
        (call["probe_timeout"], probe_timeout, 0.001),
    ]
    for name, value, least in rows:
        if value is not None and not (math.isfinite(value) and least <= value <= MOST_S):
            faults.append(f"{name}: {value:g} is not a number of seconds between {least:g} and {MOST_S:g}")
    if faults:
        raise ConfigError(faults)
    return Options(
        waits_s=waits(wait),
        patience_s=patience,
        connect_timeout_s=connect_timeout,
        read_timeout_s=read_timeout,
        probe=probe,
        probe_timeout_s=probe_timeout,
        trust_env=trust_env,
    )


def subject_of_url(url: str, *, engine: str = "auto", role: str = "auto", api_key: str | None = None) -> Subject:
    """A server given by its address alone. Raises ConfigError."""
    problem = urls.problem_with(url)
    if problem:
        raise ConfigError([f"url: {problem}"])
    if api_key and urls.has_user(url):
        raise ConfigError(["url: has a user in it, and a key is given too; only one can be sent: keep one"])
    base = urls.base(url)
    host, port = urls.host_and_port(base)
    name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return Subject(name=name, url=urls.redacted(url), base=base, engine=engine, role=role, api_key=api_key)


def subject_of_server(server: Server, patience_s: float | None = None) -> Subject:
    """A described server; its key is read from its file where it has one. `patience_s`: where it has none of its own.
    Raises ConfigError."""
    api_key = read_key(server.api_key_file, f"server {server.name}: api_key_file") if server.api_key_file else None
    return Subject(
        name=server.name,
        url=urls.redacted(server.url),
        base=urls.base(server.url),
        engine=server.engine,
        role=server.role,
        probe=server.probe,
        api_key=api_key,
        lifecycle=server.lifecycle,
        patience_s=server.patience_s if server.patience_s is not None else patience_s,
        start_ceiling_s=server.start_ceiling_s,
        restart=server.restart,
    )


def subjects_of(described: Description) -> list[Subject]:
    """All described servers. Raises ConfigError with every fault."""
    found, faults = [], Faults()
    patience_s = described.settings.get("patience_s")
    for server in described.servers:
        with faults:
            found.append(subject_of_server(server, patience_s))
    faults.tell()
    return found


def with_patiences(subjects: Sequence[Subject], remembered: Mapping[str, float]) -> list[Subject]:
    """The subjects with the patience that the watchdog had with those it knows, by `urls.address`."""
    return [replace(one, patience_s=remembered.get(urls.address(one.base), one.patience_s)) for one in subjects]
