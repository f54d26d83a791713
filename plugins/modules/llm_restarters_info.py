#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: llm_restarters_info
short_description: Find everything on a host that could restart an LLM server
version_added: 0.1.0
description:
  - Reads units, timers, cron jobs (scripts are followed into their files), container policies, autoheal, monit, supervisor
    and static pods, and lists what could restart a server.
  - A single manager of a single-node server, such as C(Restart=always) or one container policy, does not compete.
  - What only talks to a server is listed, and does not compete. What could not be read is listed too, with a warning.
  - Nothing is run and nothing is changed.
author:
  - The gb10.serving maintainers (@gb10-serving)
extends_documentation_fragment:
  - gb10.serving.attributes
  - gb10.serving.attributes.info
options:
  servers:
    description:
      - Servers to look for, described as in the variable C(llm_servers) that all roles of this collection use.
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
- name: Who else could restart the servers of this host?
  gb10.serving.llm_restarters_info:
    servers: "{{ llm_servers }}"
  register: others

- name: Fail when somebody competes
  ansible.builtin.assert:
    that: others.competing == 0
    fail_msg: "{{ others.servers }}"
"""

RETURN = r"""
competing:
  description: How many authorities beside the watchdog were found, over all servers.
  returned: always
  type: int
  sample: 4
servers:
  description: For each server by name, what was found. Competitors come first.
  returned: always
  type: dict
  sample:
    qwen:
      - kind: timer
        name: vllm-check.timer
        where: /etc/systemd/system/vllm-check.timer
        does: runs vllm-check.service, which restarts it
        sure: certain
        retire: systemctl disable --now vllm-check.timer
        competes: true
"""

import asyncio

from ansible_collections.gb10.serving.plugins.module_utils._core import servers as core_servers
from ansible_collections.gb10.serving.plugins.module_utils._module import run_module
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.audit import UNREAD, audit


async def _all(described):
    return await asyncio.gather(*(audit(server) for server in described))


def _work(module):
    described = core_servers.validate(module.params["servers"], "servers")
    found = asyncio.run(_all(described))
    rows = {server.name: [dict(vars(row)) for row in rows] for server, rows in zip(described, found, strict=True)}
    unread = {row.name for one in found for row in one if row.kind == UNREAD}
    if unread:
        module.warn(
            f"{', '.join(sorted(unread))}: could not be read, so others may be missing; become root for this task"
        )
    competing = sum(1 for one in rows.values() for row in one if row["competes"])
    return {"changed": False, "servers": rows, "competing": competing}


def main():
    run_module({"servers": {"type": "list", "elements": "dict", "required": True}}, _work)


if __name__ == "__main__":
    main()
