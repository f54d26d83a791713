# SPDX-License-Identifier: GPL-3.0-or-later
"""What llm-health asks of whom: which routes, which probe, to which rank; and what an unanswered probe is."""

from __future__ import annotations

import json

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._busy import store as busy_store

from tests.contract.health.command import LITELLM, OLLAMA, QUICK, W, one, pair
from tests.contract.scripted import TOKEN, Say, serving, vllm, vllm_page

SLOW = {"POST /v1/chat/completions": Say(wait_s=60)}
SEVERAL = '{"models":[{"name":"nomic-embed-text:latest"},{"name":"small:latest"}]}'


def after(before, then):
    """A page that changes when something was posted, made by a function of the server."""
    return lambda server: lambda n: Say(then(n) if server.posts else before)


def llamacpp(running, deferred=0, decoded=5):
    return (
        f"llamacpp:requests_processing {running}\nllamacpp:requests_deferred {deferred}\n"
        f"llamacpp:n_decode_total {decoded}\n"
    )


def sglang(running, queued):
    return (
        f'sglang:num_running_reqs{{dp_rank="0"}} {running}\nsglang:num_queue_reqs{{dp_rank="0"}} {queued}\n'
        'sglang:realtime_tokens_total{dp_rank="0"} 5\n'
    )


def tgi(running, queued):
    return f"tgi_batch_current_size {running}\ntgi_queue_size {queued}\ntgi_batch_inference_success 5\n"


# id, the page before and after our probe was sent (it is never answered), more arguments, state, a word of the reason
UNANSWERED = [
    ("llama.cpp counts our probe", llamacpp(0), lambda n: llamacpp(1), "hung", "our probe unanswered"),
    ("llama.cpp defers our probe", llamacpp(0), lambda n: llamacpp(0, 1), "hung", "our probe unanswered"),
    ("llama.cpp has others' requests too", llamacpp(0), lambda n: llamacpp(2), "busy", "taken up"),
    ("SGLang queues our probe", sglang(0, 0), lambda n: sglang(0, 1), "hung", "our probe unanswered"),
    ("TGI queues our probe", tgi(0, 0), lambda n: tgi(0, 1), "hung", "our probe unanswered"),
    ("vLLM has it waiting", vllm_page(), lambda n: vllm_page(num_requests_waiting=1.0), "hung", "our probe unanswered"),
    ("vLLM runs something", vllm_page(), lambda n: vllm_page(num_requests_running=1.0), "busy", "taken up"),
    (
        "its rank is frozen, its sister steps",
        pair((0, 1), (0, 1)),
        lambda n: pair((0, 1), (2, 9 + n)),
        "hung",
        "engine 0",
    ),
    ("its rank is frozen, its sister's gauge rose", pair((0, 1), (0, 1)), lambda n: pair((0, 1), (2, 1)), "hung", "0"),
]


@pytest.mark.parametrize(
    ("before", "then", "state", "word"), [c[1:] for c in UNANSWERED], ids=[c[0] for c in UNANSWERED]
)
def test_an_unanswered_probe_is_no_other_work(before, then, state, word):
    answers = vllm(before, **SLOW)
    answers["GET /v1/models"] = Say(b'{"data":[{"id":"m"}]}')
    with serving(answers) as server:
        server.answers["GET /metrics"] = after(before, then)(server)
        said = one(server.url, *QUICK, "--patience", "1.2")[1]
    assert (said["state"], len(server.posts), word in said["reason"]) == (state, 1, True), said["reason"]


def test_a_frozen_rank_that_its_own_probe_finds_is_named_and_the_others_are_asked_first():
    answers = vllm(pair((0, 1), (0, 1)))
    with serving(answers) as server:
        server.answers["POST /v1/chat/completions"] = lambda n: Say(TOKEN) if n == 0 else Say(wait_s=60)
        server.answers["GET /metrics"] = after(pair((0, 1), (0, 1)), lambda n: pair((2, 9 + n), (0, 1)))(server)
        said = one(server.url, *QUICK)[1]
    assert (said["state"], [e["state"] for e in said["engines"]]) == ("stalled", ["busy", "stalled"])
    assert "engine 1" in said["reason"]


def test_load_is_asked_again_only_where_what_moves_shows_no_work():
    busy = lambda n: Say(vllm_page(**W, generation_tokens_total=50.0 + n))  # noqa: E731
    with serving(vllm(busy, **{"GET /load": Say(b'{"server_load": 2}')})) as server:
        assert one(server.url, *QUICK)[1]["state"] == "busy"
        assert "GET /load" not in server.log


@pytest.mark.parametrize(("kind", "model"), [("chat", "small:latest"), ("embedding", "nomic-embed-text:latest")])
def test_ollama_is_probed_with_a_model_that_is_loaded(kind, model):
    answers = {**OLLAMA, "GET /api/ps": Say(SEVERAL), "POST /v1/embeddings": Say(b'{"data":[{"embedding":[0.1]}]}')}
    with serving(answers) as server:
        assert one(server.url, *QUICK, "--probe", kind)[1]["state"] == "idle"
        assert [json.loads(body)["model"] for key, body, _ in server.bodies if key.startswith("POST")] == [model]


