# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the gate's core raises. Every message is a sentence for the operator: what is wrong, where, and the way out."""

from __future__ import annotations


class GateError(Exception):
    """Something the operator can put right; the text says what and how."""


class ConfigError(GateError):
    """A configuration that must not be used. ``problems`` holds one sentence for each thing wrong with it."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class SourceError(GateError):
    """A source of endpoints could not be read this time; whoever holds a list keeps it."""
