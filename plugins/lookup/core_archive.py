# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The core of this very collection, packed for a host."""

from __future__ import annotations

DOCUMENTATION = r"""
name: core_archive
short_description: The core of this collection, packed for a host
version_added: 0.1.0
author:
  - The gb10.serving maintainers (@gb10-serving)
description:
  - Packs the C(module_utils) of this collection for M(gb10.serving.llm_core).
  - The same files always make the same archive.
options:
  _terms:
    description:
      - Packages under C(module_utils) to pack. None, all of them.
    type: list
    elements: str
"""

EXAMPLES = r"""
- name: Put the core onto the host
  gb10.serving.llm_core:
    archive: "{{ lookup('gb10.serving.core_archive') }}"

- name: Put what LiteLLM's hook imports beside its configuration
  gb10.serving.llm_core:
    archive: "{{ lookup('gb10.serving.core_archive', '_gate') }}"
    path: /etc/litellm/gb10-serving-lib
"""

RETURN = r"""
_raw:
  description: One archive, encoded in base 64.
  type: list
  elements: str
"""

import base64
import gzip
import io
import tarfile
from pathlib import Path

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase

HERE = "ansible_collections/gb10/serving/plugins/module_utils"


def packed(folder, packages=()):
    """The Python files under the folder, or only of some packages in it, under the names by which they are imported."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for path in sorted(folder.rglob("*.py")):
            if packages and path.relative_to(folder).parts[0] not in packages:
                continue
            data = path.read_bytes()
            member = tarfile.TarInfo(f"{HERE}/{path.relative_to(folder).as_posix()}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), mtime=0)


class LookupModule(LookupBase):
    """The lookup's entry."""

    def run(self, terms, variables=None, **kwargs):
        folder = Path(__file__).resolve().parents[1] / "module_utils"
        unknown = [term for term in terms if not (folder / term / "__init__.py").is_file()]
        if unknown:
            raise AnsibleError(f"core_archive: {', '.join(unknown)}: no such package in this collection")
        return [base64.b64encode(packed(folder, terms)).decode()]
