# SPDX-License-Identifier: GPL-3.0-or-later
"""Durations as people write them: 90, 90s, 5m, 2h, 1d, 1h30m."""

from __future__ import annotations

import re

from .errors import ConfigError

MOST_S = 10 * 365 * 86_400.0
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def parse(text: str, where: str) -> float:
    """Seconds. `where` begins the sentence of a ConfigError."""
    plain = text.strip().lower()
    if re.fullmatch(r"\d+(?:\.\d+)?", plain):
        found = float(plain)
    elif re.fullmatch(rf"(?:{_PART.pattern})+", plain):
        found = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(plain))
    else:
        raise ConfigError([f"{where}: {text!r} is no duration; write 90s, 5m, 2h or 1d"])
    if found <= 0:
        raise ConfigError([f"{where}: must be more than 0"])
    if found > MOST_S:
        raise ConfigError([f"{where}: {text!r} is too long; at most {MOST_S / 86_400:.0f}d"])
    return found
