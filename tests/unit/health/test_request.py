# SPDX-License-Identifier: GPL-3.0-or-later
"""From what a user gave to what is checked: whose patience holds, and which of two secrets would be sent."""

from __future__ import annotations

import json

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._core.errors import ConfigError
from ansible_collections.gb10.serving.plugins.module_utils._core.keys import checked_key
from ansible_collections.gb10.serving.plugins.module_utils._core.servers import from_document
from ansible_collections.gb10.serving.plugins.module_utils._core.urls import address
from ansible_collections.gb10.serving.plugins.module_utils._health import request
from ansible_collections.gb10.serving.plugins.module_utils._watchdog import remembered

URL = "http://127.0.0.1:8000"
# id, settings, the server's own, remembered, right
PATIENCES = [
    ("nobody's", None, None, None, None),
    ("the settings'", 900, None, None, 900),
    ("the server's own", 900, 50, None, 50),
    ("the watchdog's memory", 900, 50, 270, 270),
]


@pytest.mark.parametrize(
    ("settings", "own", "memory", "right"), [c[1:] for c in PATIENCES], ids=[c[0] for c in PATIENCES]
)
def test_whose_patience(settings, own, memory, right):
    document = {
        "settings": {} if settings is None else {"patience_s": settings},
        "servers": [{"name": "a", "url": URL, "patience_s": own}],
    }
    subjects = request.subjects_of(from_document(document, "f"))
    known = {} if memory is None else {address("http://localhost:8000/v1"): memory}
    assert [one.patience_s for one in request.with_patiences(subjects, known)] == [right]


@pytest.mark.parametrize(
    ("memory", "right"),
    [({"name": "a", "patience_s": 270.0}, {address(URL): 270.0}), ({"name": "a"}, {}), ("{", {}), (None, {})],
    ids=["known", "never looked", "broken", "no memory"],
)
def test_what_the_watchdog_remembers(tmp_path, memory, right):
    config = tmp_path / "servers.yml"
    config.write_text(f"servers: [{{name: a, url: '{URL}'}}]")
    if memory is not None:
        (tmp_path / "memory").mkdir()
        (tmp_path / "memory/a.json").write_text(memory if isinstance(memory, str) else json.dumps(memory))
    assert remembered.patiences(config, tmp_path) == right


def test_without_a_watchdog_nothing_is_remembered(tmp_path):
    assert remembered.patiences(tmp_path / "none.yml", tmp_path) == {}


def test_a_user_in_the_address_and_a_key_are_not_both_sent():
    with pytest.raises(ConfigError, match="only one can be sent"):
        request.subject_of_url("http://u:p@h", api_key="sk")


@pytest.mark.parametrize("key", ["sk-a\nb", "clé", "sk ok"])
def test_a_key_that_no_header_holds_is_refused_by_name(key):
    with pytest.raises(ConfigError, match=r"^api_key: ") as failed:
        checked_key(key, "api_key")
    assert key not in str(failed.value)
