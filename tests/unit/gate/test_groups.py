"""Which groups a request may end up at, as LiteLLM 1.108.4 resolves names, and what slips past a list of capped ones."""

from __future__ import annotations

import json

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._gate.groups import (
    Capped,
    Kind,
    asked_about,
    capped_among,
    find_bypasses,
    make_routing,
    routing_of_config,
)


def model(name, upstream="openai/up", **params):
    return {"model_name": name, "litellm_params": {"model": upstream, **params}}


def reaches(models, requested, capped):
    return capped_among(make_routing(models).names_for(requested), Capped(capped))


@pytest.mark.parametrize(
    ("groups", "requested", "capped", "right"),
    [
        # LiteLLM tries again with the provider that it infers from the name
        (["openai/*"], "gpt-4o", ["openai/*"], ["openai/*"]),
        (["openai/*", "azure/*"], "gpt-4o", ["azure/*"], ["azure/*"]),
        (["glm5.2", "openai/*"], "glm5.2", ["openai/*"], []),
        # re.match: what follows the last fixed part is no hindrance
        (["glm-*-pro"], "glm-a-pro-zzz", ["glm-*-pro"], ["glm-*-pro"]),
        (["glm-*-pro"], "a-glm-a-pro", ["glm-*-pro"], []),
    ],
)
def test_wildcards(groups, requested, capped, right):
    assert reaches([model(name) for name in groups], requested, capped) == right


def test_of_several_wildcards_the_longest_expression_counts():
    """Where every "-" counts twice, for its escape."""
    names = make_routing([model("a-b-c-d-*", "openai/1"), model("*-d-glm52x", "openai/2")]).names_for("a-b-c-d-glm52x")
    assert names == ["a-b-c-d-glm52x", "a-b-c-d-*"]


def test_a_capped_wildcard_group_is_asked_about_once():
    names = ["openai/gpt-4o", "openai/*", "glm5.2"]
    assert asked_about(names, Capped(["openai/*", "glm5.2"])) == ["openai/gpt-4o", "glm5.2"]
    assert asked_about(["gpt-4o", "openai/*"], Capped(["openai/*"])) == ["openai/*"]


TIERS = {"SIMPLE": "qwen", "COMPLEX": ["glm5.2"]}
ROUTES = json.dumps({"routes": [{"name": "glm5.2", "utterances": ["hard"]}]})


@pytest.mark.parametrize(
    "params",
    [
        {"complexity_router_config": {"tiers": TIERS}},
        {"complexity_router_default_model": "glm5.2"},
        {"auto_router_default_model": "glm5.2"},
        {"auto_router_config": ROUTES},
        {"auto_router_config_path": "/etc/litellm/routes.json"},
        {"silent_model": "glm5.2"},
        {"silent_model": ["qwen", "glm5.2"]},
        {"silent_model": "alias-of-glm"},
    ],
    ids=lambda params: next(iter(params)),
)
def test_a_group_that_leads_to_a_capped_one_is_asked_for(params):
    models = [model("smart", "auto_router/x", **params), model("glm5.2"), model("qwen")]
    routing = make_routing(models, [{"alias-of-glm": "glm5.2"}])
    assert "glm5.2" in capped_among(routing.names_for("smart"), Capped(["glm5.2"]))
    assert capped_among(routing.names_for("qwen"), Capped(["glm5.2"])) == []


def test_a_list_of_models_is_read_to_its_end():
    routing = make_routing([model("glm5.2")], [{"alias": "glm5.2"}])
    for last in ("glm5.2", "alias"):
        names = routing.names_for(",".join([*(f"junk{n}" for n in range(5000)), last]))
        assert capped_among(names, Capped(["glm5.2"])) == ["glm5.2"]


def found(document, capped):
    return [(one.kind, one.group) for one in find_bypasses(routing_of_config(document), Capped(capped)) if one.refused]


@pytest.mark.parametrize(
    ("models", "fallbacks", "capped", "right"),
    [
        (["openai/*", "glm5.2"], [{"openai/gpt-4o": ["glm5.2"]}], ["glm5.2"], [(Kind.FALLBACK, "openai/gpt-4o")]),
        (["openai/*", "glm5.2"], [{"openai/gpt-4o": ["glm5.2"]}], ["glm5.2", "openai/*"], []),
        (["glm5.2"], [], ["glm*"], []),
        (["glm5.2"], [], ["gml*"], [(Kind.UNSERVED, "gml*")]),
        # what a wildcard group answers to, nobody can tell
        (["openai/*"], [], ["gml*"], []),
    ],
)
def test_what_must_not_be_deployed(models, fallbacks, capped, right):
    document = {"model_list": [model(name, f"openai/{name}") for name in models]}
    assert found({**document, "router_settings": {"fallbacks": fallbacks}}, capped) == right
