#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: llm_core
short_description: Put the core of this collection onto a host, or take it away
version_added: 0.1.0
description:
  - Installs what the commands C(llm-health), C(llm-watchdog), C(llm-busy) and C(llm-gate), and the hook for LiteLLM, import, whole or not at all.
  - A release lies in a folder named after its content, and C(lib) is a link to the one in use. A command that runs meanwhile never sees half an upgrade.
author:
  - The gb10.serving maintainers (@gb10-serving)
extends_documentation_fragment:
  - gb10.serving.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
options:
  archive:
    description:
      - The core, from the lookup P(gb10.serving.core_archive#lookup). Needed with O(state=present).
      - It is hidden from logs for its size only.
    type: str
  path:
    description:
      - The folder it goes into.
    type: path
    default: /opt/gb10-serving
  state:
    description:
      - Whether it should be there.
    type: str
    default: present
    choices: [present, absent]
"""

EXAMPLES = r"""
- name: Put the core onto the host
  gb10.serving.llm_core:
    archive: "{{ lookup('gb10.serving.core_archive') }}"

- name: Put what LiteLLM's hook imports beside its configuration
  gb10.serving.llm_core:
    archive: "{{ lookup('gb10.serving.core_archive', '_gate') }}"
    path: /etc/litellm/gb10-serving-lib

- name: Take it away
  gb10.serving.llm_core:
    state: absent
"""

RETURN = r"""
lib:
  description: The folder to put on the path of Python.
  returned: always
  type: str
  sample: /opt/gb10-serving/lib
"""

import base64
import binascii
from pathlib import Path

from ansible_collections.gb10.serving.plugins.module_utils._core import release
from ansible_collections.gb10.serving.plugins.module_utils._core.errors import ConfigError
from ansible_collections.gb10.serving.plugins.module_utils._module import run_module


def _listed(files, others):
    return "".join(f"{name} {digest}\n" for name, digest in files.items() if others.get(name) != digest)


def _work(module):
    folder = Path(module.params["path"])
    lib = folder / "lib"
    if module.params["state"] == "absent":
        there = lib.is_symlink() or (folder / "releases").exists()
        if there and not module.check_mode:
            release.remove(folder)
        diff = {"before": f"{lib}\n" if there else "", "after": ""}
        return {"changed": there, "lib": str(lib), "diff": diff}
    try:
        archive = base64.b64decode(module.params["archive"], validate=True)
    except binascii.Error:
        raise ConfigError(["archive: is not base 64; use the lookup gb10.serving.core_archive"]) from None
    change = release.compared(folder, archive)
    if change.needed and not module.check_mode:
        change = release.install(folder, archive)
    diff = {"before": _listed(change.before, change.after), "after": _listed(change.after, change.before)}
    return {"changed": change.needed, "lib": str(lib), "diff": diff}


def main():
    run_module(
        {
            "archive": {"type": "str", "no_log": True},
            "path": {"type": "path", "default": "/opt/gb10-serving"},
            "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
        },
        _work,
        required_if=[("state", "present", ["archive"])],
    )


if __name__ == "__main__":
    main()
