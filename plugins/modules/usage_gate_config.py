#!/usr/bin/python
# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: usage_gate_config
short_description: Write the configuration of the usage gate
version_added: 0.1.0
description:
  - Writes C(usage-gate.yml), which the LiteLLM hook C(usage_gate.py) and the command C(llm-gate) read.
  - The configuration is validated as a whole before it is written. One that cannot work, such as attempts that do not fit
    into the budget, is refused with the sum that shows why, and the file stays as it was.
  - A running gate takes a changed file over within seconds. Nothing needs to be restarted.
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
      - The values of headers are not shown, nor what a path asks for behind its C(?), nor what stands under a key that the gate does not know.
requirements:
  - httpx >= 0.23
  - PyYAML
options:
  path:
    description:
      - The file on the target.
    type: path
    default: /etc/gb10-serving/usage-gate.yml
  state:
    description:
      - Whether the file should be there.
    type: str
    default: present
    choices: [present, absent]
  endpoints:
    description:
      - Where the replicas of the platform API are. Needed with O(state=present).
      - Either a list of URLs, or a mapping with exactly one of the keys C(static), C(dns) and C(kubernetes).
      - C(dns) takes C(name), C(port), C(refresh_s) and C(scheme). A name that begins with C(_) is asked for SRV records and takes no port.
      - C(kubernetes) takes C(namespace), C(service), C(port) and C(scheme), and outside the cluster C(api_url), C(token_file) and C(ca_file).
      - Name the replicas, not a load balancer or a Service address. A gate that knows one address has nowhere else to ask.
    type: raw
  capped_models:
    description:
      - The model groups whose use is checked. Needed with O(state=present).
      - An entry with C(*) stands for every group it matches.
    type: list
    elements: str
  request:
    description:
      - How the question is put.
    type: dict
    suboptions:
      path:
        description: Path of the check.
        type: str
      unchecked_path:
        description: Path to which requests served unchecked are reported, once the API answers again. Not given, they stay in a local file.
        type: str
      headers:
        description: Headers to send. Their values are taken for secrets.
        type: dict
      token_file:
        description: A file on the target with a bearer token, one line. It is read again as it is rotated.
        type: path
      ca_file:
        description: A file on the target with the authorities that sign the API's certificates.
        type: path
  limits:
    description:
      - What one check may cost. Keys are C(connect_s), C(attempt_s), C(budget_s), C(retries), C(hedge_after_s), C(hedge_share) and C(hedge_burst).
      - C(attempt_s) times one plus C(retries) must fit into C(budget_s).
    type: dict
  ejection:
    description:
      - When a replica is left out. Keys are C(after_errors), C(after_5xx), C(cooldown_s) and C(cooldown_max_s).
      - With V(0), C(after_errors) and C(after_5xx) leave nobody out.
    type: dict
  verdict_cache:
    description:
      - How long a last-known verdict may stand in when no replica answers. Keys are C(denied_s), C(allowed_s) and C(allowed_uses).
    type: dict
  on_failure:
    description:
      - What happens to a request without any verdict. V(open) serves it unchecked and counts it, V(closed) refuses it.
    type: str
    choices: [open, closed]
  metrics_prefix:
    description:
      - The beginning of all metric names.
    type: str
  verify:
    description:
      - Ask every replica once from the target before anything is written, and fail when one of them gives no verdict.
      - The question is about a key that nobody has. It is a pure read.
    type: bool
    default: false
  verify_wait:
    description:
      - Seconds that O(verify) waits for the first list of a DNS or Kubernetes source.
    type: float
    default: 10
  backup:
    description:
      - Keep a dated copy of a file that is changed.
    type: bool
    default: false
  owner:
    description: Owner of the file.
    type: str
  group:
    description: Group of the file. LiteLLM's user must be able to read it.
    type: str
  mode:
    description: Permissions of the file.
    type: raw
    default: "0640"
"""

EXAMPLES = r"""
- name: Three replicas by address
  gb10.serving.usage_gate_config:
    path: /etc/litellm/usage-gate.yml
    endpoints:
      - http://10.0.0.1:8080
      - http://10.0.0.2:8080
      - http://10.0.0.3:8080
    capped_models: [glm5.2, deepseek-v4-flash, mimo-v2.5]

- name: The replicas of a Kubernetes service, each asked once before anything is written
  gb10.serving.usage_gate_config:
    endpoints:
      kubernetes:
        namespace: platform
        service: platform-api
        port: http
    capped_models: [glm5.2]
    request:
      token_file: /etc/gb10-serving/keys/platform-api
    verify: true

- name: Keep existing dashboards
  gb10.serving.usage_gate_config:
    endpoints:
      dns:
        name: platform-api.internal
        port: 8080
    capped_models: [glm5.2]
    metrics_prefix: nan_usage_gate
