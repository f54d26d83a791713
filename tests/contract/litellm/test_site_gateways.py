# SPDX-License-Identifier: GPL-3.0-or-later
"""The site's play for gateways: what the second role refuses must not find the host half done by the first."""

from __future__ import annotations

import json
import os

import pytest

from tests.contract.litellm.play import run_playbook

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="the site asks for root")]

MODELS = [{"name": "qwen", "backends": [{"url": "http://10.0.0.1:8000", "slots": 12}]}]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"litellm_models": MODELS, "usage_gate_endpoints": ["http://10.0.0.9:8080"]}, "usage_gate_capped_models: both are needed"),
        ({"litellm_models": [{"name": "qwen", "backends": []}]}, "at least one model is needed, each with backends"),
        ({}, "say which servers LiteLLM stands in front of"),
    ],
    ids=["the second role", "the first", "neither"],
)  # fmt: skip
def test_what_one_role_refuses_changes_nothing(tmp_path, variables, said):
    given = {"litellm_environment": {"LITELLM_MASTER_KEY": "{{ undefined_on_purpose }}"}, **variables}
    inventory = {
        "gateways": {
            "hosts": {"localhost": {"ansible_python_interpreter": "{{ ansible_playbook_python }}"}},
            "vars": given,
        }
    }
    (tmp_path / "inventory.yml").write_text(json.dumps(inventory))
    outcome = run_playbook(tmp_path, "gb10.serving.site", tmp_path / "inventory.yml")
    assert outcome.status != 0
    assert said in outcome.words
    assert outcome.changed == 0
    assert "Install LiteLLM" not in outcome.text and "Configure it" not in outcome.text
