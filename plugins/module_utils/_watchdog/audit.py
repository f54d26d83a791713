# SPDX-License-Identifier: GPL-3.0-or-later
"""Who else on this host could restart a server: units, timers, cron jobs, container policies, health scripts, kubelet.

Two restart authorities undo each other's proof: the eight restarts of a healthy server in one day came from four of
them. What is read is files and `docker inspect`; nothing is run and nothing is changed.

Whoever is called a competitor may be disabled for it. So it takes an act that is aimed at the server; what runs the
server is its manager, and what only talks to it is named and left alone.
"""

from __future__ import annotations

import asyncio
import enum
import fnmatch
import json
import pwd
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from .._core import urls
from .._core.servers import Restart, Server
from .._health.witness import output_of
from .commands import Act, Command, Files, acts, code, commands, is_ours, value_of, words_of
from .containers import client_of

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


_SYSTEM_DIRS = (
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "lib/systemd/system",
    "usr/lib/systemd/system",
)
# systemd-run's: what is stopped there cannot be put back
_TRANSIENT = "run/systemd/transient"
_USER_DIRS = ("etc/systemd/user", "usr/lib/systemd/user")
_OF_A_HOME = "/.config/systemd/user/"
# The units that the roles install, whole: an operator's own may begin like them.
_OUR_UNITS = frozenset(("llm-watchdog.service", "llm-watchdog.timer", "gb10-busy@.service"))


# what a command is aimed at


class Aim(enum.Enum):
    """Whom an act hits."""

    SERVER = "it names the server"
    UNKNOWN = "what it names is known only when it runs, or is any server of this engine"
    OTHER = "it names something else"


# Programs of engines, as pkill is given them.
_ENGINES = re.compile(
    r"\b(?:vllm|sglang|llama[-_.]?(?:cpp|server)|ollama|text-generation|trtllm|lmdeploy|tabbyapi|EngineCore)\b"
    r"|^python[\d.]*$",
    re.IGNORECASE,
)
_OWN_CHILD = re.compile(r"^\$(?:!|\$|\{?(?:MAINPID|PPID)\}?$)")
_OPEN = re.compile(r"[${}]")
_ENDS = re.compile(r"\.(?:service|scope)$")
# of a published port the host's side is before the colon, as in 8001:8000
_PUBLISHED = re.compile(r"(?<![\w.-])(\d{2,5}):\d{2,5}(?:/\w+)?(?![\w.:])")
_RUN_IN_CONTAINER = re.compile(r"\b(?:docker|podman)\b.*\brun\b")
_OF_HOST_NETWORK = re.compile(r"--net(?:work)?[= ]host\b")
_LISTENS_ON = re.compile(r"--?p(?:ort)?[ =]\d+")
_NAME_OF_PROJECT = re.compile(r"^name:\s*[\"']?([\w.-]+)", re.MULTILINE)
# What starts all kinds of things is no name of one.
_GENERIC = frozenset(("bash", "docker", "env", "podman", "runuser", "sh", "sudo", "systemctl"))
_COMMANDS_OF_THE_SYSTEM = ("/bin", "/sbin", "/usr/bin", "/usr/sbin")
_LOOKS_UP = frozenset(("ps", "list-units", "inspect"))
_COMPOSE_FILES = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")


def _published(text: str) -> str:
    """Ports as the host has them: what a container has inside is its own."""
    text = _PUBLISHED.sub(r" :\1 ", text)
    inside = _RUN_IN_CONTAINER.search(text) and not _OF_HOST_NETWORK.search(text)
    return _LISTENS_ON.sub("", text) if inside else text


