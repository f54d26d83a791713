#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: llm_restarters
short_description: Retire what else could restart an LLM server, and put it back
version_added: 0.1.0
description:
  - Retires what M(gb10.serving.llm_restarters_info) finds to compete with the watchdog, so that it can be put back as it was.
  - Timers and services of the system and of its users are disabled and stopped, cron entries are commented out, and scripts in
    C(cron.daily) and the like lose their execute bit.
  - Each is recorded in C(/var/lib/gb10-serving/retired.json) before it is done.
  - What cannot be retired so, such as container policies or an entry of monit, is returned in RV(left) for a person.
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
  servers:
    description:
      - Servers to look for, described as in the variable C(llm_servers) that all roles of this collection use. Needed with O(state=retired).
    type: list
    elements: dict
  state:
    description:
      - V(retired) retires what competes, V(restored) puts back all that was retired.
    type: str
    default: retired
    choices: [retired, restored]
"""

EXAMPLES = r"""
- name: Leave one restart authority for each server
  gb10.serving.llm_restarters:
    servers: "{{ llm_servers }}"

- name: Put the others back
  gb10.serving.llm_restarters:
    state: restored
"""

RETURN = r"""
done:
  description: What was retired, or put back.
  returned: always
  type: list
  elements: dict
  sample:
    - kind: unit
      name: vllm-check.timer
      where: /etc/systemd/system/vllm-check.timer
      before: enabled active
left:
  description: What competes and only a person can retire, with how.
  returned: always
  type: list
  elements: dict
  sample: []
"""

import asyncio

from ansible_collections.gb10.serving.plugins.module_utils._core import servers as core_servers
from ansible_collections.gb10.serving.plugins.module_utils._module import run_module
from ansible_collections.gb10.serving.plugins.module_utils._watchdog import retire
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.audit import audit


async def _competitors(described):
    found = await asyncio.gather(*(audit(server) for server in described))
    rows = {(row.kind, row.name, row.where): row for one in found for row in one if row.competes}
    return list(rows.values())


def _work(module):
    if module.params["state"] == "restored":
        done = retire.load() if module.check_mode else asyncio.run(retire.restore())
        left = []
    else:
        rows = asyncio.run(_competitors(core_servers.validate(module.params["servers"], "servers")))
        wanted = [row for row in rows if retire.way(row)]
        left = [dict(vars(row)) for row in rows if not retire.way(row)]
        done = wanted if module.check_mode else asyncio.run(retire.retire(wanted))
    listed = "".join(f"{one.where}: {one.name}\n" for one in done)
    diff = {"before": listed, "after": ""} if module.params["state"] == "retired" else {"before": "", "after": listed}
    return {"changed": bool(done), "done": [dict(vars(one)) for one in done], "left": left, "diff": diff}


def main():
    run_module(
        {
            "servers": {"type": "list", "elements": "dict"},
            "state": {"type": "str", "default": "retired", "choices": ["retired", "restored"]},
        },
        _work,
        required_if=[("state", "retired", ["servers"])],
    )


if __name__ == "__main__":
    main()
