# SPDX-License-Identifier: GPL-3.0-or-later
"""What a check may take over from this host's watchdog: the patience that it had with each server at its last look."""

from __future__ import annotations

from pathlib import Path

from .._core import urls, yaml_file
from .._core.errors import ConfigError
from .._core.servers import from_document
from .store import DEFAULT_FOLDER, Store

DEFAULT_CONFIG = Path("/etc/gb10-serving/servers.yml")


def patiences(config: Path = DEFAULT_CONFIG, folder: Path = DEFAULT_FOLDER) -> dict[str, float]:
    """Seconds by `urls.address`. Empty where there is no watchdog, or where this user may not read its memory."""
    try:
        described = from_document(yaml_file.load(config), str(config))
    except (ConfigError, OSError):
        return {}
    store = Store(folder)
    found = {urls.address(one.url): store.patience_of(one.name) for one in described.servers}
    return {address: seconds for address, seconds in found.items() if seconds is not None}
