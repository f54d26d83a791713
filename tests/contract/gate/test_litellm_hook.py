"""The hook in a real LiteLLM proxy: every route, every alias, nothing else."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.contract.gate.backend import Backend
from tests.contract.gate.proxy import MASTER, Proxy, deployment, eventually, litellm_python
from tests.contract.gate.servers import NO, YES, Api, free_port

#: One run is enough: LiteLLM brings its own Python and libraries.
pytestmark = [pytest.mark.slow, pytest.mark.alone]
MESSAGES = [{"role": "user", "content": "a secret prompt"}]
CAPPED = ("glm5.2", "deepseek", "vglm", "azglm")


@pytest.fixture(scope="module")
def backend():
    server = Backend()
    yield server
    server.close()


@pytest.fixture(scope="module")
def verdicts():
    with Api(3) as servers:
        for replica in servers.replicas:
            replica.decide = lambda question: NO if "denied" in (question["user"] or "") else YES
        yield servers


def upstream(model: str, url: str) -> dict:
    return {"model": model, "api_base": url, "api_key": "none"}


def litellm_config(backend: Backend) -> dict:
    return {
        "model_list": [
            deployment("glm5.2", "glm-up", backend.url, id="id-of-glm"),
            deployment("deepseek", "deepseek-up", backend.url),
            deployment("qwen", "qwen-up", backend.url),
            deployment("risky", "risky-up", backend.url),
            deployment(
                "model_name_team-2_x", "team-up", backend.url, team_id="team-2", team_public_model_name="our-glm"
            ),
            deployment("wild/*", "*", backend.url),
            {**deployment("vglm", "x", backend.url), "litellm_params": upstream("hosted_vllm/vglm-up", backend.url)},
            {
                **deployment("azglm", "x", backend.url),
                "litellm_params": {**upstream("azure/azglm-up", backend.url), "api_version": "2024-10-21"},
            },
        ],
        "router_settings": {
            "model_group_alias": {"router-alias": "glm5.2"},
            "fallbacks": [{"risky": ["deepseek"]}],
            "num_retries": 0,
            "disable_cooldowns": True,
        },
        "litellm_settings": {
            "callbacks": ["usage_gate.usage_gate", "prometheus"],
            "model_alias_map": {"global-alias": "glm5.2"},
            "num_retries": 0,
        },
        "general_settings": {"custom_auth": "who.user_api_key_auth"},
    }


@pytest.fixture(scope="module")
def one_proxy(backend, verdicts, tmp_path_factory):
    """Gives the proxy of all these tests. LiteLLM 1.108.4 was seen to crash on Python 3.11.7, after a `ContextVar.reset` in
    its own `_internal_context` that found no value: the test that met it fails, the next ones get another proxy."""
    gate = {"endpoints": {"static": verdicts.urls}, "capped_models": [*CAPPED, "nobody-serves-this"]}
    started: list[Proxy] = []

    def alive() -> Proxy:
        if not started or started[-1].process.poll() is not None:
            started.append(Proxy(tmp_path_factory.mktemp("proxy") / "p", litellm_config(backend), gate, free_port()))
            started[-1].wait_ready()
        return started[-1]

    yield alive
    for each in started:
        each.stop()


@pytest.fixture
def proxy(one_proxy):
    return one_proxy()


#: (id, path, body); each takes the model as {model}.
ROUTES = [
    ("chat", "/v1/chat/completions", {"messages": MESSAGES}),
    ("chat without /v1", "/chat/completions", {"messages": MESSAGES}),
    ("chat streaming", "/v1/chat/completions", {"messages": MESSAGES, "stream": True}),
    ("completions", "/v1/completions", {"prompt": "a secret prompt"}),
    ("completions streaming", "/v1/completions", {"prompt": "x", "stream": True}),
    ("embeddings", "/v1/embeddings", {"input": "x"}),
    ("messages", "/v1/messages", {"messages": MESSAGES, "max_tokens": 9}),
    ("messages streaming", "/v1/messages", {"messages": MESSAGES, "max_tokens": 9, "stream": True}),
    ("responses", "/v1/responses", {"input": "x"}),
    ("responses streaming", "/v1/responses", {"input": "x", "stream": True}),
    ("images", "/v1/images/generations", {"prompt": "x"}),
    ("moderations", "/v1/moderations", {"input": "x"}),
    ("engines path", "/engines/{model}/chat/completions", {"messages": MESSAGES}),
    ("deployments path", "/openai/deployments/{model}/chat/completions", {"messages": MESSAGES}),
    ("deployments completions path", "/openai/deployments/{model}/completions", {"prompt": "x"}),
    ("deployments embeddings path", "/openai/deployments/{model}/embeddings", {"input": "x"}),
    ("generate content", "/v1beta/models/{model}:generateContent", {"contents": [{"role": "user", "parts": [{"text": "x"}]}]}),
    ("interactions", "/interactions", {"input": "x"}),
    ("speech", "/v1/audio/speech", {"input": "x", "voice": "alloy"}),
    ("rerank", "/v1/rerank", {"query": "x", "documents": ["y"]}),
    ("image deployments path", "/openai/deployments/{model}/images/generations", {"prompt": "x"}),
]  # fmt: skip


def send(proxy: Proxy, path: str, body: dict, model: str, key: str) -> httpx.Response:
    content = dict(body) if "{model}" in path else {"model": model, **body}
    return proxy.post(path.replace("{model}", model), content, key)


@pytest.mark.parametrize(("path", "body"), [route[1:] for route in ROUTES], ids=[route[0] for route in ROUTES])
def test_a_capped_key_is_refused_on_every_route(proxy, backend, path, body):
    before = backend.hits["glm-up"]
    refused = send(proxy, path, body, "glm5.2", "sk-denied")
    assert refused.status_code == 429, refused.text
    assert refused.headers["retry-after"] == "3600"
    assert "monthly cap reached" in refused.text
    assert backend.hits["glm-up"] == before, "nothing was spent"


#: LiteLLM asks no hook on these; (path, model, body).
PASSED_THROUGH = [
    ("/vllm/v1/chat/completions", "vglm", {"messages": MESSAGES}),
    ("/vllm/v1/chat/completions", "vglm", {"messages": MESSAGES, "stream": True}),
    ("/vllm/v1/embeddings", "vglm", {"input": "x"}),
    ("/azure/v1/chat/completions", "azglm", {"messages": MESSAGES}),
    ("/azure/openai/deployments/azglm/chat/completions", "azglm", {"messages": MESSAGES}),
]


@pytest.mark.parametrize(("path", "model", "body"), PASSED_THROUGH)
def test_a_capped_key_is_refused_where_litellm_asks_no_hook(proxy, backend, path, model, body):
    before, checked = backend.hits.total(), proxy.metrics()
    refused = send(proxy, path, body, model, "sk-denied")
    assert refused.status_code == 429, refused.text
    assert refused.headers["retry-after"] == "3600"
    assert backend.hits.total() == before, "nothing was spent"
    served = send(proxy, path, body, model, "sk-allowed")
    assert served.status_code == 200, served.text
    assert backend.hits.total() == before + 1
    for outcome in ("allowed", "denied"):
        name = f'usage_gate_checks_total{{outcome="{outcome}"}}'
        assert proxy.metrics()[name] == checked[name] + 1, "asked once"


#: Routes on which this backend can give a right answer.
UNSUPPORTED = (
    "moderations",
    "images",
    "image deployments path",
    "interactions",
    "generate content",
    "speech",
    "rerank",
)
SERVED = [route for route in ROUTES if route[0] not in UNSUPPORTED]


@pytest.mark.parametrize(("path", "body"), [route[1:] for route in SERVED], ids=[route[0] for route in SERVED])
def test_and_nothing_else_is_refused(proxy, path, body):
    allowed = send(proxy, path, body, "glm5.2", "sk-allowed")
    assert allowed.status_code == 200, allowed.text
    uncapped = send(proxy, path, body, "qwen", "sk-denied")
    assert uncapped.status_code == 200, uncapped.text


ALIASES = [
    ("the group", "glm5.2", "sk-denied"),
    ("router alias", "router-alias", "sk-denied"),
    ("global alias", "global-alias", "sk-denied"),
    ("key alias", "my-alias", "sk-denied-keyalias"),
    ("team alias", "team-alias", "sk-denied-teamalias"),
    ("deployment id", "id-of-glm", "sk-denied"),
    ("wildcard to the same upstream", "wild/glm-up", "sk-denied"),
    ("one of several", "qwen,glm5.2", "sk-denied"),
]


@pytest.mark.parametrize(("model", "key"), [alias[1:] for alias in ALIASES], ids=[alias[0] for alias in ALIASES])
def test_no_other_name_leads_around_the_cap(proxy, backend, model, key):
    before = backend.hits["glm-up"]
    refused = proxy.chat(model, key)
    assert refused.status_code == 429, refused.text
    assert backend.hits["glm-up"] == before
    assert proxy.chat(model, key.replace("denied", "allowed")).status_code == 200


@pytest.mark.parametrize("model", ["qwen", "wild/other-up"])
def test_names_that_lead_elsewhere_are_served(proxy, model):
    assert proxy.chat(model, "sk-denied").status_code == 200


def test_a_transcription_is_refused_too(proxy):
    """The one route that takes a form."""
    refused = httpx.post(
        f"{proxy.url}/v1/audio/transcriptions",
        data={"model": "glm5.2"},
        files={"file": ("a.wav", b"RIFF", "audio/wav")},
        headers={"Authorization": "Bearer sk-denied"},
        timeout=20,
    )
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "3600"


def test_a_fallback_the_client_asks_for_is_checked_too(proxy, backend):
    refused = proxy.chat("qwen", "sk-denied", fallbacks=["glm5.2"])
    assert refused.status_code == 429
    assert proxy.chat("qwen", "sk-allowed", fallbacks=["glm5.2"]).status_code == 200
    assert proxy.metrics()['usage_gate_bypass_total{kind="client_fallback"}'] >= 2


def test_a_configured_fallback_into_a_capped_group_is_refused_and_said(proxy):
    refused = proxy.chat("risky", "sk-allowed")
    assert refused.status_code == 503
    assert "fall back to deepseek" in refused.text
    assert proxy.chat("qwen", "sk-denied").status_code == 200, "only the affected model"
    assert proxy.metrics()['usage_gate_bypass_total{kind="fallback"}'] >= 1
    eventually(
        lambda: "risky (not capped) falls back to the capped group deepseek" in proxy.text(), what="it is logged"
    )
    assert "nobody-serves-this, which no model group" in proxy.text()


def test_labels_exist_from_the_start_and_the_self_check_speaks(proxy):
    series = proxy.metrics()
    for outcome in (
        "allowed",
        "denied",
        "cached_allowed",
        "cached_denied",
        "failed_open",
        "failed_closed",
        "not_capped",
    ):
        assert f'usage_gate_checks_total{{outcome="{outcome}"}}' in series
    causes = ("platform_api_unreachable", "timeout", "bad_answer", "server_error", "no_endpoints", "internal")
    for cause in causes:
        assert series[f'usage_gate_fail_open_total{{cause="{cause}"}}'] == 0
    for name in ("check_retry_total", "hedges_total", "check_seconds_count"):
        assert f"usage_gate_{name}" in series
    eventually(lambda: proxy.metrics()['usage_gate_endpoints{state="ready"}'] == 3)
    assert series["usage_gate_active"] == 1
    eventually(lambda: "usage gate active: 5 capped models, 3 endpoints" in proxy.text())


def test_keys_are_only_ever_hashed_and_prompts_are_not_read(proxy, verdicts):
    proxy.chat("glm5.2", "sk-very-secret-key")
    asked = json.dumps([replica.seen for replica in verdicts.replicas]) + "".join(
        head for replica in verdicts.replicas for head in replica.heads
    )
    assert "u-very-secret-key" in asked, "the user id of the test's own authentication"
    assert "sk-very-secret-key" not in asked
    assert MASTER not in asked
    assert "secret prompt" not in asked
    assert "sk-very-secret-key" not in proxy.text()


def test_a_running_stream_is_never_cut(proxy, backend, verdicts):
    backend.stream_s = 0.3
    try:
        body = {"model": "glm5.2", "messages": MESSAGES, "stream": True}
        headers = {"Authorization": "Bearer sk-allowed"}
        with httpx.stream(
            "POST", f"{proxy.url}/v1/chat/completions", json=body, headers=headers, timeout=20
        ) as response:
            assert response.status_code == 200
            lines = response.iter_lines()
            next(lines)
            for replica in verdicts.replicas:
                replica.mode = "500"
            rest = "".join(lines)
        assert "w2" in rest
        assert "[DONE]" in rest
    finally:
        backend.stream_s = 0
        for replica in verdicts.replicas:
            replica.mode = "good"


def test_two_workers_without_a_database(backend, tmp_path):
    """Counters are summed over the workers, requests reach both, an outage is journalled and told once afterwards."""
    with Api(2) as api:
        for replica in api.replicas:
            replica.decide = lambda question: NO if "denied" in (question.get("user") or "") else YES
        gate = {
            "endpoints": {"static": api.urls},
            "capped_models": ["glm5.2"],
            "request": {"unchecked_path": "/v1/usage/unchecked"},
            "verdict_cache": {"allowed_s": 0, "denied_s": 0},
            "ejection": {"cooldown_s": 0.5, "cooldown_max_s": 1},
        }
        config = litellm_config(backend)
        config["router_settings"].pop("fallbacks")
        proxy = Proxy(tmp_path / "p", config, gate, free_port(), workers=2)
        try:
            proxy.wait_ready()
            with httpx.Client(timeout=20, headers={"Authorization": "Bearer sk-allowed"}) as client:
                body = {"model": "glm5.2", "messages": MESSAGES}

                def ask(dummy):
                    return httpx.post(f"{proxy.url}/v1/chat/completions", json=body, headers=client.headers, timeout=20)

                def burst(count):
                    # at once: the kernel hands one after another to the same worker, as long as that one is free
                    with ThreadPoolExecutor(count) as pool:
                        return list(pool.map(ask, range(count)))

                sent = 0

                def both_have_worked():
                    nonlocal sent
                    assert {r.status_code for r in burst(10)} == {200}
                    sent += 10
                    return proxy.text().count("usage gate active") == 2

                eventually(both_have_worked, 60, what="both workers say they are active")
                assert proxy.metrics()['usage_gate_checks_total{outcome="allowed"}'] == sent
                assert proxy.chat("glm5.2", "sk-denied").status_code == 429
                for number in (0, 1):
                    api.stop(number)
                assert {r.status_code for r in burst(6)} == {200}, "served unchecked"
                series = proxy.metrics()
                assert series['usage_gate_fail_open_total{cause="platform_api_unreachable"}'] == 6
                assert series['usage_gate_checks_total{outcome="failed_open"}'] == 6
                # A worker may have taken the file in hand already, to report from it.
                journal = "".join(file.read_text() for file in (proxy.folder / "state").glob("unchecked*.jsonl"))
                assert len(journal.splitlines()) == 6
                assert "sk-allowed" not in journal
                for number in (0, 1):
                    api.start(number)
                eventually(lambda: proxy.metrics()["usage_gate_unchecked_reported_total"] == 6, what="the API is told")
                told = [q for replica in api.replicas for q in replica.seen if "id" in q]
                assert {q["id"] for q in told} == {json.loads(line)["id"] for line in journal.splitlines()}
                heads = [h for replica in api.replicas for h in replica.heads if "unchecked" in h.split("\r\n")[0]]
                assert {h.lower().split("idempotency-key: ")[1].split("\r\n")[0] for h in heads} == {
                    q["id"] for q in told
                }
                eventually(lambda: proxy.metrics()["usage_gate_unchecked_pending"] == 0)
                assert {r.status_code for r in burst(4)} == {200}
        finally:
            proxy.stop()


def test_a_configuration_that_breaks_or_vanishes_leaves_the_last_good_one_at_work(backend, verdicts, tmp_path):
    good = {"endpoints": {"static": verdicts.urls}, "capped_models": ["glm5.2"]}
    config = litellm_config(backend)
    config["router_settings"].pop("fallbacks")
    proxy = Proxy(tmp_path / "p", config, good, free_port())
    try:
        proxy.wait_ready()
        text = proxy.gate_file.read_text()

        def still_works():
            return (
                proxy.chat("glm5.2", "sk-denied").status_code == 429
                and proxy.chat("qwen", "sk-denied").status_code == 200
            )

        assert still_works()
        proxy.gate_file.write_text(text.replace("glm5.2", "") + "limits: {budget_s: -1}\n")
        eventually(lambda: proxy.metrics()["usage_gate_config_ok"] == 0)
        assert "limits.budget_s: -1 is out of bounds: 0.001 to 120" in proxy.text()
        assert "the last good configuration stays in use" in proxy.text()
        assert still_works()
        proxy.gate_file.unlink()
        eventually(lambda: "cannot read the gate's configuration" in proxy.text())
        assert still_works()
        proxy.gate_file.write_text(text.replace("- glm5.2", "- qwen"))
        eventually(lambda: proxy.metrics()["usage_gate_config_ok"] == 1)
        assert proxy.chat("qwen", "sk-denied").status_code == 429, "the new list is in use"
        assert proxy.chat("glm5.2", "sk-denied").status_code == 200
        assert "Traceback" not in proxy.text()
    finally:
        proxy.stop()


def test_without_any_configuration_it_starts_serves_counts_and_says_so(backend, tmp_path):
    proxy = Proxy(
        tmp_path / "p", litellm_config(backend), None, free_port(), environment={"USAGE_GATE_CONFIG": "/nowhere/x.yml"}
    )
    try:
        proxy.wait_ready()
        assert proxy.chat("glm5.2").status_code == 200
        series = proxy.metrics()
        assert series['usage_gate_fail_open_total{cause="internal"}'] == 1
        assert series["usage_gate_active"] == 0
        assert series["usage_gate_config_ok"] == 0
        assert "NOTHING IS CHECKED until this is put right" in proxy.text()
    finally:
        proxy.stop()


def with_hook(backend, verdicts, tmp_path, was, now):
    """A proxy whose hook file says `now` where ours says `was`."""
    source = (Proxy.__init__.__globals__["COLLECTION"] / "roles/usage_gate/files/usage_gate.py").read_text()
    assert was in source
    hook = tmp_path / "hook.py"
    hook.write_text(source.replace(was, now))
    gate = {"endpoints": {"static": verdicts.urls}, "capped_models": ["glm5.2"]}
    return Proxy(tmp_path / "p", litellm_config(backend), gate, free_port(), hook=hook)


def test_a_compromised_release_stops_the_proxy_and_nothing_else_does(backend, verdicts, tmp_path):
    proxy = with_hook(backend, verdicts, tmp_path, 'version("litellm")', '"1.107.0"')
    try:
        assert proxy.process.wait(60) != 0
        assert "LiteLLM 1.107.0 is a compromised release" in proxy.text()
    finally:
        proxy.stop()


def test_a_fault_of_ours_at_the_start_leaves_the_proxy_serving(backend, verdicts, tmp_path):
    proxy = with_hook(backend, verdicts, tmp_path, "hook.HookCore(", "hook.NoSuchCore(")
    try:
        proxy.wait_ready()
        assert proxy.chat("glm5.2", "sk-denied").status_code == 200
        assert "usage gate: NOT ACTIVE, nothing is checked; please report this" in proxy.text()
    finally:
        proxy.stop()


def test_the_proxy_under_test_is_a_real_one():
    assert litellm_python().exists()
