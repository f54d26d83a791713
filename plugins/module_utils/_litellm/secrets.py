# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What of a configuration may be shown: everything but keys, tokens, passwords."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from .._gate.shown import HIDDEN, users_in, without_user, without_users

_SECRET = re.compile(
    r"(^|_)(api_?key|key|password|passwd|secret|token|credentials?|authorization|access_key_id|webhook(_url)?|dsn|connection_string)$",
    re.IGNORECASE,
)
_SECRETS_INSIDE = re.compile(
    r"(^|_)(headers|environment_variables|credentials?|secrets|alert_to_webhook_url)$", re.IGNORECASE
)
#: LiteLLM's own keys, wherever they stand.
_KEY = re.compile(r"\bsk-[\w-]{8,}")
#: Keys whose values are addresses, with a scheme or without one.
_ADDRESS = re.compile(r"(^|_)(api_base|base|url|uri|endpoint|host|proxy)$", re.IGNORECASE)
#: Shorter ones (none, EMPTY, x) are no secrets; hiding each of their letters elsewhere would hide everything.
_SHORTEST = 8


def without_secrets(value: Any, secret: bool = False, address: bool = False) -> Any:
    """The same document with secrets hidden. Names of environment variables are none."""
    if isinstance(value, Mapping):
        return {
            key: without_secrets(item, secret or _is_secret(key), bool(_ADDRESS.search(str(key))))
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [without_secrets(item, secret, address) for item in value]
    if isinstance(value, str):
        if value.startswith("os.environ/"):
            return value
        if secret and value:
            return HIDDEN
        if address and "@" in value and "://" not in value:
            return without_user(value)
        return _KEY.sub(HIDDEN, without_users(value))
    return HIDDEN if secret and isinstance(value, int) and not isinstance(value, bool) else value


def secrets_in(value: Any, secret: bool = False, address: bool = False) -> Iterator[str]:
    """The secrets themselves, so that whoever prints can take them out."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from secrets_in(item, secret or _is_secret(key), bool(_ADDRESS.search(str(key))))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from secrets_in(item, secret, address)
    elif isinstance(value, str) and not value.startswith("os.environ/"):
        found = [value] if secret else [*users_in(value), *_KEY.findall(value)]
        if address and "@" in value and "://" not in value:
            found.append(value.rpartition("@")[0])
        yield from (text for text in found if len(text) >= _SHORTEST)


def _is_secret(key: Any) -> bool:
    return bool(_SECRETS_INSIDE.search(str(key)) or _SECRET.search(str(key)))
