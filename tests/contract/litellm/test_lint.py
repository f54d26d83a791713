"""The lint as a user meets it: ``llm-gate check-config``, and the module ``litellm_config_lint``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.gb10.serving.plugins.module_utils._litellm.rules import RULES

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
