# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole little hosts as folders: who is found, how sure, and who is left in peace."""

from __future__ import annotations

import asyncio
import os
import pwd
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._core.servers import validate
from ansible_collections.gb10.serving.plugins.module_utils._watchdog import audit as audit_module
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.aim import Subject
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.audit import (
    UNREAD,
    Row,
    audit,
    container_rows,
)
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.commands import Files
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.units import manager_of
from ansible_collections.gb10.serving.plugins.modules import llm_restarters_info

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
        if text is None:
            path.symlink_to("/dev/null")
        else:
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
    *(
        (
            f"a script that reads its settings beside itself, by {here}",
            {
                **UNIT,
                f"{SYSTEMD}/check.timer": TIMER,
                f"{SYSTEMD}/check.service": "[Service]\nExecStart=/opt/llm/bin/check.sh\n",
                "opt/llm/bin/check.sh": f'#!/bin/bash\n. "{here}/env"\ncurl -f $URL || systemctl restart "$UNIT"\n',
                "opt/llm/bin/env": "URL=http://127.0.0.1:8000/health\nUNIT=vllm-qwen\n",
            },
            [("timer", "certain")],
        )
        for here in (
            '$(dirname "$0")',
            "$(dirname $0)",
            "${0%/*}",
            '$(dirname "$(readlink -f "$0")")',
            '$(cd "$(dirname "${BASH_SOURCE[0]}")" >/dev/null 2>&1 && pwd)',
        )
    ),
    (
        "a timer of an account whose home is elsewhere",
        {
            **UNIT,
            "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nllm:x:990:990::/srv/llm:/usr/sbin/nologin\n",
            "srv/llm/.config/systemd/user/check.timer": TIMER,
            "srv/llm/.config/systemd/user/check.service": "[Service]\nExecStart=/opt/check.sh\n",
            "opt/check.sh": CURL,
        },
        [("timer", "certain")],
    ),
    (
        "a timer that a package of a person's own has put there",
        {
            **UNIT,
            "home/ryder/.local/share/systemd/user/check.timer": TIMER,
            "home/ryder/.local/share/systemd/user/check.service": "[Service]\nExecStart=/opt/check.sh\n",
            "opt/check.sh": CURL,
        },
        [("timer", "certain")],
    ),
    (
        "a crontab's script below an account's home",
        {
            **UNIT,
            "etc/passwd": "llm:x:990:990::/srv/llm:/bin/sh\n",
            "var/spool/cron/crontabs/llm": "*/5 * * * * ~/check.sh\n",
            "srv/llm/check.sh": CURL,
        },
        [("cron", "certain")],
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

# What runs by cron: found whatever it is called and however it says what it does. id, the host's files, how sure
HEAL = "#!/bin/sh\nsystemctl restart vllm-qwen.service\n"
ACTS = [
    ("called like ours", {"etc/cron.d/x": "*/5 * * * * root /opt/vllm-watchdog.sh\n", "opt/vllm-watchdog.sh": HEAL}, "certain"),
    ("our check, then an act", {"etc/cron.d/x": "* * * * * root llm-health http://127.0.0.1:8000 || docker restart vllm-qwen\n"}, "certain"),
    ("our name as a word", {"etc/cron.d/x": "* * * * * root systemctl restart vllm-qwen | logger -t llm-watchdog\n"}, "certain"),
    ("cd in another shell", {"etc/cron.d/x": "* * * * * root sh -c 'cd /opt/ops && ./heal.sh'\n", "opt/ops/heal.sh": HEAL}, "certain"),
    ("cd", {"etc/cron.d/x": "* * * * * root cd /opt/ops && ./heal.sh\n", "opt/ops/heal.sh": HEAL}, "certain"),
    ("of a home", {"var/spool/cron/crontabs/ryder": "* * * * * ~/bin/heal\n", "home/ryder/bin/heal": HEAL}, "certain"),
    ("of $HOME", {"var/spool/cron/crontabs/ryder": "* * * * * $HOME/heal\n", "home/ryder/heal": HEAL}, "certain"),
    ("a variable of the table", {"etc/cron.d/x": "UNIT=vllm-qwen\n* * * * * root systemctl restart $UNIT\n"}, "certain"),
    ("anacron", {"etc/anacrontab": "1 5 heal /opt/heal\n", "opt/heal": HEAL}, "certain"),
    ("a folder of scripts", {"etc/crontab": "*/5 * * * * root run-parts /etc/cron.5min\n", "etc/cron.5min/heal": HEAL}, "certain"),
    ("every minute by a tilde", {"etc/cron.d/x": "0~59 * * * * root systemctl restart vllm-qwen\n"}, "certain"),
    ("several lines", {"etc/cron.hourly/x": "systemctl \\\n  restart \\\n  vllm-qwen\n"}, "certain"),
    ("the pid of its port", {"etc/cron.hourly/x": "kill -9 $(lsof -t -i:8000)\n"}, "certain"),
    ("a pid that was kept", {"etc/cron.hourly/x": "P=$(lsof -t -i:8000)\nkill $P\n"}, "certain"),
    ("by a pipe", {"etc/cron.hourly/x": "lsof -ti:8000 | xargs kill\n"}, "certain"),
    ("fuser", {"etc/cron.hourly/x": "fuser -k 8000/tcp\n"}, "certain"),
    ("all that are named so", {"etc/cron.hourly/x": "systemctl restart 'vllm-*'\n"}, "certain"),
    ("a process of its engine", {"etc/cron.hourly/x": "PORT=8000\ncurl localhost:${PORT}/health || pkill -f 'vllm serve'\n"}, "likely"),
    ("each process of its engine", {"etc/cron.hourly/x": "curl localhost:8000 || for p in $(pgrep -f vllm); do kill -9 $p; done\n"}, "likely"),
    ("the host", {"etc/cron.hourly/x": "curl localhost:8000/health || reboot\n"}, "likely"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "sure"), [case[1:] for case in ACTS], ids=[case[0] for case in ACTS])
def test_what_runs_by_cron_is_found(tmp_path, files, sure):
    rows = found(tmp_path, {**UNIT, **files})
    assert [(row.kind, row.sure) for row in rows if row.competes] == [("cron", sure)]


# What restarts something else, or nothing: not named, or named and left alone. id, the host's files, the kinds of rows
CLIENT = "[Service]\nExecStart={}\nExecReload=/bin/kill -HUP $MAINPID\nExecStop=/bin/kill -TERM $MAINPID\n"
PEACE = [
    ("a proxy", {f"{SYSTEMD}/litellm.service": CLIENT.format("/opt/litellm --config /etc/litellm.yaml"), "etc/litellm.yaml": "api_base: http://127.0.0.1:8000/v1\n"}, ["script"]),
    ("a client in a container", {f"{SYSTEMD}/webui.service": "[Service]\nExecStartPre=-/usr/bin/docker rm -f webui\nExecStart=/usr/bin/docker run --name webui -e URL=http://127.0.0.1:8000 webui\nExecStop=/usr/bin/docker stop webui\n"}, ["script"]),
    ("another server, 8000 inside", {f"{SYSTEMD}/vllm-glm.service": "[Service]\nExecStartPre=-/usr/bin/docker rm -f vllm-glm\nExecStart=/usr/bin/docker run --name vllm-glm -p 8001:8000 vllm/vllm-openai --port 8000\n"}, []),
    ("another server's nightly restart", {"etc/cron.d/x": "0 3 * * * root curl http://127.0.0.1:8000/metrics > /srv/m; systemctl restart vllm-glm\n"}, ["cron"]),
    ("its own child", {"etc/cron.hourly/x": "curl -s localhost:8000/metrics & P=$!\nsleep 5; kill -9 $P\n"}, ["cron"]),
    ("its own containers", {"etc/cron.hourly/x": "curl -s localhost:8000/metrics\ndocker rm $NAME\n"}, ["cron"]),
    ("a comment behind a command", {"etc/cron.hourly/x": "systemctl restart nginx  # not vllm-qwen.service\n"}, []),
    ("its log", {"etc/cron.daily/x": "find /var/log/vllm-qwen -delete\nsystemctl restart rsyslog\n"}, []),
    ("words about it", {"etc/cron.hourly/x": "echo systemctl restart vllm-qwen\n"}, ["cron"]),
    ("another unit that begins so", {"etc/cron.hourly/x": "systemctl restart vllm-qwen-small; systemctl restart vllm-qwen.timer\n"}, []),
    ("what cron passes over", {"etc/cron.d/x.disabled": "* * * * * root systemctl restart vllm-qwen\n", "etc/cron.daily/heal.sh": HEAL}, []),
    ("supervisor's comment", {"etc/supervisor/conf.d/x.conf": "; not vllm-qwen\n[program:x]\ncommand=/x\n"}, []),
    ("supervisor's client", {"etc/supervisor/conf.d/x.conf": "[program:webui]\ncommand=/x --base http://127.0.0.1:8000/v1\n"}, ["supervisor"]),
    ("monit's look", {"etc/monit/conf.d/x": "check host llm with address 127.0.0.1\n  if failed port 8000 then alert\n"}, ["monit"]),
    ("a pod that asks it", {"etc/kubernetes/manifests/x": "name: webui\nvalue: http://127.0.0.1:8000\nlivenessProbe: {}\n"}, ["kubelet"]),
    ("a probe in a comment", {"etc/kubernetes/manifests/x": "- name: vllm-qwen\n# livenessProbe: {}\n"}, ["kubelet"]),
    ("a masked timer", {f"{SYSTEMD}/heal.timer": None, "usr/lib/systemd/system/heal.timer": TIMER, "usr/lib/systemd/system/heal.service": "[Service]\nExecStart=/opt/heal\n", "opt/heal": HEAL}, []),
]  # fmt: skip


@pytest.mark.parametrize(("files", "kinds"), [case[1:] for case in PEACE], ids=[case[0] for case in PEACE])
def test_what_is_not_aimed_at_it_is_left_alone(tmp_path, files, kinds):
    rows = [row for row in found(tmp_path, {**UNIT, **files}) if row.kind != "systemd"]
    assert [(row.kind, row.sure == "certain" and row.kind != "kubelet", row.competes) for row in rows] == [
        (kind, False, False) for kind in kinds
    ]


# id, the host's files, the unit that competes
HEALER = {f"{SYSTEMD}/heal.timer": TIMER, "opt/heal.sh": HEAL}
UNITS = [
    ("called like ours", {f"{SYSTEMD}/llm-watchdog-old.timer": TIMER, f"{SYSTEMD}/llm-watchdog-old.service": "[Service]\nExecStart=/opt/heal.sh\n", "opt/heal.sh": HEAL}, "llm-watchdog-old.timer"),
    ("spaces around =", {**HEALER, f"{SYSTEMD}/heal.service": "[Service]\nExecStart = /opt/heal.sh\n"}, "heal.timer"),
    ("a drop-in of the distribution's unit", {**HEALER, "usr/lib/systemd/system/heal.service": "[Service]\nExecStart=/bin/true\n", f"{SYSTEMD}/heal.service.d/x.conf": "[Service]\nExecStart=\nExecStart=/opt/heal.sh\n"}, "heal.timer"),
    ("taken back by a drop-in", {**HEALER, f"{SYSTEMD}/heal.service": "[Service]\nExecStart=/opt/heal.sh\n", f"{SYSTEMD}/heal.service.d/x.conf": "[Service]\nExecStart=\nExecStart=/bin/true\n"}, None),
    ("a working directory", {**HEALER, f"{SYSTEMD}/heal.service": "[Service]\nWorkingDirectory=/opt\nExecStart=/bin/sh heal.sh\n"}, "heal.timer"),
    ("a variable of the unit", {f"{SYSTEMD}/heal.timer": TIMER, f"{SYSTEMD}/heal.service": "[Service]\nEnvironment=UNIT=vllm-qwen\nExecStart=/opt/h\n", "opt/h": 'systemctl restart "$UNIT"\n'}, "heal.timer"),
    ("an instance", {f"{SYSTEMD}/heal@.timer": TIMER, f"{SYSTEMD}/heal@.service": "[Service]\nExecStart=/usr/bin/systemctl restart vllm-%i\n", f"{SYSTEMD}/timers.target.wants/heal@qwen.timer": ""}, "heal@qwen.timer"),
    ("systemd-run", {"run/systemd/transient/r.timer": TIMER, "run/systemd/transient/r.service": "[Service]\nExecStart=/usr/bin/systemctl restart vllm-qwen\n"}, "r.timer"),
    ("a timer of another name", {**HEALER, f"{SYSTEMD}/heal.timer": TIMER + "Unit=other.service\n", f"{SYSTEMD}/heal.service": "[Service]\nExecStart=/opt/heal.sh\n"}, "heal.service"),
    ("Upholds=", {f"{SYSTEMD}/stack.service": "[Unit]\nUpholds=vllm-qwen.service\n"}, "stack.service"),
    ("a batch job that stops it first", {f"{SYSTEMD}/batch.service": "[Service]\nExecStartPre=systemctl stop vllm-qwen\nExecStart=/opt/batch\nExecStopPost=systemctl start vllm-qwen\n"}, "batch.service"),
    ("monit's check", {"etc/monit/conf.d/x": "check host llm with address 127.0.0.1\n  if failed port 8000 then restart\n"}, "x"),
    ("supervisor's healer", {"etc/supervisor/conf.d/x": "[program:heal]\ncommand=/opt/heal.sh\n", "opt/heal.sh": HEAL}, "x"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "name"), [case[1:] for case in UNITS], ids=[case[0] for case in UNITS])
def test_units_as_people_write_them(tmp_path, files, name):
    rows = found(tmp_path, {**UNIT, **files})
    assert [row.name for row in rows if row.competes] == ([name] if name else [])


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
    for folder in (".config/systemd/user", ".local/share/systemd/user"):
        assert manager_of(f"{tmp_path}/{folder}/x.timer") == ["--user", f"--machine={mine}@.host"]
    for nobodys in ("/etc/systemd/user/x.timer", "/nonexistent/.config/systemd/user/x.timer", "/opt/x.timer"):
        assert manager_of(nobodys) is None


def test_the_manager_of_a_pair_is_an_error(tmp_path):
    rank = {"host": "spark2", "restart": {"systemd": "vllm-worker"}}
    rows = found(tmp_path, UNIT, ranks=[{"host": "spark1", "restart": {"systemd": "vllm-qwen"}}, rank])
    assert [(row.kind, row.competes) for row in rows] == [("systemd", True)]


RUN = (
    "[Service]\nExecStartPre=-/usr/bin/docker rm -f vllm-glm\nExecStart=/usr/bin/docker run --name vllm-glm -p 8000:8000 vllm\n"
    "ExecStop=/usr/bin/docker stop vllm-glm\nRestart=always\n"
)
STACK = "[Service]\nType=oneshot\nWorkingDirectory=/opt/llm\nExecStart=/usr/bin/docker compose up -d\nExecStop=/usr/bin/docker compose down\n"
BY_SYSTEMCTL = {"command": {verb: ["/usr/bin/systemctl", verb, "llm.service"] for verb in ("stop", "start")}}
BY_SCRIPT = {"command": {"stop": ["/opt/llm/stop"], "start": ["/opt/llm/start"]}}
# id, what restarts the server, the unit that runs it
MANAGERS = [
    ("its container", {"docker": "vllm-glm"}, RUN),
    ("its container is started", {"docker": "vllm-glm"}, "[Service]\nExecStart=/usr/bin/docker start -a vllm-glm\n"),
    ("by a script that waits", {"docker": "vllm-glm"}, "[Service]\nExecStart=/opt/llm/up\n"),
    ("its stack", {"compose": {"project": "llm", "service": "vllm"}}, STACK),
    ("its unit, by command", BY_SYSTEMCTL, RUN),
    ("its own script", BY_SCRIPT, "[Service]\nExecStart=/opt/llm/start\nExecStop=/opt/llm/stop\n"),
]
UP = "docker rm -f vllm-glm\ndocker run --name vllm-glm -p 8000:8000 vllm &\nuntil curl localhost:8000/health; do sleep 1; done\n"


@pytest.mark.parametrize(("restart", "unit"), [case[1:] for case in MANAGERS], ids=[case[0] for case in MANAGERS])
def test_what_runs_the_server_is_its_manager_and_is_left(tmp_path, restart, unit):
    files = {f"{SYSTEMD}/llm.service": unit, "opt/llm/up": UP, "opt/llm/compose.yaml": "services: {vllm: {}}\n"}
    rows = [row for row in found(tmp_path, files, name="glm", restart=restart) if row.kind != "unread"]
    assert [(row.name, row.competes, row.retire) for row in rows] == [
        ("llm.service", False, "leave it: it is the server's manager")
    ]
    # whoever restarts that unit restarts the server
    rows = found(tmp_path, {"etc/cron.hourly/x": "systemctl restart llm.service\n"}, name="glm", restart=restart)
    assert [row.kind for row in rows if row.competes] == ["cron"]


# id, what restarts the server, what cron runs, does it compete
BY_ITS_NAMES = [
    ("another's unit by the same program", BY_SYSTEMCTL, "/usr/bin/systemctl restart nginx", False),
    ("by its script", BY_SCRIPT, "/opt/llm/stop && /opt/llm/start", True),
    ("its compose service", {"compose": {"project": "llm", "service": "vllm"}}, "docker compose -p llm restart vllm", True),
    ("its folder's compose service", {"compose": {"project": "llm", "service": "vllm"}}, "cd /srv/llm && docker compose restart vllm", True),
    ("another of its project", {"compose": {"project": "llm", "service": "vllm"}}, "docker compose -p llm restart webui", False),
    ("another project's", {"compose": {"project": "llm", "service": "vllm"}}, "docker compose -p other restart vllm", False),
    ("its project's name as a folder", {"compose": {"project": "llm", "service": "vllm"}}, "cd /srv/llm/docs; systemctl restart nginx", False),
    ("its compose container", {"compose": {"project": "llm", "service": "vllm"}}, "docker restart llm-vllm-1", True),
    ("a container that is looked up", {"docker": "vllm-glm"}, "docker restart $(docker ps -q --filter name=vllm-glm)", True),
    ("by docker's socket", {"docker": "vllm-glm"}, "curl --unix-socket /run/docker.sock -XPOST http://d/containers/vllm-glm/restart", True),
    ("an image that is called like it", {"systemd": "vllm.service"}, "docker run --name embed vllm/vllm-openai", False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("restart", "line", "competes"), [case[1:] for case in BY_ITS_NAMES], ids=[case[0] for case in BY_ITS_NAMES]
)
def test_the_server_has_the_names_that_its_restart_gives_it(tmp_path, restart, line, competes):
    rows = found(tmp_path, {"etc/cron.d/x": f"* * * * * root {line}\n"}, name="glm", restart=restart)
    assert any(row.competes for row in rows) is competes


def test_an_alias_of_its_unit_is_its_unit(tmp_path):
    files = {
        f"{SYSTEMD}/vllm-qwen.service": "[Service]\nExecStart=/opt/vllm\nExecStop=/bin/kill -INT $MAINPID\nRestart=no\n"
    }
    (tmp_path / SYSTEMD).mkdir(parents=True)
    (tmp_path / SYSTEMD / "llm.service").symlink_to("vllm-qwen.service")
    assert found(tmp_path, files) == []
    rows = found(tmp_path, {**files, "etc/cron.d/x": "* * * * * root systemctl restart llm.service\n"})
    assert [(row.kind, row.competes) for row in rows] == [("cron", True)]


@pytest.mark.parametrize(
    ("unit", "files"),
    [
        ("vllm-qwen.service", {f"{SYSTEMD}/vllm-qwen.service": "[Service]\nRestart = always\n"}),
        (
            "vllm-qwen.service",
            {
                "usr/lib/systemd/system/vllm-qwen.service": "[Service]\nExecStart=/x\n",
                f"{SYSTEMD}/vllm-qwen.service.d/x.conf": "[Service]\nRestart=always\n",
            },
        ),
        ("vllm@qwen.service", {f"{SYSTEMD}/vllm@.service": "[Service]\nRestart=always\n"}),
    ],
    ids=["spaces", "drop-in", "template"],
)
def test_the_manager_of_a_pair_is_an_error_however_it_is_written(tmp_path, unit, files):
    ranks = [{"host": "a"}, {"host": "b", "restart": {"systemd": "w"}}]
    rows = found(tmp_path, files, restart={"systemd": unit}, ranks=ranks)
    assert [(row.kind, row.name, row.competes) for row in rows] == [("systemd", unit, True)]


def test_a_cron_entry_is_named_whole(tmp_path):
    lines = [f"* * * * * root {'/bin/true; ' * 20}systemctl restart vllm-qwen {n}" for n in (1, 2)]
    rows = found(tmp_path, {**UNIT, "etc/cron.d/x": "\n".join(lines) + "\n"})
    assert [row.name for row in rows if row.competes] == lines


def test_what_could_not_be_read_is_said(tmp_path, monkeypatch):
    """Somebody who is not root: a folder of units, a table and a script of root's."""
    hidden = ("root/.config/systemd/user", "var/spool/cron/crontabs", "opt/heal.sh")
    files = {
        "root/.config/systemd/user/x.timer": TIMER,
        "etc/cron.d/x": "* * * * * root /opt/heal.sh\n",
        "opt/heal.sh": HEAL,
    }

    def refused(real):
        def ask(path, *given, **more):
            if str(path.relative_to(tmp_path)) in hidden:
                raise PermissionError(13, "Permission denied")
            return real(path, *given, **more)

        return ask

    (tmp_path / "var/spool/cron/crontabs").mkdir(parents=True)
    found(tmp_path, files)
    for name in ("iterdir", "read_bytes"):
        monkeypatch.setattr(Path, name, refused(getattr(Path, name)))
    rows = asyncio.run(audit(validate([{"name": "qwen", "url": "http://127.0.0.1:8000"}])[0], tmp_path))
    assert [(row.kind, row.name, row.retire, row.competes) for row in rows] == [
        ("unread", f"/{path}", "run it as root", False) for path in sorted(hidden)
    ]


@pytest.mark.parametrize(
    "text", ["\n" * 200_000, "cd a\n" * 10_000, "A=$A$A\n" * 5_000], ids=["lines", "folders", "values"]
)
def test_a_script_of_any_kind_is_read_in_little_time(tmp_path, text):
    began = time.monotonic()
    found(tmp_path, {"etc/cron.hourly/x": text})
    assert time.monotonic() - began < 20


def test_the_module_warns_of_what_could_not_be_read(monkeypatch):
    class Module:
        params = {"servers": [{"name": name, "url": f"http://127.0.0.1:{port}"} for name, port in (("a", 1), ("b", 2))]}
        warned: list[str] = []
        warn = warned.append

    async def one(server):
        return [Row(UNREAD, "/root/x", "/root/x", "could not be read", "certain", "run it as root", False)]

    monkeypatch.setattr(llm_restarters_info, "audit", one)
    assert llm_restarters_info._work(Module)["competing"] == 0
    assert [said.partition(",")[0] for said in Module.warned] == ["/root/x: could not be read"]


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


@pytest.mark.parametrize(("unit", "competes"), [("Restart=always\n", True), ("Type=oneshot\n", False)])
def test_a_container_that_a_unit_runs_and_docker_brings_back_too(tmp_path, unit, competes):
    command = "ExecStart=/usr/bin/docker run --name qwen --restart unless-stopped vllm --port 8000\n"
    (tmp_path / SYSTEMD).mkdir(parents=True)
    (tmp_path / SYSTEMD / "vllm-qwen.service").write_text(f"[Service]\n{command}{unit}")
    server = validate([{"name": "q", "url": "http://127.0.0.1:8000", "restart": {"systemd": "vllm-qwen.service"}}])[0]
    files = Files(tmp_path)
    subject = Subject(server, files)
    list(audit_module._systemd(files, subject))
    assert subject.of_docker == {"qwen"}
    rows = list(
        container_rows(server, [inspected(), {**inspected(), "Name": "/other"}], subject.of_docker, subject.revived)
    )
    assert [(r.kind, r.name, r.competes) for r in rows] == [("docker", "qwen", competes)]


def test_it_looks_on_a_host_that_has_none_of_the_libraries_yet():
    # the site asks it before it installs anything
    # this machine's own units and processes are looked at: a server that nothing here can have to do with
    described = [
        {"name": "of-this-test", "url": "http://127.0.0.1:59997", "restart": {"systemd": "of-this-test.service"}}
    ]
    code = f"""
import asyncio, sys
sys.modules.update(dict.fromkeys(("httpx", "yaml", "prometheus_client")))
from ansible_collections.gb10.serving.plugins.module_utils._core import servers
from ansible_collections.gb10.serving.plugins.modules import llm_restarters
print(asyncio.run(llm_restarters._competitors(servers.validate({described!r}))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "[]\n", done.stderr
