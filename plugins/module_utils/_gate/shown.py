# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What somebody wrote, as a sentence may repeat it: without passwords, and not for pages. Pure."""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "********"
#: Characters of a value that a sentence repeats.
MOST = 120
#: What stands before the last @ of an address. A password may itself hold @ and /, so nothing short of that is safe.
_BEFORE_AT = re.compile(r"(?<=://)\S+(?=@)")


def shown(value: Any) -> str:
    """A value in quotes as a sentence shows it: nothing before its last @, no query, the beginning of a long one."""
    text = without_user(value) if isinstance(value, str) else value
    try:
        told = repr(text) if isinstance(text, str) else without_user(repr(text))
    except ValueError:  # Python refuses to write so many digits
        told = "a number of thousands of digits"
    return told if len(told) <= MOST else f"{told[:MOST]}…"


def one_line(text: str, most: int = MOST) -> str:
    """A text that somebody else chose, as a log and an answer can hold it: one line, of what can be printed and encoded."""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def without_user(text: str) -> str:
    """An address without whatever stands before its last @, broken or not, and without what a query may hold."""
    before, at, rest = text.rpartition("@")
    kept = f"{HIDDEN}@{rest}" if at else before + rest
    return re.sub(r"([?#]).*", r"\1…", kept, count=1, flags=re.DOTALL) if "://" in text else kept


def without_users(text: str) -> str:
    """A text with addresses in it, without the users and passwords of those."""
    return _BEFORE_AT.sub(HIDDEN, text)


def users_in(text: str) -> list[str]:
    """The users and passwords themselves, for whoever takes them out elsewhere."""
    return _BEFORE_AT.findall(text)
