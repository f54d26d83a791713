# SPDX-License-Identifier: GPL-3.0-or-later
"""Who else on this host could restart a server: units, timers, cron jobs, container policies, health scripts, kubelet.

Two restart authorities undo each other's proof: the eight restarts of a healthy server in one day came from four of
them. What is read is files and `docker inspect`; nothing is run and nothing is changed.

Whoever is called a competitor may be disabled for it. So it takes an act that is aimed at the server; what runs the
server is its manager, and what only talks to it is named and left alone.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .._core.servers import Server
from .._health.witness import output_of
from .aim import STARTS, Aim, Subject, deeds
from .commands import Command, Files, acts, code, commands, is_ours
from .containers import client_of
from .crontabs import entries_of_host
from .units import STARTING, STOPPING, TRANSIENT, Manager, Unit, commands_of, manager_of, managers_of_host

# The kind of a row for what could not be read.
UNREAD = "unread"


@dataclass(frozen=True)
class Row:
    """One finding. `does`: what it would do. `sure`: certain, likely, or mentions. `retire`: how to retire it.

    `competes`: it is an authority beside ours. A single manager of a single-node server (`Restart=`, or one container
    policy) is none: it brings back what died, which is its work.
    """

    kind: str
    name: str
    where: str
    does: str
    sure: str
    retire: str
    competes: bool


# The units that the roles install, whole: an operator's own may begin like them.
_OUR_UNITS = frozenset(("llm-watchdog.service", "llm-watchdog.timer", "gb10-busy@.service"))


# systemd


def _runs_it(subject: Subject, begun: Sequence[Command]) -> bool:
    """Is what a unit starts with the server itself: its container, its own script, or the process at its port?

    A container may be taken away before it is made. What restarts it, or asks it before it starts it, is no manager.
    """
    runs, asked = False, False
    for command in begun:
        whats = {
            act.what for act in acts(command) if act.program != "systemctl" and subject.aim(act, command) is Aim.SERVER
        }
        if not subject.scripts.isdisjoint(command.words):
            whats.add("start")
        if "restart" in whats or (asked and whats & STARTS):
            return False
        runs = runs or bool(whats & STARTS)
        asked = asked or subject.asked_in(command.text)
    unknown = not subject.units and not subject.known
    return runs or (unknown and any(one.depth == 0 and subject.listens_by(one.text) for one in begun))


def _containers_of(begun: Iterable[Command]) -> dict[str, str]:
    """The containers that a unit runs by itself, each with its program."""
    return {name: act.program for command in begun for act in acts(command) if act.what == "run" for name in act.at}


def _retire_unit(files: Files, unit: Unit) -> str:
    if unit.path.parent == files.at(TRANSIENT):
        return f"systemctl stop {unit.name}"
    user = "--user " if "/systemd/user/" in files.name(unit.path) else ""
    return f"systemctl {user}disable --now {unit.name}"


def _systemd(files: Files, subject: Subject) -> Iterator[Row]:
    restart = subject.server.restart
    of_person = restart is not None and (restart.user is not None or "--user" in restart.start)
    managers = list(managers_of_host(files, subject.units))
    # who runs it is known first, since others may name the server by that
    runs: list[set[str]] = []
    for manager in managers:
        own = {manager.real(name) for name in subject.units} if of_person == manager.of_person else set()
        for name, unit in manager.units.items():
            begun = commands_of(files, manager, unit, *STARTING)
            if name in own or _runs_it(subject, begun):
                own.add(name)
                aliases = [alias for alias, meant in manager.aliases.items() if meant == name]
                containers = _containers_of(begun)
                subject.learn(name, *aliases, *containers)
                subject.of_docker |= {one for one, program in containers.items() if program == "docker"}
                subject.revived = subject.revived or unit.last("Restart", "no") != "no"
        runs.append(own)
    for manager, own in zip(managers, runs, strict=True):
        yield from _of_manager(files, subject, manager, own)


def _of_manager(files: Files, subject: Subject, manager: Manager, own: set[str]) -> Iterator[Row]:
    """What one manager's units do to the server. `own`: its units that run it."""
    by_time = {manager.starts(unit) for name, unit in manager.units.items() if not name.endswith(".service")}
    for name, unit in manager.units.items():
        if not unit.text or re.sub(r"@[^@]*\.", "@.", name) in _OUR_UNITS:
            continue
        if name in own:
            yield from _own_unit(files, subject, unit)
            continue
        where, retire = files.name(unit.path), _retire_unit(files, unit)
        upheld = {manager.real(word) for line in unit.values("Upholds") for word in line.split()}
        if upheld & own:
            does = "Upholds= starts it again whenever it has ended"
            yield Row("systemd", name, where, does, "certain", f"take Upholds= out of {where}", True)
        if name.endswith(".service"):
            sure = None
            if name not in by_time:
                run = commands_of(files, manager, unit, *STARTING, *STOPPING)
                sure = deeds(subject, run, by_time=False)
            if sure == "mentions":
                yield Row(
                    "script", name, where, "mentions this server", sure, f"look at it: systemctl cat {name}", False
                )
            elif sure is not None:
                yield Row("service", name, where, "runs a script that restarts it", sure, retire, True)
            continue
        service = manager.starts(unit)
        if service in own:
            yield Row("timer", name, where, f"starts {service} by time", "certain", retire, True)
        elif service in manager.units and service not in _OUR_UNITS:
            run = commands_of(files, manager, manager.units[service], *STARTING)
            sure = deeds(subject, run, by_time=True)
            if sure is not None:
                does = f"runs {service}, which {'mentions this server' if sure == 'mentions' else 'restarts it'}"
                yield Row("timer", name, where, does, sure, retire, sure != "mentions")


