"""A role run for real with ansible-playbook on folders of its own, with a stand-in for systemctl."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[3]

#: Knows no unit but says that all is well, and notes what it is asked to do.
SYSTEMCTL = """#!{python}
import pathlib, sys
said = pathlib.Path({said!r})
words = [word for word in sys.argv[1:] if not word.startswith("-")]
if words[:1] == ["show"]:
    print("LoadState=loaded\\nActiveState=active\\nSubState=running\\nUnitFileState=enabled")
elif words[:1] in (["is-enabled"], ["is-active"], ["is-system-running"]):
    print({{"is-enabled": "enabled", "is-active": "active"}}.get(words[0], "running"))
elif words:
    with said.open("a") as log:
        print(*words, file=log)
"""


@dataclass
class Outcome:
    """How a run of the play ended."""

    status: int
    changed: int
    text: str

    @property
    def words(self) -> str:
        """Its text in one line."""
        return " ".join(self.text.split())


def run_playbook(root: Path, playbook: str, inventory: Path, *more: str) -> Outcome:
    """A playbook on this machine; ``root / "bin"`` is first on its PATH."""
    command = [sys.executable, "-m", "ansible", "playbook", "-i", str(inventory), "-c", "local", playbook, *more]
    environment = {
        **os.environ,
        "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg"),
        "ANSIBLE_COLLECTIONS_PATH": str(CHECKOUT / ".collections"),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_LOCAL_TEMP": str(root / "tmp"),
    }
    done = subprocess.run(
        command, env=environment, text=True, capture_output=True, cwd=CHECKOUT, stdin=subprocess.DEVNULL
    )
    changed = 0
    for line in done.stdout.splitlines():
        if "ok=" in line and "changed=" in line:
            changed += int(dict(pair.split("=") for pair in line.split() if "=" in pair)["changed"])
    return Outcome(done.returncode, changed, done.stdout + done.stderr)


class Play:
    """One role with its variables; hosts are names for this machine."""

    def __init__(self, root: Path, role: str) -> None:
        self.root, self.role = root, role
        (root / "bin").mkdir()
        self.said = root / "said"
        systemctl = root / "bin/systemctl"
        systemctl.write_text(SYSTEMCTL.format(python=sys.executable, said=str(self.said)))
        systemctl.chmod(0o755)

    def asked(self) -> list[str]:
        """What systemctl was asked to do since the last time."""
        lines = self.said.read_text().splitlines() if self.said.exists() else []
        self.said.unlink(missing_ok=True)
        return lines

    def run(
        self, variables: dict[str, Any], check: bool = False, hosts: dict[str, dict[str, Any]] | None = None
    ) -> Outcome:
        play = {
            "hosts": "all",
            "gather_facts": False,
            "vars": {
                "ansible_python_interpreter": sys.executable,
                **{f"{self.role}_{name}": value for name, value in variables.items()},
            },
            "roles": [f"gb10.serving.{self.role}"],
        }
        playbook, inventory = self.root / "play.yml", self.root / "inventory.json"
        playbook.write_text(json.dumps([play]))
        inventory.write_text(json.dumps({"all": {"hosts": hosts or {"localhost": {}}}}))
        more = ["--check", "--diff"] if check else []
        return run_playbook(self.root, str(playbook), inventory, *more)