class _Subject:
    """The server as scripts name it. `known`: its units (without .service) and containers; grows with its managers."""

    def __init__(self, server: Server, files: Files) -> None:
        restart = server.restart
        self.server, self.files = server, files
        self.port = urls.host_and_port(server.url)[1]
        self.known: set[str] = set()
        self.units: set[str] = set()  # its own units, by their full names
        self.scripts: set[str] = set()
        self.compose: tuple[str | None, tuple[str, ...]] = (None, ())  # its project, its services there
        if restart is not None and restart.kind == "systemd":
            self.units.add(restart.target)
        elif restart is not None and restart.project and restart.service:
            self.compose = (restart.project, (restart.service,))
            self.known = {f"{restart.project}{dash}{restart.service}{dash}1" for dash in "-_"}
        elif restart is not None and restart.kind == "command":
            self._of_argv(restart)
        elif restart is not None:
            self.known.add(restart.target)
        self.known |= {_ENDS.sub("", unit) for unit in self.units}
        self._words()

    def _of_argv(self, restart: Restart) -> None:
        """What its commands start and stop; a program that starts all kinds of things is no name of it."""
        for argv in (restart.stop, restart.start):
            text = " ".join(argv)
            done = list(acts(Command(tuple(words_of(text)), text, "", frozenset(), 0)))
            for act in done:
                names = {word for word in act.at if not _OPEN.search(word)}
                if act.program == "systemctl":
                    self.units |= {name if _ENDS.search(name) else f"{name}.service" for name in names}
                elif act.program in ("docker", "podman"):
                    self.known |= names
                elif act.program == "compose":
                    self.compose = (self._project(act, "")[0], act.at)
            paths = [PurePosixPath(word) for word in argv if word.startswith("/")]
            own = [
                path for path in paths if path.name not in _GENERIC and str(path.parent) not in _COMMANDS_OF_THE_SYSTEM
            ]
            if not done:
                self.scripts |= {str(path) for path in own[:1]}

    def _words(self) -> None:
        words = self.known | ({self.server.name} if len(self.server.name) > 3 else set())
        plain = [
            # no part of a path, of another's name, or of another kind's unit
            rf"(?<![\w./-]){re.escape(word)}(?![\w/-]|\.(?!service\b)\w)"
            for word in sorted(words, key=len, reverse=True)
        ]
        # a bare number is anything; :8000 is the server's port
        self._mentions = re.compile(
            "|".join(
                [
                    *plain,
                    rf":{self.port}(?!\d)",
                    rf"(?:--?p(?:ort)?|\bport)[ =]{self.port}(?!\d)",
                    rf"(?:localhost|127\.0\.0\.1)[\"' ]+{self.port}(?!\d)",
                ]
            )
        )
        self._port_alone = re.compile(rf"(?<![\d.]){self.port}(?!\d)")

    def learn(self, *names: str) -> None:
        """More names of its units and containers."""
        self.known |= {_ENDS.sub("", name) for name in names}
        self._words()

    def named_in(self, text: str) -> bool:
        return self._mentions.search(_published(text)) is not None

    def asked_in(self, text: str) -> bool:
        """Does it talk to the server's port?"""
        return re.search(rf":{self.port}(?!\d)", _published(text)) is not None

    def listens_by(self, text: str) -> bool:
        """Does it tell a process, which is in no container, to listen at the server's port?"""
        return not _RUN_IN_CONTAINER.search(text) and re.search(rf"--?p(?:ort)?[ =]{self.port}(?!\d)", text) is not None

    def _is(self, word: str) -> bool:
        """A name of it, as systemctl and docker take it: vllm*.service too."""
        names = self.known or {self.server.name}
        return any(fnmatch.fnmatchcase(name, _ENDS.sub("", word)) for name in names)

    def aim(self, act: Act, command: Command) -> Aim:
        if act.program == "compose":
            return self._aim_of_compose(act, command)
        text = " ".join(act.at)
        if act.program in ("pkill", "kill", "fuser", "library"):
            if any(_OWN_CHILD.match(word) for word in act.at):
                return Aim.OTHER
            if any(self._is(PurePosixPath(word).stem) for word in act.at if word.endswith(".pid")):
                return Aim.SERVER
            if self.named_in(text) or (act.program != "library" and self._port_alone.search(text)):
                return Aim.SERVER
            if act.program == "library":
                return Aim.UNKNOWN
            return Aim.UNKNOWN if any(_ENGINES.search(word) for word in act.at) else Aim.OTHER
        if any(self._is(word) for word in act.at):
            return Aim.SERVER
        if _LOOKS_UP.intersection(act.at):  # docker restart $(docker ps -q --filter name=x)
            return Aim.SERVER if self.named_in(text) else Aim.UNKNOWN
        if not act.at or any(_OPEN.search(word) or word in command.given for word in act.at):
            return Aim.UNKNOWN
        # nobody said what its unit or container is called
        return Aim.UNKNOWN if not self.known and _ENGINES.search(text) else Aim.OTHER

    def _project(self, act: Act, folder: str) -> tuple[str | None, str]:
        """The name of a compose project, where it can be told, and its file's text."""
        path = value_of(act.options, "-f", "--file")
        folder = value_of(act.options, "--project-directory") or folder
        paths = [PurePosixPath(folder or "/", name) for name in ([path] if path else _COMPOSE_FILES if folder else ())]
        found = [(one, self.files.text(self.files.at(str(one)))) for one in paths]
        text = next((text for dummy, text in found if text is not None), "")
        said = _NAME_OF_PROJECT.search(text)
        given = value_of(act.options, "-p", "--project-name") or (said.group(1) if said else None)
        return given or (paths[0].parent.name.lower() if paths else None), text

    def _aim_of_compose(self, act: Act, command: Command) -> Aim:
        project, text = self._project(act, command.folder)
        if any(self._is(word) for word in act.at):
            return Aim.SERVER
        if self.compose[0] is None:
            # a whole stack, which has its container
            has_it = any(re.search(rf"(?<![\w./-]){re.escape(name)}(?![\w./-])", text) for name in self.known)
            return Aim.SERVER if has_it and not act.at else Aim.OTHER
        if act.at and self.compose[1] and not set(act.at).intersection(self.compose[1]):
            return Aim.OTHER
        if project is None:
            return Aim.UNKNOWN
        return Aim.SERVER if project == self.compose[0] else Aim.OTHER


