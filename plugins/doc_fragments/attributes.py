# SPDX-License-Identifier: GPL-3.0-or-later
"""Attributes that the modules state, each for itself."""

from __future__ import annotations


class ModuleDocFragment:
    """Filled in module by module."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying target.
  diff_mode:
    description: Will return details on what has changed (or possibly needs changing in C(check_mode)), when in diff mode.
"""

    # A module that only looks.
    INFO = r"""
options: {}
attributes:
  check_mode:
    support: full
    details:
      - It changes nothing, so it does the same in check mode.
  diff_mode:
    support: N/A
    details:
      - It changes nothing, so there is no difference to show.
"""
