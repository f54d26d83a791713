# SPDX-License-Identifier: GPL-3.0-or-later
"""Other authorities are retired so that they can be put back as they were."""

from __future__ import annotations

import asyncio
import json
import os
import pwd

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._core.errors import ConfigError
from ansible_collections.gb10.serving.plugins.module_utils._watchdog import audit, retire
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.audit import Row


def row(kind, name, where):
    return Row(kind, name, str(where), "restarts it", "certain", "somehow", True)


@pytest.mark.parametrize(
    ("kind", "name", "where", "way"),
    [
        ("timer", "check.timer", "/etc/systemd/system/check.timer", "unit"),
        ("service", "loop.service", "/usr/lib/systemd/system/loop.service", "unit"),
        ("timer", "check.timer", "/home/ryder/.config/systemd/user/check.timer", None),
        ("cron", "* * * * * root /x", "/etc/cron.d/x", "line"),
        ("cron", "/etc/cron.daily/x", "/etc/cron.daily/x", "script"),
        ("autoheal", "vllm", "docker inspect", None),
        ("monit", "vllm", "/etc/monit/conf.d/vllm", None),
    ],
)
def test_how_each_kind_is_retired(kind, name, where, way):
    assert retire.way(row(kind, name, where)) == way


def test_cron_entries_and_scripts_go_and_come_back_as_they_were(tmp_path):
    table, script, record = tmp_path / "table", tmp_path / "daily", tmp_path / "retired.json"
    long = "*/5 * * * * root " + "/usr/local/bin/check --server=qwen " * 6
    text = f"# mine\nSHELL=/bin/sh\n{long}\n  0 3 * * * root /bin/true\n"
    table.write_text(text)
    table.chmod(0o600)
    script.write_text("#!/bin/sh\nsystemctl restart vllm\n")
    script.chmod(0o755)
    rows = [row("cron", long.strip(), table), row("cron", str(script), script)]
    done = asyncio.run(retire.retire(rows, record))
    assert [one.kind for one in done] == ["line", "script"]
    assert f"\n{retire.MARK}{long}\n" in table.read_text()
    assert "\n  0 3 * * * root /bin/true\n" in table.read_text()
    assert (table.stat().st_mode & 0o777, script.stat().st_mode & 0o777) == (0o600, 0o644)
    assert len(json.loads(record.read_text())) == 2
    asyncio.run(retire.restore(record))
    assert table.read_text() == text
    assert script.stat().st_mode & 0o777 == 0o755
    assert not record.exists()


def test_two_entries_that_begin_alike_are_both_retired(tmp_path):
    table, record = tmp_path / "table", tmp_path / "retired.json"
    lines = [f"* * * * * root {'/usr/local/bin/check ' * 10}{server}" for server in ("qwen", "qwen2")]
    table.write_text("\n".join([*lines, "# mine"]) + "\n")
    asyncio.run(retire.retire([row("cron", line, table) for line in reversed(lines)], record))
    assert table.read_text().splitlines() == [*(retire.MARK + line for line in lines), "# mine"]


def test_what_is_retired_twice_comes_back_as_it_stood_before_the_first_time(tmp_path):
    """Killed between the record and the deed, or half put back by hand: the second run finds another state."""
    script, record = tmp_path / "daily", tmp_path / "retired.json"
    script.write_text("#!/bin/sh\nsystemctl restart vllm\n")
    script.chmod(0o755)
    rows = [row("cron", str(script), script)]
    asyncio.run(retire.retire(rows, record))
    asyncio.run(retire.retire(rows, record))
    asyncio.run(retire.restore(record))
    assert script.stat().st_mode & 0o777 == 0o755


class Systemctl:
    """Says how the units of one manager stand, and changes it when it is told to."""

    def __init__(self, stands="enabled active", obeys=True):
        self.stands, self.obeys, self.asked = stands.split(), obeys, []

    async def __call__(self, *argv, within_s=0.0):
        self.asked.append(argv)
        words = [word for word in argv[1:] if not word.startswith("--")]
        if words[0] == "disable" and self.obeys:
            self.stands = ["disabled", "inactive"]
        elif words[0] == "enable":
            self.stands[0] = "enabled"
        elif words[0] == "start":
            self.stands[1] = "active"
        elif words[0] in ("is-enabled", "is-active"):
            if not self.stands:
                return 1, ""
            return 0, self.stands[words[0] == "is-active"] + "\n"
        return 0, ""


def a_persons_timer(tmp_path):
    folder = tmp_path / ".config/systemd/user"
    folder.mkdir(parents=True)
    (folder / "check.timer").touch()
    return row("timer", "check.timer", folder / "check.timer")


def test_a_persons_timer_is_retired_by_the_persons_manager_and_comes_back(tmp_path, monkeypatch):
    systemctl, record = Systemctl(), tmp_path / "retired.json"
    monkeypatch.setattr(retire, "output_of", systemctl)
    rows = [a_persons_timer(tmp_path)]
    assert [one.before for one in asyncio.run(retire.retire(rows, record))] == ["enabled active"]
    assert systemctl.stands == ["disabled", "inactive"]
    asyncio.run(retire.retire(rows, record))
    asyncio.run(retire.restore(record))
    assert systemctl.stands == ["enabled", "active"]
    whose = [f"--machine={pwd.getpwuid(os.getuid()).pw_name}@.host"]
    assert all([word for word in argv if word.startswith("--machine")] == whose for argv in systemctl.asked)


@pytest.mark.parametrize(
    ("systemctl", "said", "recorded"),
    [
        (Systemctl(stands=""), "its manager does not answer", False),
        (Systemctl(obeys=False), "could not be stopped", True),
    ],
    ids=["no manager", "does not stop"],
)
def test_what_could_not_be_retired_is_never_called_retired(tmp_path, monkeypatch, systemctl, said, recorded):
    record = tmp_path / "retired.json"
    monkeypatch.setattr(retire, "output_of", systemctl)
    with pytest.raises(ConfigError, match=said):
        asyncio.run(retire.retire([a_persons_timer(tmp_path)], record))
    assert record.exists() is recorded


def test_a_broken_record_is_never_taken_for_an_empty_one(tmp_path):
    record = tmp_path / "retired.json"
    record.write_text("[{")
    with pytest.raises(ConfigError, match="by hand"):
        asyncio.run(retire.restore(record))


def test_a_script_that_cannot_run_competes_with_nobody(tmp_path):
    script = tmp_path / "hourly"
    script.write_text("systemctl restart vllm")
    script.chmod(0o755)
    runs = asyncio.run(audit._as_it_stands(row("cron", str(script), script)))
    script.chmod(0o644)
    retired = asyncio.run(audit._as_it_stands(row("cron", str(script), script)))
    assert (runs.competes, retired.competes) == (True, False)
    assert "disabled" in retired.does
