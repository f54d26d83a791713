# SPDX-License-Identifier: GPL-3.0-or-later
"""Who else on this host could restart a server: units, timers, cron jobs, container policies, health scripts, kubelet.

Two restart authorities undo each other's proof: the eight restarts of a healthy server in one day came from four of
them. What is read is files and `docker inspect`; nothing is run and nothing is changed.
"""

from __future__ import annotations

import asyncio
import json
import pwd
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .._core import urls
from .._core.servers import Server
from .._health.witness import output_of
from .containers import client_of

# A health script is some kB; what is larger is a program.
SCRIPT_BYTES = 256 * 1024
# Scripts call scripts; three deep is where people stop.
DEPTH = 3


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


_ACTS = re.compile(
    r"systemctl\s+(?:--?\S+\s+)*(?:re)?start|systemctl\s+(?:--?\S+\s+)*(?:try-restart|stop|kill|reload-or-restart)"
    r"|\bservice\s+\S+\s+(?:re)?start|\b(?:docker|podman)(?:\s+--?\S+(?:\s+unix://\S+)?)*\s+(?:container\s+)?(?:restart|start|kill|stop|rm)\b"
    r"|(?:docker[ -]compose|docker\s+compose|podman-compose)\b.*\b(?:restart|up|down|kill|stop)\b"
    r"|\bsupervisorctl\s+\S*(?:restart|stop|start)|\b(?:pkill|killall)\b|\bkill\s+-|\b(?:reboot|shutdown|poweroff)\b"
    r"|os\.kill|\.restart\(",
    re.IGNORECASE,
)
_BETWEEN_WORDS = re.compile(r"""["'`]\s*,\s*["'`]""")
_PATH = re.compile(r"(?<![\w$])/[A-Za-z0-9_.+@%-]+(?:/[A-Za-z0-9_.+@%-]+)+")
_SYSTEM_DIRS = (
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "lib/systemd/system",
    "usr/lib/systemd/system",
)
_USER_DIRS = ("etc/systemd/user", "usr/lib/systemd/user")
_OF_A_HOME = "/.config/systemd/user/"
_OURS = ("llm-watchdog", "llm-health", "gb10-")


class _Names:
    """By what a script would name the server."""

    def __init__(self, server: Server) -> None:
        port = urls.host_and_port(server.url)[1]
        restart = server.restart
        words = {server.name} if len(server.name) > 3 else set()
        if restart is not None:
            words |= {w for w in (restart.target, restart.target.removesuffix(".service"), restart.project) if w}
        plain = [rf"(?<![\w.-]){re.escape(word)}(?![\w-])" for word in sorted(words, key=len, reverse=True)]
        # a bare number is anything; :8000 is the server's port
        self.pattern = re.compile("|".join([*plain, rf":{port}(?!\d)", rf"--?p(?:ort)?[ =]{port}(?!\d)"]))
        self.unit = restart.target if restart is not None and restart.kind == "systemd" else None
        self.container = restart.target if restart is not None and restart.kind in ("docker", "podman") else None

    def found_in(self, text: str) -> bool:
        return self.pattern.search(text) is not None


def _text(path: Path) -> str | None:
    """A text file's content, or None for what is no text, too large, or cannot be read."""
    try:
        if not path.is_file() or path.stat().st_size > SCRIPT_BYTES:
            return None
        data = path.read_bytes()
    except OSError:
        return None
    return None if b"\0" in data[:4096] else data.decode("utf-8", "replace")


def _below(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _followed(root: Path, command: str, depth: int = DEPTH, seen: frozenset[str] = frozenset()) -> str:
    """The command with the text of every script that it names, and that those name."""
    parts = [command]
    if depth:
        for path in dict.fromkeys(_PATH.findall(command)):
            if path in seen:
                continue
            text = _text(_below(root, path))
            if text is not None:
                parts.append(_followed(root, text, depth - 1, seen | {path}))
    return "\n".join(parts)


def _code(text: str) -> str:
    """Without comment lines: what is commented out does nothing. ["systemctl", "restart"] is what a shell's line says."""
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("#", "//")))
    return _BETWEEN_WORDS.sub(" ", code)


def _sureness(names: _Names, text: str) -> str | None:
    """certain: one line names the server and acts; likely: the script does both; mentions: it names it only."""
    code = _code(text)
    if not names.found_in(code):
        return None
    if any(names.found_in(line) and _ACTS.search(line) for line in code.splitlines()):
        return "certain"
    return "likely" if _ACTS.search(code) else "mentions"


