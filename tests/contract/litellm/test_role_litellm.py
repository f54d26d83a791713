"""The role litellm run for real, on folders of its own."""

from __future__ import annotations

import json
import os
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.serving.plugins.module_utils._gate import releases
from ansible_collections.gb10.serving.plugins.module_utils._litellm import lint

from tests.contract.litellm.play import CHECKOUT, Play

pytest.importorskip("ruamel.yaml", reason="ruamel.yaml is not in this environment")
# Slow: each run of a play takes seconds, so they are run for one pair of Python and ansible-core only.
pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="the role asks for root")]

KEY = "sk-0f8a63c1d2b94e57a1c6e0d4b7f39258"  # of this test only
MODELS = [
    {
        "name": "qwen",
        "backends": [{"url": "http://spark1:8000", "slots": 12}, {"url": "http://spark2:8000/v1", "slots": 8}],
        "api_key_variable": "QWEN_KEY",
    },
    {"name": "embed", "model": "hosted_vllm/intfloat-e5", "mode": "embedding", "longest_answer_s": 60, "backends": [{"url": "http://spark3:8000", "slots": 4}]},
]  # fmt: skip
#: Somebody's own, with what hurts.
OWN = """\
# by hand
model_list:
  - model_name: qwen
    litellm_params:
      model: hosted_vllm/qwen
      api_base: http://spark1:8000/v1
      max_parallel_requests: 12  # so that it does not queue
      num_retries: 3
router_settings:
  num_retries: 3
  allowed_fails: 1
  cooldown_time: 30
  retry_policy: {TimeoutErrorRetries: 2}
litellm_settings:
  num_retries: 2
  drop_params: true  # keep
general_settings:
  background_health_checks: true
  master_key: os.environ/MY_KEY
"""
LITELLM = """#!/bin/sh
# stands for a Python with LiteLLM {version}
case "$*" in *importlib.metadata*) echo {version};; *) exit 1;; esac
"""


def venv(root: Path, version: str) -> Path:
    """An environment in which LiteLLM of this version is installed, as far as the role looks."""
    folder = root / "venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "lib/python3.12/site-packages").mkdir(parents=True)
    (folder / "bin/python").write_text(LITELLM.format(version=version))
    (folder / "bin/python").chmod(0o755)
    return folder


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "units").mkdir()
    return {
        "models": MODELS,
        "folder": str(tmp_path / "etc"),
        "venv": str(venv(tmp_path, "1.108.4")),
        "unit_folder": str(tmp_path / "units"),
        "user": "root",
        "group": "root",
        "environment": {"LITELLM_MASTER_KEY": KEY, "QWEN_KEY": "of-qwen-9f2c44"},
        "readiness_url": "",
    }


def test_an_installed_proxy_is_configured_once(tmp_path, variables):
    play = Play(tmp_path, "litellm")
    config, unit, environment = (
        tmp_path / name for name in ("etc/config.yaml", "units/litellm.service", "etc/litellm.env")
    )
    would = play.run(variables, check=True)
    assert would.status == 0, would.text
    assert would.changed > 0 and not config.exists() and not unit.exists() and play.asked() == []

    first = play.run(variables)
    assert first.status == 0, first.text
    document = yaml.safe_load(config.read_text())
    assert document["router_settings"] == {
        "num_retries": 0,
        "disable_cooldowns": True,
        "routing_strategy": "simple-shuffle",
    }
    assert document["general_settings"] == {
        "health_check_skip_disabled_background_models": True,
        "master_key": "os.environ/LITELLM_MASTER_KEY",
    }
    params = [one["litellm_params"] for one in document["model_list"]]
    assert [(p["model"], p["api_base"], p["timeout"], p["stream_timeout"], p["weight"]) for p in params] == [
        ("hosted_vllm/qwen", "http://spark1:8000/v1", 900, 900, 12),
        ("hosted_vllm/qwen", "http://spark2:8000/v1", 900, 900, 8),
        ("hosted_vllm/intfloat-e5", "http://spark3:8000/v1", 60, 60, 4),
    ]
    assert params[0]["api_key"] == "os.environ/QWEN_KEY" and "api_key" not in params[2]
    assert all(one["model_info"]["disable_background_health_check"] is True for one in document["model_list"])
    report = lint.check_files([str(config), str(unit)])
    assert report.lines() == [f"{config}: sound (litellm configuration)", f"{unit}: sound (unit configuration)"]
    assert "/health/readiness" in unit.read_text() and "User=root" in unit.read_text()
    assert environment.read_text().splitlines()[1:] == [f"LITELLM_MASTER_KEY={KEY}", "QWEN_KEY=of-qwen-9f2c44"]
    assert environment.stat().st_mode & 0o777 == 0o600
    assert "restart litellm.service" in play.asked()

    again = play.run(variables)
    assert (again.status, again.changed) == (0, 0), again.text
    assert play.asked() == []
    for outcome in (would, first, again):
        assert KEY not in outcome.text and "of-qwen-9f2c44" not in outcome.text

    gone = play.run({**variables, "state": "absent"})
    assert gone.status == 0, gone.text
    assert not unit.exists() and not (tmp_path / "venv").exists()
    assert config.exists() and environment.exists()


