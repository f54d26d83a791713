# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether two documents say the same to whoever reads them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same kind: for Python 1 and true are equal, for LiteLLM and the gate they are not."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    if isinstance(one, bool) != isinstance(other, bool):
        return False
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)  # .nan is not even itself
    return bool(one == other)
