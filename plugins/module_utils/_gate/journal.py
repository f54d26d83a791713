# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Requests that were served unchecked, kept in a bounded file until the API has been told.

One file for all workers of a proxy: appends of one short line are atomic, so nobody waits for a lock. Whoever reports
takes the lock, moves the file aside and works through it; a crash in between means lines told twice, under the same
id, never lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from .verdict import Cause, Question

#: Bytes. Some 20,000 requests: an outage of seven minutes at 50 per second.
MAX_BYTES = 5_000_000
#: Lines read in one go.
BATCH = 200


@dataclass(frozen=True)
class Unchecked:
    """One request served without a verdict. ``key`` is the hash; nothing of the prompt is here."""

    id: str
    at: str
    key: str
    model: str
    user: str | None
    team: str | None
    cause: str
    call_id: str | None = None

    @classmethod
    def of(cls, question: Question, cause: Cause, call_id: str | None, now: datetime | None = None) -> Unchecked:
        """A new entry. Its id is our own: a client may choose its call id, and choose one already told."""
        at = (now or datetime.now(UTC)).isoformat(timespec="milliseconds")
        return cls(
            uuid.uuid4().hex, at, question.key, question.model, question.user, question.team, cause.value, call_id
        )

    def body(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()


class Journal:
    """The file. ``keep_newest``: nobody will be told, so when full the older half gives way to the newer."""

    def __init__(self, folder: Path, keep_newest: bool, max_bytes: int = MAX_BYTES) -> None:
        self.file = folder / "unchecked.jsonl"
        self.older = folder / "unchecked.older.jsonl"
        self._sending = folder / "unchecked.sending.jsonl"
        self._lock = folder / "unchecked.lock"
        self._keep_newest = keep_newest
        self._max_bytes = max_bytes

    def add(self, entry: Unchecked) -> int:
        """Keeps an entry; how many entries were lost by that (1: this one). OSError never escapes."""
        lost = 0
        try:
            self.file.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                if self.file.stat().st_size >= self._max_bytes // (2 if self._keep_newest else 1):
                    if not self._keep_newest:
                        return 1
                    lost = _count(self.older)
                    self.file.replace(self.older)
            handle = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                line = entry.body() + b"\n"
                return lost + (os.write(handle, line) != len(line))
            finally:
                os.close(handle)
        except OSError:
            return lost + 1

    def pending(self) -> int:
        """How many entries wait."""
        return _count(self.file) + _count(self._sending)

    @contextlib.contextmanager
    def taken(self) -> Iterator[list[Unchecked] | None]:
        """The entries to tell now, oldest first; None while another worker tells. Call ``settle`` inside the block."""
        try:
            lock = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError:
            yield None
            return
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield None
                return
            yield self._take()
        finally:
            os.close(lock)

    def settle(self, done: int) -> None:
        """The first ``done`` entries of the file in hand need not be told again."""
        try:
            lines = self._sending.read_bytes().splitlines(keepends=True)[done:]
        except OSError:
            return
        if not lines:
            self._sending.unlink(missing_ok=True)
            return
        fresh = self._sending.with_suffix(".tmp")
        fresh.write_bytes(b"".join(lines))
        fresh.replace(self._sending)

    def _take(self) -> list[Unchecked]:
        if not self._sending.exists():
            try:
                # Whoever opened it just before still appends to it: one call later is soon enough to read it.
                self.file.replace(self._sending)
            except OSError:
                return []
            return []
        entries = []
        for line in self._sending.read_bytes().splitlines()[:BATCH]:
            entries.append(_entry(line))
        if not entries:
            self._sending.unlink(missing_ok=True)
        return entries


def _entry(line: bytes) -> Unchecked:
    try:
        return Unchecked(**json.loads(line))
    except (ValueError, TypeError):
        # A line torn by a full disk. It is told as what it is, rather than stopping all that follow.
        return Unchecked("", "", "", "", None, None, Cause.INTERNAL.value)


def _count(file: Path) -> int:
    try:
        with file.open("rb") as lines:
            return sum(1 for dummy in lines)
    except OSError:
        return 0
