# SPDX-License-Identifier: GPL-3.0-or-later
"""The hands: what stops and starts a server. Every privileged act of the watchdog is in this file (docs/security.md).

A manager never waits for the server: `stop` and `start` only ask, `is_down` and `status` look.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shlex
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from .._core import urls
from .._core.servers import Restart
from .._health import proc
from .._health.observation import Service
from .._health.witness import output_of, systemd_unit, unit_of
from . import containers

COMMAND_WITHIN_S = 20.0
SSH_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "-o", "ServerAliveInterval=5")
SSH_FAILED = 255


class Refused(Exception):
    """This server must not be restarted by this target. The sentence names the reason and the way out."""


class Failed(Exception):
    """A manager's command did not do what it was asked for."""


class Manager(Protocol):
    """What can stop and start one server."""

    async def status(self, now: Callable[[], float]) -> Service:
        """State, start and intent."""

    async def identity(self) -> str | None:
        """What tells this very run of the server from the next one (a start time, a container's id and start)."""

    async def preflight(self, url: str) -> None:
        """Raises Refused where the target cannot be mapped to the server's own process, or could not be started again."""

    async def stop(self) -> None:
        """Asks for a stop of the whole server."""

    async def kill(self) -> None:
        """Kills every process of it."""

    async def is_down(self) -> bool:
        """No process of it is left."""

    async def start(self, receipt: Path) -> None:
        """Asks for a start, once: `receipt` is a file that this start alone makes. Called again it starts nothing twice."""


def over(host: str | None, argv: Sequence[str]) -> tuple[str, ...]:
    """The command as it is run on `host`: by ssh that never asks anything, or as it is where host is None."""
    if host is None:
        return tuple(argv)
    return ("ssh", *SSH_OPTIONS, "--", host, shlex.join(argv))


async def _run(
    *argv: str, host: str | None = None, within_s: float = COMMAND_WITHIN_S, ok: tuple[int, ...] = (0,)
) -> str:
    said = await output_of(*over(host, argv), within_s=within_s)
    where = "" if host is None else f"{host}: "
    if said is None:
        raise Failed(f"{where}{argv[0]}: is missing, or did not end within {within_s:g} s")
    if host is not None and said[0] == SSH_FAILED:
        raise Failed(
            f"{host}: cannot be reached; `ssh -o BatchMode=yes {host} true` has to work for the watchdog's user"
        )
    if said[0] not in ok:
        raise Failed(f"{where}{' '.join(argv)}: ended with status {said[0]}")
    return said[1]


@dataclass(frozen=True)
class Systemd:
    """A system unit, or a user's. `host`: of another machine, where it serves no port that could be looked for."""

    unit: str
    user: str | None = None
    host: str | None = None

    def _scope(self) -> list[str]:
        return ["--user", f"--machine={self.user}@.host"] if self.user else []

    async def _systemctl(self, *words: str, ok: tuple[int, ...] = (0,)) -> str:
        return await _run("systemctl", *self._scope(), *words, host=self.host, ok=ok)

    async def _show(self, *names: str) -> dict[str, str]:
        text = await self._systemctl("show", self.unit, f"--property={','.join(names)}")
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    async def status(self, now: Callable[[], float]) -> Service:
        return await systemd_unit(self.unit, self.user, now)

    async def identity(self) -> str | None:
        shown = await self._show("MainPID", "ExecMainStartTimestampMonotonic", "InvocationID")
        return "/".join(shown.get(n, "") for n in ("InvocationID", "MainPID", "ExecMainStartTimestampMonotonic"))

    async def preflight(self, url: str) -> None:
        shown = await self._show("LoadState", "ControlGroup", "ActiveState")
        on = f" on {self.host}" if self.host else ""
        if shown.get("LoadState") == "masked":
            raise Refused(f"{self.unit}: is masked{on}, so it could not be started again; `systemctl unmask` it")
        if shown.get("LoadState") != "loaded":
            raise Refused(
                f"{self.unit}: there is no such unit{on}; name the one that runs the server in restart.systemd"
            )
        if self.host is not None or shown.get("ActiveState") != "active":
            return
        found = await asyncio.to_thread(lambda: proc.Snapshot().listener(urls.host_and_port(url)[1]))
        if found is None:
            return
        own = proc.cgroup(found[0]) or ""
        group = shown.get("ControlGroup") or f"/{self.unit}"
        if not (own == group or own.startswith(group.rstrip("/") + "/")):
            belongs = unit_of(found[0])
            whose = f"the unit {belongs[0]}" if belongs else f"the control group {own or '?'}"
            raise Refused(
                f"{self.unit}: the process that serves {urls.redacted(url)} belongs to {whose}; "
                "name that one, or give stop and start as restart.command"
            )

    async def stop(self) -> None:
        await self._systemctl("stop", "--no-block", self.unit)

    async def kill(self) -> None:
        await self._systemctl("kill", "--kill-whom=all", "--signal=SIGKILL", self.unit, ok=(0, 1))

    async def is_down(self) -> bool:
        shown = await self._show("ActiveState", "ControlGroup")
        if shown.get("ActiveState") not in ("inactive", "failed"):
            return False
        group = shown.get("ControlGroup")
        # orphaned EngineCore processes hold 100 GB: down is only what has no process left
        if group and self.host is not None:
            left = ("find", f"/sys/fs/cgroup{group}", "-name", "cgroup.procs", "-exec", "cat", "{}", "+")
            return not (await _run(*left, host=self.host, ok=(0, 1))).split()
        return not group or not await asyncio.to_thread(lambda: proc.Snapshot().in_cgroup(group))

    async def start(self, receipt: Path) -> None:
        await self._systemctl("reset-failed", self.unit, ok=(0, 1))
        await self._systemctl("start", "--no-block", self.unit)


