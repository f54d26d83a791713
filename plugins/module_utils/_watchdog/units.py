# SPDX-License-Identifier: GPL-3.0-or-later
"""systemd's units as files: the system's and each person's, with drop-ins, aliases, instances and specifiers."""

from __future__ import annotations

import pwd
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .commands import Command, Files, code, commands

_SYSTEM_DIRS = (
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "lib/systemd/system",
    "usr/lib/systemd/system",
)
# systemd-run's: what is stopped there cannot be put back
TRANSIENT = "run/systemd/transient"
# Of a person's manager, the first folder first; the first and the third are below his home.
_OF_A_HOME = (".config/systemd/user", ".local/share/systemd/user")
_OF_EVERY_HOME = ("etc/systemd/user", "usr/lib/systemd/user")
_CONTINUED = re.compile(r"\\\n\s*")
_PREFIX = re.compile(r"^[-@:+!|]+")
_SETTING = re.compile(r"""(?:^|\s)"?'?([A-Za-z_]\w*)=("[^"]*"|'[^']*'|[^\s"']*)""")
_KINDS = (".service", ".timer", ".path")
STARTING = ("ExecStart", "ExecStartPre", "ExecStartPost")
STOPPING = ("ExecStop", "ExecStopPost", "ExecReload")


@dataclass(frozen=True)
class Unit:
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


def manager_of(where: str) -> list[str] | None:
    """The words by which systemctl reaches the manager of a unit's file: none for the system's, two for a person's.

    None where it cannot be told: a unit of all users, or of a home without an owner.
    """
    if where.startswith(tuple(f"/{folder}/" for folder in _SYSTEM_DIRS)):
        return []
    home = next((home for folder in _OF_A_HOME for home, found, dummy in [where.partition(f"/{folder}/")] if found), "")
    if not home:
        return None
    try:
        owner = pwd.getpwuid(Path(home).stat().st_uid).pw_name
    except (OSError, KeyError):
        return None
    return ["--user", f"--machine={owner}@.host"]


@dataclass(frozen=True)
class Manager:
    """The system's, or a person's. `aliases`: other names of units, each with the unit's own."""

    home: str
    of_person: bool
    units: Mapping[str, Unit]
    aliases: Mapping[str, str]

    def real(self, name: str) -> str:
        return self.aliases.get(name, name)

    def starts(self, trigger: Unit) -> str:
        """The unit that a timer or a path starts."""
        return self.real(trigger.last("Unit", f"{trigger.name.rpartition('.')[0]}.service"))


def managers_of_host(files: Files, own: Iterable[str]) -> Iterator[Manager]:
    """The system's manager and each person's. `own`: the server's units, which may be instances of a template."""
    yield _manager(files, [files.root / folder for folder in (*_SYSTEM_DIRS, TRANSIENT)], "/root", False, own)
    of_all = [files.root / folder for folder in _OF_EVERY_HOME]
    known = (files.at("root"), *files.entries(files.at("home")), *map(files.at, files.homes().values()))
    homes = [home for home in dict.fromkeys(known) if any(files.entries(home / folder) for folder in _OF_A_HOME)]
    for home in homes:
        folders = [place for one, other in zip(_OF_A_HOME, of_all, strict=True) for place in (home / one, other)]
        yield _manager(files, folders, files.name(home), True, own)
    if not homes:
        yield _manager(files, of_all, "", True, own)


def _manager(files: Files, folders: Iterable[Path], home: str, of_person: bool, own: Iterable[str]) -> Manager:
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
            units[name] = Unit(name, path, "")
        elif text is not None:
            added = {**drop_ins.get(path.name, {}), **drop_ins.get(name, {})}
            texts = [text, *(files.text(added[one]) or "" for one in sorted(added))]
            units[name] = Unit(name, path, _specified("\n".join(texts), name, home))
    return Manager(home, of_person, units, aliases)


def _specified(text: str, name: str, home: str) -> str:
    """The text of a unit with the values of its specifiers."""
    whole = PurePosixPath(name).stem
    prefix, dummy, instance = whole.partition("@")
    values = {"n": name, "N": whole, "p": prefix, "i": instance, "I": instance.replace("-", "/"), "h": home, "%": "%"}
    return re.sub(r"%([nNpiIh%])", lambda m: values[m.group(1)] or m.group(), text)


def commands_of(files: Files, manager: Manager, unit: Unit, *keys: str) -> list[Command]:
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
