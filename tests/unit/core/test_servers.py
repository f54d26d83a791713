# SPDX-License-Identifier: GPL-3.0-or-later
"""What is refused in a description of servers, and by which path."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._core.errors import ConfigError
from ansible_collections.gb10.serving.plugins.module_utils._core.servers import from_document, validate

HUGE = 10**5000


def server(name="a", url="http://h", **more):
    return {"name": name, "url": url, **more}


COMPOSE = {"project": "p", "service": "s"}
# id, the servers, how the fault begins
REFUSED = [
    ("a newline after a name", [server("a\n")], "s[0].name"),
    ("a newline after a unit", [server(restart={"systemd": "a.service\n"})], "s[0].restart.systemd"),
    ("a newline after a user", [server(restart={"podman": "c", "user": "u\n"})], "s[0].restart.user"),
    ("a newline after a container", [server(restart={"docker": "c\n"})], "s[0].restart.docker"),
    ("a newline after a rank", [server(ranks=[{"host": "h\n"}])], "s[0].ranks[0].host"),
    ("a compose host that is a list", [server(restart={"compose": COMPOSE, "host": [1]})], "s[0].restart.host"),
    ("ranks: false", [server(ranks=False)], "s[0].ranks"),
    ("a number of 5000 digits", [server(memory_needed_gib=HUGE)], "s[0].memory_needed_gib"),
    ("an infinite number", [server(patience_s=float("inf"))], "s[0].patience_s"),
    ("the index after what is no server", ["x", server(), server()], "s[2].name"),
    ("one address in two spellings", [server(url="http://[::1]:80"), server("b", "http://localhost")], "s[1].url"),
    ("a user in the address and a key", [server(url="http://u:p@h", api_key_file="/k")], "s[0].url"),
    ("a label of 64 letters", [server(url="http://" + "a" * 64)], "s[0].url"),
]


@pytest.mark.parametrize(("given", "begins"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_refused_by_path(given, begins):
    with pytest.raises(ConfigError) as failed:
        validate(given, "s")
    assert any(fault.startswith(f"{begins}: ") for fault in failed.value.faults), failed.value.faults


def test_a_path_keeps_its_case():
    assert len(validate([server(url="http://h/A"), server("b", "http://h/a")])) == 2


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"settings": False}, "settings: must be a mapping"),
        ({"settings": {"patience_s": HUGE}}, "settings.patience_s: "),
        ({"settings": {"budget_6h": HUGE}}, "settings.budget_6h: "),
        ({"notify_command": False}, "notify_command: a list of words"),
    ],
    ids=["settings: false", "a huge setting", "a huge whole number", "notify_command: false"],
)
def test_the_rest_of_a_file(more, says):
    with pytest.raises(ConfigError, match=says):
        from_document({"servers": [server()], **more}, "f")
