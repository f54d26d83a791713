# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is wrong with a description of servers, before anything is changed anywhere."""

from __future__ import annotations

DOCUMENTATION = r"""
name: servers_faults
short_description: What is wrong with a description of servers
version_added: 0.1.0
author:
  - The gb10.serving maintainers (@gb10-serving)
description:
  - Validates the content of a C(servers.yml) as the commands on the host do, and returns every fault as a sentence.
positional: _input
options:
  _input:
    description: The keys C(llm_servers), C(settings) and C(notify_command).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Say what is wrong before anything changes
  ansible.builtin.assert:
    that: faults | length == 0
    fail_msg: "{{ faults | join('; ') }}"
  vars:
    faults: "{{ {'llm_servers': llm_servers} | gb10.serving.servers_faults }}"
"""

RETURN = r"""
_value:
  description: One sentence for each fault, with its path. Empty where all is well.
  type: list
  elements: str
"""

import json

from ansible.module_utils.common.text.converters import to_text

from ansible_collections.gb10.serving.plugins.module_utils._core import servers
from ansible_collections.gb10.serving.plugins.module_utils._core.errors import ConfigError
from ansible_collections.gb10.serving.plugins.module_utils._core.settings import Settings, with_values


def servers_faults(document):
    """The faults, as the commands would name them."""
    plain = json.loads(json.dumps(document, default=to_text))
    try:
        described = servers.from_document(plain, "servers.yml")
        with_values(Settings(), described.settings, "servers.yml: settings")
    except ConfigError as error:
        return list(error.faults)
    return []


class FilterModule:
    """The filter's entry."""

    def filters(self):
        return {"servers_faults": servers_faults}
