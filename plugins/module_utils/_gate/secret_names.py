# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which keys of a configuration hold secrets, however they are written: api_key, apiKey, API-Keys. Pure."""

from __future__ import annotations

import re
from typing import Any

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
#: What the last words of such a key are.
_SECRET = re.compile(
    r"(^|_)(api_?keys?|keys?|passwords?|passwds?|passphrases?|pwds?|secrets?|tokens?|credentials?|authorizations?|pats?|salts?|cookies?"
    r"|bearers?|auth_values?|pass|passcodes?|jwts?|pems?|licenses?|private_key_id|secret_values?|vertex_credentials_json"
    r"|(basic|proxy|http)_auth|access_key_ids?|webhooks?(_urls?)?|dsns?|connection_strings?)"
    r"(_(\d+|backup|old|new|primary|secondary|prod|dev|test))*$|^auth$"
)
#: Keys within which everything may be one.
_INSIDE = re.compile(
    r"(^|_)(headers?|env|environment_variables|credential_values|query|query_params|alert_to_webhook_url)$"
)
#: Keys that end in the same words and hold numbers of tokens, or what those cost.
_COUNT = re.compile(r"(^|_)tokens$|_per_[a-z0-9_]*tokens?$")


def words_of(key: Any) -> str:
    """A key as its words in small letters, with _ between them."""
    return re.sub(r"[^a-z0-9]+", "_", _HUMP.sub("_", str(key)).lower()).strip("_")


def names_secret(key: Any) -> bool:
    """Whether what stands under this key is a secret."""
    words = words_of(key)
    return bool(_SECRET.search(words) or _INSIDE.search(words))


def names_count(key: Any) -> bool:
    """Whether a number under this key is a count or price of tokens, not a token."""
    return bool(_COUNT.search(words_of(key)))
