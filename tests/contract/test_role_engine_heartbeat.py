"""The role engine_heartbeat run for real with ansible-playbook, on folders of its own and a stand-in for systemctl."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
PLUGIN = CHECKOUT / "roles" / "engine_heartbeat" / "files" / "gb10_heartbeat"
DROPIN = "50-gb10-heartbeat.conf"

# Slow: each run of a play takes seconds, so they are run for one pair of Python and ansible-core only.
pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="the role asks for root")]

# Prints the unit file and its drop-ins as `systemctl cat` does, and notes what else it is asked for.
SYSTEMCTL = """#!{python}
import os, pathlib, sys
units, said = pathlib.Path({units!r}), pathlib.Path({said!r})
if "cat" in sys.argv:
    unit = units / sys.argv[-1]
    if not unit.exists():
        sys.exit(f"No files found for {{unit.name}}.")
    for file in [unit, *sorted((units / f"{{unit.name}}.d").glob("*.conf"))]:
        print(f"# {{file}}\\n{{file.read_text()}}\\n")
else:
    with said.open("a") as log:
        print(*[os.environ["XDG_RUNTIME_DIR"]] * ("--user" in sys.argv), *sys.argv[1:], file=log)
"""
GETENT = """#!{python}
import sys
known = {known!r}
sys.exit(2) if sys.argv[-1] not in known else print(known[sys.argv[-1]])
"""
RUNUSER = """#!/bin/sh
shift 3
exec "$@"
"""
PRINTS = """#!{python}
print({text!r})
"""


@dataclass
class Outcome:
    """How a run of the play ended."""

    status: int
    changed: int
    text: str


@dataclass
class Host:
    """A host as far as the role sees it."""

    root: Path

    @property
    def units(self) -> Path:
        return self.root / "units"

    @property
    def folder(self) -> Path:
        return self.root / "heartbeat"

    def unit(self, name: str, text: str) -> None:
        (self.units / name).write_text(text)

    def dropin(self, name: str) -> Path:
        return self.units / f"{name}.d" / DROPIN

    def systemctl_asked(self) -> list[str]:
        said = self.root / "said"
        return said.read_text().splitlines() if said.exists() else []

    def docker(self, inspected: object) -> None:
        self._command("docker", PRINTS.format(python=sys.executable, text=json.dumps(inspected)))

    def users(self, homes: dict[str, Path]) -> None:
        """Users of this machine, with homes of the test's own; to become one of them changes nothing."""
        known = {
            name: f"{name}:x:{at.pw_uid}:{at.pw_gid}::{home}:/bin/sh"
            for name, home in homes.items()
            for at in [pwd.getpwnam(name)]
        }
        self._command("getent", GETENT.format(python=sys.executable, known=known))
        self._command("runuser", RUNUSER)

    def entry_points(self) -> str:
        """What a Python finds that has the folder on its path, as a server has."""
        script = "from importlib.metadata import entry_points as found\n[e] = found(group='vllm.stat_logger_plugins'); print(e.name, e.value)"
        environment = {"PYTHONPATH": str(self.folder)}
        return subprocess.run([sys.executable, "-c", script], env=environment, text=True, capture_output=True).stdout

    def _command(self, name: str, text: str) -> None:
        (self.root / "bin" / name).write_text(text)
        (self.root / "bin" / name).chmod(0o755)

    def prepare(self) -> None:
        for folder in ("units", "bin"):
            (self.root / folder).mkdir()
        self._command(
            "systemctl", SYSTEMCTL.format(python=sys.executable, units=str(self.units), said=str(self.root / "said"))
        )

    def run(self, check: bool = False, **variables: Any) -> Outcome:
        """Run the role; variables without their prefix."""
        settings = {"folder": str(self.folder), "unit_folder": str(self.units), **variables}
        play = {
            "hosts": "localhost",
            "gather_facts": False,
            "vars": {
                "ansible_python_interpreter": sys.executable,
                **{f"engine_heartbeat_{name}": value for name, value in settings.items()},
            },
            "roles": ["gb10.serving.engine_heartbeat"],
        }
        playbook = self.root / "play.yml"
        playbook.write_text(yaml.safe_dump([play]))
        command = [sys.executable, "-m", "ansible", "playbook", "-i", "localhost,", "-c", "local", str(playbook)]
        environment = {
            **os.environ,
            "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
            "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(CHECKOUT / ".collections"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCAL_TEMP": str(self.root / "tmp"),
        }
        done = subprocess.run([*command, *(["--check", "--diff"] if check else [])], env=environment, text=True, capture_output=True, cwd=CHECKOUT)  # fmt: skip
        text = done.stdout + done.stderr
        [recap] = [line for line in done.stdout.splitlines() if line.startswith("localhost ")] or [""]
        counted = dict(pair.split("=") for pair in recap.split() if "=" in pair)
        return Outcome(done.returncode, int(counted.get("changed", -1)), text)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.prepare()
    return host