# systemd


def _unit_values(text: str, key: str) -> list[str]:
    joined = re.sub(r"\\\n\s*", " ", text)
    return [m.group(1).strip() for m in re.finditer(rf"^{key}=(.*)$", joined, re.MULTILINE)]


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


def _managers(root: Path) -> Iterator[tuple[bool, list[Path]]]:
    """(is it a person's, its folders of unit files) of the system's manager and of each person's."""
    yield False, [root / folder for folder in _SYSTEM_DIRS]
    homes = [
        home for home in (root / "root", *sorted((root / "home").glob("*"))) if (home / ".config/systemd").is_dir()
    ]
    for home in homes:
        yield True, [home / ".config/systemd/user", *(root / folder for folder in _USER_DIRS)]
    if not homes:
        yield True, [root / folder for folder in _USER_DIRS]


def _units(folders: Iterable[Path]) -> dict[str, tuple[Path, str]]:
    """A manager's unit files by name; the first folder wins, and drop-ins are added to their unit's text."""
    found: dict[str, tuple[Path, str]] = {}
    for folder in folders:
        if not folder.is_dir():
            continue
        for path in sorted(folder.iterdir()):
            if path.suffix in (".service", ".timer", ".path") and path.name not in found and not path.is_dir():
                text = _text(path)
                if text is not None:
                    found[path.name] = (path, text)
        for drop_in in sorted(folder.glob("*.d/*.conf")):
            name = drop_in.parent.name.removesuffix(".d")
            text = _text(drop_in)
            if name in found and text is not None:
                found[name] = (found[name][0], found[name][1] + "\n" + text)
    return found


def _retire_unit(name: str, path: Path) -> str:
    user = "--user " if "/systemd/user/" in str(path) else ""
    return f"systemctl {user}disable --now {name}"


def _systemd(root: Path, names: _Names, server: Server) -> Iterator[Row]:
    for of_a_person, folders in _managers(root):
        mine = of_a_person == (server.restart is not None and server.restart.user is not None)
        yield from _of_manager(root, names, server, _units(folders), names.unit if mine else None)


def _of_manager(
    root: Path, names: _Names, server: Server, units: dict[str, tuple[Path, str]], own: str | None
) -> Iterator[Row]:
    """What one manager's units do to the server. `own`: the server's own unit, where this manager has it."""
    for name, (path, text) in units.items():
        if name.startswith(_OURS):
            continue
        where = "/" + str(path.relative_to(root))
        if name.endswith(".service"):
            policy = (_unit_values(text, "Restart") or ["no"])[-1]
            if name == own:
                if policy not in ("no", ""):
                    pair = bool(server.ranks)
                    yield Row(
                        "systemd",
                        name,
                        where,
                        f"Restart={policy}: starts it again when it has ended",
                        "certain",
                        "set Restart=no on every rank: it revives half pairs"
                        if pair
                        else "leave it: it is the server's manager",
                        pair,
                    )
                continue
            by_timer = name.removesuffix(".service") + ".timer" in units
            command = "\n".join(_unit_values(text, "Exec(?:Start|StartPre|StartPost|Stop)"))
            sure = _sureness(names, _followed(root, command))
            if sure is None or by_timer:
                continue
            if sure == "mentions":
                yield Row(
                    "script", name, where, "mentions this server", sure, f"look at it: systemctl cat {name}", False
                )
            else:
                yield Row(
                    "service", name, where, "runs a script that restarts it", sure, _retire_unit(name, path), True
                )
        else:
            service = (_unit_values(text, "Unit") or [name.rsplit(".", 1)[0] + ".service"])[-1]
            if service == own:
                yield Row("timer", name, where, f"starts {service} by time", "certain", _retire_unit(name, path), True)
                continue
            if service.startswith(_OURS) or service not in units:
                continue
            command = "\n".join(_unit_values(units[service][1], "Exec(?:Start|StartPre|StartPost)"))
            sure = _sureness(names, _followed(root, command))
            if sure is None:
                continue
            acts = sure != "mentions"
            does = f"runs {service}, which {'restarts it' if acts else 'mentions this server'}"
            yield Row("timer", name, where, does, sure, _retire_unit(name, path), acts)


# cron


