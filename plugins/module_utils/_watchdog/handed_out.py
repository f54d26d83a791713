# SPDX-License-Identifier: GPL-3.0-or-later
"""A file that a person asked for: whole or as it was before, and readable by its owner alone."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from .._core.errors import ConfigError


def write(path: Path, content: bytes) -> None:
    """Replaces the file. A folder, a device and their like are refused and stay. Raises ConfigError."""
    part: str | None = None
    try:
        if path.is_dir():
            raise ConfigError([f"{path}: is a folder; name the file that shall be written"])
        if path.exists() and not path.is_file():
            raise ConfigError([f"{path}: is no file that could be replaced; name another"])
        descriptor, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(part).replace(path)
    except OSError as error:
        if part is not None:
            with contextlib.suppress(OSError):
                Path(part).unlink()
        raise ConfigError([f"{path}: cannot be written ({error.strerror})"]) from None
