# SPDX-License-Identifier: GPL-3.0-or-later
"""Which boot of this host it is."""

from __future__ import annotations

from pathlib import Path

# Made at each boot by systemd-tmpfiles. In a container the kernel's own file says one thing to a hardened unit and
# another to everybody else (nspawn mounts over it, and a new view of /proc loses that): a lease made in the one would
# be thrown away in the other as an earlier boot's.
OURS = Path("/run/gb10-serving/boot")
KERNELS = Path("/proc/sys/kernel/random/boot_id")


def boot_id(paths: tuple[Path, ...] = (OURS, KERNELS)) -> str | None:
    """The first that can be read, as systemd writes it; None where none can."""
    for path in paths:
        try:
            found = path.read_text(encoding="utf-8").strip().replace("-", "")
        except (OSError, UnicodeDecodeError):
            continue
        if found:
            return found
    return None


def of_this_boot() -> str:
    """The option by which journalctl shows this boot alone. Plain --boot asks the kernel, with the same fault."""
    found = boot_id()
    return f"--boot={found}" if found else "--boot"