"""

RETURN = r"""
path:
  description: The file.
  returned: always
  type: str
  sample: /etc/gb10-serving/usage-gate.yml
config:
  description: What the file says now, without the values of headers.
  returned: when O(state=present)
  type: dict
  sample: {"endpoints": {"static": ["http://10.0.0.1:8080"]}, "capped_models": ["glm5.2"]}
verified:
  description: What each replica did when it was asked.
  returned: when O(verify) is true
  type: list
  elements: dict
  contains:
    url:
      description: The replica.
      type: str
      sample: http://10.0.0.1:8080
    gave_verdict:
      description: Whether it gave a verdict.
      type: bool
      sample: true
    detail:
      description: The verdict, or what it did instead.
      type: str
      sample: allowed
    took_ms:
      description: Milliseconds the answer took.
      type: float
      sample: 4.2
backup_file:
  description: The copy that was kept.
  returned: when O(backup) is true and a file was changed
  type: str
  sample: /etc/gb10-serving/usage-gate.yml.1234.2026-11-29@12:00:00~
"""

import asyncio
from pathlib import Path

from ansible_collections.gb10.serving.plugins.module_utils._gate import config_file, verify
from ansible_collections.gb10.serving.plugins.module_utils._gate.errors import ConfigError
from ansible_collections.gb10.serving.plugins.module_utils._gate.same import same
from ansible_collections.gb10.serving.plugins.module_utils._module import (
    file_behind,
    need_folder,
    run_module,
    write_file,
)


def _verify(config, wait_s):
    async def look():
        found, complaint = await verify.find_endpoints(config, wait_s)
        return await verify.verify_endpoints(config, found), complaint

    seen, complaint = asyncio.run(look())
    faults = [f"{one.url}: {one.detail}" for one in seen if not one.gave_verdict]
    if not seen:
        faults = [f"no replica was found: {complaint or 'the source gave none in time'}"]
    return [vars(one) for one in seen], faults


def _work(module):
    params = module.params
    path = params["path"]
    # Such endpoints are refused; until then nothing that repeats the arguments may show them.
    module.no_log_values |= {found for found in config_file.users_in(params["endpoints"]) if found}
    module.no_log_values |= set(config_file.queries_in(params["request"]))
    target = file_behind(path)
    if params["state"] == "present":
        need_folder(path)
    before = config_file.read_existing(path)
    result = {"changed": False, "path": path}
    if params["state"] == "absent":
        result["changed"] = before.exists
        result["diff"] = {"before": before.shown, "after": ""}
        if before.exists and not module.check_mode:
            Path(path).unlink(missing_ok=True)
        return result
    given = {key: params[key] for key in config_file.KEYS}
    try:
        document, config = config_file.build(given, path)
    except ConfigError as error:
        return {"failed": True, "msg": "; ".join(error.problems), **result}
    result["config"] = config_file.without_secrets(document)
    if params["verify"]:
        result["verified"], faults = _verify(config, params["verify_wait"])
        if faults:
            return {"failed": True, "msg": "nothing was written; " + "; ".join(faults), **result}
    result["changed"] = not same(before.document, document)
    result["diff"] = {"before": before.shown, "after": config_file.render(result["config"])}
    if result["changed"] and not module.check_mode:
        if params["backup"] and before.exists:
            result["backup_file"] = module.backup_local(path)
        write_file(module, path, config_file.render(document))
    file_arguments = module.load_file_common_arguments(params, path=target)
    if Path(path).exists():
        result["changed"] = module.set_fs_attributes_if_different(file_arguments, result["changed"])
    return result


def main():
    run_module(
        {
            "path": {"type": "path", "default": "/etc/gb10-serving/usage-gate.yml"},
            "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
            "endpoints": {"type": "raw"},
            "capped_models": {"type": "list", "elements": "str"},
            "request": {
                "type": "dict",
                "options": {
                    "path": {"type": "str"},
                    "unchecked_path": {"type": "str"},
                    "headers": {"type": "dict", "no_log": True},
                    "token_file": {"type": "path", "no_log": False},
                    "ca_file": {"type": "path"},
                },
            },
            "limits": {"type": "dict"},
            "ejection": {"type": "dict"},
            "verdict_cache": {"type": "dict"},
            "on_failure": {"type": "str", "choices": ["open", "closed"]},
            "metrics_prefix": {"type": "str"},
            "verify": {"type": "bool", "default": False},
            "verify_wait": {"type": "float", "default": 10},
            "backup": {"type": "bool", "default": False},
            "owner": {"type": "str"},
            "group": {"type": "str"},
            "mode": {"type": "raw", "default": "0640"},
        },
        _work,
        needs=("yaml", "httpx"),
        required_if=[("state", "present", ("endpoints", "capped_models"))],
    )


if __name__ == "__main__":
    main()
