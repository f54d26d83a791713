# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole little hosts as folders: who is found, how sure, and who is left in peace."""

from __future__ import annotations

import asyncio
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._core.servers import validate
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.audit import audit, container_rows, manager_of

SYSTEMD = "etc/systemd/system"
UNIT = {f"{SYSTEMD}/vllm-qwen.service": "[Service]\nExecStart=/usr/bin/vllm serve m --port 8000\nRestart=always\n"}
TIMER = "[Timer]\nOnUnitActiveSec=300\n"
CURL = (
    "#!/bin/bash\nif ! curl -m 45 http://127.0.0.1:8000/v1/chat/completions; then\n  systemctl restart vllm-qwen\nfi\n"
)


def found(tmp_path, files, **server):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    described = {"name": "qwen", "url": "http://127.0.0.1:8000", "restart": {"systemd": "vllm-qwen.service"}, **server}
    return asyncio.run(audit(validate([described])[0], tmp_path))


# id, the host's files, (kind, sure) of those who compete
CASES = [
    ("its manager alone", UNIT, []),
    (
        "a timer whose script restarts the unit",
        {
            **UNIT,
            f"{SYSTEMD}/check.timer": TIMER,
            f"{SYSTEMD}/check.service": "[Service]\nExecStart=/opt/check.sh\n",
            "opt/check.sh": CURL,
        },
        [("timer", "certain")],
    ),
    (
        "a timer whose script calls a script",
        {
            **UNIT,
            f"{SYSTEMD}/check.timer": TIMER,
            f"{SYSTEMD}/check.service": "[Service]\nExecStart=/bin/bash /opt/a.sh\n",
            "opt/a.sh": "/opt/lib/b.sh http://localhost:8000\n",
            "opt/lib/b.sh": "docker restart $1\n",
        },
        [("timer", "likely")],
    ),
    (
        "a timer whose script is no shell's",
        {
            **UNIT,
            f"{SYSTEMD}/check.timer": TIMER,
            f"{SYSTEMD}/check.service": "[Service]\nExecStart=/opt/check.py qwen\n",
            "opt/check.py": 'subprocess.run(["systemctl", "restart", "vllm-qwen.service"], check=True)\n',
        },
        [("timer", "certain")],
    ),
    (
        "a timer whose script names the unit elsewhere, over several lines",
        {
            **UNIT,
            f"{SYSTEMD}/check.timer": TIMER,
            f"{SYSTEMD}/check.service": "[Service]\nExecStart=/usr/bin/python3 /opt/check.py\n",
            "opt/check.py": "UNIT = 'vllm-qwen'\nrun([\n    'systemctl',\n    'restart',\n    UNIT,\n])\n",
        },
        [("timer", "likely")],
    ),
    (
        "a timer that starts the unit by time",
        {**UNIT, f"{SYSTEMD}/nightly.timer": "[Timer]\nUnit=vllm-qwen.service\n"},
        [("timer", "certain")],
    ),
    (
        "a timer that has nothing to do with it",
        {
            **UNIT,
            f"{SYSTEMD}/backup.timer": TIMER,
            f"{SYSTEMD}/backup.service": "[Service]\nExecStart=/usr/bin/rsync a b\n",
        },
        [],
    ),
    (
        "a timer that only looks",
        {
            **UNIT,
            f"{SYSTEMD}/look.timer": TIMER,
            f"{SYSTEMD}/look.service": "[Service]\nExecStart=/opt/look.sh\n",
            "opt/look.sh": "curl http://127.0.0.1:8000/metrics\n",
        },
        [],
    ),
    (
        "a restart that is commented out",
        {
            **UNIT,
            f"{SYSTEMD}/look.timer": TIMER,
            f"{SYSTEMD}/look.service": "[Service]\nExecStart=/opt/look.sh\n",
            "opt/look.sh": "curl http://127.0.0.1:8000/metrics\n# systemctl restart vllm-qwen\n",
        },
        [],
    ),
    (
        "a service that loops",
        {**UNIT, f"{SYSTEMD}/dog.service": "[Service]\nExecStart=/opt/dog.sh\n", "opt/dog.sh": CURL},
        [("service", "certain")],
    ),
    (
        "another server's watchdog",
        {
            **UNIT,
            f"{SYSTEMD}/dog.service": "[Service]\nExecStart=/opt/dog.sh\n",
            "opt/dog.sh": CURL.replace("8000", "8001").replace("qwen", "glm"),
        },
        [],
    ),
    (
        "cron.d",
        {**UNIT, "etc/cron.d/llm": "*/10 * * * * root /opt/check.sh\n", "opt/check.sh": CURL},
        [("cron", "certain")],
    ),
    (
        "a user's crontab",
        {**UNIT, "var/spool/cron/crontabs/ryder": "*/15 * * * * systemctl --user restart vllm-qwen\n"},
        [("cron", "certain")],
    ),
    ("cron.hourly", {**UNIT, "etc/cron.hourly/llm": "pkill -f ':8000'\n"}, [("cron", "certain")]),
    (
        "a cron job under a busy lease",
        {**UNIT, "etc/cron.d/batch": "0 3 * * * root llm-busy run -- /opt/check.sh\n", "opt/check.sh": CURL},
        [],
    ),
    ("monit", {**UNIT, "etc/monit/conf.d/llm": "check process vllm-qwen\n"}, [("monit", "mentions")]),
    (
        "a static pod with a liveness probe",
        {**UNIT, "etc/kubernetes/manifests/qwen.yaml": "name: qwen\nlivenessProbe: {httpGet: {path: /health}}\n"},
        [("kubelet", "certain")],
    ),
    (
        "our own",
        {
            **UNIT,
            f"{SYSTEMD}/llm-watchdog.timer": TIMER,
            f"{SYSTEMD}/llm-watchdog.service": "[Service]\nExecStart=/usr/local/bin/llm-watchdog run\n",
        },
        [],
    ),
    (
        "a user's timer",
        {
            **UNIT,
            "home/ryder/.config/systemd/user/c.timer": TIMER,
            "home/ryder/.config/systemd/user/c.service": "[Service]\nExecStart=/opt/check.sh\n",
            "opt/check.sh": CURL,
        },
        [("timer", "certain")],
    ),
]


