# SPDX-License-Identifier: GPL-3.0-or-later
"""The report on a phone, as a real browser shows it."""

from __future__ import annotations

import json

import pytest

from tests.contract import browser
from tests.contract.watchdog.test_report import Bed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.CHROMIUM is None, reason="chromium is not installed (package chromium)"),
]


@pytest.fixture
def page(tmp_path):
    bed = Bed(tmp_path)
    described = json.loads(bed.config.read_text())
    # a second one, with a name and an address that want to be wider than a phone
    described["llm_servers"].append({"name": "g" * 60, "url": f"http://127.0.0.1:8001/{'x' * 120}"})
    bed.config.write_text(json.dumps(described))
    done = bed.report("--since", "2h")
    assert done.returncode == 0, done.stderr
    return bed.page.read_text()


@pytest.mark.parametrize("width", [390, 320, 1200])
def test_it_is_as_wide_as_the_phone_and_readable(tmp_path, page, width):
    said = browser.look(tmp_path, page, width)
    assert said["width"] == width
    assert said["scroll_width"] == width, said["too_wide"]
    assert said["too_wide"] == []
    assert said["smallest_px"] >= 12
    assert len(said["drawn"]) >= 4
    assert all(wide > 0.8 * min(width, 1000) - 60 and high >= 10 for wide, high in said["drawn"])


def test_what_a_person_asks_at_night_is_visible_without_a_touch(tmp_path, page):
    text = browser.look(tmp_path, page)["text"]
    for fact in (
        "qwen",
        "hung",
        "no sign of progress for 10 min (patience 10 min)",  # why it was restarted
        "serving again after 30 s",
        "1 left (2 in 6 h, 3 in 24 h)",
        "latch",
        "No busy lease is held",
        "ActiveState=active",
        "not looked at",
    ):
        assert fact in text, fact
    assert "<script>alert(1)</script>" in text, "what others wrote is shown as text"


def test_the_look_itself_sees_a_page_that_is_too_wide(tmp_path, page):
    wide = page.replace("<h1>", '<div style="width:700px">wide</div><h1 style="font-size:9px">', 1)
    said = browser.look(tmp_path, wide)
    assert said["scroll_width"] >= 700
    assert any("width:700px" in one for one in said["too_wide"])
    assert said["smallest_px"] == 9
    hidden = browser.look(tmp_path, page.replace("<section", "<section hidden"))
    assert "serving again" not in hidden["text"]
