# SPDX-License-Identifier: GPL-3.0-or-later
"""/proc as this collection reads it: who owns a listening socket, his process tree, its CPU time, its connections.

Everything is "what can be seen": a process that is gone or may not be read is left out, and the caller hears None
where that makes the answer unknown.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_LISTEN, _ESTABLISHED = "0A", "01"
# Compilers that vLLM, FlashInfer and Triton run under the server: their presence excuses silence.
COMPILERS = frozenset({"nvcc", "cicc", "ptxas", "fatbinary", "nvlink", "ninja", "cc1plus", "cc1", "ld", "lld", "clang"})

# What owns a published port and is not the server behind it: docker's and podman's, rootless ones too. The kernel tells
# 15 letters of a name.
_FORWARDERS = ("docker-pr", "conmon", "rootlesskit", "rootlessport", "slirp4netns", "pasta", "passt")

# not of --max-num-batched-tokens and the like
_SECRET = re.compile(r"(?i)api[-_]?key|secret|passw|(hf|auth|access|bearer)[-_]?token|^--token\b")


@dataclass(frozen=True)
class Process:
    """One process. `start_ticks`: clock ticks since boot. `cpu_s`: user and system time, seconds."""

    pid: int
    parent: int
    name: str
    start_ticks: int
    cpu_s: float


def _tick() -> float:
    return float(os.sysconf("SC_CLK_TCK"))


def process(pid: int) -> Process | None:
    """What /proc/PID/stat says, or None when there is no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    name = text[text.find("(") + 1 : text.rfind(")")]
    rest = text[text.rfind(")") + 2 :].split()
    if len(rest) < 20:
        return None
    cpu = (int(rest[11]) + int(rest[12])) / _tick()
    return Process(pid=pid, parent=int(rest[1]), name=name, start_ticks=int(rest[19]), cpu_s=cpu)


def pids() -> list[int]:
    """All processes that can be seen."""
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]


def processes() -> dict[int, Process]:
    """All processes by pid."""
    found = (process(pid) for pid in pids())
    return {one.pid: one for one in found if one is not None}