def _deeds(subject: _Subject, everything: Iterable[Command], by_time: bool) -> str | None:
    """certain: an act names the server; likely: they check the server and act on what may be it; mentions: neither.

    What runs all the time (`by_time` false) starts much that is its own: there only restarts and patterns are likely.
    """
    named, likely, certain = False, False, False
    for command in everything:
        named = named or subject.named_in(command.text)
        certain = certain or (not subject.scripts.isdisjoint(command.words) and not is_ours(command.words))
        for act in acts(command):
            aim = subject.aim(act, command)
            certain = certain or aim is Aim.SERVER
            if aim is Aim.UNKNOWN and act.program in ("library", "pkill", "kill"):
                likely = likely or by_time or act.program != "library"
            elif aim is Aim.UNKNOWN:
                likely = likely or "restart" in act.what or (by_time and act.what in _STARTS)
    if certain:
        return "certain"
    if named:
        return "likely" if likely else "mentions"
    return None


# systemd


@dataclass(frozen=True)
class _Unit:
    """A unit with its drop-ins. `text`: with the values of its specifiers; empty: it is masked."""

    name: str
    path: Path
    text: str

    def values(self, *keys: str) -> list[str]:
        """What its keys say, in their order; an empty value takes back what its key said before."""
        found: list[tuple[str, str]] = []
        for line in _CONTINUED.sub(" ", self.text).splitlines():
            key, dummy, value = (part.strip() for part in line.partition("="))
            if key in keys and value:
                found.append((key, value))
            elif key in keys:
                found = [one for one in found if one[0] != key]
        return [value for dummy, value in found]

    def last(self, key: str, otherwise: str) -> str:
        return (self.values(key) or [otherwise])[-1]


