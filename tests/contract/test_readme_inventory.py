"""The inventory in the README is one that the site takes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml

from tests.contract.litellm.play import CHECKOUT, run_playbook

# Slow: a playbook takes seconds to start, so it is run for one pair of Python and ansible-core only.
pytestmark = pytest.mark.slow

GROUPS = {"model_hosts": ("health_check", "watchdog"), "gateways": ("litellm", "usage_gate")}


def inventory() -> str:
    (text,) = re.findall(
        r"<!-- checked: inventory -->\n```yaml\n(.*?)```", (CHECKOUT / "README.md").read_text(), re.DOTALL
    )
    return text


def options_of(role: str) -> dict:
    """Without defaults, some of which only the role's own can work out."""
    text = (CHECKOUT / "roles" / role / "meta/argument_specs.yml").read_text()
    options = yaml.safe_load(text)["argument_specs"]["main"]["options"]
    return {name: {key: value for key, value in option.items() if key != "default"} for name, option in options.items()}


def run(tmp_path: Path, text: str):
    """Holds what the inventory says against the specifications of the roles, and the servers' description."""
    plays = [
        {
            "hosts": group,
            "gather_facts": False,
            "vars": {"ansible_python_interpreter": sys.executable, "vault_litellm_master_key": "sk-x"},
            "tasks": [{"ansible.builtin.validate_argument_spec": {"argument_spec": options_of(role)}} for role in roles]
            + [
                {
                    "ansible.builtin.assert": {
                        "that": "faults | length == 0",
                        "fail_msg": "{{ faults }}",
                        "success_msg": "{{ llm_servers | default([]) | length }} servers, {{ litellm_models | default([]) | length }} models, "
                        "{{ usage_gate_endpoints | default([]) | length }} endpoints",
                    },
                    "vars": {
                        "faults": "{{ {'llm_servers': llm_servers | default([])} | gb10.serving.servers_faults }}"
                    },
                }
            ],
        }
        for group, roles in GROUPS.items()
    ]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(plays, sort_keys=False))
    (tmp_path / "inventory.yml").write_text(text)
    return run_playbook(tmp_path, str(tmp_path / "play.yml"), tmp_path / "inventory.yml")


def test_the_inventory_of_the_readme(tmp_path):
    done = run(tmp_path, inventory())
    assert done.status == 0, done.text
    assert done.text.count("1 servers, 0 models") == 2
    assert "0 servers, 2 models, 3 endpoints" in done.text


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("slots: 12", "slot: 12", "slot"),
        ("mode: observe", "mode: look", "mode"),
        ("capped_models: [", "capped_models: {a: [", "list"),
    ],
)
def test_a_wrong_one_would_be_seen(tmp_path, right, wrong, said):
    text = inventory()
    assert right in text
    done = run(tmp_path, text.replace(right, wrong).replace("{a: [glm5.2]", "{a: [glm5.2]}"))
    assert done.status != 0 and said in done.text, done.text
