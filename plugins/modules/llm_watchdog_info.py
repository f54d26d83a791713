#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: llm_watchdog_info
short_description: What the watchdog of a host knows, decided and did
version_added: 0.1.0
description:
  - Reads the watchdog's memory and journal on the host it runs on. Nothing is asked of the servers and nothing is changed.
author:
  - The gb10.serving maintainers (@gb10-serving)
extends_documentation_fragment:
  - gb10.serving.attributes
  - gb10.serving.attributes.info
options:
  config:
    description: The description of the servers.
    type: path
    default: /etc/gb10-serving/servers.yml
  state_dir:
    description: Where the watchdog keeps its memory and journal.
    type: path
    default: /var/lib/gb10-serving
  history:
    description: How many of the newest records to return.
    type: int
    default: 50
"""

EXAMPLES = r"""
- name: Is anything latched?
  gb10.serving.llm_watchdog_info:
  register: watchdog

- name: Say which
  ansible.builtin.debug:
    msg: "{{ watchdog.servers | selectattr('latched') | map(attribute='name') | list }}"
"""

RETURN = r"""
servers:
  description: One entry for each described server.
  returned: always
  type: list
  elements: dict
  sample:
    - name: qwen
      state: busy
      reason: 4 running and 0 waiting, and progress was seen (steps)
      decision: 4 running and 0 waiting, and progress was seen (steps)
      budget_left: 2
      latched: null
      slow: null
      last_act: null
history:
  description: The newest records of the journal, in order of time.
  returned: always
  type: list
  elements: dict
  sample:
    - time: "2026-11-29T03:12:44+00:00"
      event: closed
      server: qwen
      action: restart
      outcome: serving again
"""

import time
from pathlib import Path

from ansible_collections.gb10.serving.plugins.module_utils._core import servers as core_servers
from ansible_collections.gb10.serving.plugins.module_utils._core import yaml_file
from ansible_collections.gb10.serving.plugins.module_utils._core.errors import ConfigError
from ansible_collections.gb10.serving.plugins.module_utils._core.settings import Settings, with_values
from ansible_collections.gb10.serving.plugins.module_utils._module import run_module
from ansible_collections.gb10.serving.plugins.module_utils._watchdog import clock, explain
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.store import Store


def _work(module):
    params = module.params
    if params["history"] < 0:
        raise ConfigError(["history: must not be negative"])
    described = core_servers.from_document(yaml_file.load(params["config"]), params["config"])
    settings = with_values(Settings(), described.settings, f"{params['config']}: settings")
    store = Store(Path(params["state_dir"]))
    rows = []
    for server in described.servers:
        state = store.load(server.name, mend=False)
        now = clock.advance(state.anchor, clock.read()).t
        rows.append(explain.row(settings, state, now, time.time()))
    history = list(store.journal())
    return {"changed": False, "servers": rows, "history": history[-params["history"] :] if params["history"] else []}


def main():
    run_module(
        {
            "config": {"type": "path", "default": "/etc/gb10-serving/servers.yml"},
            "state_dir": {"type": "path", "default": "/var/lib/gb10-serving"},
            "history": {"type": "int", "default": 50},
        },
        _work,
        needs=("yaml",),
    )


if __name__ == "__main__":
    main()
