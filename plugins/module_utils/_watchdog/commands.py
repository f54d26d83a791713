# SPDX-License-Identifier: GPL-3.0-or-later
"""What the commands of a script, a unit or a crontab's line act on. Nothing is run: texts are cut into commands and words.

It reads a shell's text, and enough of others' (`["systemctl", "restart", unit]`) to see what they run.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# A health script is some kB; what is larger is a program.
SCRIPT_BYTES = 256 * 1024
# Scripts call scripts; three deep is where people stop.
DEPTH = 3
# A variable that grows by itself (A=$A$A), or a folder (cd a), would have no end.
VALUE_CHARS = 1000
# No command is so long: it is data.
COMMAND_CHARS = 10_000


class Files:
    """The text files of a host, or of a folder that looks like one. `unread`: what is there and may not be read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.unread: dict[str, None] = {}

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def name(self, path: Path) -> str:
        """As the host itself calls it."""
        return "/" + str(path.relative_to(self.root))

    def homes(self) -> dict[str, str]:
        """Every account's home."""
        rows = [line.split(":") for line in (self.text(self.at("etc/passwd")) or "").splitlines()]
        return {row[0]: row[5] for row in rows if len(row) == 7 and row[5].strip("/")}

    def entries(self, folder: Path) -> list[Path]:
        """What a folder holds; nothing where there is none."""
        try:
            return sorted(folder.iterdir())
        except PermissionError:
            self.unread[self.name(folder)] = None
        except OSError:
            pass
        return []

    def text(self, path: Path, *, guessed: bool = False) -> str | None:
        """A text file's content, or None for what is no text, too large, or cannot be read.

        `guessed`: there may be no such file, and that it may not be read says nothing.
        """
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode) or status.st_size > SCRIPT_BYTES:
                return None
            data = path.read_bytes()
        except PermissionError:
            if not guessed:
                self.unread[self.name(path)] = None
            return None
        except (OSError, ValueError):
            return None
        return None if b"\0" in data[:4096] else data.decode("utf-8", "replace")


# texts into words

_CONTINUED = re.compile(r"\\\r?\n\s*")
_COMMENT = re.compile(r"""("[^"\n]*"|'[^'\n]*')|(?:^|(?<=\s))(?:\#|//).*""", re.MULTILINE)
_LISTED = re.compile(r"""(["'`])\s*,\s*""")
_BETWEEN_COMMANDS = re.compile(r"\n|;|&&|\|\||(?<![<>&])&(?![&>])")
_WORD = re.compile(r"""\$\{[^}\n]*\}|"([^"]*)"|'([^']*)'|\||[^\s"'`,()\[\]<>|]+""")
_BARE_WORD = re.compile(r"""[^\s"'`,()\[\]<>]+""")
_ASSIGNED = re.compile(r"""(?:^|(?<=\s))([A-Za-z_]\w*)=("[^"]*"|'[^']*'|\$\([^)]*\)|`[^`]*`|\S*)""")
_LOOPED = re.compile(r"^\s*for\s+(\w+)\s+in\s+(.+)")
_GIVEN_A_NAME = re.compile(r"^[ \t]*(?:(?:const|let|var|my)\s+)?([A-Za-z_]\w*)\s*=", re.MULTILINE)
_SELF = r"""(?:"?\$\{?(?:0|BASH_SOURCE(?:\[0\])?)\}?"?)"""
_SELF_RESOLVED = rf"""(?:{_SELF}|"?\$\(\s*(?:readlink\s+-\w+|realpath)\s+(?:--\s+)?{_SELF}\s*\)"?)"""
_ITS_FOLDER = (
    rf"""(?:\$\(\s*dirname\s+(?:--\s+)?{_SELF_RESOLVED}\s*\)|`\s*dirname\s+{_SELF}\s*`"""
    r"""|\$\{(?:0|BASH_SOURCE(?:\[0\])?)%/\*\})"""
)
# as a script names the folder that it lies in
_OWN_FOLDER = re.compile(rf"""\$\(\s*cd\s+(?:--\s+)?"?{_ITS_FOLDER}"?[^)\n]*?\bpwd\b[^)\n]*\)|{_ITS_FOLDER}""")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")


def code(text: str) -> str:
    """Without comments: what is commented out does nothing. ["systemctl", "restart"] is what a shell's line says."""
    return _LISTED.sub(r"\1 ", _COMMENT.sub(lambda m: m.group(1) or "", _CONTINUED.sub(" ", text)))


def _in_its_folder(text: str, path: str) -> str:
    """The text of a script where it is known where that lies."""
    return _OWN_FOLDER.sub(lambda dummy: str(PurePosixPath(path).parent), text)


