"""The lint as a user meets it: ``llm-gate check-config``, and the module ``litellm_config_lint``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.gb10.serving.plugins.module_utils._gate.errors import ConfigError
from ansible_collections.gb10.serving.plugins.module_utils._litellm.includes import merge_includes
from ansible_collections.gb10.serving.plugins.module_utils._litellm.rules import RULES

from tests.contract.gate.proxy import litellm_python

COLLECTION = Path(__file__).resolve().parents[3]
COMMAND = COLLECTION / "roles/usage_gate/files/llm-gate"
MODULE = COLLECTION / "plugins/modules/litellm_config_lint.py"
WEAK = "sk-my-password-of-1969"
DEPLOYMENTS = [
    {"model_name": "qwen", "litellm_params": {"model": "hosted_vllm/q", "api_base": f"http://10.0.0.{n}:8000/v1", "api_key": WEAK}}
    for n in (1, 2)
]  # fmt: skip
#: Two healthy vLLM servers and LiteLLM's defaults.
DEFAULTS = {"model_list": DEPLOYMENTS, "general_settings": {"master_key": "os.environ/LITELLM_MASTER_KEY"}}
COMPOSE = """
services:
  litellm:
    image: ghcr.io/berriai/litellm:main-v1.82.7
    command: --config /app/config.yaml --num_workers 4
    healthcheck: {test: [CMD, curl, "http://localhost:4000/health"]}
"""


def check(*arguments: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, str(COMMAND), "check-config", *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(DEFAULTS))
    return file


def test_two_slow_backends_and_the_defaults_are_an_error_with_the_way_out(config):
    done = check("--format", "json", config)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    errors = {r["rule"] for r in report["remarks"] if r["severity"] == "error"}
    assert errors == {"retries", "timeout_missing"}
    assert {r["rule"] for r in report["remarks"]} - errors == {"cooldowns"}
    for remark in report["remarks"]:
        assert set(remark) == {"file", "severity", "sentence", "rule", "harm", "evidence", "fix"}
    told = check(config, "--explain").stdout
    assert "error: " in told and "harm: " in told and "evidence: " in told
    assert WEAK not in told + done.stdout


def test_warnings_alone_end_with_0(config):
    document = {**DEFAULTS, "router_settings": {"num_retries": 0, "timeout": 950}}
    config.write_text(yaml.safe_dump(document))
    done = check(config)
    assert done.returncode == 0
    assert "warning: " in done.stdout
    assert check("--longest-answer", 1200, config).returncode == 1


def test_what_lies_beside_is_looked_at(config, tmp_path):
    compose, unit = tmp_path / "docker-compose.yml", tmp_path / "litellm.service"
    compose.write_text(COMPOSE)
    unit.write_text("[Service]\nExecStart=/opt/litellm/bin/litellm --port 4000\n")
    done = check("--format", "json", config, compose, unit)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["files"] == [
        {"file": str(config), "kind": "litellm"},
        {"file": str(compose), "kind": "compose"},
        {"file": str(unit), "kind": "unit"},
    ]
    assert {r["rule"] for r in report["remarks"] if r["file"] == str(compose)} == {
        "release_compromised",
        "health_probe",
    }
    assert check(unit).stdout == f"{unit}: sound (unit configuration)\n"
    compose.write_text("services: {a: [\n")
    done = check(config, compose)
    assert done.returncode == 3
    assert f"{compose}: line 2" in done.stdout


#: Files, the first of them config.yaml. {} names the folder.
TREES: dict[str, dict[str, str]] = {
    "none": {"config.yaml": "model_list: [{a: 1}]"},
    "lists grow, all else is replaced": {
        "config.yaml": "include: [b.yaml]\nmodel_list: [{a: 1}]\nrouter_settings: {num_retries: 0, timeout: 5}\nx: 1",
        "b.yaml": "model_list: [{b: 1}, {b: 2}]\nrouter_settings: {num_retries: 5}\ny: [2]\nx: null",
    },
    "a list over what is none": {"config.yaml": "include: [b.yaml]\nmodel_list: x", "b.yaml": "model_list: [{b: 1}]"},
    "nothing over a list": {"config.yaml": "include: [b.yaml]\nmodel_list: [{a: 1}]", "b.yaml": "model_list:"},
    "breadth first": {
        "config.yaml": "include: [b.yaml, c.yaml]\nmodel_list: [{a: 1}]\nx: a",
        "b.yaml": "include: [d.yaml]\nmodel_list: [{b: 1}]\nx: b",
        "c.yaml": "model_list: [{c: 1}]\nx: c",
        "d.yaml": "model_list: [{d: 1}]\nx: d",
    },
    "each once, and no loop": {
        "config.yaml": "include: [b.yaml, ./b.yaml, sub/../b.yaml, config.yaml]\nmodel_list: [{a: 1}]",
        "b.yaml": "include: [config.yaml, b.yaml, '{}/b.yaml']\nmodel_list: [{b: 1}]",
        "sub/x": "",
    },
    "beside the one that names it": {
        "config.yaml": "include: [sub/b.yaml]",
        "sub/b.yaml": "include: [c.yaml]\nmodel_list: [{b: 1}]",
        "sub/c.yaml": "model_list: [{c: near}]",
        "c.yaml": "model_list: [{c: far}]",
    },
    "else beside the first": {
        "config.yaml": "include: [sub/b.yaml]",
        "sub/b.yaml": "include: [c.yaml]",
        "c.yaml": "model_list: [{c: far}]",
    },
    "an absolute path, an empty file": {
        "config.yaml": "include: ['{}/b.yaml', c.yaml]",
        "b.yaml": "x: 1",
        "c.yaml": "",
    },
    "missing": {"config.yaml": "include: [b.yaml]"},
    "missing in one that is included": {"config.yaml": "include: [b.yaml]", "b.yaml": "include: [c.yaml]"},
    "broken": {"config.yaml": "include: [b.yaml]", "b.yaml": "a: ["},
    "no mapping": {"config.yaml": "include: [b.yaml]", "b.yaml": "[1]"},
    "keys that are none": {"config.yaml": "include: [b.yaml]", "b.yaml": "1: 2"},
    "a folder": {"config.yaml": "include: [sub]", "sub/x": ""},
    "no list": {"config.yaml": "include: b.yaml", "b.yaml": ""},
    "nothing": {"config.yaml": "include:"},
    "a list of something else": {"config.yaml": "include: [{a: 1}]"},
}
THEIRS = """
import asyncio, json, sys
from litellm.proxy.proxy_server import ProxyConfig
for path in sys.argv[1:]:
    try:
        print("MERGED", json.dumps(asyncio.run(ProxyConfig()._get_config_from_file(path))))
    except Exception as error:
        print("MERGED", json.dumps(None))
