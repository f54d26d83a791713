#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: llm_busy
short_description: Hold, release or list busy leases on a model host
version_added: 0.1.0
description:
  - A lease declares batch work. While one is held, no server of the host is probed, and only one that is proven hung is restarted.
  - A lease ends when it is released, when it expires, or when the host is rebooted. It lasts at most 24 hours and can be renewed.
  - Use C(llm-busy run) or the role P(gb10.serving.busy_flag#role) where the job runs on the host. Their leases end with the job.
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
  action:
    description:
      - V(hold) takes the lease O(name), or renews it. Renewing counts as no change.
      - V(release) gives it back. As root also one that another user holds.
      - V(list) only says who holds one.
    type: str
    default: list
    choices: [hold, release, list]
  name:
    description:
      - The lease's name, of letters, digits, C(.), C(_), C(@) and C(-).
    type: str
  for:
    description:
      - How long it lasts at most, such as V(90m) or V(6h).
    type: str
    default: 6h
"""

EXAMPLES = r"""
- name: Declare the batch work of this play
  gb10.serving.llm_busy:
    action: hold
    name: nightly
    for: 3h

- name: Give it back
  gb10.serving.llm_busy:
    action: release
    name: nightly

- name: Who holds one?
  gb10.serving.llm_busy:
  register: busy
"""

RETURN = r"""
leases:
  description: The leases that are held when the module ends.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: The lease's name.
      type: str
      sample: nightly
    owner:
      description: The user who holds it.
      type: str
      sample: ryder
    pid:
      description: The process it ends with, or V(none) where it is held by hand.
      type: int
      sample: 4711
    seconds_left:
      description: Seconds until it expires.
      type: int
      sample: 10800
"""

import time

from ansible_collections.gb10.serving.plugins.module_utils._busy import store
from ansible_collections.gb10.serving.plugins.module_utils._core import durations
from ansible_collections.gb10.serving.plugins.module_utils._module import run_module


def _listed(leases):
    return "".join(f"{one.name} {one.owner}\n" for one in leases)


def _work(module):
    action, name = module.params["action"], module.params["name"]
    before = store.held()
    after = before
    if action == "hold":
        for_s = durations.parse(module.params["for"], "for")
        lease = store.wanted(name, for_s)
        others = [one for one in before if (one.name, one.owner, one.pid) != (name, lease.owner, None)]
        after = [*others, lease]
        if not module.check_mode:
            store.hold(name, for_s)
            after = store.held()
    elif action == "release":
        gone = [lease for path, lease in store.releasable(name)]
        after = [one for one in before if one not in gone]
        if not module.check_mode:
            store.release(name)
            after = store.held()
    changed = sorted(_listed(before).splitlines()) != sorted(_listed(after).splitlines())
    rows = [
        {"name": one.name, "owner": one.owner, "pid": one.pid, "seconds_left": round(one.expires - time.time())}
        for one in after
    ]
    return {"changed": changed, "leases": rows, "diff": {"before": _listed(before), "after": _listed(after)}}


def main():
    run_module(
        {
            "action": {"type": "str", "default": "list", "choices": ["hold", "release", "list"]},
            "name": {"type": "str"},
            "for": {"type": "str", "default": "6h"},
        },
        _work,
        required_if=[("action", "hold", ["name"]), ("action", "release", ["name"])],
    )


if __name__ == "__main__":
    main()
