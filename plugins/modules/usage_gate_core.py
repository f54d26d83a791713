#!/usr/bin/python
# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: usage_gate_core
short_description: Put the core of the usage gate beside LiteLLM's configuration
version_added: 0.1.0
description:
  - The LiteLLM hook C(usage_gate.py) is thin. What it does is in the core, which this module puts into a folder beside it, C(gb10-serving-lib),
    for a unit as for a folder that a container mounts.
  - Files that an earlier version left there are taken away.
author:
  - The gb10.serving maintainers (@gb10-serving)
extends_documentation_fragment:
  - gb10.serving.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - Shown are the names of files.
options:
  path:
    description:
      - The folder.
    type: path
    required: true
  state:
    description:
      - Whether the core should be there.
    type: str
    default: present
    choices: [present, absent]
  owner:
    description: Owner of folders and files.
    type: str
  group:
    description: Group of folders and files.
    type: str
"""

EXAMPLES = r"""
- name: Put the core beside LiteLLM's configuration
  gb10.serving.usage_gate_core:
    path: /etc/litellm/gb10-serving-lib
"""

RETURN = r"""
files:
  description: The files of the core.
  returned: when O(state=present)
  type: list
  elements: str
  sample: [ask.py, gate.py, hook.py]
"""

import pkgutil
import shutil
import tempfile
from pathlib import Path

# What the hook imports; with it all that these import comes to the target.
from ansible_collections.gb10.serving.plugins.module_utils import _gate
from ansible_collections.gb10.serving.plugins.module_utils._gate import hook, releases, retry_after
from ansible_collections.gb10.serving.plugins.module_utils._module import run_module

NEEDED = (hook, releases, retry_after)
DOTTED = "ansible_collections/gb10/serving/plugins/module_utils/_gate"


def _core():
    """Names and contents of the core's files, from wherever this module itself was loaded."""
    names = [module.name for module in pkgutil.iter_modules(_gate.__path__)]
    found = {f"{name}.py": pkgutil.get_data(_gate.__name__, f"{name}.py") for name in sorted(names)}
    return {"__init__.py": b"", **found}


def _there(folder):
    return {file.name: file.read_bytes() for file in folder.glob("*.py")} if folder.is_dir() else {}


def _listed(files):
    return "".join(f"{name}\n" for name in sorted(files))


def _work(module):
    params = module.params
    root = Path(params["path"])
    folder = root / DOTTED
    there = _there(folder)
    if params["state"] == "absent":
        changed = root.exists()
        if changed and not module.check_mode:
            shutil.rmtree(root)
        return {"changed": changed, "diff": {"before": _listed(there), "after": ""}}
    core = _core()
    new = [name for name, content in core.items() if there.get(name) != content]
    old = [name for name in there if name not in core]
    result = {"changed": bool(new or old), "files": sorted(core)}
    result["diff"] = {"before": _listed([name for name in new if name in there] + old), "after": _listed(new)}
    if module.check_mode and not folder.is_dir():
        return result
    if not module.check_mode:
        folder.mkdir(parents=True, exist_ok=True)
        for name in new:
            with tempfile.NamedTemporaryFile("wb", dir=module.tmpdir, delete=False) as handle:
                handle.write(core[name])
            module.atomic_move(handle.name, str(folder / name))
        for name in old:
            (folder / name).unlink()
    folders = [root.joinpath(*Path(DOTTED).parts[:depth]) for depth in range(len(Path(DOTTED).parts) + 1)]
    for path, mode in [*((one, "0755") for one in folders), *((folder / name, "0644") for name in core)]:
        if path.exists():
            wanted = {"path": str(path), "mode": mode, "owner": params["owner"], "group": params["group"]}
            arguments = module.load_file_common_arguments(wanted)
            result["changed"] = module.set_fs_attributes_if_different(arguments, result["changed"])
    return result


def main():
    run_module(
        {
            "path": {"type": "path", "required": True},
            "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
            "owner": {"type": "str"},
            "group": {"type": "str"},
        },
        _work,
    )


if __name__ == "__main__":
    main()