_CONTINUED = re.compile(r"\\\n\s*")
_PREFIX = re.compile(r"^[-@:+!|]+")
_STARTS = frozenset(("start", "up", "run"))
_SETTING = re.compile(r"""(?:^|\s)"?'?([A-Za-z_]\w*)=("[^"]*"|'[^']*'|[^\s"']*)""")
_KINDS = (".service", ".timer", ".path")


def manager_of(where: str) -> list[str] | None:
    """The words by which systemctl reaches the manager of a unit's file: none for the system's, two for a person's.

    None where it cannot be told: a unit of all users, or of a home without an owner.
    """
    if where.startswith(tuple(f"/{folder}/" for folder in _SYSTEM_DIRS)):
        return []
    home, marker, dummy = where.partition(_OF_A_HOME)
    if not marker:
        return None
    try:
        owner = pwd.getpwuid(Path(home).stat().st_uid).pw_name
    except (OSError, KeyError):
        return None
    return ["--user", f"--machine={owner}@.host"]


@dataclass(frozen=True)
class _Manager:
    """The system's, or a person's. `aliases`: other names of units, each with the unit's own."""

    home: str
    of_person: bool
    units: Mapping[str, _Unit]
    aliases: Mapping[str, str]

    def real(self, name: str) -> str:
        return self.aliases.get(name, name)

    def starts(self, trigger: _Unit) -> str:
        """The unit that a timer or a path starts."""
        return self.real(trigger.last("Unit", f"{trigger.name.rpartition('.')[0]}.service"))


def _managers(files: Files, own: Iterable[str]) -> Iterator[_Manager]:
    """The system's manager and each person's. `own`: the server's units, which may be instances of a template."""
    yield _manager(files, [files.root / folder for folder in (*_SYSTEM_DIRS, _TRANSIENT)], "/root", False, own)
    shared = [files.root / folder for folder in _USER_DIRS]
    everybody = [files.at("root"), *files.entries(files.at("home"))]
    homes = [home for home in everybody if files.entries(home / ".config/systemd")]
    for home in homes:
        yield _manager(files, [home / ".config/systemd/user", *shared], files.name(home), True, own)
    if not homes:
        yield _manager(files, shared, "", True, own)


def _manager(files: Files, folders: Iterable[Path], home: str, of_person: bool, own: Iterable[str]) -> _Manager:
    """The first folder that has a unit wins; drop-ins of all folders are added to it; links give aliases and instances."""
    paths: dict[str, Path] = {}
    drop_ins: dict[str, dict[str, Path]] = {}
    links: dict[str, Path] = {}
    instances = set(own)
    for folder in folders:
        for path in files.entries(folder):
            if path.suffix in (".wants", ".requires", ".upholds"):
                instances |= {one.name for one in files.entries(path)}
            elif path.suffix == ".d":
                for one in files.entries(path):
                    if one.suffix == ".conf":
                        drop_ins.setdefault(path.stem, {}).setdefault(one.name, one)
            elif path.suffix in _KINDS and path.name not in (*paths, *links):
                meant = path.readlink().name if path.is_symlink() else path.name
                # a link to /dev/null masks what the next folders have
                if meant in (path.name, "null"):
                    paths[path.name] = path
                else:
                    links[path.name] = path
    aliases = {name: path.readlink().name for name, path in links.items()}
    for name in [name for name, meant in aliases.items() if meant not in paths]:
        paths[name] = links[name]  # a link to where no manager looks
        del aliases[name]
    # what a timer's instance starts is an instance too
    instances |= {str(PurePosixPath(name).with_suffix(".service")) for name in instances}
    for name in instances - set(paths):
        template = re.sub(r"@[^@]+(\.\w+)$", r"@\1", name)
        if template in paths:
            paths[name] = paths[template]
    for template in {path.name for name, path in paths.items() if "@." in path.name and name != path.name}:
        del paths[template]  # its instances are there
    units = {}
    for name, path in paths.items():
        text = files.text(path)
        if path.is_symlink() and path.readlink().name == "null":
            units[name] = _Unit(name, path, "")
        elif text is not None:
            added = {**drop_ins.get(path.name, {}), **drop_ins.get(name, {})}
            texts = [text, *(files.text(added[one]) or "" for one in sorted(added))]
            units[name] = _Unit(name, path, _specified("\n".join(texts), name, home))
    return _Manager(home, of_person, units, aliases)


