"""The module, run as Ansible runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.contract.gate.conftest import COLLECTION
from tests.contract.gate.servers import Api

pytest.importorskip("ansible", reason="ansible-core is not in this environment")
MODULE = COLLECTION / "plugins/modules/usage_gate_config.py"


def run(**arguments):
    """What the module answers; `failed` is there when it failed."""
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
    return json.loads(done.stdout)


@pytest.fixture
def arguments(tmp_path):
    return {
        "path": str(tmp_path / "usage-gate.yml"),
        "endpoints": ["http://10.0.0.1:8080", "http://10.0.0.2:8080"],
        "capped_models": ["glm5.2"],
    }


def test_it_writes_once_and_then_changes_nothing(arguments, tmp_path):
    first = run(**arguments)
    assert first["changed"], first
    file = tmp_path / "usage-gate.yml"
    assert yaml.safe_load(file.read_text())["endpoints"] == {"static": arguments["endpoints"]}
    assert file.stat().st_mode & 0o777 == 0o640
    assert not run(**arguments)["changed"]
    assert run(**arguments, limits={"retries": 0})["changed"]
    assert run(**arguments, limits={"retries": 0}, mode="0600")["changed"]


def test_check_mode_writes_nothing_and_says_what_it_would(arguments, tmp_path):
    result = run(**arguments, _ansible_check_mode=True, _ansible_diff=True)
    assert result["changed"]
    assert "http://10.0.0.1:8080" in result["diff"]["after"]
    assert not (tmp_path / "usage-gate.yml").exists()


def test_secrets_are_written_but_never_shown(arguments, tmp_path):
    request = {"headers": {"X-Key": "s3cret"}, "path": "/may"}
    for _ in range(2):
        result = run(**arguments, request=request, _ansible_diff=True)
        assert "s3cret" not in json.dumps(result)  # from ansible-core 2.20 on without the invocation
    request["headers"]["X-Key"] = "an0ther"
    changed = run(**arguments, request=request, _ansible_diff=True)
    assert changed["changed"]
    assert "s3cret" not in json.dumps(changed)
    assert "an0ther" in (tmp_path / "usage-gate.yml").read_text()


@pytest.mark.parametrize("url", ["http://u:s3cretPW@x:99999", "u:s3cretPW@x:80", "http://u:s3cret/PW@x:1"])
def test_a_password_in_a_url_is_refused_and_shown_nowhere(arguments, tmp_path, url):
    (tmp_path / "usage-gate.yml").write_text(f"endpoints: {{static: ['{url}']}}\n")
    for change in ({"endpoints": [url]}, {"endpoints": {"static": [url]}}):
        result = run(**{**arguments, **change})
        assert result["failed"] and "carries a user name or password" in result["msg"]
        assert "s3cret" not in json.dumps(result) and "PW" not in json.dumps(result)
    result = run(**arguments, _ansible_diff=True)
    assert result["changed"] and "s3cret" not in json.dumps(result) and "PW" not in json.dumps(result)


BAD = [
    ({"endpoints": []}, "endpoints.static: the list is empty"),
    ({"endpoints": ["http://a:1", "http://a:1/"]}, "already given"),
    ({"limits": {"budget_s": 0.6}}, "0.5 × 2 = 1 s does not fit into budget_s 0.6 s"),
    ({"limits": {"atempt_s": 1}}, "did you mean attempt_s?"),
    ({"request": {"token_file": "/nowhere/token"}}, "cannot read /nowhere/token"),
    ({"endpoints": None}, "endpoints"),
]


@pytest.mark.parametrize(("change", "part"), BAD)
def test_what_cannot_work_is_refused_and_the_file_stays(arguments, tmp_path, change, part):
    run(**arguments)
    before = (tmp_path / "usage-gate.yml").read_bytes()
    result = run(**{**arguments, **change})
    assert result.get("failed"), result
    assert part in result["msg"]
    assert (tmp_path / "usage-gate.yml").read_bytes() == before


def test_verify_asks_every_replica_first(arguments, tmp_path):
    with Api(2) as api:
        arguments["endpoints"] = api.urls
        api.stop(1)
        result = run(**arguments, verify=True)
        assert result["failed"]
        assert api.urls[1] in result["msg"]
        assert api.urls[0] not in result["msg"]
        assert not (tmp_path / "usage-gate.yml").exists()
        api.start(1)
        result = run(**arguments, verify=True)
        assert result["changed"]
        assert [one["gave_verdict"] for one in result["verified"]] == [True, True]


def test_absent_and_backup(arguments, tmp_path):
    run(**arguments)
    kept = run(**arguments, metrics_prefix="x", backup=True)
    assert yaml.safe_load(Path(kept["backup_file"]).read_text())["capped_models"] == ["glm5.2"]
    path = arguments["path"]
    assert run(path=path, state="absent")["changed"]
    assert not run(path=path, state="absent")["changed"]
    assert not (tmp_path / "usage-gate.yml").exists()


def test_a_broken_file_is_replaced(arguments, tmp_path):
    (tmp_path / "usage-gate.yml").write_text("a: [")
    assert run(**arguments)["changed"]
    assert not run(**arguments)["changed"]


def test_a_link_stays_a_link_and_what_it_leads_to_changes(arguments, tmp_path):
    link, target = tmp_path / "usage-gate.yml", tmp_path / "real.yml"
    target.write_text("x: 1\n")
    link.symlink_to("real.yml")
    assert run(**arguments)["changed"]
    assert link.is_symlink() and yaml.safe_load(target.read_text())["capped_models"] == ["glm5.2"]
    assert target.stat().st_mode & 0o777 == 0o640
    assert not run(**arguments)["changed"]


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize(
    ("name", "state", "said"),
    [("", "present", "is a folder"), ("", "absent", "is a folder"), ("no/gate.yml", "present", "there is no folder")],
)
def test_a_place_where_no_file_can_be_is_named(arguments, tmp_path, name, state, said, check):
    failed = run(**{**arguments, "path": str(tmp_path / name)}, state=state, _ansible_check_mode=check)
    assert failed["failed"] and said in failed["msg"] and "report" not in failed["msg"]


MISPLACED = [
    "request: {header: {Authorization: 'Bearer %s'}}",
    "request: {headers: 'Authorization: %s'}",
    "request: {headers: [{A: '%s'}]}",
    "request: [{headers: {A: '%s'}}]",
    "request: {token: %s}",
    "request: {path: '/check?token=%s'}",
    "headers: {A: '%s'}",
    "%s",
    "- %s",
]


@pytest.mark.parametrize("text", MISPLACED)
def test_a_secret_in_the_wrong_place_is_not_shown(arguments, tmp_path, text):
    (tmp_path / "usage-gate.yml").write_text("capped_models: [a]\n" * (":" in text) + text.replace("%s", "S3CRETtok"))
    result = run(**arguments, _ansible_diff=True)
    assert result["changed"] and "S3CRETtok" not in json.dumps(result)


def test_what_a_path_asks_for_is_not_shown(arguments, tmp_path):
    for token in ("S3CRETtok", "S3CRETtoo"):
        result = run(**arguments, request={"path": f"/check?token={token}"}, _ansible_diff=True)
        assert result["changed"] and "S3CRET" not in json.dumps(result), result
        assert result["config"]["request"]["path"].startswith("/check?")
        assert token in (tmp_path / "usage-gate.yml").read_text()


def test_yes_is_not_one(arguments, tmp_path):
    file = tmp_path / "usage-gate.yml"
    run(**arguments, limits={"retries": 1})
    file.write_text(file.read_text().replace("retries: 1", "retries: true"))
    assert run(**arguments, limits={"retries": 1})["changed"]
    assert yaml.safe_load(file.read_text())["limits"]["retries"] is not True
    assert not run(**arguments, limits={"retries": 1})["changed"]
