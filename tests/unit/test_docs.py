# SPDX-License-Identifier: GPL-3.0-or-later
"""The documentation is what it says: made pages are up to date, links lead somewhere, named commands and rules exist."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._core import servers
from ansible_collections.gb10.serving.plugins.module_utils._core.yaml_file import parse

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("**/*.md"), *(ROOT / "roles").glob("*/README.md")])
PAGES = [page for page in PAGES if "_build" not in page.parts]
COMMANDS = {path.name: path for path in (ROOT / "roles").glob("*/files/llm-*")}


def test_the_settings_page_is_made_from_the_settings():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs/make_settings.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_that_is_shown_takes_what_is_shown(page):
    """Sub-commands and options in code are asked of the command's own --help."""
    helps: dict[tuple[str, ...], str] = {}

    def help_of(*words: str) -> str:
        if words not in helps:
            done = subprocess.run(
                [sys.executable, str(COMMANDS[words[0]]), *words[1:], "--help"],
                capture_output=True,
                text=True,
                env={"PYTHONPATH": str(ROOT / ".collections"), "PATH": "/usr/bin:/bin"},
            )
            assert done.returncode == 0, f"{page.name} shows {' '.join(words)}: {done.stderr}"
            helps[words] = done.stdout
        return helps[words]

    code = re.findall(r"`([^`\n]+)`", page.read_text()) + re.findall(r"^(?:    |\s+)(\S.*)$", page.read_text(), re.M)
    for line in code:
        for name, rest in re.findall(r"(?:^|\s|/)(llm-(?:health|watchdog|busy|gate)) +([^|;&]*)", line):
            if name not in COMMANDS:
                continue
            words = rest.split(" -- ")[0].split()
            sub = [words[0]] if name != "llm-health" and words and re.fullmatch(r"[a-z-]+", words[0]) else []
            shown = help_of(name, *sub)
            for option in re.findall(r"(?<!\S)(--[a-z][a-z-]+)", " ".join(words)):
                assert option in shown or option in help_of(name), f"{page.name} shows {name} {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_inventory_that_is_shown_is_valid(page):
    for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), flags=re.S):
        if "llm_servers:" not in block:
            continue
        document = parse(re.sub(r"^   ", "", block, flags=re.M) if block.startswith("   ") else block, page.name)

        def lists(value):
            if isinstance(value, dict):
                for key, inner in value.items():
                    if key == "llm_servers":
                        yield inner
                    else:
                        yield from lists(inner)

        for described in lists(document):
            assert servers.validate(described)


def rules_of_the_judgement():
    """The third argument of every Verdict that is made."""
    found = set()
    for file in ("judge", "check"):
        tree = ast.parse((ROOT / f"plugins/module_utils/_health/{file}.py").read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Verdict":
                given = (
                    node.args[2]
                    if len(node.args) > 2
                    else next((k.value for k in node.keywords if k.arg == "rule"), None)
                )
                if isinstance(given, ast.Constant):
                    found.add(given.value)
    return found


def test_every_rule_of_the_judgement_is_in_the_table_and_no_other():
    page = (ROOT / "docs/verdicts.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| ") and not line.startswith("| rule")]
    assert {rule.strip() for row in rows for rule in row.split(",")} == rules_of_the_judgement()


QUESTIONS = {
    "add a server": "ansible-playbook gb10.serving.site -i inventory.yml",
    "why the last restart happened": "llm-watchdog history",
    "stop all restarts tonight": "systemctl stop llm-watchdog.timer",
    "undo everything": "-e site_state=absent",
}


def answers(text, question):
    """What stands beside a question in a table."""
    return [
        line for line in text.splitlines() if line.startswith("|") and question in line.replace("*", "").split("|")[1]
    ]


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_newcomer_finds_each_answer_from_the_first_page(question):
    """In README and in the first page of the documentation, in the same words, in the same row as the command."""
    assert QUESTIONS[question] in " ".join(answers((ROOT / "README.md").read_text(), question))
    index = (ROOT / "docs/build.py").read_text()
    found = " ".join(answers(index, question)) or " ".join(answers(index, question.replace("why", "know why")))
    assert re.search(r"\]\(([\w-]+\.md)\)", found), f"the index has no link for: {question}"
    page = (ROOT / "docs" / re.search(r"\]\(([\w-]+\.md)\)", found)[1]).read_text()
    command = QUESTIONS[question].split(" -i ")[0]
    assert command in page or command in found


def test_every_page_is_linked_from_readme_and_in_the_index():
    readme, index = (ROOT / "README.md").read_text(), (ROOT / "docs/build.py").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert f"](docs/{page.name})" in readme, page.name
        assert f"\n{page.stem}\n" in index, page.name


def test_the_metrics_on_the_page_are_the_metrics_there_are():
    page = (ROOT / "docs/monitoring.md").read_text()
    source = (ROOT / "plugins/module_utils/_watchdog/metrics.py").read_text()
    names = set(re.findall(r'"(llm_[a-z_]+)"', source))
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `llm_")]
    shown = set()
    for row in rows:
        whole = ""
        for name in re.findall(r"`([a-z_]+)", row):
            whole = name if name.startswith("llm_") else re.sub(r"_[a-z]+$", "", whole) + name
            shown.add(whole.removesuffix("_total"))
            if name.startswith("_"):
                prefix = next(one for one in ("llm_server_requests", "llm_watchdog") if whole.startswith(one))
                shown.discard(whole)
                shown.add(prefix + name)
    assert shown == names
