# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The check's table as a filter."""

from __future__ import annotations

DOCUMENTATION = r"""
name: health_table
short_description: What llm_health found, as a table that a person can read
version_added: 0.1.0
author:
  - The gb10.serving maintainers (@gb10-serving)
description:
  - Makes one line for each server from what M(gb10.serving.llm_health) returned in RV(gb10.serving.llm_health#module:servers).
positional: _input
options:
  _input:
    description: The list of servers.
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the fleet
  ansible.builtin.debug:
    msg: "{{ fleet.servers | gb10.serving.health_table }}"
"""

RETURN = r"""
_value:
  description: One line for each server, and a head.
  type: list
  elements: str
"""

from ansible.errors import AnsibleFilterError

from ansible_collections.gb10.serving.plugins.module_utils._health.table import table


def health_table(servers):
    """Lines of the table."""
    try:
        return table(servers).splitlines()
    except (KeyError, TypeError) as error:
        raise AnsibleFilterError(f"health_table wants the servers that llm_health returned ({error})") from error


class FilterModule:
    """The filter's entry."""

    def filters(self):
        return {"health_table": health_table}
