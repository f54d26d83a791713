# SPDX-License-Identifier: GPL-3.0-or-later
"""Retires other restart authorities so that they can be put back as they were: what is done is recorded before it is done.

Units and timers of the system and of its users are disabled and stopped, cron entries are commented out, scripts of
cron.daily and its kin lose their execute bit. What cannot be retired so is left to a person.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from .._core.errors import ConfigError
from .._health.witness import output_of
from .audit import Row
from .store import CannotRecord, write_whole
from .units import manager_of

RECORD = Path("/var/lib/gb10-serving/retired.json")
MARK = "# gb10.serving retired: "


@dataclass(frozen=True)
class Retired:
    """One that was retired. `before`: what brings it back: "enabled active", a cron line, or a mode."""

    kind: str
    name: str
    where: str
    before: str

    def same(self, other: Retired) -> bool:
        """It is the same thing, however it stood before."""
        return (self.kind, self.name, self.where) == (other.kind, other.name, other.where)


def way(row: Row) -> str | None:
    """How a competitor would be retired: unit, line or script; None: only by a person."""
    if row.kind in ("timer", "service") and manager_of(row.where) is not None:
        return "unit"
    if row.kind == "cron":
        return "script" if row.name == row.where else "line"
    return None


def load(record: Path = RECORD) -> list[Retired]:
    """What was retired and not put back. Raises ConfigError."""
    try:
        return [Retired(**one) for one in json.loads(record.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError):
        raise ConfigError([f"{record}: cannot be read; put back by hand what it names, and delete it"]) from None


def _save(record: Path, everything: Iterable[Retired]) -> None:
    rows = [asdict(one) for one in everything]
    try:
        if rows:
            record.parent.mkdir(parents=True, exist_ok=True)
            write_whole(record, json.dumps(rows, indent=2) + "\n")
        else:
            record.unlink(missing_ok=True)
    except (CannotRecord, OSError) as error:
        raise ConfigError([str(error)]) from None


async def _systemctl(where: str, *words: str) -> str:
    """What systemctl says to the manager that has the unit of this file."""
    said = await output_of("systemctl", *(manager_of(where) or []), *words, within_s=60.0)
    return said[1].strip() if said else ""


async def _stands(name: str, where: str) -> str:
    """Such as "enabled active". Raises ConfigError where its manager does not say."""
    words = [await _systemctl(where, question, name) for question in ("is-enabled", "is-active")]
    if not words[1]:
        raise ConfigError([f"{name} ({where}): its manager does not answer; log its user in, or disable it by hand"])
    return " ".join(words)


def _rewrite(path: Path, text: str) -> None:
    """A new file in the old one's place, with its owner and mode: cron sees a change by the folder's time."""
    old, part = path.stat(), path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.chown(part, old.st_uid, old.st_gid)
        part.chmod(old.st_mode & 0o7777)
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise ConfigError([f"{path}: cannot be changed ({error.strerror})"]) from None


def _as_written(path: Path, entry: str) -> str | None:
    """The entry's line as the file has it, with the spaces around it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((line for line in lines if line.strip() == entry), None)


async def retire(rows: Iterable[Row], record: Path = RECORD) -> list[Retired]:
    """Retires what can be. What was done, also when it had been recorded before. Raises ConfigError."""
    done: list[Retired] = []
    for row in rows:
        path, how = Path(row.where), way(row)
        one: Retired | None = None
        if how == "unit":
            one = Retired("unit", row.name, row.where, await _stands(row.name, row.where))
        elif how == "script":
            one = Retired("script", row.name, row.where, f"{path.stat().st_mode & 0o7777:o}")
        elif how == "line":
            line = _as_written(path, row.name)
            one = Retired("line", row.name, row.where, line) if line is not None else None
        if one is None or any(d.same(one) for d in done):
            continue
        known = load(record)
        # what is found a second time stands there half retired: how it stood before is what the first record says
        if not any(d.same(one) for d in known):
            _save(record, [*known, one])
        if one.kind == "unit":
            await _systemctl(one.where, "disable", "--now", one.name)
            if (await _stands(one.name, one.where)).endswith(" active"):
                raise ConfigError([f"{one.name} ({one.where}): could not be stopped; stop it by hand"])
        elif one.kind == "script":
            path.chmod(path.stat().st_mode & ~0o111)
        else:
            lines = path.read_text(encoding="utf-8").splitlines()
            _rewrite(path, "\n".join(MARK + text if text == one.before else text for text in lines) + "\n")
        done.append(one)
    return done


async def restore(record: Path = RECORD) -> list[Retired]:
    """Puts back everything that was retired and is still there. What was put back. Raises ConfigError."""
    everything = load(record)
    for n, one in enumerate(everything):
        path = Path(one.where)
        if one.kind == "unit" and path.exists():
            enabled, dummy, active = one.before.partition(" ")
            if enabled.startswith("enabled"):
                await _systemctl(one.where, "enable", one.name)
            if active == "active":
                await _systemctl(one.where, "start", one.name)
        elif one.kind == "script" and path.exists():
            path.chmod(int(one.before, 8))
        elif one.kind == "line" and path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            _rewrite(path, "\n".join(one.before if text == MARK + one.before else text for text in lines) + "\n")
        _save(record, everything[n + 1 :])
    return everything