def files(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): p.read_text()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.suffix != ".pyc"
    }


def lines(path: Path) -> list[str]:
    """What a drop-in sets: its lines but for comments."""
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


PLAIN = "[Service]\nExecStart=/srv/vllm/bin/vllm serve /models/qwen\n"


def test_a_unit_gets_it_once_and_nothing_is_restarted(host: Host) -> None:
    host.unit("vllm.service", PLAIN)
    variables: dict[str, Any] = {"units": [{"name": "vllm.service"}]}
    host.root.joinpath("heartbeat").mkdir()
    host.folder.joinpath("gb10_heartbeat-0.9.0.dist-info").mkdir()  # of an earlier version: goes

    would = host.run(check=True, **variables)
    assert would.status == 0, would.text
    assert files(host.folder) == {} and not host.dropin("vllm.service").exists()
    assert would.changed > 0

    first = host.run(**variables)
    assert first.status == 0, first.text
    assert lines(host.dropin("vllm.service")) == ["[Service]", f'Environment="PYTHONPATH={host.folder}"']
    assert files(host.folder) == {name: text for name, text in files(PLUGIN).items() if name != "pyproject.toml"}  # fmt: skip
    assert [path.name for path in host.folder.glob("*.dist-info")] == ["gb10_heartbeat-1.0.0.dist-info"]
    assert host.entry_points() == "gb10_heartbeat gb10_heartbeat:Heartbeat\n"
    assert host.systemctl_asked() == ["daemon-reload"]
    assert "--enable-server-load-tracking" in first.text and "next start" in first.text

    again = host.run(**variables)
    assert (again.status, again.changed) == (0, 0), again.text
    assert host.systemctl_asked() == ["daemon-reload"]


# What a unit says already, and what its drop-in must then say.
KEPT = {
    "path.service": ("Environment=PYTHONPATH=/srv/own:/srv/more\n", ["PYTHONPATH={folder}:/srv/own:/srv/more"]),
    "quoted.service": ('Environment="A=b c" "PYTHONPATH=/srv/own" X=1\n', ["PYTHONPATH={folder}:/srv/own"]),
    "plugins.service": ("Environment=VLLM_PLUGINS=lora\n", ["PYTHONPATH={folder}", "VLLM_PLUGINS=lora,gb10_heartbeat"]),
    "set-to-nothing.service": ("Environment=VLLM_PLUGINS=\n", ["PYTHONPATH={folder}", "VLLM_PLUGINS=gb10_heartbeat"]),
    "named-already.service": (
        "Environment=VLLM_PLUGINS=gb10_heartbeat,x\n",
        ["PYTHONPATH={folder}", "VLLM_PLUGINS=x,gb10_heartbeat"],
    ),
    "another-variable.service": ("Environment=MY_PYTHONPATH=/no\n", ["PYTHONPATH={folder}"]),
    "a-comment@1.service": ("#Environment=PYTHONPATH=/no\n", ["PYTHONPATH={folder}"]),
}


def test_what_a_unit_sets_already_is_kept(host: Host) -> None:
    for name, (text, _expected) in KEPT.items():
        host.unit(name, PLAIN + text)
    for changed in (True, False):  # the second run reads units that have our drop-in
        outcome = host.run(units=[{"name": name} for name in KEPT])
        assert outcome.status == 0 and (outcome.changed > 0) is changed, outcome.text
        for name, (_text, expected) in KEPT.items():
            wanted = ["[Service]", *(f'Environment="{line.format(folder=host.folder)}"' for line in expected)]
            assert lines(host.dropin(name)) == wanted, name


def test_user_units_have_their_drop_ins_at_their_homes(host: Host) -> None:
    homes = {name: host.root / name for name in ("root", "daemon")}
    for home in homes.values():
        home.mkdir()
    host.users(homes)
    units = [{"name": f"vllm-{name}.service", "user": name} for name in homes]
    for unit in units:
        host.unit(unit["name"], PLAIN + "Environment=PYTHONPATH=/own\n")
    outcome = host.run(units=units)
    assert outcome.status == 0, outcome.text
    dropins = {name: home / f".config/systemd/user/vllm-{name}.service.d" / DROPIN for name, home in homes.items()}
    for name, dropin in dropins.items():
        assert lines(dropin) == ["[Service]", f'Environment="PYTHONPATH={host.folder}:/own"']
        assert dropin.owner() == dropin.parents[2].owner() == name
    runtimes = [f"/run/user/{pwd.getpwnam(name).pw_uid}" for name in homes]
    assert host.systemctl_asked() == [f"{runtime} --user daemon-reload" for runtime in runtimes]
    # one who is gone holds nobody up
    gone = host.run(state="absent", units=[{"name": "vllm.service", "user": "left-long-ago"}, *units])
    assert gone.status == 0, gone.text
    assert not any(dropin.parent.exists() for dropin in dropins.values())
    assert host.systemctl_asked() == [f"{runtime} --user daemon-reload" for runtime in runtimes] * 2


