# SPDX-License-Identifier: GPL-3.0-or-later
"""llm-watchdog, but killed with SIGKILL right after (or, with `before`, right before) its n-th write to disk.

usage: killer.py N before|after ARGS…
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path

from ansible_collections.gb10.serving.plugins.module_utils._watchdog import store

left, when = int(sys.argv[1]), sys.argv[2]


def dying(method):
    def wrapped(self, *args, **more):
        global left
        left -= 1
        if left == 0 and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        method(self, *args, **more)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return wrapped


store.Store.save = dying(store.Store.save)
store.Store.record = dying(store.Store.record)
command = Path(__file__).parents[3] / "roles/watchdog/files/llm-watchdog"
sys.argv = [str(command), *sys.argv[3:]]
runpy.run_path(str(command), run_name="__main__")
