"""The module litellm_config, run as Ansible runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("ansible", reason="ansible-core is not in this environment")
pytest.importorskip("ruamel.yaml", reason="ruamel.yaml is not in this environment")
COLLECTION = Path(__file__).resolve().parents[3]
MODULE = COLLECTION / "plugins/modules/litellm_config.py"
SECRET = "sk-0f8a63c1d2b94e57a1c6e0d4b7f39258"

#: As people write them: comments of every kind, quotes, yes and no, keys nobody here knows, two spaces before dashes.
BY_HAND = f"""\
# Our proxy. Ask Ryder before you touch it.
model_list:
  - model_name: "qwen"   # the big one
    litellm_params:
      model: hosted_vllm/qwen
      api_base: http://spark1:8000/v1
      # api_key: {SECRET}
      api_key: {SECRET}
      timeout: 60   # was enough in March
    model_info: {{mode: chat}}

  - model_name: embed
    litellm_params: {{model: openai/e5, api_base: http://spark3:8000/v1, api_key: 'none'}}

router_settings:
  num_retries: 3  # because it failed once
  model_group_alias: {{"gpt-4": qwen}}

litellm_settings:
  drop_params: yes
  callbacks: [prometheus]

general_settings:
  master_key: os.environ/LITELLM_MASTER_KEY
  database_url: "postgresql://llm:{SECRET}@db:5432/llm"

# what we had before
x_own: {{a: 1, b: [1, 2]}}
"""
WANTED: dict[str, Any] = {
    "deployments": [
        {"model_name": "qwen", "litellm_params": {"model": "hosted_vllm/qwen", "api_base": "http://spark1:8000/v1", "timeout": 900, "stream_timeout": 900}},
        {"model_name": "qwen", "litellm_params": {"model": "hosted_vllm/qwen", "api_base": "http://spark2:8000/v1", "timeout": 900}},
    ],
    "router_settings": {"num_retries": 0, "disable_cooldowns": True},
    "callbacks": ["usage_gate.usage_gate"],
}  # fmt: skip


def run(path: Path, *, libraries: str = "", **arguments: Any) -> dict[str, Any]:
    given = {"_ansible_remote_tmp": "/tmp", "_ansible_keep_remote_files": False, "path": str(path), **arguments}
    done = subprocess.run(
        [sys.executable, str(MODULE)],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": given}),
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{libraries}:{COLLECTION / '.collections'}", "PATH": "/usr/bin:/bin"},
        timeout=60,
    )
    assert done.stdout, done.stderr
    assert SECRET not in done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(BY_HAND)
    path.chmod(0o604)
    return path


def test_only_what_is_named_changes_and_a_second_run_changes_nothing(file):
    would = run(file, **WANTED, _ansible_check_mode=True, _ansible_diff=True)
    assert would["changed"] and file.read_text() == BY_HAND
    assert "num_retries: 3" in would["diff"]["before"] and "num_retries: 0" in would["diff"]["after"]
    assert "os.environ/LITELLM_MASTER_KEY" in would["diff"]["after"]
    first = run(file, **WANTED, backup=True)
    assert first["changed"] and Path(first["backup_file"]).read_text() == BY_HAND
    assert file.stat().st_mode & 0o777 == 0o604
    expected = BY_HAND
    for old, new in (
        ("timeout: 60   # was enough in March\n", "timeout: 900  # was enough in March\n      stream_timeout: 900\n"),
        ("num_retries: 3  # because it failed once", "num_retries: 0  # because it failed once"),
        ("callbacks: [prometheus]", "callbacks: [prometheus, usage_gate.usage_gate]"),
    ):
        assert old in expected
        expected = expected.replace(old, new)
    after = file.read_text()
    for line in expected.splitlines():
        assert " ".join(line.split()) in [" ".join(kept.split()) for kept in after.splitlines()], line
    document = yaml.safe_load(after)
    assert document["litellm_settings"] == {"drop_params": True, "callbacks": ["prometheus", "usage_gate.usage_gate"]}
    assert [one["model_name"] for one in document["model_list"]] == ["qwen", "embed", "qwen"]
    assert list(document) == ["model_list", "router_settings", "litellm_settings", "general_settings", "x_own"]
    assert (
        "  - model_name: qwen\n    litellm_params:\n      model: hosted_vllm/qwen\n      api_base: http://spark2"
        in after
    )
    again = run(file, **WANTED)
    assert not again["changed"] and file.read_text() == after
    assert again["diff"]["before"] == again["diff"]["after"]


def test_absent_takes_out_what_is_named_and_nothing_else(file):
    before = yaml.safe_load(BY_HAND)
    run(file, **WANTED)
    gone = {
        "state": "absent",
        "deployments": [
            {"model_name": "qwen", "litellm_params": {"api_base": "http://spark2:8000/v1"}},
            {"model_name": "embed"},
            {"model_name": "never-there"},
        ],
        "callbacks": ["usage_gate.usage_gate", "prometheus"],
        "router_settings": {"disable_cooldowns": None, "model_group_alias": {"gpt-4": ""}},
        "litellm_settings": {"drop_params": None},
        "general_settings": {"nothing": None},
    }
    assert run(file, **gone)["changed"]
    document = yaml.safe_load(file.read_text())
    assert [one["litellm_params"]["api_base"] for one in document["model_list"]] == ["http://spark1:8000/v1"]
    assert document["router_settings"] == {"num_retries": 0}
    assert "litellm_settings" not in document
    assert document["general_settings"] == before["general_settings"]
    assert "# Our proxy. Ask Ryder" in file.read_text() and "# what we had before" in file.read_text()
    assert not run(file, **gone)["changed"]


def test_a_null_takes_a_key_out(file):
    assert run(file, router_settings={"num_retries": None, "model_group_alias": {"gpt-4": None, "new": "qwen"}})[
        "changed"
    ]
    assert yaml.safe_load(file.read_text())["router_settings"] == {"model_group_alias": {"new": "qwen"}}


BROKEN = [
    ("model_list: [\n", "line 2, column 1"),
    ("router_settings:\n  num_retries: 0\n bad: 1\n", "line 3"),
    ("router_settings: {a: 1}\nrouter_settings: {b: 1}\n", "given twice"),
    ("- a\n", "a mapping of LiteLLM's settings is needed"),
    ("endpoints: {static: [x]}\ncapped_models: [a]\n", "this is usage-gate.yml"),
    ("router_settings: [1]\n", "router_settings: a mapping is needed"),
    ("model_list: {}\nrouter_settings: {}\n", "model_list: a list is needed"),
    ("model_list: []\na: 2024-13-45\n", "line 2, column 4: not valid YAML: month must be in 1..12"),
    ('model_list: []\na: "x\x07"\n', "line 2, column 6: not valid YAML: the character #x07"),
    ("model_list: &m []\nx: *m\nrouter_settings: {}\n", "where it shares values by anchors"),
]


@pytest.mark.parametrize(("text", "said"), BROKEN, ids=[case[1] for case in BROKEN])
def test_what_cannot_be_changed_is_refused_and_stays_as_it_was(file, text, said):
    file.write_text(text)
    failed = run(file, **WANTED)
    assert failed["failed"] and said in failed["msg"] and failed["msg"].startswith("nothing was written; ")
    assert file.read_text() == text
    assert sorted(file.parent.iterdir()) == [file]


def test_a_file_is_made_where_there_is_none(tmp_path):
    file = tmp_path / "config.yaml"
    assert not run(file, state="absent", callbacks=["x.y"])["changed"] and not file.exists()
    assert run(file, **WANTED, _ansible_check_mode=True)["changed"] and not file.exists()
    assert run(file, **WANTED)["changed"]
    assert file.stat().st_mode & 0o777 == 0o640
    assert not run(file, **WANTED)["changed"]
    assert run(file, **WANTED, mode="0600")["changed"]
    assert yaml.safe_load(file.read_text())["router_settings"] == WANTED["router_settings"]


#: As others write them: no room before dashes, four spaces, comments in a list, sections with nothing in them.
STYLES = [
    "litellm_settings:\n  callbacks:\n  - prometheus  # for Grafana\n  # and\n  - langfuse\n",
    "litellm_settings:\n    callbacks:\n        - prometheus  # for Grafana\n    text: |\n        two\n        lines\n",
    "general_settings:\n# later\nlitellm_settings:\n  # drop_params: true\n  allowed_fails: 3\n",
    "model_list: []\nlitellm_settings: {}\n",
]


@pytest.mark.parametrize("text", STYLES)
def test_every_line_that_was_there_is_still_there(tmp_path, text):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert run(file, **WANTED)["changed"]
    after = file.read_text()
    for line in text.splitlines():
        assert line in after or line in ("model_list: []", "litellm_settings: {}"), after
    assert not run(file, **WANTED)["changed"]
    assert run(file, state="absent", callbacks=WANTED["callbacks"])["changed"]
    assert yaml.safe_load(file.read_text()).get("litellm_settings") == (
        yaml.safe_load(text).get("litellm_settings") or None
    )


def test_a_file_of_comments_keeps_them(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("# nothing here yet")
    run(file, router_settings={"num_retries": 0})
    assert file.read_text() == "# nothing here yet\nrouter_settings:\n  num_retries: 0\n"


def test_texts_that_yaml_takes_for_something_else_stay_texts(tmp_path):
    file = tmp_path / "config.yaml"
    settings = {
        "a": "yes",
        "b": "on",
        "c": "012",
        "d": "null",
        "e": "1e3",
        "f": "x: y",
        "g": True,
        "h": "",
        "i": "os.environ/X",
    }
    run(file, router_settings=settings)
    assert yaml.safe_load(file.read_text())["router_settings"] == settings
    assert not run(file, router_settings=settings)["changed"]
    assert run(file, router_settings={"g": 1})["changed"]


#: (what is there, what is wanted, what is then there)
ORDERS = [
    ([], ["g"], ["g"]),
    (["a", "b"], ["g"], ["a", "b", "g"]),
    (["g", "b"], ["g"], ["g", "b"]),
    (["g", "b", "f"], ["f", "g"], ["b", "f", "g"]),
    (["f", "x", "g"], ["f", "g"], ["f", "x", "g"]),
    (["a", "f", "b"], ["f", "g"], ["a", "f", "g", "b"]),
    ("prometheus", ["g"], ["prometheus", "g"]),
]


@pytest.mark.parametrize(("there", "wanted", "then"), ORDERS)
def test_callbacks_have_an_order(tmp_path, there, wanted, then):
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"litellm_settings": {"callbacks": there}}))
    run(file, callbacks=wanted)
    assert yaml.safe_load(file.read_text())["litellm_settings"]["callbacks"] == then
    assert not run(file, callbacks=wanted)["changed"]


def test_deployments_that_are_the_same_are_refused_before_one_is_written(file):
    one = {"model_name": "new", "litellm_params": {"model": "hosted_vllm/new", "api_base": "http://h:1/v1"}}
    other = {**one, "litellm_params": {**one["litellm_params"], "timeout": 900}}
    before = file.read_text()
    failed = run(file, deployments=[one, other])
    assert failed["failed"] and "deployments[0] and [1] (new) are the same; leave one out" in failed["msg"]
    assert run(file, deployments=[{**one, "model_info": {"id": "a"}}, other])["failed"]
    assert file.read_text() == before
    ids = [{**one, "model_info": {"id": "a"}}, {**one, "model_info": {"id": "b"}}]
    assert run(file, deployments=ids)["changed"] and not run(file, deployments=ids)["changed"]
    models = [one, {**one, "litellm_params": {**one["litellm_params"], "model": "hosted_vllm/lora"}}]
    assert not run(file, deployments=models, state="absent").get("failed")


def test_a_deployment_is_found_by_its_id_and_never_guessed(file):
    same = {"model_name": "qwen", "litellm_params": {"model": "hosted_vllm/qwen"}}
    run(file, **WANTED)
    failed = run(file, deployments=[same])
    assert failed["failed"] and "2 entries are deployments[0] (qwen)" in failed["msg"]
    named = {**same, "model_info": {"id": "one"}}
    assert run(file, deployments=[named])["changed"]
    moved = {"model_name": "qwen", "litellm_params": {"model": "hosted_vllm/qwen-2"}, "model_info": {"id": "one"}}
    run(file, deployments=[moved])
    models = [one["litellm_params"]["model"] for one in yaml.safe_load(file.read_text())["model_list"]]
    assert models == ["hosted_vllm/qwen", "openai/e5", "hosted_vllm/qwen", "hosted_vllm/qwen-2"]
    failed = run(file, deployments=[{"model_name": "x", "litellm_params": {"api_base": "http://a/v1"}}])
    assert "deployments[0].litellm_params.model: the model is needed" in failed["msg"]


def test_secrets_stay_inside(file):
    key = "very-Secret-9f2c"
    wanted = {
        "deployments": [{"model_name": "a", "litellm_params": {"model": "openai/a", "api_base": "http://u:Pass-w0rd-1@h/v1", "api_key": key}}],
        "general_settings": {"master_key": key + "-master", "alert_to_webhook_url": {"x": "https://hooks.example/" + key}},
        "litellm_settings": {"default_headers": {"authorization": "Bearer " + key}},
        "router_settings": {"redis_password": key, "redis_url": "redis://:Pass-w0rd-1@redis:6379"},
    }  # fmt: skip
    for arguments in (
        {"_ansible_check_mode": True},
        {"_ansible_diff": True, "_ansible_verbosity": 3},
        {"router_settings": []},
    ):
        result = json.dumps(run(file, **{**wanted, **arguments}))
        assert key not in result and "Pass-w0rd-1" not in result
    assert yaml.safe_load(file.read_text())["general_settings"]["master_key"] == key + "-master"


def test_the_lint_has_its_say(file):
    assert any("num_retries is 3" in sentence for sentence in run(file)["remarks"])
    assert not any("num_retries" in sentence for sentence in run(file, **WANTED)["remarks"])


def test_a_missing_library_is_named(file):
    shadow = file.parent / "shadow"
    shadow.mkdir(parents=True)
    # whichever way its package was installed: older ones are made known before any path is searched
    (shadow / "sitecustomize.py").write_text("import sys\nsys.modules['ruamel.yaml'] = None\n")
    failed = run(file, libraries=str(shadow), **WANTED)
    assert failed["failed"] and "(ruamel.yaml)" in failed["msg"]
    assert file.read_text() == BY_HAND


def test_a_link_stays_a_link_and_what_it_leads_to_changes(tmp_path):
    link, target = tmp_path / "config.yaml", tmp_path / "repository/proxy.yaml"
    target.parent.mkdir()
    target.write_text("router_settings: {num_retries: 3}\n")
    target.chmod(0o604)
    link.symlink_to("repository/proxy.yaml")
    wanted = {"router_settings": {"num_retries": 0}}
    assert run(link, **wanted)["changed"]
    assert link.is_symlink() and target.read_text() == "router_settings: {num_retries: 0}\n"
    assert target.stat().st_mode & 0o777 == 0o604
    assert run(link, **wanted, mode="0600")["changed"] and target.stat().st_mode & 0o777 == 0o600
    assert not run(link, **wanted, mode="0600")["changed"]


@pytest.mark.parametrize(
    "text",
    [
        "model_list: []\r\nrouter_settings:\r\n  num_retries: 3 # x\r\n",
        "\ufeffrouter_settings: {num_retries: 3}\n",
        "# head\n---\nrouter_settings:\n    num_retries: 3\n...\n",
    ],
)
def test_one_changed_key_leaves_the_rest_of_the_file_as_it_is(tmp_path, text):
    file = tmp_path / "config.yaml"
    file.write_bytes(text.encode())
    assert run(file, router_settings={"num_retries": 0})["changed"]
    assert file.read_bytes() == text.replace("num_retries: 3", "num_retries: 0").encode()


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize(
    ("name", "said"), [("", "is a folder; name the file in it"), ("no/c.yaml", "there is no folder")]
)
def test_a_place_where_no_file_can_be_is_named(tmp_path, name, said, check):
    failed = run(tmp_path / name, **WANTED, _ansible_check_mode=check)
    assert failed["failed"] and said in failed["msg"] and "report" not in failed["msg"]


def test_secrets_in_odd_places_are_shown_neither_from_the_file_nor_from_the_task(file):
    secret = "S3CRETtok-9f8e7d6c5b4a"
    section = {
        "database_url": f"postgresql://h/db?password={secret}",
        "mcp": {"auth_value": secret, "env": {"PAT": secret}, "apiKey": secret, "api_keys": [secret]},
    }
    for dummy in range(2):
        result = run(file, general_settings=section, _ansible_diff=True, _ansible_verbosity=3)
        assert not result.get("failed") and secret not in json.dumps(result)
    assert yaml.safe_load(file.read_text())["general_settings"]["mcp"] == section["mcp"]


def test_one_server_with_two_models_in_a_group_is_two_deployments(tmp_path):
    def one(model: str) -> dict[str, Any]:
        return {"model_name": "g", "litellm_params": {"model": f"openai/{model}", "api_base": "http://x/v1"}}

    def models() -> list[str]:
        there = yaml.safe_load(file.read_text())["model_list"]
        return [entry["litellm_params"]["model"].removeprefix("openai/") for entry in there]

    file = tmp_path / "config.yaml"
    file.write_text("")
    both = [one("m1"), one("m2")]
    assert run(file, deployments=both)["changed"] and models() == ["m1", "m2"]
    assert not run(file, deployments=both)["changed"]
    assert not run(file, deployments=both[::-1])["changed"]
    assert not run(file, deployments=[one("m2")])["changed"]
    assert "2 entries" in run(file, deployments=[one("m3")])["msg"]
    assert run(file, deployments=[*both, one("m3")])["changed"] and models() == ["m1", "m2", "m3"]
    gone = {"state": "absent", "deployments": [one("m2")]}
    assert run(file, **gone)["changed"] and models() == ["m1", "m3"]
    assert not run(file, **gone)["changed"]
    file.write_text(
        file.read_text().replace(
            "  - model_name: g\n    litellm_params:\n      model: openai/m3\n      api_base: http://x/v1\n", ""
        )
    )
    assert models() == ["m1"]
    assert run(file, deployments=both[::-1])["changed"] and models() == ["m1", "m2"]
    file.write_text("")
    run(file, deployments=[one("m1")])
    assert run(file, deployments=[one("m9")])["changed"] and models() == ["m9"]  # the server has another model now
