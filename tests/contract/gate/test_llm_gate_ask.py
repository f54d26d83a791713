"""``llm-gate ask`` against servers that misbehave in every way one machine can."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._gate.channel import Channels
from ansible_collections.gb10.serving.plugins.module_utils._gate.config import Request
from ansible_collections.gb10.serving.plugins.module_utils._gate.endpoint import Endpoint
from ansible_collections.gb10.serving.plugins.module_utils._gate.verdict import Question, Verdict

from tests.contract.gate.conftest import LLM_GATE
from tests.contract.gate.proxy import eventually
from tests.contract.gate.servers import NO, Api

KEYS = {
    "asked", "allowed", "denied", "failed_open", "failed_closed", "retries", "hedges", "ejections", "latency_ms", "outcomes",
}  # fmt: skip
OUTCOMES = {"allowed", "denied", "cached_allowed", "cached_denied", "failed_open", "failed_closed", "not_capped"}


def test_every_key_is_always_there(api, ask, write_config):
    status, result = ask(write_config(api.urls))
    assert status == 0
    assert set(result) == KEYS
    assert set(result["outcomes"]) == OUTCOMES
    assert set(result["latency_ms"]) == {"p50", "p99", "max"}
    assert (result["asked"], result["allowed"]) == (1, 1)


def test_the_question_is_as_the_design_says(api, ask, write_config):
    key = "sk-secret-1"
    status, _ = ask(
        write_config(api.urls, request={"path": "/may/i", "headers": {"X-From": "test"}}),
        "--user",
        "u",
        "--team",
        "t",
        key=key,
    )
    assert status == 0
    (replica,) = [replica for replica in api.replicas if replica.seen]
    hashed = hashlib.sha256(key.encode()).hexdigest()
    assert replica.seen == [{"key": hashed, "model": "glm5.2", "user": "u", "team": "t"}]
    assert replica.heads[0].startswith("POST /may/i HTTP/1.1\r\n")
    assert "X-From: test" in replica.heads[0]
    assert key not in replica.heads[0]


def test_a_key_that_is_a_hash_is_sent_as_it_is_and_stdin_works(api, ask, write_config):
    config = write_config(api.urls)
    ask(config, key="abc123")
    ask(config, key="-", stdin="sk-x\n")
    sent = {question["key"] for replica in api.replicas for question in replica.seen}
    assert sent == {"abc123", hashlib.sha256(b"sk-x").hexdigest()}


def test_denied(api, ask, write_config):
    for replica in api.replicas:
        replica.decide = lambda question: NO
    for mode in ("good", "verdict as 429"):
        for replica in api.replicas:
            replica.mode = mode
        status, result = ask(write_config(api.urls), "--count", 5)
        assert status == 0
        assert (result["denied"], result["retries"]) == (5, 0)


def test_a_model_without_a_cap_is_not_asked_about(api, ask, write_config):
    status, result = ask(write_config(api.urls), "--count", 3, model="qwen")
    assert status == 0
    assert result["outcomes"]["not_capped"] == 3
    assert api.questions == 0


ONE_BAD = [
    "rst", "rst after question", "500", "503", "silent", "garbage", "not http", "huge", "redirect", "closed mid-answer",
    "close before answer", "dripping",
]  # fmt: skip


@pytest.mark.parametrize("mode", [*ONE_BAD, "stopped"])
def test_one_bad_replica_of_three_opens_nothing(api, ask, write_config, mode):
    if mode == "stopped":
        api.stop(0)
    api[0].mode = mode
    status, result = ask(write_config(api.urls), "--count", 40, "--rate", 50)
    assert status == 0
    assert result["allowed"] == 40
    assert result["retries"] + result["hedges"] >= 1
    assert result["ejections"] == 1


def test_a_slow_replica_costs_a_hedge_not_its_time(api, ask, write_config):
    api[0].delay_s = 0.3
    status, result = ask(write_config(api.urls), "--count", 100, "--rate", 50)
    assert status == 0
    assert result["allowed"] == 100
    assert result["hedges"] >= 1
    assert result["ejections"] == 0
    assert result["latency_ms"]["p99"] < 200


@pytest.mark.parametrize("mode", ["stopped", "silent", "500", "garbage"])
def test_two_bad_of_three(api, ask, write_config, mode):
    for number in (0, 1):
        if mode == "stopped":
            api.stop(number)
        api[number].mode = mode
    status, result = ask(write_config(api.urls), "--count", 30, "--rate", 50, "--no-cache")
    assert status == 0
    assert result["allowed"] == 30


ALL_BAD = [
    ("stopped", "platform_api_unreachable"), ("rst", "platform_api_unreachable"), ("500", "server_error"),
    ("garbage", "bad_answer"), ("redirect", "bad_answer"), ("404", "bad_answer"), ("silent", "timeout"),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "cause"), ALL_BAD)
def test_all_bad_fails_open_with_its_cause(api, ask, llm_gate, write_config, mode, cause):
    for number in range(3):
        if mode == "stopped":
            api.stop(number)
        api[number].mode = mode
    config = write_config(api.urls)
    status, result = ask(config, "--count", 20)
    assert status == 1
    assert result["failed_open"] == 20
    assert result["latency_ms"]["p50"] < 100, "an outage costs milliseconds"
    assert result["ejections"] <= 2, "never all"
    text = llm_gate("ask", "--config", config, "--model", "glm5.2", "--key", "sk-1")
    assert text.stdout.endswith(f"no verdict 1 times: {cause}\n")
    closed = write_config(api.urls, "closed.yml", on_failure="closed")
    status, result = ask(closed)
    assert status == 1
    assert (result["failed_closed"], result["failed_open"]) == (1, 0)


def test_4xx_without_a_verdict_ejects_nobody(api, ask, write_config):
    for replica in api.replicas:
        replica.mode = "401"
    status, result = ask(write_config(api.urls), "--count", 10)
    assert status == 1
    assert (result["failed_open"], result["ejections"]) == (10, 0)


def test_one_endpoint_only(ask, write_config):
    with Api(1) as api:
        status, result = ask(write_config(api.urls), "--count", 5)
        assert (status, result["allowed"]) == (0, 5)
        api.stop(0)
        status, result = ask(write_config(api.urls), "--count", 5)
        assert (status, result["failed_open"], result["ejections"]) == (1, 5, 0)


def test_last_known_verdicts_stand_in_and_are_counted_as_such(ask, write_config):
    with Api(1) as api:
        config = write_config(api.urls, verdict_cache={"denied_s": 300, "allowed_s": 30, "allowed_uses": 4})
        answered = 0

        def die_after_two(question):
            nonlocal answered
            answered += 1
            if answered == 2:
                api[0].mode = "500"
            return {"allowed": True}

        api[0].decide = die_after_two
        status, result = ask(config, "--count", 10)
        assert status == 1
        assert result["outcomes"]["allowed"] == 2
        assert result["outcomes"]["cached_allowed"] == 4
        assert result["outcomes"]["failed_open"] == 4
        answered, api[0].mode = 0, "good"
        status, result = ask(config, "--count", 10, "--no-cache")
        assert result["outcomes"]["failed_open"] == 8
        answered, api[0].mode = 1, "good"
        api[0].decide = lambda question: (die_after_two(question), NO)[1]
        status, result = ask(config, "--count", 10)
        assert status == 0
        assert (result["denied"], result["outcomes"]["cached_denied"]) == (1, 9)


def test_a_kept_connection_the_server_closed_is_no_failure(api, ask, write_config):
    for replica in api.replicas:
        replica.mode = "close idle"
    status, result = ask(write_config(api.urls), "--count", 30)
    assert status == 0
    assert (result["allowed"], result["retries"], result["ejections"]) == (30, 0, 0)


def test_the_open_loop_is_not_held_up_by_late_answers(api, ask, write_config):
    for replica in api.replicas:
        replica.delay_s = 0.4
    status, result = ask(write_config(api.urls), "--count", 50, "--rate", 100)
    assert status == 0
    assert result["allowed"] == 50
    assert max(replica.connections for replica in api.replicas) > 5


def test_ipv6(ask, write_config):
    with Api(2, host="::1") as api:
        api.stop(1)
        status, result = ask(write_config(api.urls), "--count", 10)
        assert (status, result["allowed"]) == (0, 10)


def test_a_host_name_in_the_list(ask, write_config):
    with Api(1) as api:
        status, _ = ask(write_config([f"http://localhost:{api[0].port}"]))
        assert status == 0


def test_usage_and_configuration_errors_exit_with_3(api, llm_gate, write_config, tmp_path):
    config = write_config(api.urls)
    bad = write_config([], "bad.yml")
    for arguments in (
        ["ask"],
        ["ask", "--config", config, "--model", "m"],
        ["ask", "--config", config, "--model", "m", "--key", "k", "--count", "0"],
        ["ask", "--config", config, "--model", "m", "--key", "k", "--rate", "-1"],
        ["ask", "--config", config, "--model", "m", "--key", "-"],
        ["ask", "--config", config, "--model", "m", "--key", "\udcff"],
        ["ask", "--config", str(tmp_path / "absent.yml"), "--model", "m", "--key", "k"],
        ["ask", "--config", bad, "--model", "m", "--key", "k"],
        ["nonsense"],
        [],
    ):
        done = llm_gate(*arguments)
        assert done.returncode == 3, (arguments, done)
        assert done.stdout == ""
        assert done.stderr.strip()
    assert llm_gate("endpoints", "--config", bad).stderr == (
        f"llm-gate: {bad}: endpoints.static: the list is empty: with no endpoint every request would go unchecked; "
        "name at least one\n"
    )


def test_endpoints(api, llm_gate, write_config):
    config = write_config(api.urls)
    done = llm_gate("endpoints", "--config", config, "--format", "json")
    assert done.returncode == 0
    assert {one["url"] for one in json.loads(done.stdout)["endpoints"]} == set(api.urls)
    assert api.questions == 0
    api.stop(1)
    done = llm_gate("endpoints", "--config", config, "--verify", "--format", "json")
    assert done.returncode == 1
    seen = {one["url"]: one["gave_verdict"] for one in json.loads(done.stdout)["endpoints"]}
    assert seen == {api.urls[0]: True, api.urls[1]: False, api.urls[2]: True}


def test_tls_with_a_private_authority(ask, llm_gate, write_config, tmp_path):
    trustme = pytest.importorskip("trustme")
    import ssl

    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    bundle = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(bundle))
    with Api(2, tls=context) as api:
        status, result = ask(write_config(api.urls, request={"ca_file": str(bundle)}), "--count", 5)
        assert (status, result["allowed"]) == (0, 5)
        config = write_config(api.urls, "system.yml")
        status, result = ask(config)
        assert (status, result["failed_open"]) == (1, 1), "an authority nobody vouched for is not trusted"
        done = llm_gate("endpoints", "--config", config, "--verify")
        assert "CERTIFICATE_VERIFY_FAILED" in done.stdout or "certificate verify failed" in done.stdout


async def test_no_certificate_has_the_dot_that_ends_a_name(tmp_path):
    trustme = pytest.importorskip("trustme")
    import ssl

    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("api.internal").configure_cert(context)
    bundle = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(bundle))
    with Api(1, tls=context) as api:
        channels = Channels(Request(ca_file=str(bundle)), 5)
        endpoint = Endpoint(f"https://api.internal.:{api[0].port}", address="127.0.0.1")
        assert await channels.send(endpoint, Question("k", "m"), 5) == Verdict(True)
        channels.close()
        assert f"\r\nHost: api.internal:{api[0].port}\r\n" in api[0].heads[0]


def test_a_bearer_token_is_sent_and_shown_nowhere(api, llm_gate, write_config, tmp_path):
    token = tmp_path / "token"
    token.write_text("t0ken\n")
    config = write_config(api.urls, request={"token_file": str(token)})
    done = llm_gate("endpoints", "--config", config, "--verify")
    assert done.returncode == 0
    assert all("Authorization: Bearer t0ken" in replica.heads[0] for replica in api.replicas)
    assert "t0ken" not in done.stdout + done.stderr


def test_no_endpoints_at_all(llm_gate, tmp_path):
    config = tmp_path / "gate.yml"
    config.write_text(
        "endpoints: {dns: {name: nowhere.invalid, port: 80}}\ncapped_models: [m]\nlimits: {budget_s: 1}\n"
    )
    done = llm_gate("ask", "--config", config, "--model", "m", "--key", "k")
    assert done.returncode == 1
    assert "no_endpoints" in done.stdout
    done = llm_gate("ask", "--config", config, "--model", "m", "--key", "k", "--count", "20", "--format", "json")
    assert json.loads(done.stdout)["latency_ms"]["p99"] < 200, "a source that has failed is not waited for"
    assert "there is no list yet" in done.stderr and "stays in use" not in done.stderr


def test_what_is_no_file_is_refused_at_once(llm_gate, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, said in ((pipe, "not a regular file"), ("", "is empty; name a file"), (tmp_path, "Is a directory")):
        for command in (["ask", "--model", "m", "--key", "k", "--config", path], ["endpoints", "--config", path]):
            done = llm_gate(*command, timeout=20)
            assert done.returncode == 3 and said in done.stderr and len(done.stderr.splitlines()) == 1, done
        done = llm_gate("check-config", path, timeout=20)
        assert done.returncode == 3 and said in done.stdout, done


@pytest.mark.parametrize(
    "url", ["http://u:s3cretPW@x:99999", "u:s3cretPW@x:80", "http://u:s3cret/PW@x:1", "http://u:s3cretPW@[::1"]
)
def test_a_password_in_a_url_is_printed_nowhere(llm_gate, write_config, url):
    config = write_config([url])
    for command in (["ask", "--model", "m", "--key", "k", "--config", config], ["check-config", config]):
        done = llm_gate(*command)
        assert done.returncode == 3 and "carries a user name or password" in done.stdout + done.stderr
        assert "s3cret" not in done.stdout + done.stderr and "PW" not in done.stdout + done.stderr


def test_the_keys_of_the_command_line_are_in_its_help(llm_gate):
    text = subprocess.run([*llm_gate("ask", "--help").args], capture_output=True, text=True).stdout
    for option in ("--config", "--model", "--key", "--count", "--rate", "--no-cache", "--format"):
        assert option in text


def test_it_asks_until_told_and_until_nobody_is_left_out_and_says_who_was(api, write_config, tmp_path):
    config = write_config(api.urls, ejection={"cooldown_s": 0.2, "cooldown_max_s": 0.5})
    end = tmp_path / "end"
    command = ["ask", "--config", config, "--model", "glm5.2", "--key", "sk-1", "--rate", "50", "--until", str(end)]
    command += ["--settle", "30", "--timeline", "--format", "json"]
    asking = subprocess.Popen([sys.executable, str(LLM_GATE), *command], stdout=subprocess.PIPE, text=True)
    try:
        eventually(lambda: all(replica.seen for replica in api.replicas), what="all asked")
        api[1].mode = "silent"
        others = [len(api[0].seen), len(api[2].seen)]
        eventually(lambda: len(api[0].seen) > others[0] + 25 and len(api[2].seen) > others[1] + 25, what="others asked")
        end.touch()  # one is left out still, so that it goes on
        before = len(api[0].seen)
        eventually(lambda: len(api[0].seen) > before + 10, what="it goes on")
        api[1].mode = "good"
        out = asking.communicate(timeout=30)[0]
    finally:
        asking.kill()
    result = json.loads(out)
    assert set(result) == {*KEYS, "timeline"}
    assert asking.returncode == 0 and result["failed_open"] == 0
    assert [(turn["endpoint"], turn["state"]) for turn in result["timeline"]] == [
        (api.urls[1], "left out"),
        (api.urls[1], "asked again"),
    ]
    assert sum(result["outcomes"].values()) == result["asked"] > 60


@pytest.mark.parametrize("more", [("--until", "/x"), ("--settle", "3", "--rate", "5")])
def test_what_does_not_go_together_is_refused(api, write_config, llm_gate, more):
    done = llm_gate("ask", "--config", write_config(api.urls), "--model", "glm5.2", "--key", "sk-1", *more)
    assert done.returncode == 3 and "--until goes with --rate" in done.stderr
    assert api.questions == 0


@pytest.mark.parametrize("to", [">/dev/full", ">&-"])
@pytest.mark.parametrize("command", ["endpoints --config", "ask --model glm5.2 --key k --config", "check-config"])
def test_a_result_that_cannot_be_written_is_an_error(write_config, command, to):
    line = f"{sys.executable} {LLM_GATE} {command} {write_config(['http://127.0.0.1:9'])} {to}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert done.returncode == 3
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("llm-gate: standard output cannot be written")


@pytest.mark.parametrize(
    ("source", "part"),
    [("<&-", "the key is empty"), ("</dev/null", "the key is empty"), ("</dev/zero", "longer than any")],
)
def test_a_standard_input_that_holds_no_key(write_config, source, part):
    config = write_config(["http://127.0.0.1:9"])
    line = f"{sys.executable} {LLM_GATE} ask --model glm5.2 --key - --config {config} {source}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
    (sentence,) = done.stderr.splitlines()
    assert done.returncode == 3 and part in sentence


def test_a_file_to_end_at_that_cannot_be_looked_for_is_told_before_anything_is_asked(llm_gate, write_config):
    """Seen: it asked for ever, since the watch for that file had ended without a word."""
    config = write_config(["http://127.0.0.1:9"])
    done = llm_gate("ask", "--config", config, "--model", "m", "--key", "k", "--rate", 5, "--until", "a" * 300)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "llm-gate: --until: cannot look for this file: File name too long\n"


def test_a_file_whose_name_is_no_text_is_checked(write_config, tmp_path):
    name = tmp_path / os.fsdecode(b"g\xff.yml")
    Path(write_config(["http://127.0.0.1:9"])).rename(name)
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, LLM_GATE, "check-config", name], capture_output=True, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"g\\udcff.yml: sound" in done.stdout