def test_an_environment_file_that_would_win_is_named(host: Host) -> None:
    settings = host.root / "vllm.env"
    settings.write_text("VLLM_PLUGINS=other\n")
    host.unit("vllm.service", PLAIN + f"EnvironmentFile=-{settings}\n")
    refused = host.run(units=[{"name": "vllm.service"}])
    assert refused.status != 0
    assert f"{settings}:VLLM_PLUGINS=other would win" in " ".join(refused.text.split())
    assert not host.folder.exists()

    settings.write_text("VLLM_PLUGINS=other,gb10_heartbeat\n")
    assert host.run(units=[{"name": "vllm.service"}]).status == 0
    assert lines(host.dropin("vllm.service")) == ["[Service]", f'Environment="PYTHONPATH={host.folder}"']


def test_a_unit_that_is_not_there_stops_it_before_anything_is_changed(host: Host) -> None:
    refused = host.run(units=[{"name": "vlm.service"}])
    assert refused.status != 0
    assert "vlm.service: systemd here does not know this unit" in " ".join(refused.text.split())
    assert not host.folder.exists()


def test_a_unit_that_runs_docker_is_told_apart(host: Host) -> None:
    host.unit("vllm.service", "[Service]\nExecStart=/usr/bin/docker run --rm --name vllm vllm/vllm-openai\n")
    outcome = host.run(units=[{"name": "vllm.service"}])
    assert outcome.status == 0, outcome.text
    assert not host.dropin("vllm.service").exists()
    assert f"-v {host.folder}:{host.folder}:ro -e PYTHONPATH={host.folder}" in outcome.text


def test_the_shared_description_of_servers_is_understood(host: Host) -> None:
    host.unit("vllm-qwen.service", PLAIN + "Environment=A=b\n")
    host.docker(
        [{"Config": {"Env": ["PYTHONPATH=/opt/own", "VLLM_PLUGINS=other"], "Cmd": ["--enable-server-load-tracking"]}}]
    )
    servers = [
        {"name": "qwen", "url": "http://127.0.0.1:8000", "restart": {"systemd": "vllm-qwen.service"}},
        {"name": "glm", "url": "http://127.0.0.1:8001", "engine": "vllm", "restart": {"docker": "vllm-glm"}},
        {
            "name": "mimo",
            "url": "http://127.0.0.1:8002",
            "restart": {"compose": {"project": "mimo", "service": "mimo"}},
        },
        {
            "name": "llama",
            "url": "http://127.0.0.1:8003",
            "engine": "llamacpp",
            "restart": {"systemd": "llama.service"},
        },
        {"name": "watched", "url": "http://127.0.0.1:8004"},
    ]
    outcome = host.run(servers=servers)
    assert outcome.status == 0, outcome.text
    assert host.dropin("vllm-qwen.service").exists() and not host.dropin("llama.service").exists()
    assert f"vllm-glm: make it again with these added to its docker run: -v {host.folder}:{host.folder}:ro -e PYTHONPATH={host.folder}:/opt/own -e VLLM_PLUGINS=other,gb10_heartbeat" in outcome.text  # fmt: skip
    assert "vllm-glm: add --enable-server-load-tracking" not in outcome.text
    assert "mimo: name its project's folder in engine_heartbeat_compose" in outcome.text


def test_a_container_that_has_it_is_left_in_peace(host: Host) -> None:
    host.docker([{"Config": {"Env": [f"PYTHONPATH={host.folder}"]}}])
    outcome = host.run(servers=[{"name": "glm", "url": "http://127.0.0.1:8001", "restart": {"docker": "vllm-glm"}}])
    assert outcome.status == 0, outcome.text
    assert "make it again" not in outcome.text


def test_a_compose_project_gets_an_override_file(host: Host) -> None:
    project = host.root / "project"
    project.mkdir()
    variables: dict[str, Any] = {
        "compose": [{"folder": str(project), "services": ["vllm", "second"], "pythonpath": "/own", "vllm_plugins": "x"}]
    }
    first = host.run(**variables)
    assert first.status == 0, first.text
    expected = {
        "environment": {"PYTHONPATH": f"{host.folder}:/own", "VLLM_PLUGINS": "x,gb10_heartbeat"},
        "volumes": [f"{host.folder}:{host.folder}:ro"],
    }
    assert yaml.safe_load((project / "compose.override.yaml").read_text()) == {
        "services": {"vllm": expected, "second": expected}
    }
    assert host.run(**variables).changed == 0
    assert host.run(state="absent", **variables).status == 0
    assert list(project.iterdir()) == []


