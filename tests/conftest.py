# SPDX-License-Identifier: GPL-3.0-or-later
"""For all tests: hypothesis has no deadline (two busy cores are no fault of a rule), and CI walks the same examples each time."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=3000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "here"))
