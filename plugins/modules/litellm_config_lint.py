#!/usr/bin/python
# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: litellm_config_lint
short_description: Say what a LiteLLM configuration does to slow servers
version_added: 0.1.0
description:
  - Looks at a LiteLLM C(config.yaml) and at what starts and watches the proxy, and names the settings that hurt servers of one's own, with
    the harm, the evidence and the way out of each.
  - The rules are those of C(llm-gate check-config). Rules about retries, time-outs, health checks and cool-downs judge servers of one's own
    only; behind a cloud's address retries are right.
  - Nothing is changed and nobody is asked. No key is ever part of a result.
author:
  - The gb10.serving maintainers (@gb10-serving)
extends_documentation_fragment:
  - gb10.serving.attributes
  - gb10.serving.attributes.info
requirements:
  - PyYAML
options:
  path:
    description:
      - LiteLLM's C(config.yaml) on the target. Either this or O(content) is needed.
      - Callbacks that lie beside it are read too, and C(usage-gate.yml) beside it unless O(gate_config) is given.
      - Files that it includes are judged with it, merged as LiteLLM merges them. One that is missing or broken is an error.
    type: path
  content:
    description:
      - The text of a configuration that is no file yet.
    type: str
  destination:
    description:
      - Where on the target the configuration will lie. Files that it includes are looked for from there.
      - Not given, it is O(path). Needed with O(content) that includes files.
    type: path
  gate_config:
    description:
      - The gate's C(usage-gate.yml) on the target, whose capped list is compared with fallbacks, aliases and wildcards.
      - Without one, and with none beside O(path), nobody is told to have a gate.
    type: path
  beside:
    description:
      - Files on the target that start or watch the proxy. Units, compose files, Kubernetes manifests, requirements files and Dockerfiles are
        understood.
      - They are searched for compromised and unpinned releases and for probes of C(/health).
    type: list
    elements: path
    default: []
  longest_answer:
    description:
      - Seconds the longest legal answer takes. A shorter time-out is then an error.
      - Not given, one below 900 is a warning.
    type: float
  fail_on:
    description:
      - Severities at which the module fails. An empty list never fails.
    type: list
    elements: str
    choices: [error, warning]
    default: [error]
seealso:
  - module: gb10.serving.usage_gate_config
"""

EXAMPLES = r"""
- name: Stop a play whose proxy would multiply requests
  gb10.serving.litellm_config_lint:
    path: /etc/litellm/config.yaml
    gate_config: /etc/litellm/usage-gate.yml
    beside:
      - /etc/systemd/system/litellm.service
      - /etc/litellm/requirements.txt

- name: Only look
  gb10.serving.litellm_config_lint:
    path: /etc/litellm/config.yaml
    fail_on: []
  register: lint

- name: Say what was found
  ansible.builtin.debug:
    msg: "{{ lint.remarks | map(attribute='sentence') | list }}"
"""

RETURN = r"""
remarks:
  description: Everything that was found.
  returned: always
  type: list
  elements: dict
  contains:
    file:
      description: The file it was found in.
      type: str
      sample: /etc/litellm/config.yaml
    severity:
      description: V(error) or V(warning).
      type: str
      sample: error
    sentence:
      description: What, where, and the way out.
      type: str
      sample: "router_settings.num_retries is 2: a request that fails or times out is sent to qwen 3 times; set router_settings.num_retries: 0"
    rule:
      description: The rule's name. Not there for a file that cannot be used at all.
      type: str
      sample: retries
    harm:
      description: What it does to servers or people.
      type: str
      sample: Each client request that meets a busy server becomes three.
    evidence:
      description: Where that was seen or measured.
      type: str
      sample: 3 upstream requests for 1 that timed out
    fix:
      description: The way out.
      type: str
      sample: "set router_settings.num_retries: 0"
files:
  description: The files that were understood, and what they are.
  returned: always
  type: list
  elements: dict
  sample: [{"file": "/etc/litellm/config.yaml", "kind": "litellm"}]
sound:
  description: Whether no error was found.
  returned: always
  type: bool
  sample: false
"""

from ansible_collections.gb10.serving.plugins.module_utils._gate.check_config import Remark, Report, Severity
from ansible_collections.gb10.serving.plugins.module_utils._gate.config import load_config
from ansible_collections.gb10.serving.plugins.module_utils._gate.errors import ConfigError
from ansible_collections.gb10.serving.plugins.module_utils._litellm import lint
from ansible_collections.gb10.serving.plugins.module_utils._module import run_module

CONTENT = "content"


def _look(params):
    given = [params[key] for key in ("path", "gate_config") if params[key]] + params["beside"]
    if params["path"]:
        return lint.check_files(given, params["longest_answer"], params["destination"])
    report = lint.check_files(given, params["longest_answer"]) if given else Report()
    try:
        gate = load_config(params["gate_config"]) if params["gate_config"] else None
        report.remarks += lint.check_text(
            CONTENT, params["content"], gate, params["longest_answer"], params["destination"]
        )
        report.files[CONTENT] = "litellm"
    except ConfigError as error:
        report.unusable = True
        report.remarks += [Remark(CONTENT, Severity.ERROR, problem) for problem in error.problems]
    return report


def _work(module):
    report = _look(module.params)
    result = {"changed": False, **report.as_dict()}
    failing = [remark for remark in report.remarks if remark.severity.value in module.params["fail_on"]]
    if report.unusable or failing:
        told = failing or report.remarks
        return {"failed": True, "msg": "; ".join(lint.located(remark) for remark in told), **result}
    return result


def main():
    run_module(
        {
            "path": {"type": "path"},
            "content": {"type": "str", "no_log": True},
            "destination": {"type": "path"},
            "gate_config": {"type": "path"},
            "beside": {"type": "list", "elements": "path", "default": []},
            "longest_answer": {"type": "float"},
            "fail_on": {"type": "list", "elements": "str", "choices": ["error", "warning"], "default": ["error"]},
        },
        _work,
        needs=("yaml",),
        mutually_exclusive=[("path", "content")],
        required_one_of=[("path", "content")],
    )


if __name__ == "__main__":
    main()
