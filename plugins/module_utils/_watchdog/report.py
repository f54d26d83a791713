# SPDX-License-Identifier: GPL-3.0-or-later
"""`llm-watchdog report`: reads what a host has recorded, and writes one page of it. The page itself is made in `page`."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from .._busy import store as busy_store
from .._core import urls
from .._core.errors import ConfigError
from .._core.servers import Server
from .._core.settings import Settings
from . import clock, explain
from .evidence import UNIT_PROPERTIES
from .page import HostPage, Piece, ServerPage, lasted, page
from .scrub import scrubbed
from .store import Store, before, unreadable
from .timeline import timeline
from .watched import settings_of

MOST_BYTES = 256 * 1024
MOST_ROWS = 12
MOST_SINCE_S = 366 * 86_400.0
_POWER = re.compile(r"\d+W\s*/")
_BAD = re.compile(r"error|traceback|exception", re.IGNORECASE)


def _rows(text: str) -> list[str]:
    return [line for line in scrubbed(text).splitlines() if line.strip()]


def _unit(text: str) -> Piece:
    known = tuple(line for line in _rows(text) if line.partition("=")[0] in UNIT_PROPERTIES)
    return Piece("unit.txt", "what systemd said of its unit", known)


def _processes(text: str) -> Piece:
    rows = _rows(text)
    more = f", the first {MOST_ROWS} of {len(rows) - 1}" if len(rows) > MOST_ROWS + 1 else ""
    return Piece("processes.txt", f"the server's processes{more}", tuple(rows[: MOST_ROWS + 1]))


def _kernel(text: str) -> Piece:
    return Piece("kernel.txt", "the kernel's last lines on GPU and memory", tuple(_rows(text)[-5:]))


def _gpu(text: str) -> Piece:
    shown = tuple(line for line in _rows(text) if _POWER.search(line))
    return Piece("gpu.txt", "what nvidia-smi said", shown[:4])


def _log(text: str) -> Piece:
    rows = text.splitlines()
    bad = sum(1 for line in rows if _BAD.search(line))
    return Piece(
        "log.txt", f"{len(rows)} lines, {bad} of them of errors; to be read on the host, as it may hold prompts"
    )


def _stacks(text: str) -> Piece:
    return Piece("stacks.txt", f"{len(text.splitlines())} lines; where its threads stood, to be read on the host")


def _looks(text: str) -> Piece:
    return Piece(
        "observations.jsonl", f"the last {max(len(text.splitlines()) - 1, 0)} looks; llm-watchdog replay reads it"
    )


# What of the evidence may leave the host. A file that is not named here is not opened.
_PIECES = {
    "unit.txt": _unit,
    "processes.txt": _processes,
    "kernel.txt": _kernel,
    "gpu.txt": _gpu,
    "log.txt": _log,
    "stacks.txt": _stacks,
    "observations.jsonl": _looks,
}


def pieces(folder: Path) -> list[Piece]:
    """What may be shown of one restart's evidence."""
    found: list[Piece] = []
    for name, made in _PIECES.items():
        try:
            with (folder / name).open("rb") as file:
                text = file.read(MOST_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        found.append(made(text))
    return found


def _lines(store: Store, name: str) -> list[str]:
    lines: list[str] = []
    now = store.folder / "traces" / f"{name}.jsonl"
    for path in (before(now), now):
        try:
            lines += path.read_bytes().decode("utf-8", "replace").split("\n")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise unreadable(path, error) from None
    return lines


def _budget(settings: Settings) -> str:
    return f"{settings.budget_6h} in 6 h, {settings.budget_24h} in 24 h"


def _server(
    store: Store, server: Server, settings: Settings, records: Sequence[Mapping[str, Any]], since: float, wall: float
) -> ServerPage:
    own = settings_of(settings, server)
    state = store.load(server.name, mend=False)
    t = clock.advance(state.anchor, clock.read()).t
    mine = [row for row in records if row.get("server") == server.name]
    kept = (
        (state.state_since, state.state, state.reason or "") if state.state and state.state_since is not None else None
    )
    found = timeline(mine, _lines(store, server.name), state.anchor, since, wall, kept)
    folder = store.folder / "evidence" / server.name
    return ServerPage(
        name=server.name,
        url=urls.redacted(server.url),
        engine=state.engine,
        mode=own.mode,
        budget=_budget(own),
        status=explain.row(own, state, t, wall),
        words=explain.sentences(own, state, t, wall),
        timeline=found,
        folder=str(folder),
        evidence={one.id: pieces(folder / one.evidence) for one in found.restarts if one.evidence},
    )


def report(servers: Sequence[Server], settings: Settings, store: Store, since_s: float, wall: float) -> str:
    """The page over the last `since_s` seconds before `wall`. Raises ConfigError where nothing can be read."""
    if not store.folder.is_dir():
        raise ConfigError([f"{store.folder}: there is no such folder; the watchdog has recorded nothing there"])
    if since_s > MOST_SINCE_S:
        raise ConfigError([f"--since: {lasted(since_s)} is more than a year; nothing is kept for so long"])
    store.must_be_readable()
    records, since = list(store.journal()), wall - since_s
    made = [_server(store, server, settings, records, since, wall) for server in servers]
    leases = [
        f"Busy lease {one.name} of {one.owner}: holds for another {lasted(one.expires - wall)} at most."
        for one in busy_store.held()
    ]
    zone = datetime.fromtimestamp(wall).astimezone().tzinfo
    if zone is None:
        raise ConfigError(["this host's time zone cannot be told"])
    return page(HostPage(socket.gethostname(), since, wall, zone, made, leases, tuple(store.notes)))
