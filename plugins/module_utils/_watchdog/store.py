# SPDX-License-Identifier: GPL-3.0-or-later
"""The durable part: one state file and one lock per server, one append-only journal, traces. Crash-safe and bounded.

A write that does not succeed raises `CannotRecord`, and whoever meant to act must not: an act that is not recorded
would be forgotten by the budget.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .._core.codec import decode, encode
from .._core.errors import ConfigError
from . import ended
from .clock import Anchor
from .memory import Act, Memory

DEFAULT_FOLDER = Path("/var/lib/gb10-serving")
JOURNAL_BYTES = 5 * 1024 * 1024
# What a run can have written before it was killed is some kB.
NEWEST_BYTES = 256 * 1024
TRACE_BYTES = 20 * 1024 * 1024


class CannotRecord(OSError):
    """A record could not be written whole. The sentence names the file."""


@dataclass(frozen=True)
class Transaction:
    """A restart or start under way, by which rule of the decision. `phase`: the step that is being done or waited for; written before it is done.

    `accused_start`: what identified the process when the proof was made; another one is not stopped for it.
    """

    id: str
    action: str
    reason: str
    phase: str
    begun_t: float
    phase_t: float
    accused_start: str | None = None
    evidence: str | None = None
    counts: bool = True
    by: str = "watchdog"
    drain: bool = False
    killed: bool = False
    warned: bool = False
    rule: str | None = None


@dataclass(frozen=True)
class Maintenance:
    """Hands off until `until` (seconds since the epoch), by whom and why."""

    until: float
    reason: str
    by: str


@dataclass(frozen=True)
class ServerState:
    """All that is kept of one server. `ended`: restarts and starts that ended, since the watchdog came (see `ended.key`);
    the journal forgets what is two files old. None: written by a version that did not count."""

    name: str
    memory: Memory = field(default_factory=Memory)
    anchor: Anchor | None = None
    transaction: Transaction | None = None
    maintenance: Maintenance | None = None
    state: str | None = None
    reason: str | None = None
    rule: str | None = None
    accused: str | None = None
    state_since: float | None = None
    looked_wall: float | None = None
    engine: str | None = None
    running: float | None = None
    waiting: float | None = None
    silence_s: float | None = None
    patience_s: float | None = None
    patience_rule: str | None = None
    decision: str | None = None
    tokens_per_second: float | None = None
    steps_per_second: float | None = None
    power_w: float | None = None
    slow: str | None = None
    alerted: str | None = None
    sister_since: float | None = None
    ended: dict[str, int] | None = None

    def over(self, event: str, outcome: str | None = None) -> ServerState:
        """Its transaction has ended, and is counted: each once."""
        if self.transaction is None:
            return self
        what = ended.key(self.transaction.rule, event, outcome)
        return replace(self, transaction=None, ended=ended.one_more(self.ended, what))


def write_whole(path: Path, text: str) -> None:
    """Replaces a file by its new content, or leaves it as it was. Raises CannotRecord."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise CannotRecord(f"{path}: cannot be written ({error.strerror}); nothing is done until it can") from None


