# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits until a proxy says that it is ready: wait_ready.py URL. Asks nothing that would reach a model server."""

from __future__ import annotations

import sys
import time
import urllib.request


def main() -> int:
    for _attempt in range(290):
        try:
            with urllib.request.urlopen(sys.argv[1], timeout=5):
                return 0
        except OSError:
            time.sleep(1)
    return 1


if __name__ == "__main__":
    sys.exit(main())
