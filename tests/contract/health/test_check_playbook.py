# SPDX-License-Identifier: GPL-3.0-or-later
"""gb10.serving.check and the module as users call them: from any checkout, by short name and by FQCN."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.contract.scripted import Say, serving, vllm, vllm_page

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.slow
INTERPRETER = f"ansible_python_interpreter={sys.executable}"


def ansible(*words, cwd=ROOT, **env):
    # the checkout's own ansible.cfg is what makes short names work: nothing else is set here
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ANSIBLE_") and k != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-m", "ansible", *words],
        capture_output=True,
        text=True,
        timeout=180,
        cwd=cwd,
        env={**clean, "ANSIBLE_LOCALHOST_WARNING": "false", "ANSIBLE_DEPRECATION_WARNINGS": "false", **env},
    )


def moving(n):
    return Say(vllm_page(num_requests_running=2.0, generation_tokens_total=50.0 + n))


def adhoc(module, args, *more, **env):
    done = ansible(
        "adhoc",
        "-m",
        module,
        "-a",
        args,
        "-c",
        "local",
        "-i",
        "localhost,",
        "all",
        "-e",
        INTERPRETER,
        *more,
        ANSIBLE_LOAD_CALLBACK_PLUGINS="1",
        ANSIBLE_STDOUT_CALLBACK="ansible.builtin.minimal",
        **env,
    )
    return done, json.loads(done.stdout[done.stdout.rindex("=> {") + 3 : done.stdout.rindex("}") + 1])


@pytest.mark.parametrize("pipelining", ["false", "true"])  # `./dev shell` sets it, as most sites do
@pytest.mark.parametrize("module", ["llm_health", "gb10.serving.llm_health"])
def test_ad_hoc_by_short_name_and_fqcn_also_in_check_mode(module, pipelining):
    with serving(vllm(moving)) as server:
        done, said = adhoc(module, f"url={server.url} wait=0.2", "--check", ANSIBLE_PIPELINING=pipelining)
        assert (done.returncode, said["changed"], said["servers"][0]["state"]) == (0, False, "busy")
        assert server.posts == []


def test_fail_on_and_a_key_that_is_never_returned(tmp_path):
    play = tmp_path / "play.yml"
    with serving(vllm(vllm_page(), **{"POST /v1/chat/completions": Say(status=401)})) as server:
        task = {"url": server.url, "wait": [0.2], "api_key": "{{ lookup('env', 'THE_KEY') }}", "fail_on": ["unknown"]}
        play.write_text(
            yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": [{"gb10.serving.llm_health": task}]}])
        )
        done = ansible(
            "playbook", str(play), "-i", "localhost,", "-c", "local", "-e", INTERPRETER, "-vvv", THE_KEY="sk-topsecret"
        )
        assert done.returncode != 0
        assert "is unknown" in done.stdout + done.stderr
        assert "sk-topsecret" not in done.stdout + done.stderr
        assert any(headers.get("authorization") == "Bearer sk-topsecret" for _, _, headers in server.bodies)


def test_waiting_for_a_state():
    def loading(n):
        return Say("", 503) if n < 2 else moving(n)

    with serving(vllm(loading)) as server:
        done, said = adhoc("llm_health", f"url={server.url} engine=vllm wait=0.2 wait_for=busy,idle timeout=60")
        assert (done.returncode, said["servers"][0]["state"]) == (0, "busy")
    done, said = adhoc("llm_health", "url=http://127.0.0.1:1 wait=0.2 wait_for=busy timeout=1")
    assert done.returncode != 0
    assert "is dead" in said["msg"]


@pytest.mark.parametrize(
    ("args", "word"),
    [
        ("wait=1", "url, servers, config"),
        ("url=ftp://x", "must begin with http"),
        ("url=http://h wait=1,2,3", "wait"),
        ('{"servers": [{"name": "a", "url": "http://h", "engin": "x"}]}', "servers[0].engin"),
        ('{"servers": []}', "nothing to check"),
    ],
)
def test_bad_arguments_are_one_sentence(args, word):
    done, said = adhoc("llm_health", args)
    assert done.returncode != 0
    assert word in said["msg"]
    assert "Traceback" not in done.stdout


def test_the_playbook_asks_all_and_shows_a_table(tmp_path):
    with serving(vllm(moving)) as busy, serving(vllm(Say(status=404))) as unknown:
        hosts = {
            "spark1": {"llm_servers": [{"name": "qwen", "url": busy.url}]},
            "spark2": {
                "llm_servers": [{"name": "glm", "url": unknown.url}, {"name": "far", "url": "http://nohost.invalid:1"}]
            },
            "spark3": {},
        }
        inventory = tmp_path / "inventory.yml"
        local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        inventory.write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": {**local, "check_wait": [0.2]}}}))
        done = ansible("playbook", "gb10.serving.check", "-i", str(inventory))
        assert done.returncode == 0, done.stdout + done.stderr
        table = done.stdout[done.stdout.index("SERVER") :]
        assert [word in table for word in ("qwen", "glm", "far", "busy", "unknown", "not found")] == [True] * 6
        failing = ansible("playbook", "gb10.serving.check", "-i", str(inventory), "-e", "check_fail=true")
        assert failing.returncode == 0, "unknown is no failure"
