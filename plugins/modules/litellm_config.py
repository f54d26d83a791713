#!/usr/bin/python
# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: litellm_config
short_description: Change a LiteLLM configuration and keep everything else in it
version_added: 0.1.0
description:
  - Merges deployments, callbacks and settings into LiteLLM's C(config.yaml). Comments, the order of keys, and everything that is not named
    stay as they are. A file that says it all already is not touched.
  - A comment with a line for itself always stays. One at the end of a line goes when that line goes, and stays when its value changes.
  - A file that is not valid YAML is refused with line and column, and stays as it was. So is one that could only be changed by changing
    something else in it too.
  - LiteLLM reads its configuration at start. Restart it when this module reports a change.
  - Files that the configuration includes are read for RV(remarks), and never changed.
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
      - Shown are the settings without comments. Keys, tokens, passwords, headers and whatever else is secret are hidden.
requirements:
  - PyYAML
  - ruamel.yaml
options:
  path:
    description:
      - LiteLLM's configuration on the target.
    type: path
    default: /etc/litellm/config.yaml
  state:
    description:
      - Whether what is named shall be in the file.
      - With V(absent) deployments, callbacks and settings that are named are taken out. The values of settings do not matter then.
    type: str
    default: present
    choices: [present, absent]
  deployments:
    description:
      - Entries of C(model_list).
      - An entry is the same deployment when its C(model_info.id) is the same. Without one it is the same when C(model_name) is, and
        C(litellm_params.api_base) in it, or C(litellm_params.model) where no C(api_base) is given. Where one address serves several models
        of a group, the entry with the same C(model) is meant, and with O(state=absent) the C(model) must fit wherever it is given.
      - What the file says about a deployment and is not named here stays. A key with V(null) is taken out.
      - With O(state=absent) and nothing but a C(model_name), all deployments of that group are taken out.
    type: list
    elements: dict
    default: []
    suboptions:
      model_name:
        description: The group that clients ask for.
        type: str
        required: true
      litellm_params:
        description: What LiteLLM calls it with. C(model) is needed with O(state=present).
        type: dict
      model_info:
        description: What LiteLLM knows about it.
        type: dict
  callbacks:
    description:
      - Names that C(litellm_settings.callbacks) shall hold, in this order.
      - Others that it holds keep their places. What is new comes last, so that a callback that changes the model comes before one that checks it.
    type: list
    elements: str
    default: []
  router_settings:
    description:
      - Settings of the router. Mappings are merged, everything else is replaced, and a key with V(null) is taken out.
    type: dict
    default: {}
  litellm_settings:
    description:
      - Settings of LiteLLM itself, merged in the same way. For callbacks use O(callbacks).
    type: dict
    default: {}
  general_settings:
    description:
      - Settings of the proxy, merged in the same way.
      - Name keys as C(os.environ/LITELLM_MASTER_KEY) rather than writing them down.
    type: dict
    default: {}
  backup:
    description:
      - Keep a dated copy of a file that is changed.
    type: bool
    default: false
  owner:
    description: Owner of the file. An existing file keeps its own when this is not given.
    type: str
  group:
    description: Group of the file. LiteLLM's user must be able to read it.
    type: str
  mode:
    description: Permissions of the file. An existing file keeps its own when this is not given, a new one has V(0640).
    type: raw
notes:
  - Lines that need no change stay as they are, letter by letter, whatever their indentation. New ones are indented as the file begins.
  - A comment that stood within what is taken out stays, at the depth of its new neighbours. Take it out by hand where it says nothing any more.
seealso:
  - module: gb10.serving.litellm_config_lint
"""

EXAMPLES = r"""
- name: Two slow vLLM servers, asked once for each request
  gb10.serving.litellm_config:
    path: /etc/litellm/config.yaml
    deployments:
      - model_name: qwen
        litellm_params:
          model: hosted_vllm/qwen
          api_base: http://spark1:8000/v1
          timeout: 900
          stream_timeout: 900
      - model_name: qwen
        litellm_params:
          model: hosted_vllm/qwen
          api_base: http://spark2:8000/v1
          timeout: 900
          stream_timeout: 900
    router_settings:
      num_retries: 0
      disable_cooldowns: true