@pytest.mark.parametrize("name", ["compose.override.yaml", "docker-compose.override.yml"])
def test_somebody_elses_override_file_is_never_overwritten(host: Host, name: str) -> None:
    project = host.root / "project"
    project.mkdir()
    (project / name).write_text("services: {vllm: {init: true}}\n")
    refused = host.run(compose=[{"folder": str(project), "services": ["vllm"]}])
    assert refused.status != 0
    assert f"{project / name} is there and not ours" in " ".join(refused.text.split())
    assert (
        host.run(compose=[{"folder": str(project), "services": ["vllm"], "file": "compose.gb10-heartbeat.yaml"}]).status
        == 0
    )
    assert host.run(state="absent", compose=[{"folder": str(project), "services": ["vllm"]}]).status == 0
    assert (project / name).read_text() == "services: {vllm: {init: true}}\n"


@pytest.fixture
def environment(host: Host) -> Path:
    """A Python environment with pip and a distribution that says it is vllm."""
    venv = host.root / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    [packages] = venv.glob("lib/python*/site-packages")
    (packages / "vllm-0.32.0.dist-info").mkdir()
    (packages / "vllm-0.32.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
    return venv


def test_an_environment_gets_it_by_pip_without_any_index(host: Host, environment: Path) -> None:
    python = str(environment / "bin" / "python")

    def installed() -> str:
        script = "from importlib.metadata import entry_points; print([e.value for e in entry_points(group='vllm.stat_logger_plugins')])"
        return subprocess.run(
            [python, "-c", script], cwd="/", text=True, capture_output=True, check=True
        ).stdout.strip()

    would = host.run(check=True, pythons=[python])
    assert would.status == 0 and would.changed > 0, would.text
    assert installed() == "[]"
    first = host.run(pythons=[python])
    assert first.status == 0, first.text
    assert installed() == "['gb10_heartbeat:Heartbeat']"
    assert host.run(pythons=[python]).changed == 0
    assert host.run(state="absent", pythons=[python]).status == 0
    assert installed() == "[]"
    assert host.run(state="absent", pythons=[python]).changed == 0


def test_an_environment_without_vllm_is_named(host: Host) -> None:
    refused = host.run(pythons=["/usr/bin/false"])
    assert refused.status != 0
    assert "engine_heartbeat_pythons: /usr/bin/false is no interpreter of an environment with both vllm and pip" in " ".join(refused.text.split())  # fmt: skip
    assert not host.folder.exists()


def test_absent_takes_all_of_it_away_and_nothing_else(host: Host) -> None:
    host.unit("vllm.service", PLAIN)
    host.unit("other.service", PLAIN)
    (host.units / "other.service.d").mkdir()
    (host.units / "other.service.d" / "limits.conf").write_text("[Service]\nLimitNOFILE=1\n")
    before = files(host.units)
    assert host.run(units=[{"name": "vllm.service"}, {"name": "other.service"}]).status == 0
    would = host.run(check=True, state="absent")
    assert would.changed > 0 and host.folder.exists() and host.dropin("other.service").exists()
    gone = host.run(state="absent")  # the list of units may be empty by then
    assert gone.status == 0, gone.text
    assert files(host.units) == before
    assert not host.folder.exists() and not (host.units / "vllm.service.d").exists()
    assert host.systemctl_asked() == ["daemon-reload", "daemon-reload"]
    again = host.run(state="absent")
    assert (again.status, again.changed) == (0, 0), again.text


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        pytest.param({"state": "gone"}, "value of engine_heartbeat_state must be one of", id="state"),
        pytest.param({"folder": "relative/path x"}, "must be an absolute path", id="folder"),
        pytest.param({"units": [{"unit": "x"}]}, "missing required arguments: name", id="unit"),
    ],
)
def test_wrong_settings_are_refused_with_their_name(host: Host, variables: dict[str, Any], complaint: str) -> None:
    refused = host.run(**variables)
    assert refused.status != 0
    assert complaint in " ".join(refused.text.split())


def test_defaults_and_specification_say_the_same() -> None:
    role = CHECKOUT / "roles" / "engine_heartbeat"
    defaults = yaml.safe_load((role / "defaults" / "main.yml").read_text())
    options = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    assert set(defaults) == set(options)
    stated = {name: option["default"] for name, option in options.items() if "default" in option}
    assert {name: defaults[name] for name in stated} == stated
