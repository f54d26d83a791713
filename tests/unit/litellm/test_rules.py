"""The table of rules: each fires on the file that does the harm and is silent on the one that does not."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._gate.config import parse_config
from ansible_collections.gb10.serving.plugins.module_utils._litellm import lint, secrets
from ansible_collections.gb10.serving.plugins.module_utils._litellm.beside import read_beside
from ansible_collections.gb10.serving.plugins.module_utils._litellm.rules import RULES
from hypothesis import given
from hypothesis import strategies as st

KEY = "sk-0f8a63c1d2b94e57a1c6e0d4b7f39258"  # of this test only
GATE = parse_config({"endpoints": {"static": ["http://10.0.0.1:1"]}, "capped_models": ["glm5.2"]}, "usage-gate.yml")


def backend(group: str, port: int, **params: Any) -> dict[str, Any]:
    return {
        "model_name": group,
        "litellm_params": {
            "model": f"hosted_vllm/{group}",
            "api_base": f"http://spark{port}:8000/v1",
            "timeout": 900,
            "stream_timeout": 900,
            **params,
        },
        "model_info": {"disable_background_health_check": True},
    }


#: Two slow backends, with settings that do no harm.
SOUND: dict[str, Any] = {
    "model_list": [backend("qwen", 1), backend("qwen", 2), backend("glm5.2", 3)],
    "router_settings": {"num_retries": 0, "disable_cooldowns": True, "routing_strategy": "simple-shuffle"},
    "litellm_settings": {"callbacks": ["prometheus", "usage_gate.usage_gate"]},
    "general_settings": {
        "master_key": "os.environ/LITELLM_MASTER_KEY",
        "health_check_skip_disabled_background_models": True,
    },
}
GONE = object()
NAMES = ["model_list", "router_settings", "litellm_settings", "general_settings", "model_name", "litellm_params", "model_info", "model",
         "callbacks", "fallbacks", "retry_policy", "model_group_retry_policy", "num_retries", "timeout", "model_group_alias"]  # fmt: skip


def changed(**changes: Any) -> dict[str, Any]:
    """SOUND with keys set (``router_settings__num_retries=2``; numbers are places in lists), or GONE."""
    document = copy.deepcopy(SOUND)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place: Any = document
        for part in parents:
            place = place[int(part)] if part.isdigit() else place.setdefault(part, {})
        if value is GONE:
            del place[last]
        else:
            place[int(last) if last.isdigit() else last] = value
    return document


CLOUD = {"model_name": "gpt", "litellm_params": {"model": "openai/gpt-4o", "api_key": "os.environ/OPENAI_API_KEY"}}
FAR = {"model_name": "ds", "litellm_params": {"model": "openai/x", "api_base": "https://api.deepseek.com/v1"}}
INHERITED = """
from usage_gate import UsageGate
class Mine(UsageGate):
    pass
mine = Mine()
"""
RENAMES = """
class Mine(CustomLogger):
    async def async_pre_call_hook(self, user_api_key_dict, cache, data, call_type):
        data["model"] = "glm5.2"