def words_of(text: str) -> list[str]:
    """A quoted text is the words in it: it is a name, a pattern, or a command for another shell."""
    words: list[str] = []
    for match in _WORD.finditer(text):
        quoted = match.group(1) or match.group(2)
        words += _BARE_WORD.findall(quoted) if quoted else [match.group()]
    return [word for word in words if word.strip("$\"'{}")]


def _with_values(text: str, variables: MutableMapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match.group(1) or match.group(3)
        return variables.get(name, match.group() if match.group(2) is None else match.group(2))

    return _VARIABLE.sub(value, text)


@dataclass(frozen=True)
class Command:
    """One command with its pipeline. `given`: names that its script gives a value. `depth`: 0 is the first text's own."""

    words: tuple[str, ...]
    text: str
    folder: str
    given: frozenset[str]
    depth: int


# Ours, by the names and paths under which the roles put them there.
_OURS = ("llm-busy", "llm-health", "llm-watchdog")
OUR_COMMANDS = frozenset((*_OURS, *(f"/usr/local/bin/{name}" for name in _OURS)))
# Commands of the host's own are also found without their folder.
_FOLDERS_OF_COMMANDS = ("/usr/local/bin", "/usr/local/sbin")
# Before the command proper.
_BEFORE = frozenset(
    ("if", "then", "elif", "else", "while", "until", "do", "!", "{", "exec", "sudo", "nohup", "time", "command")
)


def is_ours(words: Iterable[str]) -> bool:
    """One of ours runs it, as in `nice llm-busy run -- docker restart x`; the other way round it is only a word."""
    return next((word in OUR_COMMANDS for word in words if word in OUR_COMMANDS or _program(word) in _READ), False)


def _program(word: str) -> str:
    return word.lstrip("@:+!-").rpartition("/")[2]


def _scripts(words: Sequence[str], folder: str, home: str | None) -> Iterator[tuple[str, bool]]:
    """Paths of files that a command's words name; and whether that is only a guess."""
    for n, word in enumerate(words):
        if word.startswith("~/") and home:
            word = f"{home}{word[1:]}"
        if "=/" in word:
            word = word.partition("=")[2]
        if word.startswith("/"):
            yield word, False
        elif folder and not word.startswith("-"):
            yield f"{folder}/{word.removeprefix('./')}", not word.startswith("./")
        if n == 0 and "/" not in word:
            yield from ((f"{place}/{word}", True) for place in _FOLDERS_OF_COMMANDS)


def commands(
    files: Files,
    text: str,
    variables: MutableMapping[str, str] | None = None,
    folder: str = "",
    depth: int = 0,
    seen: set[str] | None = None,
) -> Iterator[Command]:
    """The commands of a text and of every script that it names, and that those name, with what is known of variables.

    Each script is read once: many that call each other would have no end.
    """
    variables = {} if variables is None else variables
    seen = set() if seen is None else seen
    plain = code(text)
    given = frozenset(_GIVEN_A_NAME.findall(plain))
    for part in _BETWEEN_COMMANDS.split(plain):
        if len(part) > COMMAND_CHARS:
            continue
        said = _with_values(part, variables)
        for name, value in [*_ASSIGNED.findall(said), *_LOOPED.findall(said)]:
            if len(value) <= VALUE_CHARS:
                variables[name] = value[1:-1] if value[:1] in ("'", '"') else value
        words = words_of(said)
        while words and words[0] in _BEFORE:
            words.pop(0)
        if not words:
            continue
        yield Command(tuple(words), said, folder, given, depth)
        if "cd" in words[:-1]:
            moved = str(PurePosixPath(folder or "/", words[words.index("cd") + 1]))
            folder = moved if len(moved) <= VALUE_CHARS else ""
        if depth >= DEPTH or is_ours(words):
            continue
        for path, guessed in _scripts(words, folder, variables.get("HOME")):
            inner = files.text(files.at(path), guessed=guessed) if path not in seen and path.strip("/.") else None
            seen.add(path)
            if inner is not None:
                # what is sourced gives its variables back
                handed = variables if words[0] in (".", "source") else dict(variables)
                inner = _in_its_folder(inner, path)
                yield from commands(files, inner, handed, folder, depth + 1, seen)


# words into acts


@dataclass(frozen=True)
class Act:
    """`what` is done by `program` to those that the words `at` name. `options`: of compose, before its verb."""

    program: str
    what: str
    at: tuple[str, ...]
    options: tuple[str, ...] = ()


_OF_UNITS = frozenset(("restart", "try-restart", "reload-or-restart", "try-reload-or-restart", "start", "stop", "kill"))
_OF_CONTAINERS = frozenset(("restart", "start", "stop", "kill", "rm", "run"))
_OF_COMPOSE = frozenset(("restart", "start", "stop", "kill", "rm", "up", "down"))
_THROUGH_SOCKET = re.compile(r"/containers/([^/]+)/(restart|start|stop|kill)\b")
_SAYING = frozenset(("echo", "printf", "logger"))
_KILL_OPTION = re.compile(r"^-(?:\w*k\w*|-kill)$")
_ATTACHED = frozenset(("-a", "-ai", "-ia", "--attach"))


def value_of(words: Sequence[str], *options: str) -> str | None:
    """The value of an option, as `--name x` or `--name=x`."""
    for n, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in options:
            return value if equals else (words[n + 1] if n + 1 < len(words) else None)
    return None


def _verb(rest: Sequence[str], verbs: frozenset[str]) -> int | None:
    """Where the verb stands: before it are options and their values only."""
    for n, word in enumerate(rest):
        if word in verbs:
            return n
        if not word.startswith("-") and not (n and rest[n - 1].startswith("-")):
            return None
    return None


def _named(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for word in words if not word.startswith("-"))


def _with_verb(verbs: frozenset[str]) -> Callable[[str, Sequence[str]], Act | None]:
    def read(program: str, rest: Sequence[str]) -> Act | None:
        n = _verb(rest, verbs)
        return None if n is None else Act(program, rest[n], _named(rest[n + 1 :]), tuple(rest[:n]))

    return read


def _service(program: str, rest: Sequence[str]) -> Act | None:
    return Act("systemctl", rest[1], (rest[0],)) if len(rest) > 1 and rest[1] in _OF_UNITS else None


def _container(program: str, rest: Sequence[str]) -> Act | None:
    n = _verb(rest, frozenset(("compose", "container")))
    if n is not None and rest[n] == "compose":
        return _with_verb(_OF_COMPOSE)("compose", rest[n + 1 :])
    rest = rest if n is None else rest[n + 1 :]
    n = _verb(rest, _OF_CONTAINERS)
    if n is None:
        return None
    if rest[n] == "run":
        name = value_of(rest, "--name")
        return Act(program, "run", (name,)) if name else None
    attached = rest[n] == "start" and _ATTACHED.intersection(rest)
    return Act(program, "run" if attached else rest[n], _named(rest[n + 1 :]))


def _kill(program: str, rest: Sequence[str]) -> Act | None:
    return None if "-0" in rest or "-l" in rest else Act("kill", "kill", tuple(rest))


def _pattern(program: str, rest: Sequence[str]) -> Act | None:
    return Act("pkill", "kill", tuple(rest))


def _fuser(program: str, rest: Sequence[str]) -> Act | None:
    return Act("fuser", "kill", tuple(rest)) if any(_KILL_OPTION.match(word) for word in rest) else None


def _host(program: str, rest: Sequence[str]) -> Act | None:
    return Act("host", "restart", ())


_READ: dict[str, Callable[[str, Sequence[str]], Act | None]] = {
    "systemctl": _with_verb(_OF_UNITS),
    "supervisorctl": _with_verb(_OF_UNITS),
    "service": _service,
    "docker": _container,
    "podman": _container,
    "docker-compose": lambda program, rest: _with_verb(_OF_COMPOSE)("compose", rest),
    "podman-compose": lambda program, rest: _with_verb(_OF_COMPOSE)("compose", rest),
    "kill": _kill,
    "os.kill": _kill,
    "pkill": _pattern,
    "killall": _pattern,
    "fuser": _fuser,
    "reboot": _host,
    "shutdown": _host,
    "poweroff": _host,
}


def acts(command: Command) -> Iterator[Act]:
    """What a command does to units, containers and processes, also as another's argument (`timeout 5 docker stop x`)."""
    words = command.words
    if is_ours(words) or words[0] in _SAYING:
        return
    for n, word in enumerate(words):
        program = _program(word)
        through_socket = _THROUGH_SOCKET.search(word)
        if through_socket:
            yield Act("docker", through_socket.group(2), (through_socket.group(1),))
        if program.endswith(".restart"):  # of a library: client.containers.get("x").restart()
            yield Act("library", "restart", (*words[:n], *words[n + 1 :]))
        # reboot is a word like others
        if program not in _READ or (_READ[program] is _host and n):
            continue
        rest = words[n + 1 :]
        if "|" in rest:
            rest = rest[: rest.index("|")]
        act = _READ[program](program, rest)
        if act is not None and "xargs" in words[:n]:
            # what it is given comes by the pipe
            act = Act(act.program, act.what, (*act.at, *words[:n]), act.options)
        if act is not None:
            yield act
