# SPDX-License-Identifier: GPL-3.0-or-later
"""Errors that are the user's to mend: each says the thing and the way out, in one sentence a fault."""

from __future__ import annotations

from collections.abc import Iterable


class ConfigError(ValueError):
    """A description that cannot be used. `faults`: one sentence each, beginning with the path of the fault."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults: tuple[str, ...] = tuple(faults)
        super().__init__("; ".join(self.faults))


class Faults:
    """Collects the faults of several steps (`with faults: …`), so that all are told at once."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def __enter__(self) -> Faults:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, ConfigError):
            return False
        self.sentences += error.faults
        return True

    def tell(self) -> None:
        """Raises ConfigError where there was a fault."""
        if self.sentences:
            raise ConfigError(self.sentences)
