# SPDX-License-Identifier: GPL-3.0-or-later
"""Every command that README and the documentation show is run, and a broken one is found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.contract.docs.shown import Folder, commands, stand_in

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "roles").glob("*/README.md")]
SHOWN = {}
for _page in sorted(PAGES):
    for _one in commands(str(_page.relative_to(ROOT)), _page.read_text(encoding="utf-8")):
        SHOWN.setdefault(_one.line, _one)
pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path):
    with stand_in() as server:
        yield Folder(tmp_path, server)


@pytest.mark.parametrize("line", SHOWN, ids=[f"{one.page}: {one.line}" for one in SHOWN.values()])
def test_it_does_what_it_says(folder, line):
    assert folder.run(line) is None, f"{SHOWN[line].page} shows: {line}"


BROKEN = [
    ("a sub-command that is not there", "llm-watchdog explian qwen"),
    ("an option that is not there", "llm-watchdog history qwen --newest 3"),
    ("a server that is not described", "llm-watchdog explain mistral"),
    ("a setting that is not there", "llm-watchdog backtest /var/lib/gb10-serving/traces --set patiense_s=300"),
    ("a command that is not there", "llm-wachdog status"),
    ("an option's value", "llm-health http://127.0.0.1:8000 --probe always"),
    ("a file that is not there", "llm-watchdog replay traces.jsonl"),
    ("a unit that is not ours", "systemctl stop llm-watchdogs.timer"),
    ("an option of somebody else's program", "journalctl --kernal"),
    ("a playbook that is not there", "ansible-playbook gb10.serving.sites -i inventory.yml"),
    ("a variable that nothing reads", "ansible-playbook gb10.serving.site -i inventory.yml -e sitestate=absent"),
    ("a module that is not there", "ansible -m gb10.serving.llm_helth -a 'url=http://spark1:8000' -c local all"),
    (
        "a host that is in no inventory",
        "ansible -m gb10.serving.llm_health -a 'url=http://spark1:8000' -c local spark9",
    ),
    ("a rung that is not there", "./dev test units"),
    ("a library that we do not need", "pip install httpz"),
    ("a benchmark that is not there", "./dev bench checks"),
    ("a page that does not have it", "curl -s http://127.0.0.1:8000/metrics | grep ^llmm_"),
]


@pytest.mark.parametrize("line", [one[1] for one in BROKEN], ids=[one[0] for one in BROKEN])
def test_a_broken_command_is_found(folder, line):
    found = commands("page.md", f"Do this:\n\n    {line}\n")
    assert [one.line for one in found] == [line], "it is seen on a page"
    assert folder.run(line) is not None


PLAYS = [
    (page.name, block)
    for page in PAGES
    for block in re.findall(r"```yaml\n(- hosts:.*?)```", page.read_text(encoding="utf-8"), flags=re.S)
]


def wrong_with(folder, block):
    """Why a play on a page is broken, or None: it is read by ansible-playbook, and each variable is its role's."""
    (folder.folder / "play.yml").write_text(block)
    found = folder.run("ansible-playbook play.yml")
    if found is not None:
        return found
    for play in yaml.safe_load(block):
        roles = [{"role": role} if isinstance(role, str) else role for role in play["roles"]]
        given, options = dict(play.get("vars", {})), {}
        for role in roles:
            given |= role.get("vars", {})
            given |= {key: value for key, value in role.items() if key not in ("role", "vars")}
            name = role["role"].removeprefix("gb10.serving.")
            spec = yaml.safe_load((ROOT / "roles" / name / "meta/argument_specs.yml").read_text())
            options |= spec["argument_specs"]["main"]["options"]
        unknown = set(given) - set(options)
        if unknown:
            return f"no role has {', '.join(sorted(unknown))}"
    return None


@pytest.mark.parametrize(("page", "block"), PLAYS, ids=[f"{page}-{n}" for n, (page, _) in enumerate(PLAYS)])
def test_a_play_can_be_played(folder, page, block):
    assert wrong_with(folder, block) is None, page


@pytest.mark.parametrize(
    "block",
    [
        "- hosts: x\n  roles: [{role: gb10.serving.monitorin}]\n",
        "- hosts: x\n  roles: [{role: gb10.serving.monitoring, vars: {monitoring_four: {}}}]\n",
        "- hosts: x\n  rules: []\n",
    ],
)
def test_a_broken_play_is_found(folder, block):
    assert wrong_with(folder, block) is not None


def test_commands_are_found_in_every_kind_of_code():
    text = (
        "Say `llm-watchdog status`, or\n\n    llm-health URL   # now\n\n```\n$ llm-busy list\n```\n"
        "```yaml\nllm-no: x\n```\n   ```sh\n   systemctl stop x.timer\n   ```\nA unit may `docker run` or `systemctl stop`.\n"
    )
    assert [one.line for one in commands("p", text)] == [
        "llm-busy list",
        "systemctl stop x.timer",
        "llm-health URL",
        "llm-watchdog status",
    ]


def test_they_are_many():
    assert len(SHOWN) > 50