def _own_unit(files: Files, subject: Subject, unit: Unit) -> Iterator[Row]:
    """The unit that runs the server: its manager, unless it revives one half of a pair."""
    policy = unit.last("Restart", "no")
    revives = policy != "no" and bool(subject.server.ranks)
    if policy != "no" or unit.name not in subject.units:
        does = "runs it" if policy == "no" else f"Restart={policy}: starts it again when it has ended"
        retire = (
            "set Restart=no on every rank: it revives half pairs" if revives else "leave it: it is the server's manager"
        )
        yield Row("systemd", unit.name, files.name(unit.path), does, "certain", retire, revives)


# cron


def _cron(files: Files, subject: Subject) -> Iterator[Row]:
    for entry in entries_of_host(files):
        run = list(commands(files, entry.command, dict(entry.variables)))
        sure = None if all(is_ours(command.words) for command in run) else deeds(subject, run, by_time=True)
        if sure is not None:
            acting = sure != "mentions"
            does = "restarts it by time" if acting else "mentions this server"
            yield Row("cron", entry.line, entry.where, does, sure, f"comment that line out in {entry.where}", acting)


# other supervisors: what of them manages the server, or only names it

_LIVENESS = "static pod with a liveness probe: kubelet restarts it"
_STATIC = "static pod: kubelet restarts it when it ends"
_OF_A_POD = re.compile(r"^[ \t-]*(?:\w*[nN]ame:.*|hostPort:.*)$", re.MULTILINE)
_INI_COMMENT = re.compile(r"(?:^|(?<=\s));.*", re.MULTILINE)
_CHECK = re.compile(r"^(?=[ \t]*check\s)", re.MULTILINE)
_CHECK_OF_PROCESS = re.compile(r"^[ \t]*check\s+(?:process|program)\b.*", re.MULTILINE)
_PROGRAM = re.compile(r"^(?=\[)", re.MULTILINE)
_MONIT_ACTS = re.compile(r"\bthen\s+(?:restart|start|stop|exec)\b", re.IGNORECASE)


def _monit(files: Files, subject: Subject, text: str) -> str | None:
    """likely: a check of it acts; mentions: a check of its process, which may; None: it looks only."""
    checks = [check for check in _CHECK.split(code(text)) if subject.named_in(check)]
    if any(_MONIT_ACTS.search(check) for check in checks):
        return "likely"
    processes = [match.group() for check in checks for match in _CHECK_OF_PROCESS.finditer(check)]
    return "mentions" if any(map(subject.named_in, processes)) else None