def _specified(text: str, name: str, home: str) -> str:
    """The text of a unit with the values of its specifiers."""
    whole = PurePosixPath(name).stem
    prefix, dummy, instance = whole.partition("@")
    values = {"n": name, "N": whole, "p": prefix, "i": instance, "I": instance.replace("-", "/"), "h": home, "%": "%"}
    return re.sub(r"%([nNpiIh%])", lambda m: values[m.group(1)] or m.group(), text)


def _commands_of(files: Files, manager: _Manager, unit: _Unit, *keys: str) -> list[Command]:
    """What a unit runs, with the scripts that it names and the variables that it gives them."""
    variables = {"HOME": manager.home}
    for path in unit.values("EnvironmentFile"):
        variables |= dict(_settings(code(files.text(files.at(path.lstrip("-"))) or "")))
    for line in unit.values("Environment"):
        variables |= dict(_settings(line))
    folder = unit.last("WorkingDirectory", "").lstrip("-").replace("~", variables["HOME"])
    text = "\n".join(_PREFIX.sub("", line) for line in unit.values(*keys))
    return list(commands(files, text, variables, folder))


def _settings(text: str) -> list[tuple[str, str]]:
    return [(name, value.strip("\"'")) for name, value in _SETTING.findall(text)]


_STARTING = ("ExecStart", "ExecStartPre", "ExecStartPost")
_STOPPING = ("ExecStop", "ExecStopPost", "ExecReload")


def _runs_it(subject: _Subject, begun: Sequence[Command]) -> bool:
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
        if "restart" in whats or (asked and whats & _STARTS):
            return False
        runs = runs or bool(whats & _STARTS)
        asked = asked or subject.asked_in(command.text)
    unknown = not subject.units and not subject.known
    return runs or (unknown and any(one.depth == 0 and subject.listens_by(one.text) for one in begun))


def _containers_of(begun: Iterable[Command]) -> set[str]:
    """The containers that a unit runs by itself."""
    return {name for command in begun for act in acts(command) if act.what == "run" for name in act.at}


def _retire_unit(files: Files, unit: _Unit) -> str:
    if unit.path.parent == files.at(_TRANSIENT):
        return f"systemctl stop {unit.name}"
    user = "--user " if "/systemd/user/" in files.name(unit.path) else ""
    return f"systemctl {user}disable --now {unit.name}"


def _systemd(files: Files, subject: _Subject) -> Iterator[Row]:
    restart = subject.server.restart
    of_person = restart is not None and (restart.user is not None or "--user" in restart.start)
    managers = list(_managers(files, subject.units))
    # who runs it is known first, since others may name the server by that
    runs: list[set[str]] = []
    for manager in managers:
        own = {manager.real(name) for name in subject.units} if of_person == manager.of_person else set()
        for name, unit in manager.units.items():
            begun = _commands_of(files, manager, unit, *_STARTING)
            if name in own or _runs_it(subject, begun):
                own.add(name)
                aliases = [alias for alias, meant in manager.aliases.items() if meant == name]
                subject.learn(name, *aliases, *_containers_of(begun))
        runs.append(own)
    for manager, own in zip(managers, runs, strict=True):
        yield from _of_manager(files, subject, manager, own)


def _of_manager(files: Files, subject: _Subject, manager: _Manager, own: set[str]) -> Iterator[Row]:
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
                run = _commands_of(files, manager, unit, *_STARTING, *_STOPPING)
                sure = _deeds(subject, run, by_time=False)
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
            run = _commands_of(files, manager, manager.units[service], *_STARTING)
            sure = _deeds(subject, run, by_time=True)
            if sure is not None:
                does = f"runs {service}, which {'mentions this server' if sure == 'mentions' else 'restarts it'}"
                yield Row("timer", name, where, does, sure, retire, sure != "mentions")


