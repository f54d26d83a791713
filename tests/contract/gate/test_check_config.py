"""``llm-gate check-config``, the documentation's examples, and the manifests."""

from __future__ import annotations

import copy
import json
import re

import pytest
import yaml

from tests.contract.gate.conftest import COLLECTION

GATE = "endpoints: {static: [http://10.0.0.1:1]}\ncapped_models: [glm5.2]\n"
MODELS = [{"model_name": n, "litellm_params": {"model": f"openai/{n}-up"}} for n in ("glm5.2", "qwen")]
GOOD = {"model_list": MODELS, "litellm_settings": {"callbacks": ["usage_gate.usage_gate"]}}


def with_(path, value):
    document = copy.deepcopy(GOOD)
    *parents, last = path.split(".")
    place = document
    for part in parents:
        place = place.setdefault(part, {})
    place[last] = value
    return document


#: (what the proxy's configuration says, exit status, what must be said)
PROXIES = [
    ("sound", GOOD, 0, None),
    ("no callback", with_("litellm_settings", {}), 1, "does not name usage_gate.usage_gate"),
    (
        "fallback",
        with_("router_settings.fallbacks", [{"qwen": ["glm5.2"]}]),
        1,
        "qwen (not capped) falls back to the capped group glm5.2",
    ),
    ("default fallback", with_("litellm_settings.default_fallbacks", ["glm5.2"]), 1, "qwen (not capped) falls back"),
    ("context fallback", with_("litellm_settings.context_window_fallbacks", [{"qwen": ["glm5.2"]}]), 1, "falls back"),
    (
        "fallback through an alias",
        {
            **with_("router_settings.model_group_alias", {"cheap": "glm5.2"}),
            "litellm_settings": {**GOOD["litellm_settings"], "fallbacks": [{"qwen": ["cheap"]}]},
        },
        1,
        "falls back to the capped group glm5.2",
    ),
    ("fallback between uncapped", with_("router_settings.fallbacks", [{"glm5.2": ["qwen"]}]), 0, None),
    ("nobody serves it", with_("model_list", MODELS[1:]), 1, "capped_models names glm5.2, which no model group"),
    (
        "an alias serves it",
        {**with_("model_list", MODELS[1:]), "router_settings": {"model_group_alias": {"glm5.2": "qwen"}}},
        0,
        None,
    ),
    (
        "same upstream",
        with_("model_list", [*MODELS, {"model_name": "other", "litellm_params": {"model": "openai/glm5.2-up"}}]),
        0,
        "other is not capped but serves the same upstream model as the capped group glm5.2",
    ),
]


@pytest.mark.parametrize(
    ("document", "status", "said"), [case[1:] for case in PROXIES], ids=[case[0] for case in PROXIES]
)
def test_a_proxy_configuration(llm_gate, tmp_path, document, status, said):
    (tmp_path / "usage-gate.yml").write_text(GATE)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(document))
    done = llm_gate("check-config", tmp_path / "config.yaml", tmp_path / "usage-gate.yml")
    assert done.returncode == status, done.stdout
    assert (said or "sound (litellm configuration)") in done.stdout
    beside = llm_gate("check-config", "--format", "json", tmp_path / "config.yaml")
    assert beside.returncode == status
    report = json.loads(beside.stdout)
    assert report["files"][0]["kind"] == "litellm"
    assert bool(report["remarks"]) == (said is not None)


@pytest.mark.parametrize("callbacks", [["usage_gate.usage_gate"], []])
def test_a_broken_gate_beside_it_is_said(llm_gate, tmp_path, callbacks):
    (tmp_path / "usage-gate.yml").write_text(GATE.replace("static", "statik"))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(with_("litellm_settings.callbacks", callbacks)))
    done = llm_gate("check-config", tmp_path / "config.yaml")
    assert (done.returncode, "did you mean static?" in done.stdout) == (3, True)
    assert "no usage-gate.yml was given" not in done.stdout


def test_kinds_are_told_by_their_keys_and_neither_is_refused(llm_gate, tmp_path):
    gate, neither, broken = tmp_path / "a.yml", tmp_path / "b.yml", tmp_path / "c.yml"
    gate.write_text(GATE)
    neither.write_text("name: x\n")
    broken.write_text("a: [")
    assert llm_gate("check-config", gate).stdout == f"{gate}: sound (usage-gate configuration)\n"
    for file, part in (
        (neither, "cannot tell what this is"),
        (broken, "line 1, column 5"),
        (tmp_path / "no", "No such file"),
    ):
        done = llm_gate("check-config", file)
        assert done.returncode == 3
        assert part in done.stdout
    gate.write_text(GATE.replace("static", "statik"))
    done = llm_gate("check-config", gate)
    assert done.returncode == 3
    assert "did you mean static?" in done.stdout


def test_the_examples_of_the_documentation_are_valid(llm_gate, tmp_path):
    text = (COLLECTION / "docs/usage-gate.md").read_text()
    examples = re.findall(r"<!-- checked: usage-gate -->\n```yaml\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 2
    for number, example in enumerate(examples):
        file = tmp_path / f"{number}.yml"
        file.write_text(example)
        done = llm_gate("check-config", file)
        assert done.returncode == 0, done.stdout


def test_every_counter_is_documented():
    text = (COLLECTION / "docs/usage-gate.md").read_text()
    source = (COLLECTION / "plugins/module_utils/_gate/metrics.py").read_text()
    names = re.findall(r'(?:counter|gauge)\("(\w+)"', source)
    assert len(names) > 10
    for name in names:
        assert name in text, name


def test_the_manifests_fit_current_kubernetes():
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not in this environment")
    patch = yaml.safe_load((COLLECTION / "playbooks/files/platform_api_patch.yml").read_text())
    spec = patch["spec"]
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert spec["template"]["spec"]["containers"][0]["lifecycle"]["preStop"] == {"sleep": {"seconds": 5}}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "platform-api"}, **patch}
    spec["selector"] = {"matchLabels": {"app": "platform-api"}}
    spec["template"]["metadata"] = {"labels": {"app": "platform-api"}}
    spec["template"]["spec"]["containers"][0]["image"] = "platform-api"
    roles = yaml.safe_load((COLLECTION / "playbooks/files/usage_gate_rbac.yml").read_text())["items"]
    for document in (deployment, *roles):
        validate.validate(document, validate.latest_version(), strict=True)
    spec["strategy"]["rollingUpdate"]["maxUnavailabel"] = 0
    with pytest.raises(validate.ValidationError):
        validate.validate(deployment, validate.latest_version(), strict=True)
