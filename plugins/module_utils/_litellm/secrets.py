# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What of a configuration may be shown: everything but keys, tokens, passwords."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

HIDDEN = "********"
_SECRET = re.compile(
    r"(^|_)(api_?key|key|password|passwd|secret|token|credentials?|authorization|access_key_id|webhook(_url)?|dsn|connection_string)$",
    re.IGNORECASE,
)
_SECRETS_INSIDE = re.compile(
    r"(^|_)(headers|environment_variables|credentials?|secrets|alert_to_webhook_url)$", re.IGNORECASE
)
#: user:password@ in an address, and LiteLLM's own keys wherever they stand.
_IN_TEXT = re.compile(r"(?<=://)[^/@\s]+(?=@)|\bsk-[\w-]{8,}")
#: Shorter ones (none, EMPTY, x) are no secrets; hiding each of their letters elsewhere would hide everything.
_SHORTEST = 8


def without_secrets(value: Any, secret: bool = False) -> Any:
    """The same document with secrets hidden. Names of environment variables are none."""
    if isinstance(value, Mapping):
        return {
            key: without_secrets(item, secret or bool(_SECRETS_INSIDE.search(str(key)) or _SECRET.search(str(key))))
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [without_secrets(item, secret) for item in value]
    if isinstance(value, str):
        if value.startswith("os.environ/"):
            return value
        return HIDDEN if secret and value else _IN_TEXT.sub(HIDDEN, value)
    return HIDDEN if secret and isinstance(value, int) and not isinstance(value, bool) else value


def secrets_in(value: Any, secret: bool = False) -> Iterator[str]:
    """The secrets themselves, so that whoever prints can take them out."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from secrets_in(item, secret or bool(_SECRETS_INSIDE.search(str(key)) or _SECRET.search(str(key))))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from secrets_in(item, secret)
    elif isinstance(value, str) and not value.startswith("os.environ/"):
        found = [value] if secret else _IN_TEXT.findall(value)
        yield from (text for text in found if len(text) >= _SHORTEST)
