# SPDX-License-Identifier: GPL-3.0-or-later
"""llm-health as a user calls it, against scripted servers: one row a state; what was sent is counted at the server."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.contract.scripted import MODELS, TOKEN, Say, pages, serving, vllm, vllm_page

ROOT = Path(__file__).parents[3]
COMMAND = ROOT / "roles/health_check/files/llm-health"
QUICK = ["--wait", "0.2", "--read-timeout", "2", "--probe-timeout", "1"]
W = {"num_requests_running": 2.0}


def llm_health(*args, env=None):
    """(exit status, stdout, stderr) of the command."""
    done = subprocess.run(
        [sys.executable, str(COMMAND), *args],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT / ".collections"), **(env or {})},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def judged(*args, env=None):
    status, out, err = llm_health(*args, "--format", "json", env=env)
    assert out, err
    return status, json.loads(out)["servers"]


def one(*args, env=None):
    status, servers = judged(*args, env=env)
    assert len(servers) == 1
    return status, servers[0]


STILL = vllm_page(**W)
ALIVE = {"GET /health/liveliness": Say(b'"I\'m alive!"')}
# id, what it says, more arguments, exit status, state, posts
CASES = [
    ("busy: steps move", vllm(pages(STILL, vllm_page(**W, iteration_tokens_total_count=11.0))), [], 0, "busy", 0),
    (
        "busy though /health says 503",
        vllm(pages(STILL, vllm_page(**W, generation_tokens_total=51.0)), **{"GET /health": Say(status=503)}),
        [],
        0,
        "busy",
        0,
    ),
    (
        "busy though /health hangs",
        vllm(pages(STILL, vllm_page(**W, prompt_tokens_total=71.0)), **{"GET /health": Say(wait_s=30)}),
        [],
        0,
        "busy",
        0,
    ),
    (
        "busy: a pause in the first wait is forgiven by the second",
        vllm(pages(STILL, STILL, vllm_page(**W, iteration_tokens_total_count=11.0))),
        [],
        0,
        "busy",
        0,
    ),
    (
        "busy: a full queue",
        vllm(
            pages(
                *[
                    vllm_page(num_requests_running=12.0, num_requests_waiting=80.0, generation_tokens_total=50.0 + n)
                    for n in range(3)
                ]
            )
        ),
        [],
        0,
        "busy",
        0,
    ),
    (
        "stalled: only the queue grows",
        vllm(pages(*[vllm_page(num_requests_running=2.0, num_requests_waiting=float(n)) for n in range(9)])),
        [],
        1,
        "stalled",
        0,
    ),
    ("hung for the patience", vllm(STILL), ["--patience", "0.4"], 2, "hung", 0),
    ("hung: waiting without running", vllm(vllm_page(num_requests_waiting=1.0)), ["--patience", "0.4"], 2, "hung", 0),
    ("dead by its own word", vllm(STILL, **{"GET /health": Say(status=503)}), [], 2, "dead", 0),
    ("idle after one probe", vllm(vllm_page()), [], 0, "idle", 1),
    ("idle, never probed", vllm(vllm_page()), ["--probe", "never"], 0, "idle", 0),
    (
        "stalled: frozen while idle",
        vllm(vllm_page(), **{"POST /v1/chat/completions": Say(wait_s=60)}),
        [],
        1,
        "stalled",
        1,
    ),
    (
        "hung: frozen while idle",
        vllm(vllm_page(), **{"POST /v1/chat/completions": Say(wait_s=60)}),
        ["--patience", "1.2"],
        2,
        "hung",
        1,
    ),
    (
        "stalled: headers of the probe come at once, its token never",
        vllm(vllm_page(), **{"POST /v1/chat/completions": Say(TOKEN, drip_s=30)}),
        [],
        1,
        "stalled",
        1,
    ),
    (
        "busy: work appeared while the probe waited",
        vllm(pages(vllm_page(), STILL), **{"POST /v1/chat/completions": Say(wait_s=60)}),
        [],
        0,
        "busy",
        1,
    ),
    (
        "idle: probe late, counters moved",
        vllm(
            pages(vllm_page(), vllm_page(iteration_tokens_total_count=11.0)),
            **{"POST /v1/chat/completions": Say(wait_s=60)},
        ),
        [],
        0,
        "idle",
        1,
    ),
    (
        "unknown: 401 to the probe",
        vllm(vllm_page(), **{"POST /v1/chat/completions": Say(status=401)}),
        [],
        3,
        "unknown",
        1,
    ),
    (
        "dead: the probe meets a dead engine",
        vllm(
            vllm_page(),
            **{"POST /v1/chat/completions": Say(b'{"error":{"message":"EngineCore encountered an issue."}}', 500)},
        ),
        [],
        2,
        "dead",
        1,
    ),
    (
        "idle by a completion where there is no chat template",
        vllm(
            vllm_page(),
            **{
                "POST /v1/chat/completions": Say(b'{"error":{"message":"no chat template"}}', 400),
                "POST /v1/completions": Say(TOKEN),
            },
        ),
        [],
        0,
        "idle",
        2,
    ),
    (
        "idle by an embedding",
        vllm(
            vllm_page(),
            **{
                "POST /v1/chat/completions": Say(
                    b'{"error":{"message":"The model does not support Chat Completions API"}}', 400
                ),
                "POST /v1/embeddings": Say(b'{"data":[{"embedding":[0.1]}]}'),
            },
        ),
        [],
        0,
        "idle",
        2,
    ),
    (
        "restart between readings: a new baseline, one probe",
        vllm(pages(STILL, vllm_page(start=2000.0, iteration_tokens_total_count=0.0))),
        [],
        0,
        "idle",
        1,
    ),
    (
        "restart between readings, work again: never ends on a first reading",
        vllm(
            pages(
                STILL, STILL, *[vllm_page(start=2000.0, iteration_tokens_total_count=float(n), **W) for n in range(9)]
            )
        ),
        [],
        0,
        "busy",
        0,
    ),
    (
        "unknown: a start time that flips back and forth is a load balancer",
        vllm(lambda n: Say(vllm_page(start=1000.0 + n % 2 * 500, **W))),
        [],
        3,
        "unknown",
        0,
    ),
    (
        "sleeping",
        vllm(vllm_page() + 'vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0.0\n'),
        [],
        0,
        "sleeping",
        0,
    ),
    (
        "sleeping: paused, where it says so",
        vllm(STILL, **{"GET /is_paused": Say(b'{"is_paused": true}')}),
        [],
        0,
        "sleeping",
        0,
    ),
    (
        "sleeping: paused while idle is not probed",
        vllm(vllm_page(), **{"GET /is_paused": Say(b'{"is_paused": true}')}),
        [],
        0,
        "sleeping",
        0,
    ),
    (
        "stalled: the front end holds what the engine has not picked up",
        vllm(vllm_page(), **{"GET /load": Say(b'{"server_load": 2}')}),
        [],
        1,
        "stalled",
        0,
    ),
    (
        "starting: llama.cpp loads",
        {"GET /metrics": Say(b'{"error":{"message":"Loading model"}}', 503)},
        [],
        1,
        "starting",
        0,
    ),
    ("unknown: no page", vllm(Say(status=404)), [], 3, "unknown", 0),
    ("unknown: a key is wanted", vllm(Say(status=401)), [], 3, "unknown", 0),
    ("unknown: HTML", vllm("<!DOCTYPE html><html></html>"), [], 3, "unknown", 0),
    ("unknown: no engine's series", vllm("process_start_time_seconds 5\n"), [], 3, "unknown", 0),
    ("unknown: cut off", vllm(Say(STILL, cut=True)), [], 3, "unknown", 0),
    ("unknown: NaN", vllm(vllm_page(num_requests_running="NaN", num_requests_waiting="NaN")), [], 3, "unknown", 0),
    ("unknown: a redirect", vllm(Say(status=302, headers={"Location": "http://127.0.0.1:1/x"})), [], 3, "unknown", 0),
    ("unknown: 64 MB", vllm(Say(b"# x\n" * (16 * 1024 * 1024))), ["--read-timeout", "20"], 3, "unknown", 0),
    ("unresponsive: one byte a second", vllm(Say(STILL, drip_s=1.0)), [], 1, "unresponsive", 0),
    ("unresponsive: no answer", vllm(Say(wait_s=30)), [], 1, "unresponsive", 0),
    ("unresponsive: resets", vllm(Say(reset=True)), [], 1, "unresponsive", 0),
    ("no metrics, a named probe: idle", vllm(Say(status=404)), ["--probe", "chat"], 0, "idle", 1),
    (
        "no metrics, a named probe unanswered: stalled",
        vllm(Say(status=404), **{"POST /v1/chat/completions": Say(wait_s=60)}),
        ["--probe", "chat"],
        1,
        "stalled",
        1,
    ),
    ("proxy, given", {"GET /models": Say(MODELS)}, ["--role", "proxy"], 0, "reachable", 0),
    (
        "proxy: nginx that answers /models only",
        {"GET /v1/models": Say(b'{"data":[{"id":"m"}]}')},
        [],
        0,
        "reachable",
        0,
    ),
    (
        "proxy: nginx that answers /models without /v1",
        {"GET /models": Say(b'{"data":[{"id":"m"}]}', headers={"Server": "nginx/1.27"})},
        [],
        0,
        "reachable",
        0,
    ),
    (
        "ik_llama.cpp calls itself llamacpp: its silence proves nothing",
        {
            "GET /v1/models": Say(b'{"data":[{"id":"m","owned_by":"llamacpp"}]}'),
            "GET /metrics": Say("llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n"),
        },
        ["--patience", "0.3"],
        1,
        "stalled",
        0,
    ),
    (
        "busy: NIM with vLLM's names at its own address",
        {
            "GET /v1/models": Say(b'{"data":[{"id":"m","owned_by":"system"}]}'),
            "GET /v1/metrics": lambda n: Say(vllm_page(**W, generation_tokens_total=50.0 + n)),
        },
        [],
        0,
        "busy",
        0,
    ),
    ("unknown: one gauge is no number", vllm(vllm_page(num_requests_running="NaN")), [], 3, "unknown", 0),
    ("a list of models that is no JSON", vllm(STILL, **{"GET /v1/models": Say(b"[" * 100_000)}), [], 1, "stalled", 0),
    (
        "proxy: LiteLLM",
        {
            "GET /v1/models": Say(b'{"data":[{"id":"m","owned_by":"openai"}]}'),
            "GET /metrics": Say(status=307, headers={"Location": "/metrics/"}),
            **ALIVE,
        },
        [],
        0,
        "reachable",
        0,
    ),
    (
        "proxy: llama-swap",
        {"GET /v1/models": Say(b'{"data":[{"id":"m","owned_by":"llama-swap"}]}')},
        [],
        0,
        "reachable",
        0,
    ),
    (
        "unknown: Ollama has no counters",
        {"GET /v1/models": Say(b'{"data":[{"id":"m","owned_by":"library"}]}')},
        [],
        3,
        "unknown",
        0,
    ),
]


@pytest.mark.parametrize(
    ("answers", "more", "status", "state", "posts"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_state(answers, more, status, state, posts):
    with serving(answers) as server:
        got, said = one(server.url, *QUICK, *more)
    assert (said["state"], got, len(server.posts)) == (state, status, posts), said["reason"]
    assert said["probe_sent"] is bool(posts)
    assert said["reason"]
    for never in ("/upstream", "/unload", "/slots", "/api/generate"):
        assert not any(never in line for line in server.log)
    if "LiteLLM" in said["reason"] or said["role"] == "proxy":
        assert "GET /health" not in [line for line in server.log if "GET /models" in server.log]


NO_STATS = "process_start_time_seconds 5\n"
HTML = Say(b"<html><head><title>404 Not Found</title></head></html>", 404, {"Server": "nginx/1.24.0"})
VLLMS = Say(MODELS, headers={"Server": "nginx/1.24.0"})
SLOW = {"POST /v1/chat/completions": Say(wait_s=60)}
OLLAMA = {
    "GET /v1/models": Say(b'{"data":[{"id":"big:70b","owned_by":"library"}]}'),
    "POST /v1/chat/completions": Say(TOKEN),
}
SEVERAL = '{"models":[{"name":"nomic-embed-text:latest"},{"name":"small:latest"}]}'


def pair(*ranks):
    """A page of several ranks: running requests and generated tokens of each."""
    return "".join(
        f'vllm:num_requests_running{{engine="{n}"}} {running}\nvllm:num_requests_waiting{{engine="{n}"}} 0\n'
        f'vllm:generation_tokens_total{{engine="{n}"}} {tokens}\n'
        for n, (running, tokens) in enumerate(ranks)
    )


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


MORE = [
    (
        "busy: what moves is only in /load",
        vllm(lambda n: Say(vllm_page(generation_tokens_total=50.0 + n)), **{"GET /load": Say(b'{"server_load": 3}')}),
        [],
        "busy",
        "3 requests that the front end holds",
    ),
    (
        "busy: only KV use moves, and only /load says work",
        vllm(lambda n: Say(vllm_page(kv_cache_usage_perc=0.1 * n)), **{"GET /load": Say(b'{"server_load": 3}')}),
        [],
        "busy",
        "new maximum",
    ),
    ("dead: no statistics", vllm(NO_STATS, **{"GET /health": Say(status=503)}), [], "dead", "/health"),
    (
        "dead: no page",
        vllm(Say(status=404), **{"GET /health": Say(status=503)}),
        ["--engine", "vllm"],
        "dead",
        "/health",
    ),
    (
        "dead: no statistics, and no probe is sent",
        vllm(NO_STATS, **{"GET /health": Say(status=503)}),
        ["--probe", "chat"],
        "dead",
        "/health",
    ),
    ("unknown: no statistics, alive", vllm(NO_STATS), [], "unknown", "turned off"),
    (
        "unknown: a front's maintenance page is not the engine's word",
        vllm(NO_STATS, **{"GET /health": Say(b"<html>503</html>", 503)}),
        [],
        "unknown",
        "turned off",
    ),
    (
        "sleeping: no statistics, paused, and no probe is sent",
        vllm(NO_STATS, **{"GET /is_paused": Say(b'{"is_paused": true}')}),
        ["--probe", "chat"],
        "sleeping",
        "on purpose",
    ),
    (
        "unknown: another engine's 503 does not mean dead",
        {
            "GET /v1/models": Say(b'{"data":[{"id":"m","owned_by":"lmdeploy"}]}'),
            "GET /health": Say(status=503),
        },
        [],
        "unknown",
        "404",
    ),
    ("proxy: nginx passes a vLLM's models only", {"GET /v1/models": VLLMS, "*": HTML}, [], "reachable", "proxy nginx"),
    (
        "proxy: nginx passes an SGLang's models only",
        {"GET /v1/models": Say(MODELS.replace(b"vllm", b"sglang"), headers={"Server": "nginx"}), "*": HTML},
        [],
        "reachable",
        "proxy nginx",
    ),
    (
        "proxy: something without a name passes a vLLM's models only",
        {"GET /v1/models": Say(MODELS)},
        [],
        "reachable",
        "a proxy answers",
    ),
    (
        "unknown: a vLLM behind an nginx that passes everything",
        vllm(Say(b'{"detail":"Not Found"}', 404, {"Server": "nginx"}), **{"GET /v1/models": VLLMS}),
        [],
        "unknown",
        "404",
    ),
    (
        "busy: a vLLM behind an nginx that passes everything",
        vllm(lambda n: Say(vllm_page(**W, generation_tokens_total=50.0 + n)), **{"GET /v1/models": VLLMS}),
        [],
        "busy",
        "progress",
    ),
    (
        "proxy, given: HTML",
        {"*": Say(b"<html>", headers={"Server": "nginx"})},
        ["--role", "proxy"],
        "unknown",
        "no list",
    ),
    ("proxy, given: empty", {"GET /models": Say()}, ["--role", "proxy"], "unknown", "no list"),
    ("proxy, given: an error", {"GET /models": Say(b'{"error":"x"}')}, ["--role", "proxy"], "unknown", "no list"),
    ("proxy, given: no model", {"GET /models": Say(b'{"data":[]}')}, ["--role", "proxy"], "reachable", "answers"),
    ("proxy, given: no models", {"GET /models": Say(b'{"models":[]}')}, ["--role", "proxy"], "reachable", "answers"),
    (
        "proxy, given: a web page at /models, the list at /v1/models",
        {"GET /v1/models": Say(MODELS), "*": Say(b"<html>")},
        ["--role", "proxy"],
        "reachable",
        "answers",
    ),
    ("proxy, given: 500 is no want of a key", {"*": Say(status=500)}, ["--role", "proxy"], "unknown", "answered 500"),
    ("proxy, given: 401 is", {"*": Say(status=401)}, ["--role", "proxy"], "unknown", "--api-key-file"),
    (
        "Ollama: no model is loaded",
        {**OLLAMA, "GET /api/ps": Say('{"models":[]}')},
        ["--probe", "chat"],
        "sleeping",
        "no model is loaded",
    ),
    ("Ollama: what is loaded cannot be read", OLLAMA, ["--probe", "chat"], "unknown", "/api/ps"),
    (
        "Ollama by another owner's name: no model is loaded",
        {
            **OLLAMA,
            "GET /v1/models": Say(b'{"data":[{"id":"me/big","owned_by":"me"}]}'),
            "GET /health": Say(),
            "GET /api/ps": Say('{"models":[]}'),
        },
        ["--probe", "completion"],
        "sleeping",
        "no model is loaded",
    ),
    (
        "unknown: a rank that cannot be read",
        vllm(lambda n: Say(pair((2, n), ("NaN", 5)))),
        [],
        "unknown",
        "engine 1",
    ),
    (
        "busy: a rank that cannot be read steps",
        vllm(lambda n: Say(pair((2, n), ("NaN", n)))),
        [],
        "busy",
        "progress",
    ),
]


@pytest.mark.parametrize(("answers", "more", "state", "word"), [c[1:] for c in MORE], ids=[c[0] for c in MORE])
def test_without_a_request(answers, more, state, word):
    with serving(answers) as server:
        said = one(server.url, *QUICK, *more)[1]
    assert (said["state"], server.posts, word in said["reason"]) == (state, [], True), said["reason"]
    assert said["role"] == ("proxy" if state == "reachable" or "--role" in more else "server")
    assert "give a key" not in said["reason"] or "401" in said["reason"]
    if "front end holds" in said["reason"]:
        assert said["in_flight"] == 3


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
    answers = dict(next(case[1] for case in CASES if case[0] == "proxy: LiteLLM"))
    with serving(answers) as server:
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
        f'vllm:num_requests_running{{engine="{n}"}} 0\nvllm:prompt_tokens_total{{engine="{n}"}} 1\n' for n in (0, 1)
    )
    with serving(vllm(page)) as server:
        assert one(server.url, *QUICK)[1]["state"] == "idle"
        assert [headers.get("x-data-parallel-rank") for key, _, headers in server.bodies if key.startswith("POST")] == [
            "0",
            "1",
        ]


def test_json_has_every_key_and_stdout_nothing_else():
    with serving(vllm(pages(STILL, vllm_page(**W, iteration_tokens_total_count=11.0)))) as server:
        status, said = one(server.url + "/", *QUICK)
    assert status == 0
    assert list(said) == [
        "name",
        "url",
        "engine",
        "role",
        "state",
        "healthy",
        "restart_justified",
        "reason",
        "running",
        "waiting",
        "in_flight",
        "steps_per_second",
        "tokens_per_second",
        "probe_sent",
        "no_progress_seconds",
        "engines",
    ]
    assert (said["healthy"], said["restart_justified"], said["running"], said["engine"]) == (True, False, 2, "vllm")
    assert said["steps_per_second"] > 0


def test_of_several_servers_the_worst_counts():
    def moving(n):
        return Say(vllm_page(**W, iteration_tokens_total_count=10.0 + n))

    with serving(vllm(moving)) as good, serving(vllm(Say(status=404))) as unknown, serving(vllm(STILL)) as stalled:
        assert judged(good.url, *QUICK)[0] == 0
        assert judged(good.url, unknown.url, *QUICK)[0] == 3
        assert judged(good.url, unknown.url, stalled.url, *QUICK)[0] == 1
        assert judged(good.url, unknown.url, stalled.url, "http://127.0.0.1:1", *QUICK)[0] == 2


def test_nothing_listens():
    status, said = one("http://127.0.0.1:1", *QUICK)
    assert (status, said["state"], said["restart_justified"]) == (2, "dead", False)
    assert "may still be loading" in said["reason"]


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("http://no-such-host.invalid:8000", "not found"),
        ("http://203.0.113.1:8000", ""),
    ],
)
def test_hosts_that_cannot_be_reached_are_unknown(url, word):
    status, said = one(url, *QUICK, "--connect-timeout", "0.3")
    assert (status, said["state"]) == (3, "unknown")
    assert word in said["reason"]


def test_tls_to_a_plain_port():
    with serving(vllm(STILL)) as server:
        status, said = one(server.url.replace("http", "https"), *QUICK)
    assert (status, said["state"]) == (3, "unknown")
    assert "http://" in said["reason"]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-keyout",
            str(folder / "key"),
            "-out",
            str(folder / "cert"),
        ],
        check=True,
        capture_output=True,
    )
    return folder


def test_a_bad_certificate_and_plain_http_to_a_tls_port(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert", certificate / "key")
    with serving(vllm(STILL)) as server:
        server.server.socket = context.wrap_socket(server.server.socket, server_side=True)
        status, said = one(f"https://127.0.0.1:{server.port}", *QUICK)
        assert (status, said["state"]) == (3, "unknown")
        assert "certificate" in said["reason"]
        status, said = one(f"http://127.0.0.1:{server.port}", *QUICK)
        assert said["state"] in ("unknown", "unresponsive")


REDIS = b"-ERR wrong number of arguments for 'get' command\r\n"
# what is said before the question, and after it; state
OTHERS = [
    ("SSH, which speaks first", b"SSH-2.0-OpenSSH_9.2\r\n", b"", "unknown"),
    ("SSH, which waits for a line", b"", b"SSH-2.0-OpenSSH_9.2\r\nInvalid SSH identification string.\r\n", "unknown"),
    ("Redis", b"", REDIS, "unknown"),
    ("a single byte", b"", b"\x15", "unknown"),
    ("not a byte", b"", b"", "unresponsive"),
    ("the beginning of an answer", b"", b"HTTP/1.1 200 OK\r\nContent-", "unresponsive"),
]


@pytest.mark.parametrize("role", ["server", "proxy"])
@pytest.mark.parametrize(("first", "then", "state"), [case[1:] for case in OTHERS], ids=[case[0] for case in OTHERS])
def test_a_port_that_speaks_something_else(first, then, state, role):
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with suppress(OSError):
                connection.sendall(first)
                if not first:
                    connection.recv(4096)
                connection.sendall(then)
            connection.close()

    threading.Thread(target=serve, daemon=True).start()
    said = one(f"http://127.0.0.1:{listener.getsockname()[1]}", *QUICK, "--role", role)[1]
    listener.close()
    assert said["state"] == state, said["reason"]
    assert ("is not HTTP" in said["reason"]) is (state == "unknown")


def test_ipv6_a_path_prefix_and_a_trailing_slash():
    moving = pages(STILL, vllm_page(**W, iteration_tokens_total_count=11.0))
    answers = {"GET /llm/metrics": moving, "GET /llm/v1/models": Say(MODELS)}
    with serving(answers, host="::1") as server:
        assert one(server.url + "/llm/", *QUICK)[1]["state"] == "busy"
        assert one(server.url + "/llm/v1", *QUICK)[1]["state"] == "stalled"  # the page's last version, for ever


def test_proxies_in_the_environment_are_ignored_unless_asked():
    with serving(vllm(vllm_page())) as server:
        env = {"http_proxy": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1", "no_proxy": ""}
        assert one(server.url, *QUICK, env=env)[1]["state"] == "idle"
        assert one(server.url, *QUICK, "--proxy-env", env=env)[1]["state"] == "dead"


def test_the_key_goes_to_the_server_and_nowhere_else(tmp_path):
    key = tmp_path / "key"
    key.write_text("sk-very-secret\n")
    key.chmod(0o600)
    with serving(vllm(vllm_page())) as server:
        status, out, err = llm_health(server.url, *QUICK, "--api-key-file", str(key), "--format", "json")
        assert status == 0
        assert all(headers.get("authorization") == "Bearer sk-very-secret" for _, _, headers in server.bodies)
        key.chmod(0o644)
        bad, bad_out, bad_err = llm_health(server.url, *QUICK, "--api-key-file", str(key))
    assert bad == 3
    assert "chmod" in bad_err
    assert "sk-very-secret" not in out + err + bad_out + bad_err


def test_servers_from_a_file(tmp_path):
    with serving(vllm(vllm_page())) as server:
        config = tmp_path / "servers.yml"
        config.write_text(f"llm_servers:\n  - {{name: qwen, url: '{server.url}', probe: never}}\n")
        status, said = one("--config", str(config), *QUICK)
        assert (status, said["name"], said["state"], server.posts) == (0, "qwen", "idle", [])


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "empty"),
        ("llm_servers: [", "line 1"),
        ("llm_servers: {a: 1}", "a list of servers"),
        ("llm_servers: [{name: a, url: 'http://h', nam: b}]", "llm_servers[0].nam"),
        ("llm_servers: [{name: a, url: 'ftp://h'}]", "llm_servers[0].url"),
        ("llm_servers: [{name: a, url: 'http://h'}, {name: a, url: 'http://i'}]", "llm_servers[1].name"),
        ("llm_servers: [{name: a, url: 'http://h:1'}, {name: b, url: 'http://h:1/'}]", "llm_servers[1].url"),
        ("llm_servers: [{name: a, url: 'http://h', restart: {sysd: x}}]", "llm_servers[0].restart"),
        ("llm_servers: [{name: a, url: 'http://h', engine: vlmm}]", "llm_servers[0].engine"),
        ("llm_servers: [{name: a, url: 'http://h', name: b}]", "given twice"),
        ("servers: []\nllm_servers: []", "llm_servers"),
    ],
)
def test_a_bad_file_is_refused_by_path(tmp_path, text, word):
    config = tmp_path / "servers.yml"
    config.write_text(text)
    status, out, err = llm_health("--config", str(config), *QUICK)
    assert (status, out) == (3, "")
    assert word in err
    assert "servers.yml" in err


@pytest.mark.parametrize(
    "args",
    [
        ["--wait"],
        ["ftp://h"],
        ["http://h", "--wait", "-1"],
        ["http://h", "--wait", "1", "--wait", "1", "--wait", "1"],
        ["http://h", "--engine", "gpt"],
        ["http://h", "--patience", "nan"],
        ["--config", "/nonexistent"],
        ["--nonsense"],
        ["http://h:99999"],
        ["http://"],
        ["http://h", "--read-timeout", "0"],
        ["--config", "/"],
    ],
    ids=str,
)
def test_bad_usage_is_one_sentence_and_3(args):
    status, out, err = llm_health(*args)
    assert (status, out) == (3, "")
    assert err.startswith("llm-health: ")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("ago", "said"), [(2600.0, "the heartbeat saw its last step 43 min ago"), (2.0, ""), (None, "")], ids=str
)
def test_what_the_heartbeat_knows_of_the_time_before_we_looked_is_said_and_proves_nothing(ago, said):
    beat = 'llm_engine_steps_total{engine="0"} 5\n'
    if ago is not None:
        beat += f'llm_engine_last_step_timestamp_seconds{{engine="0"}} {time.time() - ago}\n'
    with serving(vllm(STILL + beat)) as server:
        status, seen = one(server.url, *QUICK)
    assert (status, seen["state"]) == (1, "stalled")
    assert ("the heartbeat saw" in seen["reason"]) == bool(said)
    assert said in seen["reason"]


def test_text_and_nagios():
    with serving(vllm(pages(STILL, vllm_page(**W, iteration_tokens_total_count=11.0)))) as server:
        status, out, _ = llm_health(server.url, *QUICK)
        assert status == 0
        assert out.splitlines()[0].split() == ["SERVER", "STATE", "RUNNING", "WAITING", "TOKENS/S", "REASON"]
        assert "busy" in out.splitlines()[1]
    status, out, _ = llm_health("http://127.0.0.1:1", *QUICK, "--format", "nagios")
    assert status == 2
    assert out.startswith("LLM CRITICAL - ")
