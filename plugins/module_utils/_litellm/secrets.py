# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What of a configuration may be shown: everything but keys, tokens, passwords."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from .._gate.secret_names import names_count, names_secret, words_of
from .._gate.shown import HIDDEN

#: What stands before the last @ of an address. A password may itself hold @ and /, so nothing short of that is safe.
_BEFORE_AT = re.compile(r"(?<=://)\S+(?=@)")
#: Keys of LiteLLM and of those it speaks to, wherever they stand; and what follows the name of a scheme in a header.
_KEY = re.compile(
    r"\bsk-[\w-]{8,}|\b(?:hf_|gh[opsu]_|github_pat_|glpat-|xox[abps]-|AKIA|AIza)[\w-]{8,}"
    r"|\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]+)?"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*-----|\Z)"
    r"|(?i:(?<=\bbearer )[\w.~+/=-]{8,}|(?<=\bbasic )[\w.~+/=-]{16,})"
)
#: name=value in a text; a value may be quoted.
_NAMED = re.compile(r"([A-Za-z][\w.-]*)\s*=\s*(\"[^\"]*\"|'[^']*'|[^\s&;,'\"]+)")
#: What an address asks for, whose values are often keys.
_QUERY = re.compile(r"[?#](\S+)")
#: Keys whose values are addresses, with a scheme or without one.
_ADDRESS = re.compile(r"(^|_)(api_base|base|url|uri|endpoint|host|proxy|target|path)$")
#: An option on a command line, whose value follows.
_OPTION = re.compile(r"--?([A-Za-z][\w-]*)$")
#: Shorter ones (none, EMPTY, x) are no secrets; hiding each of their letters elsewhere would hide everything.
_SHORTEST = 8


def without_secrets(value: Any, secret: bool = False, address: bool = False) -> Any:
    """The same document with secrets hidden. Names of environment variables are none."""
    if isinstance(value, Mapping):
        return {
            _text(key, False, False)[0] if isinstance(key, str) else key: item
            if names_count(key) and _is_number(item)
            else without_secrets(item, secret or names_secret(key), _is_address(key))
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [without_secrets(item, secret or after, address) for item, after in _after_options(value)]
    if isinstance(value, str):
        return _text(value, secret, address)[0]
    return HIDDEN if secret and isinstance(value, int) and not isinstance(value, bool) else value


def secrets_in(value: Any, secret: bool = False, address: bool = False) -> Iterator[str]:
    """The secrets themselves, so that whoever prints can take them out."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from secrets_in(key)
            yield from secrets_in(item, secret or names_secret(key), _is_address(key))
    elif isinstance(value, (list, tuple)):
        for item, after in _after_options(value):
            yield from secrets_in(item, secret or after, address)
    elif isinstance(value, str):
        for text in _text(value, secret, address)[1]:
            # a text of several lines is written in many ways, each of its lines in one
            yield from (part for part in {text, *map(str.strip, text.splitlines())} if len(part) >= _SHORTEST)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_address(key: Any) -> bool:
    return bool(_ADDRESS.search(words_of(key)))


def _after_options(words: Any) -> Iterator[tuple[Any, bool]]:
    """The entries of a list, and of each whether the one before it is an option that takes a secret (--token)."""
    before: Any = None
    for word in words:
        option = _OPTION.match(before) if isinstance(before, str) else None
        yield word, option is not None and names_secret(option.group(1))
        before = word


def _text(text: str, secret: bool, address: bool) -> tuple[str, list[str]]:
    """A text as it may be shown, and what is hidden of it."""
    if text.startswith("os.environ/") or not text:
        return text, []
    if secret:
        return HIDDEN, [text]
    spans = [found.span() for found in (*_BEFORE_AT.finditer(text), *_KEY.finditer(text))]
    if address and "@" in text and "://" not in text:
        spans.append((0, text.rindex("@")))
    spans += [found.span(2) for found in _NAMED.finditer(text) if names_secret(found.group(1))]
    for found in _QUERY.finditer(text):
        if address or "://" in text[: found.start()]:
            for part in re.finditer(r"[^&;]+", found.group(1)):
                at = found.start(1) + part.start() + part.group().find("=") + 1
                spans.append((at, found.start(1) + part.end()))
    shown, hidden, done = "", [], 0
    for start, end in sorted(spans):
        if end <= done:
            continue
        if start >= done:
            shown += text[done:start] + HIDDEN
        hidden.append(text[start:end])
        done = end
    return shown + text[done:], hidden
