# SPDX-License-Identifier: GPL-3.0-or-later
"""The role health_check on a host that cannot carry it: one sentence, and nothing put there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.litellm.play import Play

pytestmark = pytest.mark.slow


@pytest.mark.skipif(Path("/run/systemd/system").is_dir(), reason="systemd runs this machine")
def test_a_host_without_systemd_is_refused(tmp_path):
    was_there = Path("/opt/gb10-serving").exists()
    outcome = Play(tmp_path, "health_check").run({"servers": [{"name": "qwen", "url": "http://127.0.0.1:8000"}]})
    assert outcome.status != 0
    assert "systemd does not run this host, and the product stands on its timers and units" in outcome.words
    assert outcome.changed == 0
    assert Path("/opt/gb10-serving").exists() is was_there
