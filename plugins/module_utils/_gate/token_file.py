# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A bearer token in a file: one line, of what a header can carry."""

from __future__ import annotations

from pathlib import Path

from .errors import GateError
from .yaml_file import need_regular

#: Bytes. Servers refuse headers far shorter than that; a wrong path (a log) is told without being read.
MAX_BYTES = 65_536


def read_token(path: str) -> str:
    """The token; GateError, which never shows it, when the file holds none that can be sent, OSError when unreadable."""
    if need_regular(path) > MAX_BYTES:
        raise GateError(f"{path} is larger than any token")
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise GateError(f"{path} is not text") from None
    if not token:
        raise GateError(f"{path} is empty; put the token into it")
    if "\n" in token or "\r" in token:
        # A line break in a header ends it: the rest would be read as another one, or as the question itself.
        raise GateError(f"{path} holds {len(token.splitlines())} lines; a token is one line")
    if not (token.isascii() and token.isprintable()):
        raise GateError(f"{path} holds characters a header cannot carry; a token is printable ASCII")
    return token