def test_the_cordon_comes_and_goes_with_the_servers_that_ask_for_it(tmp_path, variables):
    play, etc = Play(tmp_path, "litellm"), tmp_path / "etc"
    said = {"page": "http://spark1:9100/metrics", "server": "qwen"}
    first, *others = MODELS[0]["backends"]
    cordoned = [{**MODELS[0], "backends": [{**first, "watchdog": said}, *others]}]
    put = play.run({**variables, "models": cordoned})
    assert put.status == 0, put.text
    assert yaml.safe_load((etc / "config.yaml").read_text())["litellm_settings"]["callbacks"] == [
        "prometheus",
        "llm_cordon.cordon",
    ]
    document = json.loads((etc / "llm-cordon.json").read_text())
    assert document == {"backends": [{"api_base": "http://spark1:8000/v1", **said}]}
    assert (etc / "llm_cordon.py").read_text() == (CHECKOUT / "roles/litellm/files/llm_cordon.py").read_text()
    play.asked()
    assert play.run({**variables, "models": cordoned}).changed == 0
    assert play.asked() == []

    off = play.run({**variables, "models": MODELS[:1]})
    assert off.status == 0, off.text
    assert yaml.safe_load((etc / "config.yaml").read_text())["litellm_settings"]["callbacks"] == ["prometheus"]
    assert not list(etc.glob("llm*cordon*"))
    assert "restart litellm.service" in play.asked()

    play.run({**variables, "models": cordoned})
    gone = play.run({**variables, "models": cordoned, "state": "absent"})
    assert gone.status == 0, gone.text
    assert "cordon" not in (etc / "config.yaml").read_text() and not list(etc.glob("llm*cordon*"))

    refused = play.run(
        {**variables, "models": [{**MODELS[0], "backends": [{**first, "watchdog": {"server": "qwen"}}]}]}
    )
    assert refused.status != 0 and "page" in refused.words


def test_an_existing_proxy_is_put_right_and_not_replaced(tmp_path, variables):
    config = tmp_path / "config.yaml"
    config.write_text(OWN)
    given = {"models": MODELS, "install": False, "config": str(config), "callbacks": [], "restart": {"command": ["/bin/true"]}, "readiness_url": ""}  # fmt: skip
    play = Play(tmp_path, "litellm")
    first = play.run(given)
    assert first.status == 0, first.text
    document = yaml.safe_load(config.read_text())
    assert document["router_settings"] == {
        "num_retries": 0,
        "cooldown_time": 30,
        "disable_cooldowns": True,
        "routing_strategy": "simple-shuffle",
    }
    assert document["litellm_settings"] == {"drop_params": True}
    assert document["general_settings"] == {
        "master_key": "os.environ/MY_KEY",
        "health_check_skip_disabled_background_models": True,
    }
    qwen = document["model_list"][0]["litellm_params"]
    assert qwen["timeout"] == 900 and "max_parallel_requests" not in qwen and "num_retries" not in qwen
    assert "# by hand" in config.read_text() and "# keep" in config.read_text()
    assert lint.check_files([str(config)]).lines() == [f"{config}: sound (litellm configuration)"]
    assert not (tmp_path / "etc").exists() and list((tmp_path / "units").iterdir()) == []
    again = play.run(given)
    assert (again.status, again.changed) == (0, 0), again.text
    absent = play.run({**given, "deployments_absent": [{"model_name": "embed"}], "models": MODELS[:1]})
    assert absent.status == 0, absent.text
    assert [one["model_name"] for one in yaml.safe_load(config.read_text())["model_list"]] == ["qwen", "qwen"]


