# SPDX-License-Identifier: GPL-3.0-or-later
"""The role monitoring as a user runs it, into a temporary folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (package prometheus)"),
]


def role(folder, *args, **values):
    """`values`: variables of the role; what is no text is given as JSON."""
    play = folder / "play.yml"
    play.write_text(
        "- hosts: localhost\n  connection: local\n  gather_facts: false\n  roles: [gb10.serving.monitoring]\n"
        f"  vars: {{monitoring_rules_folder: '{folder}/rules', monitoring_service: '', "
        f"monitoring_promtool: '{shutil.which('promtool')}'}}\n"
    )
    extra = ["-e", json.dumps({"ansible_python_interpreter": sys.executable, **values})]
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
    (tmp_path / "rules/others.yml").write_text("groups: []\n")
    assert role(tmp_path, monitoring_state="absent").returncode == 0
    assert [path.name for path in (tmp_path / "rules").iterdir()] == ["others.yml"]
    (tmp_path / "rules/others.yml").unlink()
    # Prometheus may be gone before its rules are
    gone = {"monitoring_service": "no-such.service", "monitoring_promtool": "/no/promtool"}
    assert role(tmp_path, monitoring_state="absent", **gone).returncode == 0
    assert not (tmp_path / "rules").exists()


def test_runbooks_of_ones_own(tmp_path):
    done = role(
        tmp_path, monitoring_runbooks_url="https://wiki.internal/usage_gate_runbooks", monitoring_metrics_prefix="x"
    )
    assert done.returncode == 0, done.stdout
    for name in ("gb10-model-servers.yml", "gb10-usage-gate.yml"):
        for group in yaml.safe_load((tmp_path / "rules" / name).read_text())["groups"]:
            for rule in group["rules"]:
                mine = f"https://wiki.internal/usage_gate_runbooks#{rule['alert'].lower()}"
                assert rule["annotations"]["runbook_url"] == mine


def test_the_dashboards_where_they_are_asked_for(tmp_path):
    assert role(tmp_path).returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"play.yml", "rules"}, "none is put anywhere by itself"
    (tmp_path / "providers").mkdir()
    where = {
        "monitoring_dashboards_folder": str(tmp_path / "boards"),
        "monitoring_grafana_providers": str(tmp_path / "providers"),
        "monitoring_metrics_prefix": "nan_usage_gate",
    }
    done = role(tmp_path, **where)
    assert done.returncode == 0, done.stdout
    boards = {path.name: json.loads(path.read_text()) for path in (tmp_path / "boards").iterdir()}
    assert set(boards) == {"gb10-fleet.json", "gb10-server.json", "gb10-usage-gate.json"}
    text = json.dumps(boards["gb10-usage-gate.json"])
    assert "nan_usage_gate_fail_open_total" in text
    assert "nan_usage_gate_" in text
    assert "(usage_gate_" not in text
    provider = yaml.safe_load((tmp_path / "providers/gb10-serving.yml").read_text())["providers"][0]
    assert provider["options"]["path"] == str(tmp_path / "boards")
    assert "changed=0" in role(tmp_path, **where).stdout
    assert role(tmp_path, monitoring_state="absent", **where).returncode == 0
    assert not list((tmp_path / "boards").iterdir())
    assert not list((tmp_path / "providers").iterdir())


def test_a_time_of_ones_own_for_an_alert(tmp_path):
    times = {"LlmServerNeverReady": "90m", "LlmServerLatched": "5m"}
    done = role(tmp_path, monitoring_for=times)
    assert done.returncode == 0, done.stdout
    files = {
        name: {rule["alert"]: rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]}
        for name, text in (
            ("as it is", (ROOT / "roles/monitoring/files/model-servers.rules.yml").read_text()),
            ("here", (tmp_path / "rules/gb10-model-servers.yml").read_text()),
        )
    }
    assert {name: files["here"][name]["for"] for name in times} == times
    for name, rule in files["as it is"].items():
        mine = dict(files["here"][name])
        if name in times:
            mine.pop("for"), rule.pop("for", None)
        assert mine == rule, "nothing else is changed"
    assert "changed=0" in role(tmp_path, monitoring_for=times).stdout


BAD = [
    ({"monitoring_metrics_prefix": "0-bad"}, "monitoring_metrics_prefix"),
    ({"monitoring_for": {"LlmServerHang": "5m"}}, "there is no alert LlmServerHang; alerts: LlmCompetingRestarter"),
    ({"monitoring_for": {"LlmServerHung": "soon"}}, "a duration such as"),
    ({"monitoring_runbooks_url": "docs/runbooks.md"}, "docs/runbooks.md is not a page's address"),
    ({"monitoring_promtool": "/no/promtool"}, "/no/promtool is not there; it comes with Prometheus"),
    ({"monitoring_service": "no-such.service"}, "there is no unit no-such.service on this host"),
    ({"monitoring_grafana_providers": "/etc/grafana/x"}, "needs monitoring_dashboards_folder"),
]


@pytest.mark.parametrize(("values", "says"), BAD, ids=[next(iter(one[0])) + str(n) for n, one in enumerate(BAD)])
def test_what_is_wrong_is_said_before_anything_changes(tmp_path, values, says):
    done = role(tmp_path, **values)
    assert done.returncode != 0
    assert says in done.stdout
    assert not (tmp_path / "rules").exists()
