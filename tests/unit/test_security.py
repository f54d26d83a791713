# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/security.md names every privileged act, and acts are nowhere but where it says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/security.md").read_text()
SOURCES = sorted(
    [
        *(ROOT / "plugins").glob("**/*.py"),
        *(ROOT / "roles").glob("*/files/**/*.py"),
        *(ROOT / "roles").glob("*/files/llm-*"),
    ]
)
#: What begins a process, becomes one or ends one.
BEGINS = re.compile(
    r"\b(subprocess\.(?:run|call|check_call|check_output|Popen)|os\.(?:system|popen|kill|killpg|exec[lvpe]+|posix_spawnp?|spawn[lvpe]+)"
    r"|(?:asyncio\.)?create_subprocess_(?:exec|shell)|\w+\.run_command|signal\.pidfd_send_signal)$"
)
#: file → what in it begins or ends processes
BEGUN_BY = {
    "plugins/module_utils/_health/witness.py": {"asyncio.create_subprocess_exec"},  # `output_of`: all questions go through it
    "plugins/module_utils/_watchdog/act.py": {"subprocess.Popen", "os.kill"},
    "plugins/module_utils/_watchdog/watched.py": {"asyncio.create_subprocess_exec"},  # notify_command
    "roles/watchdog/files/llm-watchdog": {"subprocess.Popen"},  # `lock NAME -- CMD`: a person's own command
    "roles/busy_flag/files/llm-busy": {"os.execv"},  # becomes the batch job
}  # fmt: skip
#: Where something is changed by a command; the watchdog's hands, and what is retired and put back by request.
ACTING = {"plugins/module_utils/_watchdog/act.py", "plugins/module_utils/_watchdog/retire.py"}
#: Words by which systemctl, docker and podman change something.
CHANGES = {
    "stop", "start", "restart", "try-restart", "reload", "kill", "disable", "enable", "mask", "unmask", "reset-failed", "daemon-reload",
    "set-property", "isolate", "poweroff", "reboot", "rm", "rmi", "update", "up", "down", "pause", "unpause", "exec", "create", "prune",
}  # fmt: skip


def calls(source: str) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def begins(source: str) -> set[str]:
    return {name for name, node in calls(source) if BEGINS.search(name)}


def changing_words(source: str) -> set[str]:
    """The changing words in what is handed to a command: arguments of a call that runs one, and written argument lists."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
            "output_of",
            "_run",
            "_systemctl",
            "Popen",
            "over",
        ):
            within: list[ast.AST] = [*node.args]
        elif isinstance(node, (ast.Tuple, ast.List)) and any(
            isinstance(one, ast.Constant) and one.value in ("systemctl", "docker", "podman", "compose")
            for one in node.elts
        ):
            within = [*node.elts]
        else:
            continue
        found |= {
            one.value
            for top in within
            for one in ast.walk(top)
            if isinstance(one, ast.Constant) and one.value in CHANGES
        }
    return found


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_commands_of_the_product_are_among_what_is_looked_at():
    names = {relative(path) for path in SOURCES}
    assert set(BEGUN_BY) | ACTING <= names
    assert {f"roles/{role}" for role in ("health_check/files/llm-health", "usage_gate/files/llm-gate")} <= names


def test_processes_are_begun_and_ended_only_where_it_says():
    found = {relative(path): begins(path.read_text()) for path in SOURCES}
    assert {name: how for name, how in found.items() if how} == BEGUN_BY


def test_what_asks_changes_nothing():
    found = {relative(path): changing_words(path.read_text()) for path in SOURCES}
    assert {name for name, words in found.items() if words} == ACTING


@pytest.mark.parametrize(
    ("source", "words", "begun"),
    [
        ('await output_of("systemctl", *scope, "restart", unit)', {"restart"}, set()),
        ('ask = {"x": ("docker", "--host", here, "update", "--restart=no", name)}', {"update"}, set()),
        ("subprocess.run(argv)", set(), {"subprocess.run"}),
        ("os.killpg(pid, 9)", set(), {"os.killpg"}),
        ("module.run_command(argv)", set(), {"module.run_command"}),
        ('await output_of("systemctl", "show", unit)', set(), set()),
    ],
)
def test_a_new_act_elsewhere_would_be_found(source, words, begun):
    assert changing_words(source) == words
    assert begins(source) == begun


def test_the_page_names_every_act_of_the_watchdogs_hands():
    source = (ROOT / "plugins/module_utils/_watchdog/act.py").read_text()
    acts = changing_words(source)
    assert {"stop", "kill", "start", "reset-failed"} <= acts  # else this test looks at nothing
    listed = PAGE[PAGE.index("Every privileged act") : PAGE.index("Besides these")]
    assert "act.py" in listed
    for word in acts:
        assert f"`{word}`" in listed or f"`systemctl {word}`" in listed, word
    for said in ("restart.command", "run_as", "/proc/sys/vm/drop_caches", "SIGKILL", "ssh -o BatchMode=yes"):
        assert said in listed, said
    for command in re.findall(r'_run\("([^"]+)"', source):
        assert command in ("systemctl", "cat", "sh"), f"{command}: say in docs/security.md what it does"
    for path in ACTING:
        assert path in PAGE
    assert "notify_command" in PAGE
