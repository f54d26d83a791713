# SPDX-License-Identifier: GPL-3.0-or-later
"""busy_flag_cron: an entry is wrapped as it is described, anew when that changes, and put back when it is described no more."""

from __future__ import annotations

import json
import sys

import pytest

from tests.contract.litellm.play import run_playbook

pytestmark = pytest.mark.slow

LINES = """\
# * * * * * root /usr/local/bin/batch
MAILTO=ops
*/5 * * * * root /usr/local/bin/batch --all  \t
@daily root echo "100\\%" && it's
"""


class Cron:
    """A folder of cron entries, and the part of the role that wraps them."""

    def __init__(self, folder):
        self.folder, self.file = folder, folder / "cron/batch"
        self.file.parent.mkdir()
        self.file.write_text(LINES)
        (folder / "inventory").write_text(f"localhost ansible_python_interpreter={sys.executable}\n")

    def run(self, *entries, part="cron", own="/var/spool/cron/", **variables):
        given = {
            "busy_flag_cron": [{"file": str(self.file), **entry} for entry in entries],
            **variables,
        }
        tasks = [{"ansible.builtin.include_role": {"name": "gb10.serving.busy_flag", "tasks_from": part}}]
        play = [{"hosts": "all", "gather_facts": False, "vars": given, "tasks": tasks}]
        (self.folder / "play.yml").write_text(json.dumps(play))
        more = ["-e", json.dumps({"busy_flag_cron_places": [str(self.file.parent)], "busy_flag_cron_own": own})]
        more += ["--check"] if part == "preflight" else []  # nothing else of the product is on this machine
        return run_playbook(self.folder, str(self.folder / "play.yml"), self.folder / "inventory", *more)


@pytest.fixture
def cron(tmp_path):
    return Cron(tmp_path)


BATCH = {"command": "/usr/local/bin/batch --all", "name": "nightly"}
ECHO = {"command": 'echo "100\\%" && it\'s', "name": "other"}


def test_wrapped_once_anew_when_its_description_changes_and_put_back_when_it_has_none(cron):
    assert cron.run(BATCH, ECHO).changed == 1
    wrapped = cron.file.read_text()
    assert "*/5 * * * * root /usr/local/bin/llm-busy run --name nightly --for 24h -- /bin/sh -c" in wrapped
    assert wrapped.count("llm-busy run") == 2 and wrapped.startswith(LINES.split("MAILTO")[0])
    assert cron.run(BATCH, ECHO).changed == 0
    assert cron.run({**BATCH, "name": "weekly"}, ECHO).changed >= 1
    renamed = cron.file.read_text()
    assert "--name weekly " in renamed and "nightly" not in renamed and "--name other" in renamed
    assert cron.run({**BATCH, "name": "weekly"}, ECHO, busy_flag_for="6h").changed >= 1
    assert cron.file.read_text().count("--for 6h ") == 2
    cron.run(ECHO, busy_flag_for="6h")
    assert cron.file.read_text().count("llm-busy run") == 1
    cron.run()
    assert cron.file.read_text() == LINES.replace("--all  \t", "--all")


@pytest.mark.parametrize("command", ["/usr/local/bin/batch", "--all", "echo"])
def test_a_comment_and_a_part_of_a_command_are_no_entry(cron, command):
    said = cron.run({"command": command, "name": "x"}, part="preflight")
    assert said.status != 0
    assert "there is no such entry; give the file and the entry's command word for word" in said.words
    assert cron.file.read_text() == LINES


def test_the_first_word_of_a_command_in_a_users_own_crontab_is_no_user(cron):
    own = {"own": str(cron.file.parent)}
    cron.file.write_text("0 3 * * * nice /usr/local/bin/batch\n@reboot /usr/local/bin/batch --all\n")
    said = cron.run({"command": "/usr/local/bin/batch", "name": "x"}, part="preflight", **own)
    assert "/usr/local/bin/batch: there is no such entry" in said.words
    assert cron.run(BATCH, **own).changed == 1
    assert "0 3 * * * nice /usr/local/bin/batch\n@reboot /usr/local/bin/llm-busy run" in cron.file.read_text()


def test_an_entry_that_is_wrapped_already_is_there(cron):
    cron.run(BATCH, ECHO)
    assert "there is no such entry" not in cron.run(BATCH, ECHO, part="preflight").words
