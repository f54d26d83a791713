# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""LiteLLM releases that must not run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

#: Releases whose published packages carried credential stealers.
COMPROMISED = frozenset({"1.82.7", "1.82.8", "1.107.0"})
#: What those packages left beside LiteLLM; it stays behind when the package is replaced.
TRACES = ("litellm_init.pth", "cook.pth", "cook.py")


def compromised(version: str, folders: Iterable[Path]) -> str | None:
    """Why this installation must not run, in a sentence; None when nothing speaks against it."""
    if version in COMPROMISED:
        return (
            f"LiteLLM {version} is a compromised release that steals credentials; "
            "remove it, change every key it could read, install another"
        )
    for folder in folders:
        for trace in TRACES:
            if (folder / trace).exists():
                return (
                    f"{folder / trace} was left by a compromised LiteLLM release and runs with every Python; "
                    "make the environment anew, and change every key it could read"
                )
    return None
