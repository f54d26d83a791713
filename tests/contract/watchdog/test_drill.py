# SPDX-License-Identifier: GPL-3.0-or-later
"""drill_hang without consent; that it works is shown on real hosts (molecule/default)."""

from __future__ import annotations

import json

import pytest

from tests.contract.litellm.play import run_playbook

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("variables", [{}, {"drill_consent": False}], ids=["not asked", "refused"])
def test_a_drill_that_must_not_begin(tmp_path, variables):
    host = {"ansible_python_interpreter": "{{ ansible_playbook_python }}", **variables}
    (tmp_path / "inventory.yml").write_text(json.dumps({"model_hosts": {"hosts": {"localhost": host}}}))
    outcome = run_playbook(tmp_path, "gb10.serving.drill_hang", tmp_path / "inventory.yml")
    assert outcome.status != 0
    assert "say -e drill_consent=yes" in outcome.words
    assert outcome.changed == 0