@dataclass(frozen=True)
class Container:
    """A docker or podman container. `prefix`: the client's command, with its socket or user. `host`: another machine."""

    prefix: tuple[str, ...]
    name: str
    host: str | None = None

    async def _inspect(self) -> dict[str, Any] | None:
        said = await output_of(*over(self.host, (*self.prefix, "inspect", self.name)), within_s=COMMAND_WITHIN_S)
        if said is None or (self.host is not None and said[0] == SSH_FAILED):
            where = f"{self.host}: " if self.host else ""
            raise Failed(f"{where}{self.prefix[0]}: is missing, or its engine does not answer")
        if said[0] != 0:
            return None
        try:
            rows = json.loads(said[1])
        except ValueError:
            return None
        return rows[0] if isinstance(rows, list) and rows and isinstance(rows[0], dict) else None

    async def status(self, now: Callable[[], float]) -> Service:
        try:
            found = await self._inspect()
        except Failed:
            return Service()
        if found is None:
            return Service()
        state = found.get("State") or {}
        running = state.get("Status") in ("running", "restarting")
        since = containers.since(str(state.get("StartedAt") or ""), now)
        if running:
            return Service("active" if state.get("Status") == "running" else "activating", since, True)
        # docker says "exited" after a stop and after a crash alike; only the events tell, and they may be gone
        return Service("inactive", since, await self._intent())

    async def _intent(self) -> bool | None:
        # docker goes on for ever without an end, and podman says nothing with an end of "now"
        end = ("--stream=false",) if "podman" in self.prefix else ("--until", "0s")
        events = ("events", "--since", "24h", *end, "--filter", f"container={self.name}", "--format", "{{.Status}}")
        said = await output_of(*over(self.host, (*self.prefix, *events)), within_s=COMMAND_WITHIN_S)
        if said is None or said[0] != 0:
            return None
        words = [line.split()[0] for line in said[1].splitlines() if line.split()]
        return containers.meant_to_be_up(words, tells_stops="podman" not in self.prefix)

    async def identity(self) -> str | None:
        found = await self._inspect()
        return None if found is None else f"{found.get('Id')}/{(found.get('State') or {}).get('StartedAt')}"

    async def preflight(self, url: str) -> None:
        found = await self._inspect()
        if found is None:
            raise Refused(f"{self.name}: there is no such container")
        if (found.get("HostConfig") or {}).get("AutoRemove"):
            raise Refused(
                f"{self.name}: was started with --rm; a stop deletes it and a start would find nothing. "
                "Give stop and start as restart.command"
            )
        pid = int((found.get("State") or {}).get("Pid") or 0)
        if pid == 0 or self.host is not None:
            return
        await asyncio.to_thread(self._serves, url, pid, containers.published(found, urls.host_and_port(url)[1]))

    def _serves(self, url: str, pid: int, published: int | None) -> None:
        """Refuses where who serves does not descend from the container's first process, or cannot be found."""
        seen, port = proc.Snapshot(), urls.host_and_port(url)[1]
        holder = seen.holder(port)
        if holder is None:
            return
        found = seen.listener(port)
        owner = found[0] if found else None
        if owner is None and published is not None:
            owner = seen.listener_beside(pid, published)
            if owner is None:
                return
        if owner is None:
            raise Refused(
                f"{self.name}: does not publish the port of {urls.redacted(url)}, which {holder.name} passes on to another "
                "container. Name that one, or give stop and start as restart.command"
            )
        if owner not in {one.pid for one in seen.tree(pid)}:
            raise Refused(
                f"{self.name}: the process that serves {urls.redacted(url)} does not descend from the container's own "
                "(a sleeper is PID 1 there): a started container is no started server. "
                "Give stop and start as restart.command"
            )

    async def stop(self) -> None:
        # `stop` waits for up to a minute; it is left to itself, and `is_down` looks. Not by asyncio, which would kill it when
        # this run ends.
        subprocess.Popen(
            over(self.host, (*self.prefix, "stop", "--time", "60", self.name)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    async def kill(self) -> None:
        await _run(*self.prefix, "kill", self.name, host=self.host, ok=(0, 1))

    async def is_down(self) -> bool:
        found = await self._inspect()
        return found is None or (found.get("State") or {}).get("Status") in ("exited", "dead", "created")

    async def start(self, receipt: Path) -> None:
        await _run(*self.prefix, "start", self.name, host=self.host)


@dataclass(frozen=True)
class Commands:
    """Programs that stop and start a server. What runs is told by who listens on its port."""

    stop_argv: tuple[str, ...]
    start_argv: tuple[str, ...]
    run_as: str | None
    url: str

    def _owner(self) -> proc.Process | None:
        seen = proc.Snapshot()
        port = urls.host_and_port(self.url)[1]
        found = seen.listener(port)
        return seen.everyone.get(found[0]) if found else seen.holder(port)

    async def status(self, now: Callable[[], float]) -> Service:
        owner = await asyncio.to_thread(self._owner)
        if owner is None:
            return Service()
        age = proc.started_ago_s(owner)
        return Service("active", None if age is None else now() - age, True)

    async def identity(self) -> str | None:
        owner = await asyncio.to_thread(self._owner)
        return None if owner is None else f"{owner.pid}/{owner.start_ticks}"

    async def preflight(self, url: str) -> None:
        for argv in (self.stop_argv, self.start_argv):
            if not os.access(argv[0], os.X_OK):
                raise Refused(f"{argv[0]}: is not a program that can be run; mend restart.command")
        if self.run_as is not None:
            try:
                pwd.getpwnam(self.run_as)
            except KeyError:
                raise Refused(f"restart.command.run_as: there is no user {self.run_as}") from None

    def _argv(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        return ("/usr/sbin/runuser", "-u", self.run_as, "--", *argv) if self.run_as else argv

    async def stop(self) -> None:
        await _run(*self._argv(self.stop_argv), within_s=30.0)

    async def kill(self) -> None:
        owner = await asyncio.to_thread(self._owner)
        if owner is not None:
            os.kill(owner.pid, signal.SIGKILL)

    async def is_down(self) -> bool:
        return await asyncio.to_thread(self._owner) is None

    async def start(self, receipt: Path) -> None:
        # the child itself makes the receipt, exclusively, before it becomes the start command: whoever is killed when,
        # the command runs once
        once = ("/bin/sh", "-c", 'set -C; : > "$0" && exec "$@"', str(receipt))
        if not receipt.exists():
            await _run(*once, *self._argv(self.start_argv), within_s=30.0)


class ManagerOf(Protocol):
    """What makes the hands for a restart target."""

    async def __call__(self, restart: Restart, url: str, host: str | None = None, /) -> Manager:
        """Raises Refused or Failed."""


async def manager_for(restart: Restart, url: str, host: str | None = None) -> Manager:
    """The hands for one restart target, here or on `host`. Raises Refused or Failed."""
    if restart.kind == "systemd":
        return Systemd(restart.target, restart.user, host)
    if restart.kind == "command":
        if host is not None:
            raise Refused(
                f"{host}: a rank's restart.command shows nobody whether it is down; name its systemd unit or container, "
                "or give the head commands that stop and start the whole, and no ranks"
            )
        return Commands(restart.stop, restart.start, restart.run_as, url)
    client = containers.client_of(restart)
    if restart.kind in ("docker", "podman"):
        return Container(client, restart.target, host)
    found = (await _run(*containers.of_compose(restart), host=host)).split()
    if len(found) != 1:
        raise Refused(
            f"compose {restart.project}/{restart.service}: has {len(found)} containers, exactly one is needed; "
            "start it once with docker compose up"
        )
    return Container(client, found[0], host)


async def read_on(host: str, path: str) -> str:
    """A file of another host. Raises Failed."""
    return await _run("cat", path, host=host)


async def drop_caches_on(host: str) -> None:
    """`drop_caches` on another host. Raises Failed."""
    await _run("sh", "-c", "sync; echo 1 > /proc/sys/vm/drop_caches", host=host, within_s=30.0)


def drop_caches() -> None:
    """Gives the page cache back: on GB10 it counts against CUDA's free memory. Raises Failed."""
    try:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("1\n")
    except OSError as error:
        raise Failed(f"/proc/sys/vm/drop_caches: cannot be written ({error.strerror})") from None