mine = Mine()
"""
P0 = "model_list__0__litellm_params__"
CALLBACKS = "litellm_settings__callbacks"
OURS = "usage_gate.usage_gate"

#: (rule, its severity there, what the file says, part of the sentence, sources beside)
FIRES: list[tuple[str, str, dict[str, Any], str, dict[str, str]]] = [
    *(
        ("malformed", "error", changed(**{path: value}), said, {})
        for path, value, said in (
            ("model_list", "x", "model_list: a list is needed, not 'x'"),
            ("model_list", {"a": 1}, "model_list: a list is needed, not a mapping"),
            ("router_settings", [], "router_settings: a mapping is needed, not a list"),
            ("litellm_settings", 5, "litellm_settings: a mapping is needed, not 5"),
            ("general_settings", "x", "general_settings: a mapping is needed"),
            ("environment_variables", ["A=b"], "environment_variables: a mapping is needed"),
            ("model_list__1", "x", "model_list[1]: a mapping with model_name and litellm_params is needed"),
            ("model_list__1", None, "model_list[1]: a mapping with model_name and litellm_params is needed, not nothing"),
            ("model_list__1__model_name", GONE, "model_list[1].model_name: a text is needed, not nothing"),
            ("model_list__1__model_name", 3, "model_list[1].model_name: a text is needed, not 3"),
            ("model_list__1__litellm_params", [], "model_list[1].litellm_params: a mapping is needed, not a list"),
            ("model_list__1__litellm_params", None, "model_list[1].litellm_params: a mapping is needed, not nothing"),
            ("model_list__1__litellm_params__model", GONE, "model_list[1].litellm_params.model: a text is needed"),
            ("model_list__1__model_info", None, "model_list[1].model_info: a mapping is needed"),
            ("router_settings__fallbacks", {"qwen": ["qwen"]}, "router_settings.fallbacks: a list is needed, not a mapping"),
            ("router_settings__model_group_alias", "x", "router_settings.model_group_alias: a mapping is needed"),
            ("router_settings__retry_policy", 3, "router_settings.retry_policy: a mapping is needed, not 3"),
            ("litellm_settings__default_fallbacks", "qwen", "litellm_settings.default_fallbacks: a list is needed"),
            ("litellm_settings__callbacks", 5, "litellm_settings.callbacks: a list of names is needed, not 5"),
            ("litellm_settings__callbacks", [{"a": 1}], "litellm_settings.callbacks: a list of names is needed"),
        )
    ),
    *(
        ("bad_value", "error", changed(**{path: value}), said, {})
        for path, value, said in (
            (P0 + "num_retries", "x", "model_list[0].litellm_params.num_retries: a whole number, not below 0, is needed, not 'x'"),
            (P0 + "num_retries", True, "litellm_params.num_retries: a whole number, not below 0, is needed, not True"),
            (P0 + "num_retries", -1, "is needed, not -1"),
            (P0 + "rpm", 1.5, "is needed, not 1.5"),
            (P0 + "max_retries", [], "litellm_params.max_retries: a whole number"),
            (P0 + "timeout", float("nan"), "model_list[0].litellm_params.timeout: a number of seconds is needed, not nan"),
            (P0 + "timeout", float("inf"), "a number of seconds is needed, not inf"),
            (P0 + "stream_timeout", "soon", "litellm_params.stream_timeout: a number of seconds is needed, not 'soon'"),
            (P0 + "timeout", -5, "a number of seconds is needed, not -5"),
            (P0 + "rpm", "x", "litellm_params.rpm: a whole number"),
            (P0 + "max_parallel_requests", False, "litellm_params.max_parallel_requests: a whole number"),
            ("model_list__0__model_info__disable_background_health_check", "yes", "true or false is needed, not 'yes'"),
            ("router_settings__num_retries", "x", "router_settings.num_retries: a whole number, not below 0, is needed, not 'x'"),
            ("router_settings__num_retries", True, "is needed, not True"),
            ("router_settings__num_retries", 10**400, "router_settings.num_retries: a whole number"),
            ("router_settings__timeout", float("nan"), "router_settings.timeout: a number of seconds is needed"),
            ("router_settings__cooldown_time", "x", "router_settings.cooldown_time: a number of seconds is needed"),
            ("router_settings__retry_policy", {"TimeoutErrorRetries": "x"}, "router_settings.retry_policy.TimeoutErrorRetries: a whole"),
            ("router_settings__model_group_retry_policy", {"qwen": {"TimeoutErrorRetries": None, "RateLimitErrorRetries": []}}, "model_group_retry_policy.qwen.RateLimitErrorRetries: a whole"),
            ("litellm_settings__num_retries", "x", "litellm_settings.num_retries: a whole number"),
            ("litellm_settings__request_timeout", "x", "litellm_settings.request_timeout: a number of seconds"),
            ("general_settings__background_health_checks", "false", "background_health_checks: true or false is needed, not 'false'"),
            ("router_settings__num_retries", "sk-0123456789abcdef", "is needed, not a text"),
        )
    ),
    ("retries", "error", changed(router_settings__num_retries=GONE), "qwen, glm5.2 3 times; set router_settings", {}),
    ("retries", "error", changed(router_settings__num_retries=1), "num_retries is 1", {}),
    ("retries", "error", changed(router_settings__default_litellm_params={"num_retries": 3}), "default_litellm_params.num_retries: wins over", {}),
    ("retries", "error", changed(router_settings__num_retries=GONE, litellm_settings__num_retries=2), "litellm_settings.num_retries is 2", {}),
    ("deployment_retries", "error", changed(**{P0 + "num_retries": "3"}), "qwen is asked 4 times", {}),
    ("deployment_retries", "warning", changed(**{P0 + "max_retries": 2}), "model_list[0].litellm_params.max_retries", {}),
    ("embedding_retries", "warning", changed(**{P0 + "model": "openai/bge", "model_list__0__model_info__mode": "embedding"}), "embeddings of qwen go through", {}),
    ("retry_policy", "error", changed(router_settings__retry_policy={"TimeoutErrorRetries": 1}), "TimeoutErrorRetries win", {}),
    ("retry_policy", "error", changed(router_settings__model_group_retry_policy={"qwen": {"RateLimitErrorRetries": 2}}), "model_group_retry_policy.qwen", {}),
    ("timeout_missing", "error", changed(**{P0 + "timeout": GONE, P0 + "stream_timeout": GONE}), "nothing limits how long an answer of qwen", {}),
    ("timeout_not_its_own", "warning", changed(**{P0 + "timeout": GONE, "router_settings__timeout": 950}), "router_settings.timeout (950 s)", {}),
    ("timeout_short", "warning", changed(**{P0 + "timeout": 60}), "litellm_params.timeout is 60 s, less than what a long answer takes (900 s), for qwen", {}),
    ("timeout_short", "warning", changed(**{P0 + "stream_timeout": 30}), "litellm_params.stream_timeout is 30 s", {}),
    ("timeout_short", "warning", changed(**{P0 + "stream_timeout": GONE, "router_settings__default_litellm_params": {"stream_timeout": 30}}), "default_litellm_params.stream_timeout is 30 s", {}),
    ("timeout_short", "warning", changed(**{P0 + "stream_timeout": GONE, "litellm_settings__request_timeout": 120}), "litellm_settings.request_timeout is 120 s", {}),
    ("timeout_long", "warning", changed(**{P0 + "timeout": 6000}), "holds its requests that long", {}),
    ("background_health_checks", "error", changed(general_settings__background_health_checks=True, model_list__0__model_info={}), "real requests to qwen", {}),
    ("health_flag_alone", "warning", changed(general_settings__health_check_skip_disabled_background_models=GONE), "GET /health", {}),
    ("allowed_fails_single", "warning", changed(router_settings__disable_cooldowns=False, router_settings__allowed_fails=3), "glm5.2, the only deployment", {}),
    ("allowed_fails_single", "error", changed(router_settings__disable_cooldowns=GONE, router_settings__allowed_fails_policy={"TimeoutErrorAllowedFails": 1}), "cools out glm5.2", {}),
    ("cooldowns", "warning", changed(router_settings__disable_cooldowns=GONE), "a backend of qwen", {}),
    ("cooldowns", "error", changed(router_settings__disable_cooldowns=GONE, router_settings__cooldown_time=30), "router_settings.cooldown_time", {}),
    ("parallel_limit", "warning", changed(**{P0 + "max_parallel_requests": 12}), "is refused", {}),
    ("parallel_limit", "warning", changed(general_settings__global_max_parallel_requests=12), "is refused", {}),
    ("least_busy", "warning", changed(router_settings__routing_strategy="least-busy"), "without Redis", {}),
    ("least_busy", "warning", changed(router_settings__routing_groups=[{"group_name": "g", "models": ["qwen", "glm5.2"], "routing_strategy": "least-busy"}]), "routing_groups[0].routing_strategy: least-busy without Redis", {}),
    ("pre_call_checks", "warning", changed(router_settings__enable_pre_call_checks=True), "no deployment states a limit", {}),
    ("gate_absent", "error", changed(**{CALLBACKS: ["prometheus"]}), "does not name usage_gate.usage_gate", {}),
    ("gate_bypass", "error", changed(router_settings__fallbacks=[{"qwen": ["glm5.2"]}]), "falls back to the capped group glm5.2", {}),
    ("gate_bypass", "error", changed(model_list__2__model_name="other"), "which no model group", {}),
    ("gate_bypass", "warning", changed(**{P0 + "model": "openai/glm5.2", P0 + "api_base": "http://spark3:8000/v1/"}), "qwen is not capped but serves the same", {}),
    ("gate_bypass", "warning", changed(model_list__0__model_name="all/*", **{P0 + "model": "hosted_vllm/*", P0 + "api_base": "http://spark3:8000/v1"}), "all/* is not capped but serves the same", {}),
    ("hook_inherited", "error", changed(**{CALLBACKS: [OURS, "mine.mine"]}), "its class Mine inherits", {"mine.mine": INHERITED}),
    ("hook_inherited", "error", changed(**{CALLBACKS: [OURS, "mine.mine"]}), "its class Mine inherits", {"mine.mine": INHERITED.replace("mine = ", "mine: Mine = ")}),
    ("hook_inherited", "error", changed(**{CALLBACKS: [OURS, "mine.mine"]}), "its class Mine inherits", {"mine.mine": "if True:" + INHERITED.replace("\n", "\n    ")}),
    ("hook_inherited", "error", changed(), "its class Mine inherits", {OURS: INHERITED.replace("mine =", "usage_gate =")}),
    ("gate_order", "error", changed(**{CALLBACKS: [OURS, "mine.mine"]}), "changes the model that was checked", {"mine.mine": RENAMES}),
    ("gate_order", "error", changed(**{CALLBACKS: [OURS, "mine.mine"]}), "changes the model that was checked", {"mine.mine": RENAMES.replace('["model"] =', '[ "model" ] =')}),
    ("gate_order", "error", changed(**{CALLBACKS: [OURS, "mine.mine"]}), "changes the model that was checked", {"mine.mine": RENAMES.replace('data["model"] = "glm5.2"', 'return {**data, "model": "x"}')}),
    ("gate_order", "error", changed(**{CALLBACKS: [OURS, "mine.mine"]}), "changes the model that was checked", {"mine.mine": RENAMES.replace('data["model"] = "glm5.2"', 'data.update({"model": "x"})')}),
    ("gate_order", "warning", changed(**{CALLBACKS: [OURS, "far.away"]}), "could not be read", {}),
    ("master_key_missing", "warning", changed(general_settings__master_key=GONE), "no master key is set here", {}),
    ("master_key_missing", "error", changed(general_settings__dangerously_permit_weak_or_unset_master_key=True), "starts with no key", {}),
    ("master_key_weak", "error", changed(general_settings__master_key="sk-1234"), "fewer than 16", {}),
    ("master_key_weak", "error", changed(general_settings__master_key="os.environ/MINE", environment_variables={"MINE": "sk-1234"}), "environment_variables.MINE: the master key has fewer than 16", {}),
    ("master_key_weak", "error", changed(general_settings__master_key="sk-super-secret-key-of-mine"), "placeholder", {}),
    ("master_key_weak", "error", changed(general_settings__master_key="sk-" + "ab" * 20), "few different", {}),
    ("metrics_open", "warning", changed(litellm_settings__require_auth_for_metrics_endpoint=False), "reads /metrics", {}),
]  # fmt: skip


def remarks(document: dict[str, Any], gate: Any = GATE, **more: Any) -> list[Any]:
    return lint.check_document("config.yaml", document, gate, **more)


@pytest.mark.parametrize(
    ("rule", "severity", "document", "said", "hooks"), FIRES, ids=[f"{n}-{case[0]}" for n, case in enumerate(FIRES)]
)
def test_a_rule_fires(rule, severity, document, said, hooks):
    found = [remark for remark in remarks(document, hooks=hooks) if remark.rule.id == rule]
    assert found, remarks(document, hooks=hooks)
    assert said in found[0].sentence
    assert found[0].severity.value == severity
    general = document["general_settings"]
    key = general.get("master_key", KEY) if isinstance(general, dict) else KEY
    if not key.startswith("os.environ/"):
        assert key not in str([remark.as_dict() for remark in remarks(document)])


def test_only_that_rule_fires():
    """A case is about one thing, but for what it brings with it."""
    for rule, _severity, document, _said, hooks in FIRES:
        others = {remark.rule.id for remark in remarks(document, hooks=hooks)} - {rule}
        companions = {"gate_order", "cooldowns", "allowed_fails_single"}
        if rule == "bad_value":
            companions |= {"timeout_short"}  # one below 0 is short, too
        assert others <= companions - {rule}, (rule, others)
        if rule in ("malformed", "bad_value"):
            assert len([remark for remark in remarks(document, hooks=hooks) if remark.rule.id == rule]) == 1


SILENT = [
    ("sound", SOUND),
    ("a cloud may be asked again", {"model_list": [CLOUD, FAR], "litellm_settings": SOUND["litellm_settings"]}),
    ("retries from the environment", changed(router_settings__num_retries="os.environ/RETRIES")),
    ("a short time-out for embeddings", changed(**{P0 + "timeout": 30, P0 + "stream_timeout": 30, "model_list__0__model_info__mode": "embedding"})),
    ("background checks that skip ours", changed(general_settings__background_health_checks=True)),
    ("redis", changed(router_settings__routing_strategy="least-busy", router_settings__redis_host="redis")),
    ("redis by the cache", changed(router_settings__routing_strategy="least-busy", litellm_settings__cache=True, litellm_settings__cache_params={"type": "redis"})),
    ("redis is what a cache is by default", changed(router_settings__routing_strategy="least-busy", litellm_settings__cache=True)),
    ("cool-downs of no time", changed(router_settings__disable_cooldowns=GONE, **{P0 + "cooldown_time": 0, "model_list__1__model_info": {"cooldown_time": 0, "disable_background_health_check": True}})),
    ("one name on two servers", changed(**{P0 + "model": "openai/glm5.2"})),
    ("checks that are used", changed(router_settings__enable_pre_call_checks=True, model_list__0__model_info__max_input_tokens=9000)),
    ("a retry policy of zeros", changed(router_settings__retry_policy={"TimeoutErrorRetries": 0})),
    ("numbers as texts", changed(**{P0 + "timeout": "900", P0 + "num_retries": "0", "router_settings__num_retries": "0"})),
    ("values from the environment", changed(**{P0 + "timeout": "os.environ/T", "general_settings__background_health_checks": "os.environ/B"})),
    ("time-outs that only the environment knows", changed(**{P0 + "timeout": GONE, P0 + "stream_timeout": GONE, "router_settings__timeout": "os.environ/T"})),
    ("sections with nothing in them", {**changed(), "environment_variables": None, "files_settings": None}),
    ("a key in the file", changed(general_settings__master_key=KEY)),
    ("ours before prometheus", changed(**{CALLBACKS: [OURS, "prometheus"]})),
    ("many backends may cool down", changed(router_settings__disable_cooldowns=False, model_list=[backend("glm5.2", n) for n in range(5)])),
]  # fmt: skip


@pytest.mark.parametrize("document", [case[1] for case in SILENT], ids=[case[0] for case in SILENT])
def test_the_rules_are_silent(document):
    gate = None if document["model_list"][0] is CLOUD else GATE
    unheard = [] if gate else ["gate_unknown"]
    assert [remark.rule.id for remark in remarks(document, gate)] == unheard


def test_a_hook_of_its_own_that_renames_nothing_may_come_after():
    own = INHERITED + "    async def async_pre_call_hook(self, *args): pass\n"
    own = own.replace("    pass\nmine = Mine()\n", "").rstrip() + "\nmine = Mine()\n"
    assert remarks(changed(**{CALLBACKS: [OURS, "mine.mine"]}), hooks={"mine.mine": own}) == []


@pytest.mark.parametrize(
    "source",
    [
        RENAMES.replace('data["model"] = "glm5.2"', 'return data if data["model"] == "x" else None'),
        "from litellm.integrations.opentelemetry import OpenTelemetry\nclass Mine(OpenTelemetry):\n    pass\nmine = Mine()\n",
        "class Base(CustomLogger):\n    pass\nclass Mine(Base):\n    pass\nmine = Mine()\n",
        INHERITED.replace("    pass", "    async_pre_call_hook = UsageGate.async_pre_call_hook"),
    ],
    ids=["compares", "only logs", "has none", "takes it over"],
)
def test_what_changes_no_model_and_inherits_no_hook_may_come_after(source):
    assert remarks(changed(**{CALLBACKS: [OURS, "mine.mine"]}), hooks={"mine.mine": source}) == []


def test_without_a_gate_nobody_is_told_to_have_one():
    document = changed(**{CALLBACKS: ["prometheus"]}, router_settings__fallbacks=[{"qwen": ["glm5.2"]}])
    assert remarks(document, gate=None) == []


def test_a_stated_longest_answer_is_held_to():
    assert [r.rule.id for r in remarks(SOUND, longest_answer_s=899)] == []
    [remark] = remarks(changed(**{P0 + "stream_timeout": 1800, P0 + "timeout": 1800}), longest_answer_s=1200)[:1]
    assert (remark.rule.id, remark.severity.value) == ("timeout_short", "error")
    assert "the longest legal answer (1200 s), for glm5.2" in remarks(SOUND, longest_answer_s=1200)[0].sentence.replace(
        "qwen, ", ""
    )


UNIT = "[Service]\nExecStart=/opt/litellm/bin/litellm --config c.yaml --num_workers {workers}\nEnvironment=LITELLM_MASTER_KEY=x\n{more}"
COMPOSE = """
services:
  vllm: {{image: "vllm/vllm-openai:v0.11", healthcheck: {{test: ["CMD", "curl", "http://localhost:8000/health"]}}}}
  proxy:
    image: {image}
    healthcheck: {{test: ["CMD", "curl", "-f", "http://localhost:4000/health{path}"]}}
