# SPDX-License-Identifier: GPL-3.0-or-later
"""llm-health --validate: what stands between a template and a servers.yml that is in use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GOOD = "llm_servers: [{name: a, url: 'http://127.0.0.1:1'}]\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(GOOD, None, id="holds"),
        pytest.param("llm_servers: []\nsettings: {mode: act}\nnotify_command: []\n", None, id="nothing to watch"),
        pytest.param("llm_servers: [{name: a}]\n", "llm_servers[0].url", id="a server without an address"),
        pytest.param(
            GOOD + "settings: {patience: 1}\n", "settings.patience: is not a setting", id="an unknown setting"
        ),
        pytest.param(GOOD + "notify_command: [mail]\n", "full path", id="a program without its path"),
        pytest.param("llm_servers: [\n", "line 2", id="not YAML"),
    ],
)
def test_a_description_is_taken_or_refused_whole(tmp_path, text, says):
    path = tmp_path / "servers.yml"
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, ROOT / "roles/health_check/files/llm-health", "--validate", "--config", path],
        env={**os.environ, "PYTHONPATH": str(ROOT / ".collections")},
        capture_output=True,
        text=True,
    )
    assert done.stdout == ""
    if says is None:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode == 3
        assert says in done.stderr
