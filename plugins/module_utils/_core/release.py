# SPDX-License-Identifier: GPL-3.0-or-later
"""Puts the core onto a host whole or not at all: a release is a folder named after its content, `lib` a link to one.

A run of the watchdog never sees half an upgrade: the link is replaced in one step. Two plays at once take turns.
"""

from __future__ import annotations

import compileall
import contextlib
import fcntl
import hashlib
import io
import os
import re
import shutil
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import ConfigError

# A release carries source text; more than this is not one of ours.
MOST_BYTES = 20 * 1024 * 1024
# An install takes seconds; who waits longer waits for something that hangs.
TURN_S = 120.0


@dataclass(frozen=True)
class Change:
    """What differs between the release that is there and the one that is wanted: each file's digest, by its name."""

    before: dict[str, str]
    after: dict[str, str]

    @property
    def needed(self) -> bool:
        """Whether anything differs."""
        return self.before != self.after


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def contents(archive: bytes) -> dict[str, bytes]:
    """The files of an archive, by name. Raises ConfigError for what does not belong in one."""
    found = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
            for member in tar.getmembers():
                name = Path(member.name)
                if not member.isfile() or name.is_absolute() or ".." in name.parts or member.size > MOST_BYTES:
                    raise ConfigError([f"archive: {member.name} does not belong in a release"])
                file = tar.extractfile(member)
                found[member.name] = file.read() if file else b""
    except (tarfile.TarError, OSError, EOFError):
        raise ConfigError(["archive: is not a release; make it with the lookup gb10.serving.core_archive"]) from None
    return found


def _installed(lib: Path) -> dict[str, str]:
    if not lib.is_dir():
        return {}
    return {
        str(path.relative_to(lib)): _digest(path.read_bytes())
        for path in sorted(lib.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def compared(folder: Path, archive: bytes) -> Change:
    """What installing the archive would change. Needs no turn: what goes while it looks, it looks for again."""
    wanted = {name: _digest(data) for name, data in sorted(contents(archive).items())}
    for dummy in range(10):
        with contextlib.suppress(FileNotFoundError):
            return Change(_installed(folder / "lib"), wanted)
    raise ConfigError([f"{folder}: is being changed by somebody else all the time; try again once that is over"])


@contextlib.contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Alone in the folder: two plays at once took each other's half-made release away, and left an empty core."""
    path, until = folder / ".lock", time.monotonic() + TURN_S
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), path.stat()):
                break  # else the one before took the file away: it locks nothing any more
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(file)
                raise ConfigError([f"{path}: another play has held it for {TURN_S:.0f} s; see fuser {path}"]) from None
            time.sleep(0.05)
        except FileNotFoundError:
            pass
        except OSError:
            os.close(file)
            raise
        os.close(file)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # nothing of ours stays in a folder that may be somebody else's
        os.close(file)


def _being_made(name: str) -> bool:
    """Whether somebody alive makes that release: an older version of this file takes no turn."""
    found = re.fullmatch(r"\.\w+\.(\d+)\.part", name)
    return found is not None and int(found[1]) != os.getpid() and Path("/proc", found[1]).exists()


def install(folder: Path, archive: bytes) -> Change:
    """Makes the archive the release in use, and removes older ones. What that changed. Raises ConfigError."""
    lib = folder / "lib"
    if lib.exists() and not lib.is_symlink():
        raise ConfigError([f"{lib}: is there and is no link of ours; move it away"])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _turn(folder):
            change = compared(folder, archive)  # again: the play before may have installed the same
            if change.needed:
                _install(folder, archive)
            return change
    except OSError as error:
        raise ConfigError([f"{folder}: cannot be written ({error.strerror}); what was there is still in use"]) from None


def _install(folder: Path, archive: bytes) -> None:
    lib, releases = folder / "lib", folder / "releases"
    name = _digest(archive)
    part, made = releases / f".{name}.{os.getpid()}.part", releases / name
    link = folder / f".lib.{os.getpid()}.part"
    try:
        for path, data in contents(archive).items():
            (part / path).parent.mkdir(parents=True, exist_ok=True)
            (part / path).write_bytes(data)
        for path_made in (folder, *part.rglob("*"), part, releases):
            path_made.chmod(0o755 if path_made.is_dir() else 0o644)
        # the watchdog's unit may not write here, and reading source each minute costs more than all else it does
        compileall.compile_dir(str(part), quiet=2, stripdir=str(part), prependdir=str(lib))
        if made.exists():  # of the same name, yet not the same content: somebody edited it
            made.rename(releases / f".{name}.{os.getpid()}.edited")
        part.rename(made)
        link.symlink_to(made.relative_to(folder))
        link.replace(lib)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        with contextlib.suppress(OSError):
            link.unlink()
        raise
    for old in releases.iterdir():
        if old.name != name and not _being_made(old.name):
            shutil.rmtree(old, ignore_errors=True)


def remove(folder: Path) -> None:
    """Takes every release away. Raises ConfigError."""
    try:
        with _turn(folder):
            with contextlib.suppress(OSError):
                (folder / "lib").unlink()
            shutil.rmtree(folder / "releases", ignore_errors=True)
    except FileNotFoundError:
        pass  # there is no folder
    except OSError as error:
        raise ConfigError([f"{folder}: cannot be taken away ({error.strerror})"]) from None
