# SPDX-License-Identifier: GPL-3.0-or-later
"""llm-watchdog on a machine whose wall clock somebody set forward or back; the boot clock goes on as ever.

usage: clock_set.py SECONDS ARGS…
"""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path

true_time = time.time
off_s = float(sys.argv[1])
time.time = lambda: true_time() + off_s

command = Path(__file__).parents[3] / "roles/watchdog/files/llm-watchdog"
sys.argv = [str(command), *sys.argv[2:]]
runpy.run_path(str(command), run_name="__main__")
