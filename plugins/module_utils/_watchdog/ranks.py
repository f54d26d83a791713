# SPDX-License-Identifier: GPL-3.0-or-later
"""A server of several nodes: one rank on each, reached by ssh, stopped and started as one thing by the head alone.

A pair of which one half was restarted hangs again, so there is no such act here: `preflight` reaches every rank before
any is stopped, `is_down` is all of them, `start` starts whatever is down of the whole.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .._core.servers import RankSpec, Server
from .._health.observation import Rank, Service
from .._health.proc import COMPILERS
from .._health.witness import is_local, output_of
from . import act
from .containers import client_of

LOOK_WITHIN_S = 12.0


@dataclass(frozen=True)
class Worker:
    """Another node's rank and what stops and starts it."""

    host: str
    manager: act.Manager
    memory_needed_gib: float | None = None


@dataclass(frozen=True)
class Together:
    """All ranks as one. `status` is the head's: it is the one that answers requests."""

    head: act.Manager
    workers: tuple[Worker, ...]

    async def status(self, now: Callable[[], float]) -> Service:
        return await self.head.status(now)

    async def identity(self) -> str | None:
        """Of all ranks: where any of them was restarted in between, somebody else is at work."""
        return " ".join([str(await one.identity()) for one in self._all()])

    async def preflight(self, url: str) -> None:
        await self.head.preflight(url)
        for worker in self.workers:
            try:
                await worker.manager.preflight(url)
                await worker.manager.is_down()
            except act.Failed as failure:
                raise act.Refused(f"{failure}. A server of several nodes is restarted whole or not at all") from None

    async def stop(self) -> None:
        """Workers first: a head without workers ends by itself, the other way round leaves orphans that hold memory."""
        for worker in self.workers:
            await worker.manager.stop()
        await self.head.stop()

    async def kill(self) -> None:
        for one in self._all():
            if not await one.is_down():
                await one.kill()

    async def is_down(self) -> bool:
        for one in self._all():
            if not await one.is_down():
                return False
        return True

    async def start(self, receipt: Path) -> None:
        """The head first: workers look for it. Again after a crash: what is up already is left alone."""
        if await self.head.is_down():
            await self.head.start(receipt)
        for n, worker in enumerate(self.workers):
            if await worker.manager.is_down():
                await worker.manager.start(receipt.with_suffix(f".{n}"))

    def _all(self) -> tuple[act.Manager, ...]:
        return (self.head, *(worker.manager for worker in self.workers))

    async def memory_lack(self, free_too: bool) -> str | None:
        """What the first worker lacks that has not enough memory to start, as a sentence."""
        for worker in self.workers:
            if worker.memory_needed_gib is None:
                continue
            text = await act.read_on(worker.host, "/proc/meminfo")
            sizes = {row[0]: int(row[1]) / 1024**2 for line in text.splitlines() if len(row := line.split()) >= 2}
            there = sizes.get("MemAvailable:", 0.0)
            if free_too:
                there = min(there, sizes.get("MemFree:", 0.0))
            if there < worker.memory_needed_gib:
                return f"{worker.host}: {worker.memory_needed_gib:g} GiB are needed and {there:.1f} are there"
        return None

    async def drop_caches(self) -> None:
        """On every worker's host. Raises Failed."""
        for worker in self.workers:
            await act.drop_caches_on(worker.host)


def is_here(host: str) -> bool:
    """The rank's host (or user@host) is this machine, by its name or by an address of its own."""
    name = host.rsplit("@", 1)[-1]
    own = socket.gethostname()
    if name in (own, own.split(".")[0], "localhost"):
        return True
    return is_local(f"http://[{name}]" if ":" in name else f"http://{name}")


def workers_of(server: Server, here: Callable[[str], bool] = is_here) -> tuple[RankSpec, ...] | None:
    """The ranks on other hosts, for the head. None where this host is itself one of the workers: only the head acts.

    The first rank is the head. A list in which this host does not occur is that of the workers: the head's own
    description need not name itself.
    """
    mine = [n for n, rank in enumerate(server.ranks) if here(rank.host)]
    if not mine:
        return server.ranks
    return server.ranks[1:] if mine[0] == 0 else None


