# SPDX-License-Identifier: GPL-3.0-or-later
"""Leases as files in /run/gb10-serving/busy: one file a lease, written whole or not at all, gone with the boot."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from .._core.boot import boot_id
from .._core.errors import ConfigError
from .lease import DEFAULT_S, MOST_S, NAME, Lease, as_json, from_json, holds

# A lease is 300 bytes; a file that is larger is not one.
MOST_BYTES = 4096


def folder() -> Path:
    """Where leases lie; $GB10_BUSY_DIR for tests and odd hosts."""
    return Path(os.environ.get("GB10_BUSY_DIR") or "/run/gb10-serving/busy")


def _start_ticks(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        words = text[text.rfind(")") + 2 :].split()
        return None if words[0] in "ZX" else int(words[19])  # it has ended, though nobody has taken note of it
    except (OSError, ValueError, IndexError):
        return None


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _path(name: str, pid: int | None) -> Path:
    return folder() / f"{os.getuid()}-{name}-{pid or 'held'}.json"


def wanted(name: str, for_s: float = DEFAULT_S, pid: int | None = None) -> Lease:
    """The lease that `hold` would take. Raises ConfigError."""
    if not NAME.fullmatch(name):
        raise ConfigError([f"name: {name!r} must be letters, digits, . _ @ - and at most 64 of them"])
    if not 0 < for_s <= MOST_S:
        raise ConfigError([f"for: a lease lasts at most 24 h, not {for_s / 3600:.1f} h; it can be renewed"])
    ticks = None
    if pid is not None:
        ticks = _start_ticks(pid)
        if ticks is None:
            raise ConfigError([f"pid: there is no process {pid}"])
    now = time.time()
    return Lease(name, _user(), pid, ticks, socket.gethostname(), boot_id(), now, now + for_s)


def hold(name: str, for_s: float = DEFAULT_S, pid: int | None = None) -> Lease:
    """Takes or renews a lease. `pid`: the process it dies with; None: until released or expired. Raises ConfigError."""
    lease = wanted(name, for_s, pid)
    path = _path(name, pid)
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        if not folder().is_dir():
            folder().mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):
                folder().chmod(0o1777)  # every user's jobs may declare themselves; nobody removes another's
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with os.fdopen(descriptor, "w") as file:
            json.dump(as_json(lease), file)
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise ConfigError(
            [f"{folder()}: the lease cannot be written ({error.strerror}); the role busy_flag makes this folder"]
        ) from None
    return lease


def _read_all() -> Iterator[tuple[Path, Lease | None]]:
    try:
        names = sorted(os.listdir(folder()))
    except OSError:
        return
    for name in names:
        path = folder() / name
        if path.suffix != ".json":
            continue
        lease = None
        try:
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
                lease = from_json(json.loads(file.read(MOST_BYTES)))
        except (OSError, ValueError, OverflowError, RecursionError):
            pass  # anybody may write here: no file of theirs may stop the watchdog
        yield path, lease


def leases() -> list[tuple[Lease, bool]]:
    """All leases with whether each holds. Those that do not hold any more are removed where this user may."""
    now, boot, found = time.time(), boot_id(), []
    for path, lease in _read_all():
        if lease is None:
            continue
        ticks = {lease.pid: t} if lease.pid is not None and (t := _start_ticks(lease.pid)) is not None else {}
        live = holds(lease, now=now, boot=boot, start_ticks_of=ticks)
        if not live:
            with contextlib.suppress(OSError):
                path.unlink()
        found.append((lease, live))
    return found


def held() -> list[Lease]:
    """The leases that hold now."""
    return [lease for lease, live in leases() if live]


def releasable(name: str, pid: int | None = None) -> list[tuple[Path, Lease]]:
    """This user's leases of that name (root: everybody's); with `pid` that process's only."""
    return [
        (path, lease)
        for path, lease in _read_all()
        if lease is not None
        and lease.name == name
        and pid in (None, lease.pid)
        and (os.getuid() == 0 or path.name.startswith(f"{os.getuid()}-"))
    ]


def release(name: str, pid: int | None = None) -> int:
    """Gives back what is `releasable`. How many there were."""
    count = 0
    for path, _lease in releasable(name, pid):
        with contextlib.suppress(OSError):  # gone already, or another's file that has our number in its name
            path.unlink()
            count += 1
    return count


#: Blocks of this process that run now, by their lease's name; and whether the process had that lease before the first.
_blocks: Counter[str] = Counter()
_given: dict[str, bool] = {}
_blocks_lock = threading.Lock()


@contextmanager
def busy(name: str, for_s: float = DEFAULT_S) -> Iterator[Lease]:
    """`with busy("nightly"): …` holds a lease for as long as the block runs; a killed process's lease dies with it.

    A block within a block of that name, in another thread, or in a job that `llm-busy run` gave that lease, shares it: it
    ends with whoever took it."""
    pid, now = os.getpid(), time.time()
    with _blocks_lock:
        there = [one for one in held() if (one.name, one.pid) == (name, pid)]
        lease = hold(name, min(max([for_s, *(one.expires - now for one in there)]), MOST_S), pid)
        if not _blocks[name]:
            _given[name] = bool(there)
        _blocks[name] += 1
    try:
        yield lease
    finally:
        with _blocks_lock:
            _blocks[name] -= 1
            if not _blocks[name] and not _given[name]:
                with contextlib.suppress(OSError):
                    _path(name, pid).unlink()


def renewed(lease: Lease, for_s: float) -> Lease:
    """The same lease until `for_s` from now."""
    hold(lease.name, for_s, lease.pid)
    return replace(lease, expires=time.time() + for_s)