- name: The gate, after all callbacks that are there
  gb10.serving.litellm_config:
    callbacks: [usage_gate.usage_gate]
    backup: true

- name: Take a server out, and a limit that refuses instead of queueing
  gb10.serving.litellm_config:
    state: absent
    deployments:
      - model_name: qwen
        litellm_params:
          api_base: http://spark2:8000/v1
    router_settings:
      default_max_parallel_requests:
"""

RETURN = r"""
path:
  description: The file.
  returned: always
  type: str
  sample: /etc/litellm/config.yaml
config:
  description: What the file says now, or would say in check mode, without secrets.
  returned: success
  type: dict
  sample: {"router_settings": {"num_retries": 0}}
remarks:
  description: What M(gb10.serving.litellm_config_lint) says to the configuration, one sentence each.
  returned: success
  type: list
  elements: str
  sample: ["general_settings.master_key: no master key is set here"]
backup_file:
  description: The copy that was kept.
  returned: when O(backup) is true and a file was changed
  type: str
  sample: /etc/litellm/config.yaml.1234.2026-11-29@12:00:00~
"""

from pathlib import Path

from ansible_collections.gb10.serving.plugins.module_utils._gate.errors import ConfigError
from ansible_collections.gb10.serving.plugins.module_utils._litellm import edit, lint
from ansible_collections.gb10.serving.plugins.module_utils._litellm.merge import SECTIONS, Wanted
from ansible_collections.gb10.serving.plugins.module_utils._litellm.secrets import secrets_in, without_secrets
from ansible_collections.gb10.serving.plugins.module_utils._module import (
    file_behind,
    need_folder,
    run_module,
    write_file,
)


def _wanted(params):
    deployments = [{key: value for key, value in one.items() if value is not None} for one in params["deployments"]]
    return Wanted(
        present=params["state"] == "present",
        deployments=tuple(deployments),
        callbacks=tuple(params["callbacks"]),
        sections={name: params[name] for name in SECTIONS if params[name]},
    )


def _work(module):
    params = module.params
    # Whole options are kept out of the log; in results only what is secret need be hidden.
    module.no_log_values = set(secrets_in({name: params[name] for name in (*SECTIONS, "deployments")}))
    path = params["path"]
    target = file_behind(path)
    if params["state"] == "present":
        need_folder(path)
    result = {"changed": False, "path": path}
    try:
        edited = edit.edit_file(path, _wanted(params))
    except ConfigError as error:
        return {"failed": True, "msg": "nothing was written; " + "; ".join(error.problems), **result}
    # An empty file is not made where nothing was to be in it.
    result["changed"] = edited.changed and (edited.before is not None or bool(edited.document))
    result["config"] = without_secrets(dict(edited.document))
    result["remarks"] = lint.sentences_about(path, edited.document)
    result["diff"] = {
        "before": edited.shown_before,
        "after": edited.shown_after,
        "before_header": path,
        "after_header": path,
    }
    if result["changed"] and not module.check_mode:
        if params["backup"] and edited.before is not None:
            result["backup_file"] = module.backup_local(path)
        write_file(module, path, edited.after)
    if edited.before is None and params["mode"] is None:
        params["mode"] = "0640"
    if Path(path).exists():
        result["changed"] = module.set_fs_attributes_if_different(
            module.load_file_common_arguments(params, path=target), result["changed"]
        )
    return result


def main():
    run_module(
        {
            "path": {"type": "path", "default": "/etc/litellm/config.yaml"},
            "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
            "deployments": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "no_log": True,
                "options": {
                    "model_name": {"type": "str", "required": True},
                    "litellm_params": {"type": "dict"},
                    "model_info": {"type": "dict"},
                },
            },
            "callbacks": {"type": "list", "elements": "str", "default": []},
            "router_settings": {"type": "dict", "default": {}, "no_log": True},
            "litellm_settings": {"type": "dict", "default": {}, "no_log": True},
            "general_settings": {"type": "dict", "default": {}, "no_log": True},
            "backup": {"type": "bool", "default": False},
            "owner": {"type": "str"},
            "group": {"type": "str"},
            "mode": {"type": "raw"},
        },
        _work,
        needs=("yaml", "ruamel.yaml"),
    )


if __name__ == "__main__":
    main()