async def together(
    server: Server, head: act.Manager, workers: Sequence[RankSpec], manager_of: act.ManagerOf = act.manager_for
) -> act.Manager:
    """The hands for all ranks. Raises Refused or Failed."""
    found = [
        Worker(rank.host, await manager_of(rank.restart, server.url, rank.host), rank.memory_needed_gib)
        for rank in workers
        if rank.restart is not None
    ]
    return Together(head, tuple(found)) if found else head


# One look at a rank, in one connection. $0: systemd or container; $1: its name; the rest: the command that shows it.
# What cannot be told stays unsaid.
_LOOK = r"""
LC_ALL=C; export LC_ALL
name=$1; shift
if [ "$0" = systemd ]; then
  "$@" --property=ActiveState,ExecMainStartTimestampMonotonic "$name"
  group=$("$@" --property=ControlGroup --value "$name")
elif [ "$0" = container ]; then
  "$@" --format 'ActiveState={{.State.Status}}' "$name"
  pid=$("$@" --format '{{.State.Pid}}' "$name")
  if [ "${pid:-0}" -gt 0 ] 2>/dev/null; then group=$(sed -n 's/^0:://p' "/proc/$pid/cgroup"); fi
fi
echo "Uptime=$(cut -d' ' -f1 /proc/uptime)"
if [ -n "$group" ] && [ "$group" != / ]; then
  echo "CpuUsec=$(sed -n 's/^usage_usec //p' "/sys/fs/cgroup$group/cpu.stat")"
  for pid in $(find "/sys/fs/cgroup$group" -name cgroup.procs -exec cat {} +); do
    echo "Process=$(cat "/proc/$pid/comm")"
  done
fi
echo "PowerW=$(timeout 4 nvidia-smi --query-gpu=power.draw --format=csv,noheader,nounits | head -n 1)"
exit 0
"""
_STATES = {"running": "active", "restarting": "activating", "reloading": "active", "deactivating": "inactive"}


def _look_argv(rank: RankSpec) -> tuple[str, ...]:
    restart = rank.restart
    if restart is not None and restart.kind == "systemd":
        scope = ("--user", f"--machine={restart.user}@.host") if restart.user else ()
        return ("sh", "-c", _LOOK, "systemd", restart.target, "systemctl", *scope, "show")
    if restart is not None and restart.kind in ("docker", "podman"):
        return ("sh", "-c", _LOOK, "container", restart.target, *client_of(restart), "inspect")
    return ("sh", "-c", _LOOK, "host only", "")


async def look(ranks: Sequence[RankSpec], now: Callable[[], float]) -> tuple[Rank, ...]:
    """What the other nodes' ranks show now, side by side; one that cannot be reached is unknown, never idle."""
    return tuple(await asyncio.gather(*(_look_at(rank, now) for rank in ranks)))


async def _look_at(rank: RankSpec, now: Callable[[], float]) -> Rank:
    said = await output_of(*act.over(rank.host, _look_argv(rank)), within_s=LOOK_WITHIN_S)
    if said is None or said[0] == act.SSH_FAILED:
        return Rank(host=rank.host, reachable=False)
    return parse(rank.host, said[1], now())


def parse(host: str, text: str, t: float) -> Rank:
    """A rank from what the look printed."""
    shown: dict[str, str] = {}
    processes: list[str] = []
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if name == "Process":
            processes.append(value)
        elif equals:
            shown[name] = value.strip()
    state = shown.get("ActiveState") or None
    up = _number(shown.get("Uptime"))
    started = _number(shown.get("ExecMainStartTimestampMonotonic"))
    cpu = _number(shown.get("CpuUsec"))
    return Rank(
        host=host,
        reachable=True,
        state=_STATES.get(state, state) if state else None,
        since=t - (up - started / 1e6) if up is not None and started else None,
        compilers=tuple(sorted(COMPILERS.intersection(processes))) if processes else None,
        gpu_power_w=_number(shown.get("PowerW")),
        cpu_seconds=None if cpu is None else round(cpu / 1e6, 2),
    )


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
