# SPDX-License-Identifier: GPL-3.0-or-later
"""The role watchdog with settings under which it could prove nothing: one sentence, before anything changes."""

from __future__ import annotations

import pytest
import yaml
from ansible_collections.gb10.serving.plugins.module_utils._core.settings import Settings

from tests.contract.litellm.play import CHECKOUT, Play

pytestmark = pytest.mark.slow

ROLE = CHECKOUT / "roles/watchdog"
FITS = "could ever be proven"


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        pytest.param({"interval_s": 0}, "watchdog_interval_s: 0 is less than 1", id="none"),
        pytest.param({"interval_s": -5}, "watchdog_interval_s: -5 is less than 1", id="negative"),
        pytest.param(
            {"interval_s": 121},
            "121 and the 60 s that a run may take are more than gap_void_s (180), so no hang could ever be proven; "
            "make it 120 or less, or raise gap_void_s in watchdog_settings to 181 or more",
            id="too long for the default",
        ),
        pytest.param({"interval_s": 61, "settings": {"gap_void_s": 120}}, "make it 60 or less", id="too long for its own"),
        pytest.param({"interval_s": 2, "settings": {"gap_void_s": 50}}, "no hang could ever be proven; raise gap_void_s in watchdog_settings to 62", id="a gap below a run"),
        pytest.param({"interval_s": 300, "settings": {"gap_void_s": "much"}}, "gap_void_s: 'much' is not a number", id="no number"),
    ],
)  # fmt: skip
def test_an_interval_in_which_nothing_can_be_proven_is_refused(tmp_path, variables, says):
    outcome = Play(tmp_path, "watchdog").run(
        {"servers": [{"name": "qwen", "url": "http://127.0.0.1:8000"}], **variables}
    )
    assert outcome.status != 0
    assert says in outcome.words
    assert outcome.changed == 0


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({"interval_s": 120}, id="the most by default"),
        pytest.param({"interval_s": 300, "settings": {"gap_void_s": 360}}, id="a gap that fits"),
    ],
)
def test_an_interval_that_fits_is_taken(tmp_path, variables):
    # no host that has the core: what is said next is about that, or there is nothing to say in check mode
    outcome = Play(tmp_path, "watchdog").run({"servers": [], **variables}, check=True)
    assert "The interval lets a hang be proven" in outcome.text and FITS not in outcome.words


def test_the_preflight_knows_the_default_of_the_setting():
    text = (ROLE / "tasks/preflight.yml").read_text()
    assert f"gap_void_s | default({Settings().gap_void_s:.0f})" in text
    assert yaml.safe_load((ROLE / "defaults/main.yml").read_text())["watchdog_interval_s"] + 60 <= Settings().gap_void_s