"""
POD = """
apiVersion: v1
kind: Service
metadata: {{name: litellm}}
---
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
      - {{name: vllm, image: "vllm/vllm-openai:v0.11", livenessProbe: {{httpGet: {{path: /health, port: 8000}}}}}}
      - name: proxy
        image: {image}
        livenessProbe: {{httpGet: {{path: /health{path}, port: 4000}}}}
"""
PINNED = "ghcr.io/berriai/litellm:main-v1.108.4-stable"

#: (file, its text, rules that fire)
BESIDE = [
    ("requirements.txt", "litellm[proxy]==1.108.4\n", []),
    ("requirements.txt", "# litellm==1.82.7 is bad\nhttpx\nlitellm-proxy-extras\n", []),
    ("requirements.txt", "litellm[proxy] == 1.82.7 ; python_version > '3.9'\n", ["release_compromised"]),
    ("requirements.txt", "litellm==1.82.8 --hash=sha256:00\n", ["release_compromised"]),
    ("requirements.txt", "litellm>=1.82\n", ["release_unpinned"]),
    ("requirements.txt", "litellm[proxy]\n", ["release_unpinned"]),
    ("pyproject.toml", 'dependencies = [\n  "litellm[proxy]==1.107.0",\n]\n', ["release_compromised"]),
    ("Dockerfile", f"FROM {PINNED}\n", []),
    ("Dockerfile", "FROM python:3.12\nRUN pip install 'litellm[proxy]'\n", ["release_unpinned"]),
    ("Dockerfile", "FROM ghcr.io/berriai/litellm:main-latest\nHEALTHCHECK CMD curl localhost:4000/health || exit 1\n", ["release_unpinned", "health_probe"]),
    ("Dockerfile", "FROM ghcr.io/berriai/litellm@sha256:" + "0" * 64 + "\n", []),
    ("litellm.service", UNIT.format(workers=2, more="ExecStartPost=/usr/bin/curl http://127.0.0.1:4000/health/readiness\n"), []),
    ("litellm.service", UNIT.format(workers=2, more="ExecStartPost=/usr/bin/curl http://127.0.0.1:4000/health\n"), ["health_probe"]),
    ("litellm.service", "[Service]\nExecStart=/usr/bin/docker run ghcr.io/berriai/litellm:main-v1.82.7\n", ["release_compromised"]),
    ("litellm.service", "[Service]\nExecStart=/usr/bin/uvx --from litellm[proxy]==1.107.0 litellm\n", ["release_compromised"]),
    ("docker-compose.yml", COMPOSE.format(image=PINNED, path="/liveliness"), []),
    ("docker-compose.yml", COMPOSE.format(image="ghcr.io/berriai/litellm:main-stable", path=""), ["release_unpinned", "health_probe"]),
    ("pod.yaml", POD.format(image=PINNED, path="/readiness"), []),
    ("pod.yaml", POD.format(image="litellm/litellm:v1.82.7", path=""), ["release_compromised", "health_probe"]),
    ("pod.yaml", POD.format(image="litellm/litellm:v1.82.7", path="") + "---" + POD.format(image=PINNED, path="/readiness"), ["release_compromised", "health_probe"]),
    ("docker-compose.yml", COMPOSE.format(image=PINNED, path="").replace("http://localhost:4000", "${LITELLM_URL}"), ["health_probe"]),
    ("docker-compose.yml", COMPOSE.format(image=PINNED, path="").replace("http://localhost:4000", "$$URL"), ["health_probe"]),
    ("pod.json", json.dumps({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"image": "litellm/litellm:v1.82.7"}]}}), ["release_compromised"]),
    ("compose.json", json.dumps({"services": {"p": {"image": "litellm/litellm:v1.82.7"}}}, indent=1), ["release_compromised"]),
    ("uv.lock", '[[package]]\nname = "litellm"\nversion = "1.82.7"\nsource = { registry = "x" }\n', ["release_compromised"]),
    ("poetry.lock", '[[package]]\nname = "httpx"\nversion = "1.82.7"\n\n[[package]]\nname = "litellm"\nversion = "1.108.4"\n', []),
    ("pyproject.toml", 'dependencies = ["httpx ; a == 1", "litellm[proxy]==1.82.7"]\n', ["release_compromised"]),
    ("pyproject.toml", 'dependencies = ["litellm", "x"]\n', ["release_unpinned"]),
    ("pyproject.toml", '[tool.poetry.dependencies]\nlitellm = "1.82.7"\n', ["release_compromised"]),
    ("pyproject.toml", '[tool.poetry.dependencies]\nlitellm = {extras = ["proxy"], version = "1.82.7"}\n', ["release_compromised"]),
    ("pyproject.toml", '[tool.poetry.dependencies]\nlitellm = "^1.82.7"\n', ["release_unpinned"]),
    ("pyproject.toml", 'name = "litellm"\ndependencies = ["litellm-proxy-extras==1.82.7"]\n', []),
    ("requirements.txt", "  litellm [proxy] == 1.82.7\n", ["release_compromised"]),
    ("requirements.txt", "\ufeffLiteLLM==1.82.7\r\n", ["release_compromised"]),
    ("requirements.txt", "litellm==1.82.7 \\\n    --hash=sha256:abc\n", ["release_compromised"]),
    ("requirements.txt", "litellm==1.82.7.0\n", ["release_compromised"]),
    ("requirements.txt", "litellm==v1.82.7\n", ["release_compromised"]),
    ("requirements.txt", "litellm==1.107\n", ["release_compromised"]),
    ("requirements.txt", "litellm==1.82.7.1\n", []),
    ("requirements.txt", "litellm @ https://x/litellm-1.82.7-py3-none-any.whl\n", ["release_compromised"]),
    ("requirements.txt", "https://files.example/packages/xx/litellm-1.82.7-py3-none-any.whl\n", ["release_compromised"]),
    ("requirements.txt", "./wheels/litellm-1.82.7.tar.gz\n", ["release_compromised"]),
    ("requirements.txt", "litellm @ git+https://github.com/BerriAI/litellm.git@v1.82.7\n", ["release_compromised"]),
    ("Dockerfile", 'FROM python:3.12\nRUN pip install --no-cache-dir \\\n    # all\n    httpx \\\n    "litellm[proxy]==1.82.7"\n', ["release_compromised"]),
    ("Dockerfile", "ARG LITELLM_VERSION=1.82.7\nFROM ghcr.io/berriai/litellm:v$LITELLM_VERSION\n", ["release_compromised"]),
    ("Dockerfile", 'FROM x\nARG LITELLM_VERSION=1.82.7\nRUN uv pip install "litellm==${LITELLM_VERSION}"\n', ["release_compromised"]),
    ("Dockerfile", "ARG TAG\nFROM ghcr.io/berriai/litellm:$TAG\n", ["release_unpinned"]),
    ("Dockerfile", "FROM x\nRUN cd /a ; pip install litellm==1.82.7\n", ["release_compromised"]),
    ("litellm.service", "[Service]\nExecStart=/usr/bin/docker run -v /etc/litellm:/app \\\n  -p 4000:4000 \\\n  ghcr.io/berriai/litellm:v1.82.7\n", ["release_compromised"]),
    ("litellm.service", "[Service]\nExecStart=/usr/bin/uvx litellm@1.82.7 --port 1\n", ["release_compromised"]),
    ("compose.yml", "services:\n  p:\n    image: python:3.12\n    command: sh -c 'pip install litellm==1.82.7 && litellm'\n", ["release_compromised"]),
    ("compose.yml", "services:\n  p:\n    image: ghcr.io/berriai/litellm:${TAG:-v1.82.7}\n", ["release_compromised"]),
    ("compose.yml", "services:\n  litellm:\n    build:\n      dockerfile_inline: |\n        FROM ghcr.io/berriai/litellm:v1.82.7\n", ["release_compromised"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "rules"), BESIDE, ids=[f"{n}-{case[0]}" for n, case in enumerate(BESIDE)])
def test_files_beside(name, text, rules):
    beside = read_beside(name, text)
    assert beside is not None
    assert [remark.rule.id for remark in lint.check_beside(beside)] == rules


def test_a_config_is_no_file_beside():
    assert read_beside("config.yaml", "model_list: []\n") is None
    assert read_beside("usage-gate.yml", "endpoints: {}\n") is None


def test_what_lies_beside_says_how_many_workers_serve_and_who_gives_the_key():
    busy = changed(router_settings__routing_strategy="least-busy", general_settings__master_key=GONE)
    one, four = (read_beside("u.service", UNIT.format(workers=n, more="")) for n in (1, 4))
    assert remarks(busy, beside=[one]) == []
    [remark] = remarks(busy, beside=[four])
    assert (remark.rule.id, remark.severity.value) == ("least_busy", "error")
    assert "each of 4 workers" in remark.sentence
    container = f'{{image: "{PINNED}", env: [{{name: NUM_WORKERS, value: "4"}}]}}'
    manifest = f"apiVersion: v1\nkind: Pod\nspec: {{containers: [{container}]}}\n"
    assert read_beside("pod.yaml", manifest).workers == 4
    deployment = f"apiVersion: apps/v1\nkind: Deployment\nspec: {{replicas: 3, template: {{spec: {{containers: [{container}]}}}}}}\n"
    assert read_beside("deployment.yaml", deployment).workers == 12
    service = f"services: {{litellm: {{image: '{PINNED}', deploy: {{replicas: 3}}, command: --num_workers 1}}}}\n"
    assert read_beside("compose.yaml", service).workers == 3
    assert read_beside("compose.yaml", service.replace("replicas", "reservations")).workers == 1
    keyless = read_beside("u.service", "[Service]\nExecStart=/opt/litellm/bin/litellm\n")
    assert "u.service gives none" in remarks(changed(general_settings__master_key=GONE), beside=[keyless])[0].sentence


def test_every_rule_is_whole_and_is_shown_to_fire():
    ids = [rule.id for rule in RULES]
    assert len(set(ids)) == len(ids) == 28
    for rule in RULES:
        assert rule.harm and rule.evidence and rule.fix and (rule.check or rule.beside)
    shown = {case[0] for case in FIRES} | {name for case in BESIDE for name in case[2]} | {"gate_unknown"}
    assert shown == set(ids)


# The lint must not fall over malformed files.
@pytest.mark.parametrize(
    "document",
    [
        {"model_list": None},
        {"model_list": ["x", {"model_name": 3}, {"litellm_params": []}]},
        {"router_settings": [], "litellm_settings": "x", "general_settings": None},
        {"model_list": [{"model_name": "a", "litellm_params": {"model": 1, "api_base": "http://[", "timeout": "x"}}]},
        {"litellm_settings": {"callbacks": [{"a": 1}, None, "x.y"]}, "router_settings": {"retry_policy": 3}},
    ],
)
def test_malformed_files_are_judged_without_a_traceback(document):
    for gate in (None, GATE):
        assert remarks(document, gate=gate) is not None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=3), inner, max_size=4)
        ),
        max_leaves=20,
    )
)
def test_no_document_makes_it_fall_over(part):
    params = {"model": "hosted_vllm/a", "timeout": part, "num_retries": part}
    documents = [{name: part} for name in NAMES[:4]]
    for document in (*documents, {"model_list": [{"model_name": "a", "litellm_params": params}]}):
        # Judged to the end, by rules that have their harm and their fix.
        assert all(remark.rule in RULES for remark in remarks(document))


URLS_WITH_SECRETS = [
    {"api_base": "http://u:s3cretLEAK@x:1/v1"},
    {"api_base": "http://u:s3cret/LEAK@x:1"},
    {"api_base": "http://u:s3cret@LEAK@x"},
    {"api_base": "u:s3cretLEAK@x:80"},
    {"note": "see https://u:s3cret@LEAK@x and https://u:s3cretLEAK@y"},
]


@pytest.mark.parametrize("params", URLS_WITH_SECRETS, ids=range(len(URLS_WITH_SECRETS)))
def test_a_password_in_an_address_is_hidden_up_to_its_last_at(params):
    shown = str(secrets.without_secrets({"model_list": [{"litellm_params": params}]}))
    assert "s3cret" not in shown and "LEAK" not in shown and "@x" in shown
    taken = str(params.get("api_base", ""))
    for secret in secrets.secrets_in(params):
        taken = taken.replace(secret, "")
    assert "s3cret" not in taken and "LEAK" not in taken


def test_a_package_from_an_address_with_a_password_is_named_without_it():
    beside = read_beside("Dockerfile", "RUN pip install 'litellm @ git+https://u:s3cret/LEAK@host/litellm'\n")
    [remark] = lint.check_beside(beside)
    assert remark.rule.id == "release_unpinned" and "@host/litellm" in remark.sentence
    assert "s3cret" not in str(remark.as_dict()) and "LEAK" not in str(remark.as_dict())