def _own_unit(files: Files, subject: _Subject, unit: _Unit) -> Iterator[Row]:
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

# Debian's cron and run-parts pass over what is called otherwise
_RUN_BY_CRON = re.compile(r"^[A-Za-z0-9_-]+$")
_SCHEDULE = re.compile(r"^(?:@\w+|(?:[\d*,/~-]+\s+){2}(?:[\d*,/~A-Za-z-]+\s+){2}[\d*,/~A-Za-z-]+)\s+")
_OF_ANACRON = re.compile(r"^(?:\d+|@\w+)\s+\d+\s+\S+\s+")
_CRON_SETTING = re.compile(r"""^([A-Za-z_]\w*)\s*=\s*["']?(.*?)["']?$""")


@dataclass(frozen=True)
class _Entry:
    """A line of a crontab, or a script that it runs by its folder: then `line` is its path too."""

    where: str
    line: str
    command: str
    variables: Mapping[str, str]


def _tables(files: Files) -> Iterator[tuple[Path, re.Pattern[str], str | None]]:
    """Every crontab, how its entries begin, and whose it is; None: each entry says."""
    yield files.at("etc/crontab"), _SCHEDULE, None
    yield files.at("etc/anacrontab"), _OF_ANACRON, "root"
    for path in files.entries(files.at("etc/cron.d")):
        if _RUN_BY_CRON.match(path.name):
            yield path, _SCHEDULE, None
    for folder in ("var/spool/cron", "var/spool/cron/crontabs"):
        for path in files.entries(files.at(folder)):
            yield path, _SCHEDULE, path.name


def _cron_entries(files: Files) -> Iterator[_Entry]:
    folders = [f"/etc/cron.{period}" for period in ("hourly", "daily", "weekly", "monthly")]
    for path, schedule, owner in _tables(files):
        given: dict[str, str] = {}
        for line in map(str.strip, (files.text(path) or "").splitlines()):
            setting, begins = _CRON_SETTING.match(line), schedule.match(line)
            if setting:
                given[setting.group(1)] = setting.group(2)
            elif begins:
                user, command = owner, line[begins.end() :]
                if user is None:
                    user, command = (*command.split(None, 1), "")[:2]
                home = "/root" if user == "root" else f"/home/{user}"
                yield _Entry(files.name(path), line, command.strip(), {"HOME": home, **given})
                folders += [word for word in words_of(command.partition("run-parts")[2]) if word.startswith("/")]
    for folder in dict.fromkeys(folders):
        for path in files.entries(files.at(folder)):
            if _RUN_BY_CRON.match(path.name):
                yield _Entry(files.name(path), files.name(path), files.name(path), {"HOME": "/root"})


def _cron(files: Files, subject: _Subject) -> Iterator[Row]:
    for entry in _cron_entries(files):
        run = list(commands(files, entry.command, dict(entry.variables)))
        sure = None if all(is_ours(command.words) for command in run) else _deeds(subject, run, by_time=True)
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


def _monit(files: Files, subject: _Subject, text: str) -> str | None:
    """likely: a check of it acts; mentions: a check of its process, which may; None: it looks only."""
    checks = [check for check in _CHECK.split(code(text)) if subject.named_in(check)]
    if any(_MONIT_ACTS.search(check) for check in checks):
        return "likely"
    processes = [match.group() for check in checks for match in _CHECK_OF_PROCESS.finditer(check)]
    return "mentions" if any(map(subject.named_in, processes)) else None


