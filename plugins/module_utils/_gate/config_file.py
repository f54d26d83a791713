# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""usage-gate.yml as a file: built from what is given, compared with what is there, shown without secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import TOP_KEYS, GateConfig, file_problems, parse_config
from .errors import ConfigError
from .secret_names import names_secret
from .shown import HIDDEN, without_user
from .yaml_file import need_regular, parse_yaml

try:
    import yaml
except ImportError:  # the module or command that needs it says so
    pass

KEYS = TOP_KEYS
HEADER = "# Written by gb10.serving.usage_gate_config. What is changed here by hand is overwritten by its next run.\n"


@dataclass(frozen=True)
class Existing:
    """The file as it is. `document` is None where there is none, or none that is YAML; `shown` hides secrets."""

    exists: bool
    document: Any
    shown: str


def build(given: Mapping[str, Any], where: str) -> tuple[dict[str, Any], GateConfig]:
    """The document for what is given (None: left out) and the configuration it makes; ConfigError with every problem."""
    document: dict[str, Any] = {}
    for key in KEYS:
        value = given.get(key)
        if key == "endpoints" and isinstance(value, list):
            value = {"static": value}
        if isinstance(value, dict) and key == "request":
            value = {name: item for name, item in value.items() if item is not None}
        if value is not None and value != {}:
            document[key] = value
    config = parse_config(document, where)
    problems = file_problems(config, where)
    if problems:
        raise ConfigError(problems)
    return document, config


def render(document: Mapping[str, Any]) -> str:
    """The file's text."""
    return HEADER + yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=120)


def without_secrets(document: Any) -> Any:
    """The same document with the values of headers hidden, whatever an address holds before its @ or in its query, and all
    that is misplaced: a key nobody knows may be a header with a slip of the pen."""
    if not isinstance(document, dict):
        return HIDDEN
    shown = {_key(key): _plain(item) if key in KEYS else _hidden(item) for key, item in document.items()}
    request = document.get("request")
    if isinstance(request, dict):
        shown["request"] = {
            _key(key): _plain(item) if key in _REQUEST and isinstance(item, (str, int, type(None))) else _hidden(item)
            for key, item in request.items()
        }
    elif "request" in document:
        shown["request"] = _hidden(request)
    return shown


#: What of the request is none, apart from what a path asks for.
_REQUEST = ("path", "unchecked_path", "token_file", "ca_file")


def _hidden(value: Any) -> Any:
    """What may be a secret, with the names of its parts."""
    if isinstance(value, dict):
        return {_key(key): _hidden(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_hidden(item) for item in value]
    return value if value is None or value == "" else HIDDEN


def queries_in(request: Any) -> list[str]:
    """What the paths of a request ask for, and the values in it, so that whoever prints can take them out."""
    paths = [request.get(key) for key in ("path", "unchecked_path")] if isinstance(request, dict) else []
    queries = [query for path in paths if isinstance(path, str) for query in re.split(r"[?#]", path)[1:]]
    values = [part.partition("=")[2] for query in queries for part in re.split("[&;]", query)]
    return [found for found in (*queries, *values) if len(found) >= _SHORTEST]


#: Hiding each letter of a shorter one elsewhere would hide everything.
_SHORTEST = 4


def users_in(value: Any) -> list[str]:
    """What addresses in a document hold before their @, so that whoever prints can take it out."""
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list):
        return [found for item in value for found in users_in(item)]
    return [value.rpartition("@")[0].rpartition("://")[2]] if isinstance(value, str) and "@" in value else []


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_key(key): _hidden(item) if _may_hold(key) else _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, str) and ("@" in value or "://" in value):
        value = without_user(value)
    if isinstance(value, str) and (value.startswith("/") or "://" in value):
        value = re.sub(r"([?#]).+", rf"\1{HIDDEN}", value, count=1, flags=re.DOTALL)
    return value


def _key(key: Any) -> Any:
    """An address with a colon behind it is one of a mapping's keys."""
    return without_user(key) if isinstance(key, str) and "@" in key else key


def _may_hold(key: Any) -> bool:
    return names_secret(key) and not str(key).endswith("_file")


def read_existing(path: str) -> Existing:
    """What is there. A file that cannot be read as YAML is shown as such and will be replaced."""
    try:
        need_regular(path)
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return Existing(False, None, "")
    except (OSError, UnicodeDecodeError) as error:
        return Existing(True, None, f"# cannot be read: {type(error).__name__}\n")
    try:
        document = parse_yaml(text, path)
    except ConfigError:
        return Existing(True, None, "# not valid YAML\n")
    if not isinstance(document, dict):
        return Existing(True, document, "# not a mapping\n")
    return Existing(True, document, render(without_secrets(document)))