def _cron_lines(root: Path) -> Iterator[tuple[str, str]]:
    """(file, command) of every cron entry."""
    files = [
        root / "etc/crontab",
        *sorted((root / "etc/cron.d").glob("*")),
        *sorted((root / "var/spool/cron").glob("**/*")),
    ]
    for path in files:
        text = _text(path) or ""
        for line in text.splitlines():
            if re.match(r"^\s*(?:@\w+|[\d*,/\-]+\s+[\d*,/\-A-Za-z]+\s+[\d*,/\-A-Za-z]+\s)", line):
                yield "/" + str(path.relative_to(root)), line.strip()
    for period in ("hourly", "daily", "weekly", "monthly"):
        for path in sorted((root / f"etc/cron.{period}").glob("*")):
            yield "/" + str(path.relative_to(root)), "/" + str(path.relative_to(root))


def _cron(root: Path, names: _Names) -> Iterator[Row]:
    for where, line in _cron_lines(root):
        if any(ours in line for ours in ("llm-busy", "llm-watchdog", "llm-health")):
            continue
        sure = _sureness(names, _followed(root, line))
        if sure is None:
            continue
        acts = sure != "mentions"
        does = "restarts it by time" if acts else "mentions this server"
        yield Row("cron", line[:120], where, does, sure, f"comment that line out in {where}", acts)


# other supervisors: one row where they name the server

_OTHERS = (
    ("monit", ("etc/monit/monitrc", "etc/monitrc"), ("etc/monit/conf.d", "etc/monit/conf-enabled", "etc/monit.d")),
    ("supervisor", ("etc/supervisor/supervisord.conf", "etc/supervisord.conf"), ("etc/supervisor/conf.d",)),
    ("kubelet", (), ("etc/kubernetes/manifests",)),
)


def _others(root: Path, names: _Names) -> Iterator[Row]:
    for kind, files, folders in _OTHERS:
        paths = [root / f for f in files] + [p for d in folders for p in sorted((root / d).glob("*"))]
        for path in paths:
            text = _text(path)
            if text is None or not names.found_in(_code(text)):
                continue
            where = "/" + str(path.relative_to(root))
            if kind == "kubelet":
                probe = "livenessProbe" in text
                does = (
                    "static pod with a liveness probe: kubelet restarts it"
                    if probe
                    else "static pod: kubelet restarts it when it ends"
                )
                yield Row(kind, path.name, where, does, "certain", "take the liveness probe out of the manifest", probe)
            else:
                yield Row(kind, path.name, where, "mentions this server", "mentions", f"look at {where}", True)


# containers


def container_rows(server: Server, inspected: Iterable[dict[str, Any]]) -> Iterator[Row]:
    """Restart policy, health check and autoheal of the server's own container, from `docker inspect`."""
    everything = list(inspected)
    names = _Names(server)
    autoheal = [c for c in everything if "autoheal" in str((c.get("Config") or {}).get("Image", ""))]
    for one in everything:
        name = str(one.get("Name", "")).lstrip("/")
        labels = (one.get("Config") or {}).get("Labels") or {}
        restart = server.restart
        mine = name == names.container or (
            restart is not None
            and restart.kind == "compose"
            and labels.get("com.docker.compose.project") == restart.project
            and labels.get("com.docker.compose.service") == restart.service
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


async def _containers(server: Server) -> list[dict[str, Any]]:
    restart = server.restart
    if restart is None or restart.kind not in ("docker", "podman", "compose"):
        return []
    prefix = client_of(restart)
    listed = await output_of(*prefix, "ps", "--all", "--quiet")
    if listed is None or listed[0] != 0 or not listed[1].split():
        return []
    shown = await output_of(*prefix, "inspect", *listed[1].split())
    try:
        rows = json.loads(shown[1]) if shown else []
    except ValueError:
        return []
    return [row for row in rows if isinstance(row, dict)]


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
    names = _Names(server)

    def files() -> list[Row]:
        return [*dict.fromkeys(_systemd(root, names, server)), *_cron(root, names), *_others(root, names)]

    found = await asyncio.to_thread(files)
    if root == Path("/"):
        found = list(await asyncio.gather(*(_as_it_stands(row) for row in found)))
    found += container_rows(server, await _containers(server))
    found += _engine(server)
    return sorted(found, key=lambda row: (not row.competes, row.kind, row.name))
