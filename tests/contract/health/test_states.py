# SPDX-License-Identifier: GPL-3.0-or-later
"""What llm-health calls a server, by what it says and shows: one row a state; what was sent is counted at the server."""

from __future__ import annotations

import pytest

from tests.contract.health.command import LITELLM, OLLAMA, QUICK, STILL, W, one, pair
from tests.contract.scripted import MODELS, TOKEN, Say, pages, serving, vllm, vllm_page

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
        "unknown: each reading is another replica's",
        vllm(lambda n: Say(vllm_page(start=1000.0 + 500.0 * n, **W))),
        [],
        3,
        "unknown",
        0,
    ),
    (
        "unknown: a crash loop without a start time",
        vllm(lambda n: Say(vllm_page(start=None, iteration_tokens_total_count=50.0 - n, **W))),
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
    ("unknown: the queue is no number", vllm(vllm_page(num_requests_waiting="NaN")), [], 3, "unknown", 0),
    ("unknown: a gauge without a value", vllm(vllm_page(num_requests_running="")), [], 3, "unknown", 0),
    ("unknown: one gauge is no number", vllm(vllm_page(num_requests_running="NaN")), [], 3, "unknown", 0),
    ("a list of models that is no JSON", vllm(STILL, **{"GET /v1/models": Say(b"[" * 100_000)}), [], 1, "stalled", 0),
    (
        "proxy: LiteLLM",
        LITELLM,
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


FRONTS = [
    ("envoy", Say(b"no healthy upstream", 503, {"Server": "envoy", "Content-Type": "text/plain"})),
    ("an envoy without words", Say(b"", 503, {"Server": "envoy"})),
    ("traefik", Say(b"no available server\n", 503, {"Content-Type": "text/plain; charset=utf-8"})),
    ("a gateway", Say(b'{"error":"overloaded"}', 503, {"Content-Type": "application/json"})),
    ("cloudflare", Say(b"", 503, {"Server": "cloudflare"})),
]
NO_STATS = "process_start_time_seconds 5\n"
HTML = Say(b"<html><head><title>404 Not Found</title></head></html>", 404, {"Server": "nginx/1.24.0"})
VLLMS = Say(MODELS, headers={"Server": "nginx/1.24.0"})

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
    *(
        (
            f"unknown: the 503 of {front} is not the engine's word",
            vllm(NO_STATS, **{"GET /health": say}),
            [],
            "unknown",
            "",
        )
        for front, say in FRONTS
    ),
    *(
        (
            f"unknown: {front} in front of a llama.cpp is not loading",
            {"*": say},
            ["--engine", "llamacpp"],
            "unknown",
            "503",
        )
        for front, say in FRONTS
    ),
    (
        "dead: a 503 in words of the engine",
        vllm(NO_STATS, **{"GET /health": Say(b'{"error":{"message":"EngineCore encountered an issue"}}', 503)}),
        [],
        "dead",
        "/health",
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