@pytest.mark.parametrize(
    ("asleep", "right", "probed"), [((1, 0), "idle", ["1"]), ((0, 1), "idle", ["0"]), ((1, 1), "sleeping", [])], ids=str
)
def test_a_rank_that_sleeps_is_not_probed(asleep, right, probed):
    page = pair((0, 1), (0, 1)) + "".join(
        f'vllm:engine_sleep_state{{engine="{n}",sleep_state="awake"}} {1 - one_sleeps}\n'
        for n, one_sleeps in enumerate(asleep)
    )
    with serving(vllm(page)) as server:
        assert one(server.url, *QUICK)[1]["state"] == right
        ranks = [headers.get("x-data-parallel-rank") for key, _, headers in server.bodies if key.startswith("POST")]
        assert ranks == probed


def test_litellms_health_is_never_asked():
    with serving(LITELLM) as server:
        one(server.url, *QUICK)
        assert "GET /health" not in server.log
        assert "GET /health/liveliness" in server.log


def test_tensorrt_llms_json_page_is_never_touched():
    page = "trtllm_num_requests_running 0\ntrtllm_num_requests_waiting 0\n"
    answers = {
        "GET /v1/models": Say(b'{"data":[{"id":"m","owned_by":"tensorrt_llm"}]}'),
        "GET /prometheus/metrics": Say(page),
        "GET /metrics": Say(b"[]"),
        "POST /v1/chat/completions": Say(TOKEN),
    }
    with serving(answers) as server:
        assert one(server.url, *QUICK)[1]["engine"] == "tensorrt_llm"
        assert "GET /metrics" not in server.log


def test_each_idle_rank_is_probed_by_itself():
    page = "".join(
        f'vllm:num_requests_running{{engine="{n}"}} 0\nvllm:num_requests_waiting{{engine="{n}"}} 0\n'
        f'vllm:prompt_tokens_total{{engine="{n}"}} 1\n'
        for n in (0, 1)
    )
    with serving(vllm(page)) as server:
        assert one(server.url, *QUICK)[1]["state"] == "idle"
        assert [headers.get("x-data-parallel-rank") for key, _, headers in server.bodies if key.startswith("POST")] == [
            "0",
            "1",
        ]


@pytest.fixture
def lease(tmp_path, monkeypatch):
    folder = tmp_path / "busy"
    monkeypatch.setenv("GB10_BUSY_DIR", str(folder))
    busy_store.hold("nightly")


NAMED = ["--probe", "chat"]
HELD = [
    ("idle", vllm(vllm_page()), [], "idle"),
    ("idle, a kind is named", vllm(vllm_page()), NAMED, "idle"),
    ("no page, a kind is named", vllm(Say(status=404)), NAMED, "unknown"),
    ("Ollama, a kind is named", {**OLLAMA, "GET /api/ps": Say(SEVERAL)}, NAMED, "unknown"),
]


@pytest.mark.parametrize(("answers", "more", "state"), [c[1:] for c in HELD], ids=[c[0] for c in HELD])
def test_nobody_is_probed_while_a_lease_is_held(lease, answers, more, state):
    with serving(answers) as server:
        said = one(server.url, *QUICK, *more)[1]
    assert (said["state"], server.posts, said["probe_sent"]) == (state, [], False)
    assert "busy lease is held: nightly (" in said["reason"]


def test_a_lease_is_not_named_where_no_probe_was_due(lease):
    with serving(vllm(vllm_page())) as server:
        assert "lease" not in one(server.url, *QUICK, "--probe", "never")[1]["reason"]


REFUSED = Say(b'{"error":{"message":"The model does not support Chat Completions API"}}', 400)


@pytest.mark.parametrize("kind", ["chat", "completion", "embedding"])
def test_a_kind_that_is_named_is_the_only_one_sent(kind):
    paths = ("chat/completions", "completions", "embeddings")
    with serving(vllm(vllm_page(), **{f"POST /v1/{path}": REFUSED for path in paths})) as server:
        one(server.url, *QUICK, "--probe", kind)
        assert len(server.posts) == 1


def test_a_probe_that_could_not_be_sent_is_not_said_to_be_sent():
    said = one("http://no-such-host.invalid:1", *QUICK, "--probe", "chat")[1]
    assert (said["state"], said["probe_sent"]) == ("unknown", False)
    assert said["reason"] == "its host name was not found"


def test_the_page_names_the_model_where_models_fails():
    with serving(vllm(vllm_page(), **{"GET /v1/models": Say(status=500)})) as server:
        one(server.url, *QUICK)
        assert [json.loads(body)["model"] for key, body, _ in server.bodies if key.startswith("POST")] == ["tiny"]


@pytest.mark.parametrize("models", [Say(status=401), Say(wait_s=5)], ids=["wants a key", "is late"])
def test_tensorrt_llms_json_page_is_not_touched_where_its_models_do_not_tell(models):
    answers = {
        "GET /v1/models": models,
        "GET /prometheus/metrics": Say("trtllm_num_requests_running 1\ntrtllm_num_requests_waiting 0\n"),
        "GET /metrics": Say(b"[]"),
    }
    with serving(answers) as server:
        assert one(server.url, *QUICK)[1]["engine"] == "tensorrt_llm"
        assert "GET /metrics" not in server.log
