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
options: {}
"""

EXAMPLES = r"""
- name: Put the core onto the host
  gb10.serving.llm_core:
    archive: "{{ lookup('gb10.serving.core_archive') }}"
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

from ansible.plugins.lookup import LookupBase

HERE = "ansible_collections/gb10/serving/plugins/module_utils"


def packed(folder):
    """The Python files under the folder, under the names by which they are imported."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for path in sorted(folder.rglob("*.py")):
            data = path.read_bytes()
            member = tarfile.TarInfo(f"{HERE}/{path.relative_to(folder).as_posix()}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), mtime=0)


class LookupModule(LookupBase):
    """The lookup's entry."""

    def run(self, terms, variables=None, **kwargs):
        return [base64.b64encode(packed(Path(__file__).resolve().parents[1] / "module_utils")).decode()]