def _supervisor(files: Files, subject: Subject, text: str) -> str | None:
    """likely: a program of it acts on the server, or is the server, which has another manager; None: neither."""
    for program in _PROGRAM.split(_INI_COMMENT.sub("", code(text))):
        unit = Unit("", Path(), program)
        run = list(commands(files, unit.last("command", "")))
        header = program.partition("]")[0]
        is_it = subject.named_in(header.partition(":")[2]) or any(
            subject.listens_by(c.text) for c in run if not c.depth
        )
        managed = subject.server.restart is not None and subject.server.restart.kind != "command"
        if (deeds(subject, run, by_time=False) or "mentions") != "mentions" or (is_it and managed):
            return "likely"
    return None


_OTHERS = (
    ("monit", _monit, ("etc/monit", "etc"), ("monitrc",)),
    ("monit", _monit, ("etc/monit/conf.d", "etc/monit/conf-enabled", "etc/monit.d"), ()),
    ("supervisor", _supervisor, ("etc/supervisor", "etc"), ("supervisord.conf",)),
    ("supervisor", _supervisor, ("etc/supervisor/conf.d",), ()),
)


def _others(files: Files, subject: Subject) -> Iterator[Row]:
    for kind, read, folders, only in _OTHERS:
        for path in (path for folder in folders for path in files.entries(files.at(folder))):
            text = files.text(path) if not only or path.name in only else None
            sure = None if text is None else read(files, subject, text)
            if text is None or (sure is None and not subject.named_in(_INI_COMMENT.sub("", code(text)))):
                continue
            does, where = "may restart it" if sure else "mentions this server", files.name(path)
            yield Row(kind, path.name, where, does, sure or "mentions", f"look at {where}", sure is not None)


def _kubelet(files: Files, subject: Subject) -> Iterator[Row]:
    """Static pods that are the server: by the name of a container or pod, or by a port of the host."""
    for path in files.entries(files.at("etc/kubernetes/manifests")):
        text = code(files.text(path) or "")
        if not subject.named_in(text):
            continue
        is_it = any(subject.named_in(line) for line in _OF_A_POD.findall(text)) or subject.listens_by(text)
        probe = is_it and "livenessProbe" in text
        does = _LIVENESS if probe else _STATIC if is_it else "mentions this server"
        retire = "take the liveness probe out of the manifest" if is_it else f"look at {files.name(path)}"
        yield Row("kubelet", path.name, files.name(path), does, "certain" if is_it else "mentions", retire, probe)


# containers


def container_rows(
    server: Server, inspected: Iterable[dict[str, Any]], of_unit: Collection[str] = (), revived: bool = False
) -> Iterator[Row]:
    """Restart policy, health check and autoheal of the server's own container, from `docker inspect`.

    `of_unit`: containers that its unit runs. `revived`: that unit has a Restart= of its own; two that bring one back
    are one too many.
    """
    everything = list(inspected)
    autoheal = [c for c in everything if "autoheal" in str((c.get("Config") or {}).get("Image", ""))]
    for one in everything:
        name = str(one.get("Name", "")).lstrip("/")
        labels = (one.get("Config") or {}).get("Labels") or {}
        restart = server.restart
        mine = name in of_unit or (
            restart is not None
            and (
                (restart.kind in ("docker", "podman") and name == restart.target)
                or (
                    restart.kind == "compose"
                    and labels.get("com.docker.compose.project") == restart.project
                    and labels.get("com.docker.compose.service") == restart.service
                )
            )
        )
        if not mine:
            continue
        policy = str(((one.get("HostConfig") or {}).get("RestartPolicy") or {}).get("Name") or "no")
        if policy not in ("no", ""):
            second = name in of_unit and revived
            competes = bool(server.ranks) or second
            yield Row(
                "docker",
                name,
                "docker inspect",
                f"restart policy {policy}{', beside the Restart= of the unit that runs it' if second else ''}",
                "certain",
                f"docker update --restart=no {name}" if competes else "leave it: it is the server's manager",
                competes,
            )
        healed = labels.get("autoheal") == "true" or any(
            "AUTOHEAL_CONTAINER_LABEL=all" in ((c.get("Config") or {}).get("Env") or []) for c in autoheal
        )
        if healed and autoheal:
            yield Row(
                "autoheal",
                name,
                "docker inspect",
                "autoheal restarts it when its health check fails",
                "certain",
                "take the label autoheal off, or stop the autoheal container",
                True,
            )
        elif (one.get("Config") or {}).get("Healthcheck"):
            yield Row(
                "healthcheck",
                name,
                "docker inspect",
                "has a health check; nothing here acts on it",
                "certain",
                "nothing to do",
                False,
            )