def _supervisor(files: Files, subject: _Subject, text: str) -> str | None:
    """likely: a program of it acts on the server, or is the server, which has another manager; None: neither."""
    for program in _PROGRAM.split(_INI_COMMENT.sub("", code(text))):
        unit = _Unit("", Path(), program)
        run = list(commands(files, unit.last("command", "")))
        header = program.partition("]")[0]
        is_it = subject.named_in(header.partition(":")[2]) or any(
            subject.listens_by(c.text) for c in run if not c.depth
        )
        managed = subject.server.restart is not None and subject.server.restart.kind != "command"
        if (_deeds(subject, run, by_time=False) or "mentions") != "mentions" or (is_it and managed):
            return "likely"
    return None


_OTHERS = (
    ("monit", _monit, ("etc/monit", "etc"), ("monitrc",)),
    ("monit", _monit, ("etc/monit/conf.d", "etc/monit/conf-enabled", "etc/monit.d"), ()),
    ("supervisor", _supervisor, ("etc/supervisor", "etc"), ("supervisord.conf",)),
    ("supervisor", _supervisor, ("etc/supervisor/conf.d",), ()),
)


def _others(files: Files, subject: _Subject) -> Iterator[Row]:
    for kind, read, folders, only in _OTHERS:
        for path in (path for folder in folders for path in files.entries(files.at(folder))):
            text = files.text(path) if not only or path.name in only else None
            sure = None if text is None else read(files, subject, text)
            if text is None or (sure is None and not subject.named_in(_INI_COMMENT.sub("", code(text)))):
                continue
            does, where = "may restart it" if sure else "mentions this server", files.name(path)
            yield Row(kind, path.name, where, does, sure or "mentions", f"look at {where}", sure is not None)


def _kubelet(files: Files, subject: _Subject) -> Iterator[Row]:
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


def container_rows(server: Server, inspected: Iterable[dict[str, Any]]) -> Iterator[Row]:
    """Restart policy, health check and autoheal of the server's own container, from `docker inspect`."""
    everything = list(inspected)
    autoheal = [c for c in everything if "autoheal" in str((c.get("Config") or {}).get("Image", ""))]
    for one in everything:
        name = str(one.get("Name", "")).lstrip("/")
        labels = (one.get("Config") or {}).get("Labels") or {}
        restart = server.restart
        mine = restart is not None and (
            (restart.kind in ("docker", "podman") and name == restart.target)
            or (
                restart.kind == "compose"
                and labels.get("com.docker.compose.project") == restart.project
                and labels.get("com.docker.compose.service") == restart.service
            )
        )
        if not mine:
            continue
        policy = str(((one.get("HostConfig") or {}).get("RestartPolicy") or {}).get("Name") or "no")
        if policy not in ("no", ""):
            pair = bool(server.ranks)
            yield Row(
                "docker",
                name,
                "docker inspect",
                f"restart policy {policy}",
                "certain",
                f"docker update --restart=no {name}" if pair else "leave it: it is the server's manager",
                pair,
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


async def _containers(server: Server) -> list[dict[str, Any]] | None:
    """None where its client does not answer."""
    restart = server.restart
    if restart is None or restart.kind not in ("docker", "podman", "compose"):
        return []
    prefix = client_of(restart)
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

    def found_in_files() -> list[Row]:
        subject = _Subject(server, files)
        return [
            *dict.fromkeys(_systemd(files, subject)),
            *_cron(files, subject),
            *_others(files, subject),
            *_kubelet(files, subject),
        ]

    found = await asyncio.to_thread(found_in_files)
    if root == Path("/"):
        found = list(await asyncio.gather(*(_as_it_stands(row) for row in found)))
    inspected = await _containers(server)
    if inspected is None:
        does, retire = "did not answer", "see that it runs, and ask again as root"
        found.append(Row(UNREAD, "containers", "docker inspect", does, "certain", retire, False))
    found += container_rows(server, inspected or [])
    found += _engine(server)
    found += [Row(UNREAD, path, path, "could not be read", "certain", "run it as root", False) for path in files.unread]
    return sorted(found, key=lambda row: (not row.competes, row.kind, row.name))
