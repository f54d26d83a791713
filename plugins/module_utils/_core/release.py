# SPDX-License-Identifier: GPL-3.0-or-later
"""Puts the core onto a host whole or not at all: a release is a folder named after its content, `lib` a link to one.

A run of the watchdog never sees half an upgrade: the link is replaced in one step.
"""

from __future__ import annotations

import compileall
import contextlib
import hashlib
import io
import os
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

from .errors import ConfigError

# A release carries source text; more than this is not one of ours.
MOST_BYTES = 20 * 1024 * 1024


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
    """What installing the archive would change."""
    return Change(_installed(folder / "lib"), {name: _digest(data) for name, data in sorted(contents(archive).items())})


def install(folder: Path, archive: bytes) -> None:
    """Makes the archive the release in use, and removes older ones. Raises ConfigError."""
    lib, releases = folder / "lib", folder / "releases"
    if lib.exists() and not lib.is_symlink():
        raise ConfigError([f"{lib}: is there and is no link of ours; move it away"])
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
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        with contextlib.suppress(OSError):
            link.unlink()
        raise ConfigError([f"{folder}: cannot be written ({error.strerror}); what was there is still in use"]) from None
    for old in releases.iterdir():
        if old.name != name:
            shutil.rmtree(old, ignore_errors=True)


def remove(folder: Path) -> None:
    """Takes every release away."""
    with contextlib.suppress(OSError):
        (folder / "lib").unlink()
    shutil.rmtree(folder / "releases", ignore_errors=True)
