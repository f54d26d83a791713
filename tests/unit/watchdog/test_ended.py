# SPDX-License-Identifier: GPL-3.0-or-later
"""The totals of restarts and starts: each counted once, whatever the journal forgets and wherever a run is killed."""

from __future__ import annotations

import json

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._core.codec import encode
from ansible_collections.gb10.serving.plugins.module_utils._watchdog import ended, store
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.store import ServerState, Store, Transaction

UNDER_WAY = Transaction("a", "restart", "silence", "starting", 1.0, 1.0, rule="hung")


@pytest.fixture
def kept(tmp_path):
    made = Store(tmp_path)
    made.prepare()
    return made


@pytest.mark.parametrize(
    ("rule", "event", "outcome", "counts_as"),
    [
        ("hung", "closed", "serving again", "hung serving"),
        ("engine_says_dead", "closed", "never ready", "dead failed"),
        ("given_up", "aborted", None, "dead aborted"),
        ("asked", "closed", "serving", "asked serving"),
        ("unresponsive", "aborted", None, "unresponsive aborted"),
        (None, "closed", "did not start", "dead failed"),
    ],
)
def test_what_an_end_counts_as(rule, event, outcome, counts_as):
    assert ended.key(rule, event, outcome) == counts_as


def test_the_total_never_falls_when_the_journal_is_rotated(kept, monkeypatch):
    monkeypatch.setattr(store, "JOURNAL_BYTES", 300)
    totals = []
    for n in range(12):
        state = kept.load("qwen")
        now = Transaction(str(n), "restart", "silence", "starting", 1.0, 1.0, rule="hung")
        kept.record("decided", "qwen", rule="hung", t=1000.0 * n, transaction=now)
        kept.record("closed", "qwen", id=str(n), outcome="serving again")
        state = ServerState(**{**vars(state), "transaction": now}).over("closed", "serving again")
        kept.save(state)
        totals.append((kept.load("qwen").ended or {})["hung serving"])
    assert totals == list(range(1, 13))
    assert ended.count(kept.journal("qwen"))["hung serving"] < 12, "the journal itself has forgotten some"


def test_who_was_killed_between_journal_and_memory_counts_it_once(kept):
    kept.save(ServerState("qwen", transaction=UNDER_WAY, ended={"hung serving": 3}))
    kept.record("closed", "qwen", id="a", outcome="serving again")
    for dummy in range(2):
        state = kept.load("qwen")
        assert (state.transaction, state.ended) == (None, {"hung serving": 4})
    kept.save(state)
    assert kept.load("qwen").ended == {"hung serving": 4}


def test_a_memory_that_did_not_count_begins_with_what_the_journal_holds(kept):
    old = encode(ServerState("qwen", transaction=UNDER_WAY))
    del old["ended"], old["transaction"]["rule"]
    (kept.folder / "memory/qwen.json").write_text(json.dumps(old))
    kept.record("decided", "qwen", rule="hung", transaction={"id": "a"})
    kept.record("closed", "qwen", id="a", outcome="serving again")
    kept.record("closed", "glm", id="b", outcome="never ready")
    assert kept.load("qwen").ended == {"hung serving": 1}
    assert kept.load("glm").ended == {"dead failed": 1}
