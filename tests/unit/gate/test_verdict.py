"""What an answer means, the last-known verdicts, the bucket, the lag meter: the small rooms."""

from __future__ import annotations

import hashlib
import json

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._gate.bucket import HedgeBucket
from ansible_collections.gb10.serving.plugins.module_utils._gate.cache import MAX_ENTRIES, LastVerdicts
from ansible_collections.gb10.serving.plugins.module_utils._gate.config import VerdictCache
from ansible_collections.gb10.serving.plugins.module_utils._gate.lag import LagMeter
from ansible_collections.gb10.serving.plugins.module_utils._gate.verdict import (
    Blame,
    Cause,
    Fault,
    Question,
    Verdict,
    hash_key,
    read_answer,
)
from hypothesis import given
from hypothesis import strategies as st

Q = Question("hash", "glm5.2")
DENIED = {"allowed": False, "reason": "monthly cap", "retry_after_s": 3600}

ANSWERS = [
    (200, {"allowed": True}, Verdict(True)),
    (200, DENIED, Verdict(False, "monthly cap", 3600.0)),
    (429, DENIED, Verdict(False, "monthly cap", 3600.0)),
    (403, {"allowed": False}, Verdict(False)),
    (404, {"allowed": True}, Verdict(True)),
    (200, {"allowed": False, "retry_after_s": -1}, Verdict(False)),
    (200, {"allowed": False, "retry_after_s": "soon", "reason": 5}, Verdict(False)),
    (200, {"allowed": False, "retry_after_s": True}, Verdict(False)),
    (200, {"allowed": False, "reason": "a\r\nb"}, Verdict(False, "a b")),
    (200, {"allowed": False, "reason": " \x1b[2J\udcff\x00\u202e "}, Verdict(False, "[2J")),
    (200, {"allowed": False, "reason": "\ud800"}, Verdict(False)),
    (200, {"allowed": False, "reason": "é" * 400}, Verdict(False, "é" * 299 + "…")),
    (404, {"detail": "Not Found"}, (Cause.BAD_ANSWER, Blame.NOBODY)),
    (401, "no", (Cause.BAD_ANSWER, Blame.NOBODY)),
    (422, {"allowed": "true"}, (Cause.BAD_ANSWER, Blame.NOBODY)),
    (200, {"allowed": "true"}, (Cause.BAD_ANSWER, Blame.ANSWER)),
    (200, {"allowed": 1}, (Cause.BAD_ANSWER, Blame.ANSWER)),
    (200, {"allowed": None}, (Cause.BAD_ANSWER, Blame.ANSWER)),
    (200, [True], (Cause.BAD_ANSWER, Blame.ANSWER)),
    (200, "", (Cause.BAD_ANSWER, Blame.ANSWER)),
    (204, {"allowed": True}, (Cause.BAD_ANSWER, Blame.ANSWER)),
    (301, {"allowed": True}, (Cause.BAD_ANSWER, Blame.ANSWER)),
    (500, {"allowed": True}, (Cause.SERVER_ERROR, Blame.ANSWER)),
    (503, "", (Cause.SERVER_ERROR, Blame.ANSWER)),
]


@pytest.mark.parametrize(("status", "body", "right"), ANSWERS)
def test_answers(status, body, right):
    found = read_answer(status, body.encode() if isinstance(body, str) else json.dumps(body).encode())
    if isinstance(right, Verdict):
        assert found == right
    else:
        assert isinstance(found, Fault)
        assert (found.cause, found.blame) == right


@given(st.integers(100, 999), st.binary(max_size=60))
def test_any_bytes_are_an_answer_or_a_fault(status, body):
    assert isinstance(read_answer(status, body), (Verdict, Fault))


def test_deep_nesting_is_a_bad_answer_not_a_crash():
    assert read_answer(200, b"[" * 60_000).cause is Cause.BAD_ANSWER


def test_keys_are_hashed_as_litellm_does():
    assert hash_key("sk-1234") == hashlib.sha256(b"sk-1234").hexdigest()
    assert hash_key("88dc28d0f030c55ed4ab77ed8faf098196cb1c05df778539800c9f1243fe6b4b").startswith("88dc28d0")
    assert json.loads(Q.body()) == {"key": "hash", "model": "glm5.2", "user": None, "team": None}


def test_an_allowed_verdict_stands_in_for_seconds_and_a_few_uses():
    cache = LastVerdicts(VerdictCache(allowed_s=30, allowed_uses=3))
    cache.learn(Q, Verdict(True), 100)
    assert [cache.recall(Q, 101) is not None for _ in range(4)] == [True, True, True, False]
    cache.learn(Q, Verdict(True), 200)
    assert cache.recall(Q, 229.9)
    assert cache.recall(Q, 230) is None


def test_a_denied_verdict_stands_until_its_reset():
    cache = LastVerdicts(VerdictCache(denied_s=300))
    cache.learn(Q, Verdict(False, "cap", 10), 100)
    recalled = cache.recall(Q, 104)
    assert recalled is not None
    assert recalled.retry_after_s == 6
    assert cache.recall(Q, 110) is None
    cache.learn(Q, Verdict(False, "cap", 3600), 200)
    assert cache.recall(Q, 499)
    assert cache.recall(Q, 500) is None


def test_a_newer_verdict_replaces_the_older_even_where_its_kind_is_not_kept():
    cache = LastVerdicts(VerdictCache(allowed_s=0, denied_s=300))
    cache.learn(Q, Verdict(False), 100)
    cache.learn(Q, Verdict(True), 101)
    assert cache.recall(Q, 102) is None


def test_verdicts_of_other_questions_are_not_recalled():
    cache = LastVerdicts(VerdictCache())
    cache.learn(Q, Verdict(False), 100)
    assert cache.recall(Question("hash", "other"), 100) is None
    assert cache.recall(Question("other", "glm5.2"), 100) is None


def test_the_memory_is_bounded():
    cache = LastVerdicts(VerdictCache())
    for number in range(MAX_ENTRIES + 10):
        cache.learn(Question(str(number), "m"), Verdict(True), number)
    assert len(cache._entries) == MAX_ENTRIES
    assert cache.recall(Question("0", "m"), MAX_ENTRIES) is None


@given(st.floats(0, 1), st.integers(0, 50), st.lists(st.booleans(), max_size=300))
def test_hedges_never_exceed_burst_plus_share(share, burst, steps):
    bucket = HedgeBucket(share, burst)
    asked = taken = 0
    for hedge in steps:
        bucket.add()
        asked += 1
        taken += hedge and bucket.take()
    assert taken <= burst + share * asked + 1e-6
    if share == 0:
        assert taken == 0


def test_a_full_bucket_allows_the_burst_at_once():
    bucket = HedgeBucket(0.1, 32)
    assert [bucket.take() for _ in range(33)] == [True] * 32 + [False]


@pytest.mark.parametrize(
    ("late", "excused"),
    [([], False), ([(10.0, 10.3)], True), ([(10.0, 10.05)], False), ([(9.0, 9.7)], False), ([(9.6, 9.9)], False)],
)
def test_a_lagging_loop_excuses_timeouts_only_where_it_slept_in_that_very_span(late, excused):
    meter = LagMeter()
    for expected_s, woke_s in late:
        meter.note(expected_s, woke_s)
    assert meter.excuses(9.85, 10.35) is excused