@pytest.mark.parametrize(("files", "right"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_host(tmp_path, files, right):
    rows = found(tmp_path, files)
    assert [(row.kind, row.sure) for row in rows if row.competes] == right
    assert all(row.where and row.does and row.retire for row in rows)


HOME = "home/{}/.config/systemd/user"


def test_units_of_one_name_under_several_managers_are_all_seen(tmp_path):
    check = {"c.timer": TIMER, "c.service": "[Service]\nExecStart=/opt/check.sh\n"}
    folders = (SYSTEMD, HOME.format("ryder"), HOME.format("seven"))
    files = {f"{folder}/{name}": text for folder in folders for name, text in check.items()}
    rows = found(tmp_path, {**UNIT, **files, "opt/check.sh": CURL})
    assert [row.where for row in rows if row.competes] == sorted(f"/{folder}/c.timer" for folder in folders)


def test_a_persons_server_has_the_persons_unit(tmp_path):
    name, text = next(iter(UNIT.items()))
    own = f"{HOME.format('ryder')}/{Path(name).name}"
    restart = {"systemd": "vllm-qwen", "user": "ryder"}
    rows = found(tmp_path, {own: text, name: text}, restart=restart)
    assert [(row.where, row.competes) for row in rows if row.kind == "systemd"] == [(f"/{own}", False)]


def test_whose_manager_has_a_unit(tmp_path):
    mine = pwd.getpwuid(os.getuid()).pw_name
    assert manager_of("/etc/systemd/system/x.timer") == []
    assert manager_of(f"{tmp_path}/.config/systemd/user/x.timer") == ["--user", f"--machine={mine}@.host"]
    for nobodys in ("/etc/systemd/user/x.timer", "/nonexistent/.config/systemd/user/x.timer", "/opt/x.timer"):
        assert manager_of(nobodys) is None


def test_the_manager_of_a_pair_is_an_error(tmp_path):
    rank = {"host": "spark2", "restart": {"systemd": "vllm-worker"}}
    rows = found(tmp_path, UNIT, ranks=[{"host": "spark1", "restart": {"systemd": "vllm-qwen"}}, rank])
    assert [(row.kind, row.competes) for row in rows] == [("systemd", True)]


def inspected(**more):
    return {
        "Name": "/qwen",
        "Config": {"Image": "vllm", "Labels": {}, **more.pop("config", {})},
        "HostConfig": {"RestartPolicy": {"Name": more.pop("policy", "unless-stopped")}},
    }


def test_containers():
    server = validate([{"name": "qwen", "url": "http://127.0.0.1:8000", "restart": {"docker": "qwen"}}])[0]
    assert [(r.kind, r.competes) for r in container_rows(server, [inspected()])] == [("docker", False)]
    autoheal = {
        "Name": "/autoheal",
        "Config": {"Image": "willfarrell/autoheal", "Env": ["AUTOHEAL_CONTAINER_LABEL=all"]},
    }
    rows = list(container_rows(server, [inspected(config={"Healthcheck": {"Test": ["CMD", "x"]}}), autoheal]))
    assert [(r.kind, r.competes) for r in rows] == [("docker", False), ("autoheal", True)]
    alone = list(container_rows(server, [inspected(policy="no", config={"Healthcheck": {"Test": ["CMD", "x"]}})]))
    assert [(r.kind, r.competes) for r in alone] == [("healthcheck", False)]


def test_it_looks_on_a_host_that_has_none_of_the_libraries_yet():
    # the site asks it before it installs anything
    described = [{"name": "qwen", "url": "http://127.0.0.1:8000", "restart": {"systemd": "vllm-qwen.service"}}]
    code = f"""
import asyncio, sys
sys.modules.update(dict.fromkeys(("httpx", "yaml", "prometheus_client")))
from ansible_collections.gb10.serving.plugins.module_utils._core import servers
from ansible_collections.gb10.serving.plugins.modules import llm_restarters
print(asyncio.run(llm_restarters._competitors(servers.validate({described!r}))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "[]\n", done.stderr