#: (variables over the good ones, what is said)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"version": "1.82.8"}, "litellm_version: 1.82.8 is a compromised release"),
    ({"version": "latest"}, "latest is no exact release"),
    ({"models": [{"name": "q", "backends": [{"url": "spark1:8000", "slots": 0}]}]}, "litellm_models: at least one model is needed"),
    ({"environment": {}}, "LITELLM_MASTER_KEY is needed"),
    ({"install": False}, "is not there; name the file your proxy reads"),
    ({"router_settings": {"num_retries": 2}}, "router_settings.num_retries is 2"),
    ({"general_settings": {"master_key": "sk-my-password-of-1969"}}, "the master key looks like a placeholder"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "said"), REFUSED, ids=[case[1][:40] for case in REFUSED])
def test_what_would_hurt_is_refused_before_anything_changes(tmp_path, variables, more, said):
    play = Play(tmp_path, "litellm")
    refused = play.run({**variables, **more})
    assert refused.status != 0
    assert said in refused.words, refused.text
    assert not (tmp_path / "etc").exists() and play.asked() == []
    assert "sk-my-password-of-1969" not in refused.text


@pytest.mark.parametrize("trace", ["litellm_init.pth", None])
def test_a_robbed_environment_is_refused(tmp_path, variables, trace):
    shutil.rmtree(tmp_path / "venv")
    folder = venv(tmp_path, "1.108.4" if trace else "1.82.7")
    if trace:
        (folder / "lib/python3.12/site-packages" / trace).write_text("")
    refused = Play(tmp_path, "litellm").run(variables)
    assert refused.status != 0
    assert "of a compromised release that steals credentials" in refused.words
    assert not (tmp_path / "etc").exists()


def wheel(folder: Path, name: str, version: str) -> None:
    """A wheel with nothing in it."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nProvides-Extra: proxy\n"
        )
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", f"{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


def test_the_release_is_installed_from_wheels_and_upgraded_in_place(tmp_path, variables):
    shutil.rmtree(tmp_path / "venv")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name, version in (
        ("litellm", "1.108.3"),
        ("litellm", "1.108.4"),
        ("prometheus_client", "0.22.0"),
        ("httpx", "0.28.1"),
    ):
        wheel(wheels, name, version)
    given = {**variables, "wheels": str(wheels), "python": sys.executable}
    play = Play(tmp_path, "litellm")
    would = play.run({**given, "version": "1.108.3"}, check=True)
    assert would.status == 0 and not (tmp_path / "venv").exists(), would.text
    for version in ("1.108.3", "1.108.4"):
        outcome = play.run({**given, "version": version})
        assert outcome.status == 0, outcome.text
        assert len(list((tmp_path / "venv").glob(f"lib/python*/site-packages/litellm-{version}.dist-info"))) == 1
        assert "restart litellm.service" in play.asked()
    again = play.run(given)
    assert (again.status, again.changed) == (0, 0), again.text


def test_requirements_must_pin_and_hash_the_same_release(tmp_path, variables):
    file = tmp_path / "requirements.txt"
    file.write_text("litellm[proxy]==1.108.3 --hash=sha256:00\n")
    refused = Play(tmp_path, "litellm").run({**variables, "requirements": str(file)})
    assert "must pin litellm==1.108.4 and carry hashes" in refused.words


def test_defaults_specification_and_core_say_the_same():
    role = CHECKOUT / "roles" / "litellm"
    defaults = yaml.safe_load((role / "defaults/main.yml").read_text())
    options = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    assert set(defaults) == set(options)
    stated = {name: option["default"] for name, option in options.items() if "default" in option}
    assert {name: defaults[name] for name in stated} == stated
    variables = yaml.safe_load((role / "vars/main.yml").read_text())
    assert set(variables["litellm_compromised"]) == releases.COMPROMISED
    assert tuple(variables["litellm_traces"]) == releases.TRACES
