# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands in for other people's programs: takes what they take, knows the units that we install, and refuses the rest."""

from __future__ import annotations

import os
import re
import sys

UNITS = os.environ["GB10_KNOWN_UNITS"].split()
FORMS = {
    "systemctl": r"(?:--user )?(?:status|stop|start|restart|reload|disable|enable)(?: --now)?(?P<units>(?: [\w@.-]+\.(?:service|timer))+)",
    "journalctl": r"-k -b|-u (?P<units>[\w@.-]+)(?: -n \d+)?",
    "nvidia-smi": r"-L",
    "ps": r"--sort -rss",
    "loginctl": r"enable-linger \w+",
    "docker": r"inspect -f '?\{\{.*\}\}'? [\w-]+|update --restart=no [\w-]+|ps --all",
    "podman": r"ps --all",
    "kubectl": r"apply -f [\w./-]+|-n \w+ (?:get|describe) [\w-]+(?: [\w-]+)?|-n \w+ rollout (?:status|restart) [\w/-]+",
    "promtool": r"check (?:rules|config) \S+",
}


def main() -> int:
    name, given = sys.argv[1], " ".join(sys.argv[2:])
    found = re.fullmatch(FORMS[name], given)
    if found is None:
        print(f"{name}: the tests do not know it with: {given}", file=sys.stderr)
        return 64
    for unit in (found.groupdict().get("units") or "").split():
        if unit not in UNITS:
            print(f"{name}: Unit {unit} could not be found.", file=sys.stderr)
            return 5
    if name == "journalctl":
        print("kernel: NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
