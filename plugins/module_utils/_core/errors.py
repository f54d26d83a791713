# SPDX-License-Identifier: GPL-3.0-or-later
"""Errors that are the user's to mend: each says the thing and the way out, in one sentence a fault."""

from __future__ import annotations

from collections.abc import Iterable


class ConfigError(ValueError):
    """A description that cannot be used. `faults`: one sentence each, beginning with the path of the fault."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults: tuple[str, ...] = tuple(faults)
        super().__init__("; ".join(self.faults))
