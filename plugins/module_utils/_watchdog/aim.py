# SPDX-License-Identifier: GPL-3.0-or-later
"""At whom a command is aimed: at the server, at something else, or at what only its run tells.

Names are judged, not mentions: what a script says of a server and what it does to it are two things.
"""

from __future__ import annotations

import enum
import fnmatch
import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from .._core import urls
from .._core.servers import Restart, Server
from .commands import Act, Command, Files, acts, is_ours, value_of, words_of

# What makes one run that may not.
STARTS = frozenset(("start", "up", "run"))


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


class Subject:
    """The server as scripts name it. `known`: its units (without .service) and containers; grows with its managers."""

    def __init__(self, server: Server, files: Files) -> None:
        restart = server.restart
        self.server, self.files = server, files
        self.port = urls.host_and_port(server.url)[1]
        self.known: set[str] = set()
        self.units: set[str] = set()  # its own units, by their full names
        self.scripts: set[str] = set()
        self.of_docker: set[str] = set()  # containers that its unit runs
        self.revived = False  # its unit starts it again by itself
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


def deeds(subject: Subject, everything: Iterable[Command], by_time: bool) -> str | None:
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
                likely = likely or "restart" in act.what or (by_time and act.what in STARTS)
    if certain:
        return "certain"
    if named:
        return "likely" if likely else "mentions"
    return None
