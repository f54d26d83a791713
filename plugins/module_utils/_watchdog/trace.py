# SPDX-License-Identifier: GPL-3.0-or-later
"""Traces: what was seen of one server over time, as JSON Lines (docs/trace.md). Text in and out; files are the caller's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from .._core.errors import ConfigError
from .._core.servers import ENGINE_ALIASES
from .._core.settings import Settings, with_values
from .._health.observation import Observation, from_json

VERSION = 1
_CUT = object()


@dataclass(frozen=True)
class Trace:
    """A trace read whole. `note`: what was left out of it, a sentence, or None."""

    name: str
    server: dict[str, Any]
    settings: Settings
    observations: tuple[Observation, ...] = field(default=())
    note: str | None = None


def decoded(data: bytes) -> str:
    """UTF-8, but for a last line that was cut off in the middle of a letter. Raises UnicodeDecodeError."""
    whole = data.rfind(b"\n") + 1
    return data[:whole].decode("utf-8-sig") + data[whole:].decode("utf-8", "replace")


def _rows(text: str, name: str) -> Iterator[tuple[int, Any]]:
    lines = text.split("\n")  # not splitlines: a string may hold any other line separator
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError):
            last = not any(rest.strip() for rest in lines[number:])
            if last and number > 1:
                yield number, _CUT  # while it was written
                return
            raise ConfigError([f"{name}: line {number} is not JSON; a trace is one JSON object a line"]) from None


def parse(text: str, name: str, settings: Settings | None = None) -> Trace:
    """Reads a trace. `settings`: those to start from; the header's go on top. Raises ConfigError naming file and key."""
    rows = _rows(text, name)
    first = next(rows, None)
    if first is None:
        raise ConfigError([f"{name}: is empty; the first line of a trace is its header"])
    header = first[1]
    if not isinstance(header, dict) or "trace" not in header:
        raise ConfigError([f'{name}: line {first[0]}: no header; a trace begins with {{"trace": 1, …}}'])
    if header["trace"] != VERSION:
        raise ConfigError(
            [f"{name}: line {first[0]}: trace {header['trace']!r} is a version not known here (known: 1)"]
        )
    given = header.get("settings")
    given = {} if given is None else given
    if not isinstance(given, dict):
        raise ConfigError([f"{name}: settings: must be an object of setting names and values"])
    chosen = with_values(settings or Settings(), given, f"{name}: settings")
    server = header.get("server") if isinstance(header.get("server"), dict) else {}
    engine = str((server or {}).get("engine") or "").lower()
    engine = ENGINE_ALIASES.get(engine, engine)
    observations: list[Observation] = []
    note = None
    for number, row in rows:
        if row is _CUT:
            note = f"{name}: line {number} is cut off and was left out"
            break
        if not isinstance(row, dict):
            raise ConfigError([f"{name}: line {number}: an observation is a JSON object"])
        try:
            seen = from_json(row)
        except KeyError:
            raise ConfigError([f"{name}: line {number}: t, the seconds since the trace began, is missing"]) from None
        if observations and seen.t < observations[-1].t:
            raise ConfigError([f"{name}: line {number}: t runs backwards ({seen.t:g} after {observations[-1].t:g})"])
        observations.append(replace(seen, engine=engine) if engine and seen.engine is None else seen)
    return Trace(name, server or {}, chosen, tuple(observations), note)


def header_line(server: dict[str, Any], settings: dict[str, Any]) -> str:
    """The first line of a trace, without its newline."""
    return json.dumps({"trace": VERSION, "server": server, "settings": settings})
