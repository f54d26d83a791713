# SPDX-License-Identifier: GPL-3.0-or-later
"""Other authorities are retired so that they can be put back as they were."""

from __future__ import annotations

import asyncio
import json

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
    rows = [row("cron", long[:120], table), row("cron", str(script), script)]
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