async def _containers(server: Server, of_unit: Collection[str] = ()) -> list[dict[str, Any]] | None:
    """None where its client does not answer."""
    restart = server.restart
    if restart is not None and restart.kind in ("docker", "podman", "compose"):
        prefix = client_of(restart)
    elif of_unit and (restart is None or restart.user is None):
        prefix = ("docker",)
    else:
        return []
    listed = await output_of(*prefix, "ps", "--all", "--quiet")
    if listed is None or listed[0] != 0:
        return None
    if not listed[1].split():
        return []
    shown = await output_of(*prefix, "inspect", *listed[1].split())
    try:
        rows = json.loads(shown[1]) if shown else None
    except ValueError:
        return None
    return None if rows is None else [row for row in rows if isinstance(row, dict)]


def _engine(server: Server) -> Iterator[Row]:
    if server.engine == "sglang":
        yield Row(
            "engine",
            "sglang",
            "its own watchdog",
            "ends itself when a step takes over 300 s (--watchdog-timeout)",
            "certain",
            "leave it: it is the engine's own",
            False,
        )
    if server.engine == "vllm":
        yield Row(
            "engine",
            "vllm",
            "its own step limit",
            "with several GPUs it ends itself when a step takes over 300 s (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)",
            "likely",
            "leave it: it is the engine's own",
            False,
        )


async def competing(servers: Sequence[Server], cache: Path, wall: float, every_s: float = 3600.0) -> dict[str, int]:
    """How many authorities compete for each server, from an audit at most `every_s` old that `cache` holds."""
    names = [server.name for server in servers]
    try:
        kept = json.loads(cache.read_text(encoding="utf-8"))
        if 0 <= wall - kept["wall"] < every_s and sorted(kept["competing"]) == sorted(names):
            return {str(name): int(count) for name, count in kept["competing"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    found = {server.name: sum(row.competes for row in await audit(server)) for server in servers}
    try:
        cache.write_text(json.dumps({"wall": wall, "competing": found}), encoding="utf-8")
    except OSError:
        pass  # asked again next time
    return found


async def _as_it_stands(row: Row) -> Row:
    """Its files are there, but is it at work? A timer that is disabled and does not run competes with nobody."""
    idle = False
    manager = manager_of(row.where) if row.kind in ("timer", "service") else None
    if row.competes and manager is not None:
        said = [await output_of("systemctl", *manager, asked, row.name) for asked in ("is-enabled", "is-active")]
        words = [one[1].strip() if one else "" for one in said]
        idle = words[0] in ("disabled", "masked") and words[1] in ("inactive", "failed")
    elif row.competes and row.kind == "cron" and row.name == row.where:
        try:
            idle = not Path(row.where).stat().st_mode & 0o111
        except OSError:
            idle = False
    return replace(row, does=f"{row.does}; it is disabled", competes=False) if idle else row


async def audit(server: Server, root: Path = Path("/")) -> list[Row]:
    """Everything found for one server, competitors first."""
    files = Files(root)
    subject = Subject(server, files)

    def found_in_files() -> list[Row]:
        return [
            *dict.fromkeys(_systemd(files, subject)),
            *_cron(files, subject),
            *_others(files, subject),
            *_kubelet(files, subject),
        ]

    found = await asyncio.to_thread(found_in_files)
    if root == Path("/"):
        found = list(await asyncio.gather(*(_as_it_stands(row) for row in found)))
    of_unit = subject.of_docker if root == Path("/") else ()
    inspected = await _containers(server, of_unit)
    if inspected is None:
        does, retire = "did not answer", "see that it runs, and ask again as root"
        found.append(Row(UNREAD, "containers", "docker inspect", does, "certain", retire, False))
    found += container_rows(server, inspected or [], of_unit, subject.revived)
    found += _engine(server)
    found += [Row(UNREAD, path, path, "could not be read", "certain", "run it as root", False) for path in files.unread]
    return sorted(found, key=lambda row: (not row.competes, row.kind, row.name))
