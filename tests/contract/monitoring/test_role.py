# SPDX-License-Identifier: GPL-3.0-or-later
"""The role monitoring as a user runs it, into a temporary folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (package prometheus)"),
]


def role(folder, *args, **values):
    play = folder / "play.yml"
    play.write_text(
        "- hosts: localhost\n  connection: local\n  gather_facts: false\n  roles: [gb10.serving.monitoring]\n"
        f"  vars: {{monitoring_rules_folder: '{folder}/rules', monitoring_service: '', "
        f"monitoring_promtool: '{shutil.which('promtool')}'}}\n"
    )
    extra = [f"-e{key}={value}" for key, value in {"ansible_python_interpreter": sys.executable, **values}.items()]
    env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".collections"), "ANSIBLE_LOCALHOST_WARNING": "false"}
    command = [sys.executable, "-m", "ansible", "playbook", "-i", "localhost,", str(play), *args, *extra]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)


def test_put_in_place_once_with_the_prefix_and_taken_away(tmp_path):
    checked = role(tmp_path, "--check")
    assert checked.returncode == 0, checked.stdout
    assert not (tmp_path / "rules").exists()
    done = role(tmp_path, monitoring_metrics_prefix="nan_usage_gate")
    assert done.returncode == 0, done.stdout
    text = (tmp_path / "rules/gb10-usage-gate.yml").read_text()
    assert "nan_usage_gate_fail_open_total" in text
    assert " usage_gate_" not in text
    assert "(usage_gate_" not in text
    again = role(tmp_path, monitoring_metrics_prefix="nan_usage_gate")
    assert "changed=0" in again.stdout
    assert role(tmp_path, monitoring_state="absent").returncode == 0
    assert not list((tmp_path / "rules").iterdir())


def test_a_bad_prefix_is_refused_before_anything_changes(tmp_path):
    done = role(tmp_path, monitoring_metrics_prefix="0-bad")
    assert done.returncode != 0
    assert "monitoring_metrics_prefix" in done.stdout
    assert not (tmp_path / "rules").exists()
