# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files a config.yaml includes, merged into it as LiteLLM 1.108.4 does (proxy/common_utils/config_includes.py).

Lists are made longer, everything else is replaced: an included router_settings takes the place of the whole section.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._gate.errors import ConfigError
from .._gate.yaml_file import read_yaml

INCLUDE = "include"
#: Included files after which there must be a loop: a folder that links to itself gives each file endless names.
MOST_FILES = 100


@dataclass(frozen=True)
class Merged:
    """What LiteLLM would load, and where it came from. Files are named only where they are not the first one."""

    document: Mapping[str, Any]
    sections: Mapping[str, str] = field(default_factory=dict)  # top key -> the included file whose value stands
    models: tuple[tuple[str, int], ...] = ()  # of each entry of model_list: the included file or "", its place there


def merge_includes(document: Mapping[str, Any], file: str) -> Merged:
    """The whole configuration; ConfigError when a file that it includes cannot be used: LiteLLM does not start then.

    ``file`` is where the configuration lies, or will: what it includes is looked for from there.
    """
    if INCLUDE not in document:
        return Merged(document)
    root = _absolute(Path(file))
    merged = {key: value for key, value in document.items() if key != INCLUDE}
    sections: dict[str, str] = {}
    models = _places(merged.get("model_list"), "")
    pending = [(entry, root) for entry in _entries(document, file)]
    loaded = {root}
    while pending:
        entry, declared_in = pending.pop(0)
        location = _location(entry, declared_in, root)
        if location in loaded:
            continue
        if len(loaded) > MOST_FILES:
            raise ConfigError([f"{file}: {INCLUDE}: more than {MOST_FILES} files are included; look for a loop"])
        loaded.add(location)
        included = _read(entry, declared_in, location)
        for key, value in included.items():
            if key == INCLUDE:
                continue
            longer = isinstance(value, list) and isinstance(merged.get(key), list)
            if key == "model_list":
                models = (models if longer else []) + _places(value, location)
            if longer:
                merged[key] = [*merged[key], *value]
            else:
                merged[key] = value
                sections[key] = location
        pending += [(more, location) for more in _entries(included, location)]
    return Merged(merged, sections, tuple(models))


def _places(models: Any, file: str) -> list[tuple[str, int]]:
    return [(file, index) for index in range(len(models))] if isinstance(models, list) else []


def _entries(document: Mapping[str, Any], file: str) -> list[str]:
    entries = document.get(INCLUDE, [])
    if not isinstance(entries, list) or not all(isinstance(entry, str) and entry for entry in entries):
        raise ConfigError([f"{file}: {INCLUDE}: a list of file paths is needed"])
    return entries


def _location(entry: str, declared_in: str, root: str) -> str:
    """Beside the file that names it; else, as older configurations have it, beside the first one."""
    near, far = _absolute(Path(declared_in).parent / entry), _absolute(Path(root).parent / entry)
    return near if near == far or Path(near).exists() or not Path(far).exists() else far


def _absolute(path: Path) -> str:
    """As LiteLLM has it: links are not followed, so that what they lead to is looked for from where they stand."""
    return os.path.normpath(path.absolute())


def _read(entry: str, declared_in: str, location: str) -> dict[str, Any]:
    try:
        document = read_yaml(location, "an included configuration") or {}
    except ConfigError as error:
        raise ConfigError([f"{declared_in}: {INCLUDE}: {entry}: {problem}" for problem in error.problems]) from None
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise ConfigError([f"{declared_in}: {INCLUDE}: {entry}: {location}: a mapping of LiteLLM's settings is needed"])
    return document
