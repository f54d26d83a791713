# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads a server's API key from its file, and refuses a file that others can read. A key is never part of a message."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .errors import ConfigError


def read_key(path: str | Path, where: str = "") -> str:
    """The key in the file, without surrounding white space. Raises ConfigError, which never holds the key."""
    prefix = f"{where}: " if where else ""
    try:
        with Path(path).open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            if stat.S_ISREG(mode) and mode & (stat.S_IRWXO):
                raise ConfigError(
                    [f"{prefix}{path}: other users can read this key (mode {stat.S_IMODE(mode):04o}); chmod o= {path}"]
                )
            key = file.read(65536).strip()
    except FileNotFoundError:
        raise ConfigError([f"{prefix}{path}: there is no such key file"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"{prefix}{path}: is not a text file with a key"]) from None
    except OSError as error:
        raise ConfigError([f"{prefix}{path}: cannot be read ({error.strerror})"]) from None
    except ConfigError:
        raise
    except ValueError:
        raise ConfigError([f"{prefix}{str(path)!r} is not a file's path"]) from None
    return checked_key(key, f"{prefix}{path}")


def checked_key(text: str, where: str) -> str:
    """The key in a text, without surrounding white space. Raises ConfigError, which never holds the key."""
    key = text.strip()
    if not key or len(key.split()) != 1:
        raise ConfigError([f"{where}: must hold one key on one line"])
    if not key.isascii() or not key.isprintable():
        raise ConfigError([f"{where}: the key has characters that cannot be sent in a header"])
    return key