class Store:
    """The files of one host."""

    def __init__(self, folder: Path = DEFAULT_FOLDER) -> None:
        self.folder = folder
        self.notes: list[str] = []

    def must_be_readable(self) -> None:
        """What cannot be read must not look like what never was. Raises ConfigError."""
        try:
            memories = sorted((self.folder / "memory").iterdir())
        except (FileNotFoundError, NotADirectoryError):
            memories = []
        except OSError as error:
            raise unreadable(self.folder / "memory", error) from None
        for path in (self.folder, self.journal_file, *memories):
            if path.exists() and not os.access(path, os.R_OK):
                raise unreadable(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))

    def prepare(self) -> None:
        """Makes the folders. Raises CannotRecord."""
        try:
            for name in ("memory", "locks", "evidence", "traces"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CannotRecord(f"{self.folder}: cannot be made ({error.strerror})") from None

    # one server's state

    def _file(self, name: str) -> Path:
        return self.folder / "memory" / f"{name.replace('/', '_')}.json"

    def load(self, name: str, mend: bool = True) -> ServerState:
        """The server's state. A broken file is set aside, and the acts come back from the journal: none is forgotten.

        `mend` False: only look; a broken file is left where it is.
        """
        path = self._file(name)
        try:
            return self._reconciled(decode(ServerState, json.loads(path.read_text(encoding="utf-8"))))
        except FileNotFoundError:
            broken = False
        except (OSError, ValueError, RecursionError) as error:
            broken = True
            reason = error.strerror if isinstance(error, OSError) else "it is not whole"
            self.notes.append(
                f"{path}: cannot be read ({reason}); set aside, and its acts and maintenance are taken from the journal"
            )
            if mend:
                with contextlib.suppress(OSError):
                    path.replace(path.with_suffix(".broken"))
        return self._from_journal(name, broken)

    def patience_of(self, name: str) -> float | None:
        """The patience of the last look; None where it is not known or may not be read. Reads nothing but the memory."""
        try:
            return decode(ServerState, json.loads(self._file(name).read_text(encoding="utf-8"))).patience_s
        except (OSError, ValueError):
            return None

    def _reconciled(self, state: ServerState) -> ServerState:
        """The journal is written first. Whoever was killed before the state was: what the journal says later, holds."""
        counting = state.ended is not None
        for row in self.journal(state.name, newest=True):
            event, given = row.get("event"), row.get("transaction")
            if (
                event in ("closed", "aborted")
                and state.transaction is not None
                and row.get("id") == state.transaction.id
            ):
                state = state.over(str(event), row.get("outcome"))
            if event == "decided" and isinstance(row.get("t"), (int, float)):
                t = float(row["t"])
                known = any(abs(act.t - t) < 5.0 for act in state.memory.acts)
                newer = state.anchor is None or t > state.anchor.t - 60.0
                if not known and newer and isinstance(given, dict):
                    with contextlib.suppress(ValueError):
                        transaction = decode(Transaction, given)
                        act = Act(t, transaction.action, transaction.reason, None, transaction.counts)
                        memory = replace(state.memory, acts=(*state.memory.acts, act))
                        state = replace(state, transaction=transaction, memory=memory)
            elif event == "phase" and isinstance(given, dict) and state.transaction is not None:
                with contextlib.suppress(ValueError):
                    later = decode(Transaction, given)
                    if later.id == state.transaction.id and later.phase_t > state.transaction.phase_t:
                        state = replace(state, transaction=later)
        if not counting:
            state = replace(state, ended=ended.count(self.journal(state.name)))
        return state

    def _from_journal(self, name: str, broken: bool) -> ServerState:
        acts: list[Act] = []
        latched = None
        transaction: Transaction | None = None
        anchor = None
        maintenance: Maintenance | None = None
        for row in self.journal(name):
            if row.get("event") == "decided" and isinstance(row.get("t"), (int, float)):
                acts.append(
                    Act(
                        float(row["t"]),
                        str(row.get("action")),
                        str(row.get("reason")),
                        None,
                        bool(row.get("counts", True)),
                    )
                )
            if row.get("event") == "maintenance":
                until = row.get("until")
                begun = isinstance(until, (int, float)) and not isinstance(until, bool)
                maintenance = (
                    Maintenance(float(until), str(row.get("reason")), str(row.get("by"))) if begun and until else None
                )
            if row.get("event") == "latched":
                latched = str(row.get("reason"))
            if row.get("event") == "cleared":
                latched = None
                acts = []
            with contextlib.suppress(ValueError):
                if isinstance(row.get("transaction"), dict):
                    transaction = decode(Transaction, row["transaction"])
                if row.get("event") in ("closed", "aborted"):
                    transaction = None
                if isinstance(row.get("anchor"), dict):
                    anchor = decode(Anchor, row["anchor"])
        counts = ended.count(self.journal(name))
        if not broken and not acts and latched is None and maintenance is None:
            return ServerState(name, ended=counts)
        memory = Memory(acts=tuple(acts), latched=latched)
        return ServerState(name, memory, anchor, transaction, maintenance, ended=counts)

    def save(self, state: ServerState) -> None:
        """Writes the state whole. Raises CannotRecord."""
        write_whole(self._file(state.name), json.dumps(encode(state)))

    # the journal

    @property
    def journal_file(self) -> Path:
        """Append-only, one JSON object a line."""
        return self.folder / "journal.jsonl"

    def record(self, event: str, server: str, **more: Any) -> None:
        """Appends one record, on disk when this returns. Raises CannotRecord."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        line = json.dumps({"time": now, "event": event, "server": server, **{k: encode(v) for k, v in more.items()}})
        path = self.journal_file
        try:
            if path.exists() and path.stat().st_size > JOURNAL_BYTES:
                path.replace(path.with_suffix(".1.jsonl"))
            # a line that was cut off by a power cut must not swallow this one
            torn = path.exists() and path.stat().st_size > 0 and not _ends_with_newline(path)
            with path.open("a", encoding="utf-8") as file:
                file.write(("\n" if torn else "") + line + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise CannotRecord(f"{path}: cannot be written ({error.strerror}); nothing is done until it can") from None

    def journal(self, server: str | None = None, newest: bool = False) -> Iterator[dict[str, Any]]:
        """Records in order of time; lines that are not whole are left out. `newest`: only those of the journal's end."""
        files = (self.journal_file,) if newest else (self.journal_file.with_suffix(".1.jsonl"), self.journal_file)
        for path in files:
            try:
                with path.open("rb") as file:
                    if newest:
                        file.seek(max(path.stat().st_size - NEWEST_BYTES, 0))
                    lines = file.read().decode("utf-8", "replace").splitlines()
            except OSError:
                continue
            for line in lines:
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(row, dict) and (server is None or row.get("server") == server):
                    yield row

    # traces

    def trace(self, name: str, header: str, line: str) -> None:
        """Appends one observation; under another policy, or when it is long, in a new file. A trace is evidence, not
        memory: a full disk loses it without stopping anything."""
        path = self.folder / "traces" / f"{name}.jsonl"
        with contextlib.suppress(OSError):
            if path.exists() and (path.stat().st_size > TRACE_BYTES or not _same_settings(path, header)):
                path.replace(before(path))
            fresh = not path.exists() or path.stat().st_size == 0
            with path.open("a", encoding="utf-8") as file:
                if not fresh and not _ends_with_newline(path):
                    file.write("\n")
                file.write((header + "\n" if fresh else "") + line + "\n")

    # locks

    @contextmanager
    def lock(self, name: str, wait: bool = False) -> Iterator[bool]:
        """Holds the server's lock; False when somebody else does. People's own commands share it (llm-watchdog lock)."""
        path = self.folder / "locks" / f"{name}.lock"
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CannotRecord(f"{path}: cannot be opened ({error.strerror}); nothing is done until it can") from None
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError:
                yield False
                return
            yield True
        finally:
            os.close(file)


def unreadable(path: Path, error: OSError) -> ConfigError:
    """The sentence about a record that somebody may not read."""
    return ConfigError([f"{path}: cannot be read ({error.strerror}); what the watchdog records is root's to read"])


def before(trace: Path) -> Path:
    """Where a trace goes when a new one is begun. No server's name has a ~ in it, so it is nobody else's."""
    return trace.with_name(f"{trace.stem}~1.jsonl")


def _same_settings(path: Path, header: str) -> bool:
    """A trace's header says what its replay needs, so one trace has one policy."""
    try:
        with path.open("rb") as file:
            there = json.loads(file.readline())
        return bool(there["settings"] == json.loads(header)["settings"])
    except (ValueError, KeyError, TypeError):
        return False


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def in_phase(transaction: Transaction, phase: str, t: float, **more: Any) -> Transaction:
    """The transaction in its next phase."""
    return replace(transaction, phase=phase, phase_t=t, **more)