"""


def plant(folder: Path, tree: dict[str, str]) -> Path:
    for name, text in tree.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.replace("{}", str(folder)))
    return folder / "config.yaml"


def merged_here(config: Path) -> dict | None:
    try:
        return dict(merge_includes(yaml.safe_load(config.read_text()), str(config)).document)
    except ConfigError as error:
        [sentence] = error.problems
        assert str(config.parent) in sentence and "include" in sentence
        return None


@pytest.mark.slow
def test_what_is_included_is_merged_as_litellm_does(tmp_path):
    configs = [plant(tmp_path / str(number), tree) for number, tree in enumerate(TREES.values())]
    done = subprocess.run(
        [litellm_python(), "-c", THEIRS, *configs], capture_output=True, text=True, timeout=240, cwd=tmp_path
    )
    theirs = [json.loads(line.split(" ", 1)[1]) for line in done.stdout.splitlines() if line.startswith("MERGED ")]
    assert len(theirs) == len(TREES), done.stderr[-2000:]
    assert sum(one is None for one in theirs) == 9, "they refuse what is missing or broken"
    ours = [merged_here(config) for config in configs]
    assert dict(zip(TREES, ours, strict=True)) == dict(zip(TREES, theirs, strict=True))


#: (files, exit status, what must be said, what must not). {SOUND}, {GLM} and {AGAIN} are written out below.
INCLUDED = [
    ("the capped group is in another file", {"config.yaml": "include: [more.yaml]\n{SOUND}", "more.yaml": "model_list: [{GLM}]"}, 0, "sound (litellm", "glm5.2"),
    ("a deployment that is asked again", {"config.yaml": "include: [more.yaml]\n{SOUND}", "more.yaml": "model_list: [{GLM}, {AGAIN}]"}, 1, "{}/more.yaml: model_list[1].litellm_params.num_retries: z is asked 5 times", None),
    ("the whole section is replaced", {"config.yaml": "include: [more.yaml]\n{SOUND}", "more.yaml": "model_list: [{GLM}]\nrouter_settings: {num_retries: 5, disable_cooldowns: true}"}, 1, "router_settings.num_retries is 5: ", None),
    ("and its file is named", {"config.yaml": "include: [more.yaml]\n{SOUND}", "more.yaml": "model_list: [{GLM}]\nrouter_settings: {num_retries: 5, disable_cooldowns: true}"}, 1, "(router_settings is that of {}/more.yaml)", None),
    ("a fallback", {"config.yaml": "include: [sub/a.yaml]\n{SOUND}", "sub/a.yaml": "include: [b.yaml]\nmodel_list: [{GLM}]", "sub/b.yaml": "router_settings: {num_retries: 0, disable_cooldowns: true, fallbacks: [{q: [glm5.2]}]}"}, 1, "q (not capped) falls back to the capped group glm5.2", None),
    ("the gate is gone", {"config.yaml": "include: [more.yaml]\n{SOUND}", "more.yaml": "model_list: [{GLM}]\nlitellm_settings: {callbacks: [prometheus]}"}, 1, "does not name usage_gate.usage_gate", None),
    ("an odd entry", {"config.yaml": "include: [more.yaml]\n{SOUND}", "more.yaml": "model_list: [x]"}, 1, "{}/more.yaml: model_list[0]: a mapping with", None),
    ("a missing file", {"config.yaml": "include: [more.yaml]\n{SOUND}"}, 3, "{}/config.yaml: include: more.yaml: {}/more.yaml: cannot read an included configuration: No such file", "capped_models"),
    ("a broken file", {"config.yaml": "include: [more.yaml]\n{SOUND}", "more.yaml": "a: ["}, 3, "{}/more.yaml: line 1, column 5: not valid YAML", "capped_models"),
    ("no list", {"config.yaml": "include: more.yaml\n{SOUND}"}, 3, "config.yaml: include: a list of file paths is needed", "capped_models"),
]  # fmt: skip
WRITTEN = {
    "{SOUND}": 'model_list: [{model_name: q, litellm_params: {model: hosted_vllm/q, api_base: "http://a/v1", timeout: 900, stream_timeout: 900}}]\n'
    "router_settings: {num_retries: 0, disable_cooldowns: true}\nlitellm_settings: {callbacks: [usage_gate.usage_gate]}\n"
    "general_settings: {master_key: os.environ/LITELLM_MASTER_KEY}\n",
    "{GLM}": "{model_name: glm5.2, litellm_params: {model: openai/glm-5.2}}",
    "{AGAIN}": '{model_name: z, litellm_params: {model: hosted_vllm/z, api_base: "http://z/v1", timeout: 900, num_retries: 4}}',
}


@pytest.mark.parametrize(
    ("tree", "status", "said", "unsaid"), [case[1:] for case in INCLUDED], ids=[case[0] for case in INCLUDED]
)
def test_what_is_included_is_judged(tmp_path, tree, status, said, unsaid):
    for short, text in WRITTEN.items():
        tree = {name: content.replace(short, text) for name, content in tree.items()}
    config = plant(tmp_path, tree)
    (tmp_path / "usage-gate.yml").write_text("endpoints: {static: [http://10.0.0.1:1]}\ncapped_models: [glm5.2]\n")
    done = check(config)
    assert done.returncode == status, done.stdout
    assert said.replace("{}", str(tmp_path)) in done.stdout
    assert unsaid is None or unsaid not in done.stdout
    if status == 3:
        assert len(done.stdout.splitlines()) == 1


def test_folders_that_link_to_themselves_end(tmp_path):
    """Each file has as many names as there are ways through two links; the system follows forty of them."""
    config = plant(
        tmp_path, {"config.yaml": "include: [b.yaml]", "b.yaml": "include: [one/b.yaml, two/b.yaml]\nx: [1]"}
    )
    for link in ("one", "two"):
        (tmp_path / link).symlink_to(".")
    done = check(config)
    assert done.returncode == 3 and "look for a loop" in done.stdout


def test_a_hook_beside_the_configuration_is_read(config):
    config.with_name("mine.py").write_text("from gate import Gate\nclass Mine(Gate): pass\nmine = Mine()\n")
    config.write_text(yaml.safe_dump({**DEFAULTS, "litellm_settings": {"callbacks": ["mine.mine"]}}))
    assert "its class Mine inherits async_pre_call_hook" in check(config).stdout


@pytest.mark.parametrize("key", ["sk-1234", WEAK, "sk-" + "a" * 40])
def test_a_weak_master_key_is_named_and_never_shown(config, key):
    config.write_text(yaml.safe_dump({"general_settings": {"master_key": key}, "litellm_settings": {}}))
    done = check("--explain", config)
    assert done.returncode == 1
    assert "general_settings.master_key: the master key " in done.stdout
    assert key not in done.stdout + done.stderr


def run_module(**arguments: object) -> dict:
    pytest.importorskip("ansible", reason="ansible-core is not in this environment")
    given = {"ANSIBLE_MODULE_ARGS": {"_ansible_remote_tmp": "/tmp", "_ansible_keep_remote_files": False, **arguments}}
    done = subprocess.run(
        [sys.executable, str(MODULE)],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(COLLECTION / ".collections"), "PATH": "/usr/bin:/bin"},
        timeout=60,
    )
    assert done.stdout, done.stderr
    assert WEAK not in done.stdout
    return json.loads(done.stdout)


def test_the_module_says_the_same_and_fails_when_it_shall(config, tmp_path):
    failed = run_module(path=str(config))
    assert failed["failed"] and "num_retries is not set" in failed["msg"]
    looked = run_module(path=str(config), fail_on=[])
    assert "failed" not in looked and looked["changed"] is False and looked["sound"] is False
    assert looked["remarks"] == json.loads(check("--format", "json", config).stdout)["remarks"]
    compose = tmp_path / "compose.yaml"
    compose.write_text(COMPOSE)
    beside = run_module(path=str(config), beside=[str(compose)], fail_on=[])
    assert {"file": str(compose), "kind": "compose"} in beside["files"]
    assert run_module(path=str(config.with_name("no")), fail_on=[])["failed"]


def test_the_module_looks_at_a_text_too(tmp_path):
    sound = {"model_list": [{"model_name": "gpt", "litellm_params": {"model": "openai/gpt-4o"}}]}
    assert run_module(content=yaml.safe_dump(sound))["sound"] is True
    assert run_module(content=yaml.safe_dump(DEFAULTS))["failed"]
    broken = run_module(content="a: [", fail_on=[])
    assert broken["failed"] and "line 1, column 5" in broken["msg"]
    gate = tmp_path / "usage-gate.yml"
    gate.write_text("endpoints: {static: [http://10.0.0.1:1]}\ncapped_models: [gpt]\n")
    absent = run_module(content=yaml.safe_dump(sound), gate_config=str(gate))
    assert absent["failed"] and "does not name usage_gate.usage_gate" in absent["msg"]


def test_a_configuration_that_lies_elsewhere_for_now(tmp_path):
    """As the roles stage it: what it includes lies where it will lie."""
    there, staged = tmp_path / "etc", plant(tmp_path / "stage", {"config.yaml": "include: [more.yaml]\nmodel_list: []"})
    plant(there, {"more.yaml": "router_settings: {num_retries: x}"})
    for arguments in ({"path": str(staged)}, {"content": staged.read_text()}):
        looked = run_module(**arguments, destination=str(there / "config.yaml"), fail_on=[])
        assert [r["rule"] for r in looked["remarks"]] == ["bad_value"], looked
    assert "more.yaml" in run_module(path=str(staged), fail_on=[])["msg"]
    assert "destination" in run_module(content=staged.read_text(), fail_on=[])["msg"]


def test_the_page_shows_the_table():
    page = (COLLECTION / "docs/litellm.md").read_text()
    for rule in RULES:
        assert f"| `{rule.id}` | {rule.severity.value} | {rule.harm} | {rule.evidence} | {rule.fix} |" in page, rule.id
    for rule in RULES:
        for file in re.findall(r"tests/[\w/]+\.py", rule.evidence):
            assert (COLLECTION / file).exists(), file


@pytest.mark.parametrize("role", ["litellm", "usage_gate"])
def test_the_page_has_every_variable_of_the_roles(role):
    page = (COLLECTION / "docs/litellm.md").read_text()
    for name in yaml.safe_load((COLLECTION / f"roles/{role}/defaults/main.yml").read_text()):
        assert f"`{name}`" in page, name