def cgroup(pid: int) -> str | None:
    """The process's control group (v2, else systemd's), such as /system.slice/vllm.service."""
    try:
        lines = (PROC / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return None
    groups = {line.split(":", 2)[1]: line.split(":", 2)[2] for line in lines if line.count(":") >= 2}
    group = groups.get("")
    return groups.get("name=systemd", group) if group in (None, "/") else group


def _sockets(pid: int) -> set[str]:
    """Inodes of the sockets a process has open."""
    found: set[str] = set()
    folder = PROC / str(pid) / "fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return found
    for name in names:
        try:
            target = os.readlink(folder / name)
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found


def _tcp_rows(pid: int) -> list[list[str]] | None:
    """Rows of /proc/PID/net/tcp and tcp6: the sockets of that process's network namespace."""
    rows, seen = [], False
    for name in ("tcp", "tcp6"):
        try:
            lines = (PROC / str(pid) / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        seen = True
        rows += [line.split() for line in lines]
    return rows if seen else None


def _port(address: str) -> int:
    return int(address.rsplit(":", 1)[1], 16)


def network_namespace(pid: int) -> str | None:
    """The inode of a process's network namespace, as text."""
    try:
        return os.readlink(PROC / str(pid) / "ns" / "net")
    except OSError:
        return None


def _connected(rows: Iterable[list[str]], port: int) -> set[str]:
    return {row[2] for row in rows if row[3] == _ESTABLISHED and _port(row[1]) == port}


def clients(pid: int, port: int) -> frozenset[str] | None:
    """Who is connected now to a server's port in its own network namespace; this process is left out."""
    space, rows = network_namespace(pid), _tcp_rows(pid)
    if space is None or rows is None:
        return None
    found = _connected(rows, port)
    if space != network_namespace(os.getpid()):
        return frozenset(found)
    # the rows first: a connection of ours that is opened after them is in neither
    own_sockets = _sockets(os.getpid())
    own = {_port(row[1]) for row in rows if row[9] in own_sockets}
    return frozenset(peer for peer in found if _port(peer) not in own)


class Snapshot:
    """Processes and TCP sockets of one moment, in every network namespace that can be seen. Cheap to ask many times."""

    def __init__(self) -> None:
        self.everyone = processes()
        self._namespaces: dict[str, list[int]] = {}
        self._holders: dict[str, list[int]] = {}
        self._rows: dict[str, list[list[str]]] = {}
        for pid in self.everyone:
            space = network_namespace(pid)
            if space is None:
                continue
            self._namespaces.setdefault(space, []).append(pid)
            for inode in _sockets(pid):
                self._holders.setdefault(inode, []).append(pid)
        self._own = network_namespace(os.getpid()) or ""

    def rows(self, space: str) -> list[list[str]]:
        """Rows of /proc/net/tcp and tcp6 of a namespace."""
        if space not in self._rows:
            members = self._namespaces.get(space, [])
            self._rows[space] = next((rows for pid in members if (rows := _tcp_rows(pid)) is not None), [])
        return self._rows[space]

    def _owner(self, space: str, port: int) -> int | None:
        """The oldest process that holds the listening socket (a parent shares it with its workers)."""
        inodes = {row[9] for row in self.rows(space) if row[3] == _LISTEN and _port(row[1]) == port}
        holders = {pid for inode in inodes for pid in self._holders.get(inode, []) if pid in self.everyone}
        return min(holders, key=lambda pid: (self.everyone[pid].start_ticks, pid)) if holders else None

    def listener(self, port: int) -> tuple[int, int] | None:
        """(pid, port) of the server behind this machine's `port`, the port as it is in the server's own namespace.

        A published port is owned by docker's proxy or podman's conmon here, and the server is who listens in the
        container's namespace. None: nobody, or it cannot be told (a witness that looks at the wrong process is worse than none).
        """
        found = self._owner(self._own, port)
        if found is None:
            return None
        name = self.everyone[found].name
        if not name.startswith(_FORWARDERS):
            return found, port
        if name == "conmon":
            return self._below(found, port)
        inner = _docker_proxy_target(found)
        if inner is None:
            return None
        address, inner_port = inner
        for space, members in self._namespaces.items():
            if space != self._own and _has_address(members[0], address):
                pid = self._owner(space, inner_port)
                return (pid, inner_port) if pid is not None else None
        return None

    def _below(self, conmon: int, port: int) -> tuple[int, int] | None:
        """Who listens in the container that a conmon is the parent of: on the same port, else on the only one there."""
        for pid in (one.pid for one in self.everyone.values() if one.parent == conmon):
            space = network_namespace(pid)
            if space is None or space == self._own:
                continue
            ports = {_port(row[1]) for row in self.rows(space) if row[3] == _LISTEN}
            inner = port if port in ports else ports.pop() if len(ports) == 1 else None
            if inner is not None and (server := self._owner(space, inner)) is not None:
                return server, inner
        return None

    def holder(self, port: int) -> Process | None:
        """Who owns this machine's `port`, also where that process only passes it on to a container."""
        found = self._owner(self._own, port)
        return None if found is None else self.everyone[found]

    def listener_beside(self, pid: int, port: int) -> int | None:
        """Who listens on `port` in the network namespace of `pid`."""
        space = network_namespace(pid)
        return None if space is None else self._owner(space, port)

    def tree(self, root: int) -> list[Process]:
        """A process and all its descendants."""
        children: dict[int, list[Process]] = {}
        for one in self.everyone.values():
            children.setdefault(one.parent, []).append(one)
        todo, found = [root], []
        while todo:
            pid = todo.pop()
            if pid in self.everyone:
                found.append(self.everyone[pid])
            todo += [child.pid for child in children.get(pid, [])]
        return found

    def in_cgroup(self, group: str) -> list[Process]:
        """Processes in a control group or below it."""
        below = group.rstrip("/") + "/"
        return [
            one
            for one in self.everyone.values()
            if (own := cgroup(one.pid)) and (own == group or own.startswith(below))
        ]


def _words(pid: int) -> list[str]:
    """A process's arguments. Raises OSError."""
    return (PROC / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")


def program(pid: int) -> str | None:
    """What a process runs, as a digest: its arguments, and size and time of the program and the script they name.

    An upgrade writes new files, so it changes as the version does. Arguments that look like secrets are left out of it.
    """
    root = PROC / str(pid)
    try:
        words = _words(pid)
    except OSError:
        return None
    if not words[0]:
        return None
    told, skip = [], False
    for word in words:
        if skip or _SECRET.search(word):
            skip = not skip and "=" not in word
            continue
        told.append(word)
    for file in (root / "exe", *(root / "root" / word.lstrip("/") for word in words[1:2] if word.startswith("/"))):
        try:
            found = file.stat()
        except OSError:
            continue
        told.append(f"{found.st_size} {found.st_mtime_ns}")
    return hashlib.sha256("\0".join(told).encode("utf-8", "replace")).hexdigest()[:16]


def _docker_proxy_target(pid: int) -> tuple[str, int] | None:
    try:
        words = _words(pid)
    except OSError:
        return None
    values = {words[n]: words[n + 1] for n in range(len(words) - 1)}
    address, port = values.get("-container-ip"), values.get("-container-port", "")
    return (address, int(port)) if address and port.isdigit() else None


def _has_address(pid: int, address: str) -> bool:
    """A namespace has an IPv4 address of its own (its routing trie lists the local ones)."""
    try:
        text = (PROC / str(pid) / "net" / "fib_trie").read_text()
    except OSError:
        return False
    return (
        re.search(rf"^\s*(?:\|--|\+--) {re.escape(address)}(?:/32)?\s*\n\s*/32 host LOCAL", text, re.MULTILINE)
        is not None
    )


def compilers(members: Iterable[Process]) -> tuple[str, ...]:
    """Names of compilers among these processes, sorted."""
    return tuple(sorted({one.name for one in members if one.name in COMPILERS}))


def memory_pressure() -> float | None:
    """Share of the last minute in which everything stood still for want of memory, 0–1 (PSI full avg60)."""
    try:
        for line in (PROC / "pressure" / "memory").read_text().splitlines():
            if line.startswith("full"):
                match = re.search(r"avg60=([0-9.]+)", line)
                return float(match.group(1)) / 100 if match else None
    except OSError:
        return None
    return None


def memory_gib() -> tuple[float | None, float | None]:
    """(MemAvailable, MemFree) in GiB. CUDA on GB10 allocates from MemFree; page cache counts against it."""
    found: dict[str, float] = {}
    try:
        for line in (PROC / "meminfo").read_text().splitlines():
            name, dummy, rest = line.partition(":")
            if name in ("MemAvailable", "MemFree"):
                found[name] = int(rest.split()[0]) / 1024 / 1024
    except (OSError, ValueError, IndexError):
        return None, None
    return found.get("MemAvailable"), found.get("MemFree")


def boot_id() -> str | None:
    """This boot's id."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def started_ago_s(one: Process) -> float | None:
    """Seconds since a process started."""
    try:
        uptime = float((PROC / "uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return max(uptime - one.start_ticks / _tick(), 0.0)
