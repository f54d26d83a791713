# SPDX-License-Identifier: GPL-3.0-or-later
"""What the host shows beside the HTTP answers: the unit or container, its process tree, the GPU, the kernel's complaints.

Each witness may be unknown and none is required. One that hangs (`nvidia-smi` in uninterruptible sleep) is not waited
for: its answer is unknown, and its process is left to end by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import replace

from .._core import urls
from .._core.boot import of_this_boot
from .._core.servers import Restart
from . import proc
from .check import Subject
from .observation import Host, Service
from .observe import Witness, Witnesses

# A healthy nvidia-smi answers within 2 s on GB10; journalctl -k on a slow disk within 3 s.
ANSWER_WITHIN_S = 4.0
# A killed process is gone within milliseconds, but who waits for it may be late where the machine is busy.
REAPED_WITHIN_S = 1.5
# A connection that was closed as they were counted is gone by then, also where docker's proxy passes it on.
SECOND_COUNT_AFTER_S = 0.1
_XID = re.compile(r"NVRM: Xid\s*(?:\([^)]*\))?\s*:\s*(\d+)")
_OTHER_FAULTS = (
    (re.compile(r"NV_ERR_NO_MEMORY"), "NV_ERR_NO_MEMORY"),
    (re.compile(r"PCIe Bus Error: severity=(?:Uncorrectable|Fatal)", re.IGNORECASE), "PCIe Bus Error: fatal"),
    (re.compile(r"mlx5_core.*(?:fatal|health compromised)", re.IGNORECASE), "mlx5 fatal"),
)


async def abandon(process: asyncio.subprocess.Process) -> None:
    """Kills it, and hardly waits. Left open, its pipes would end this command with a traceback of asyncio's."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), REAPED_WITHIN_S)
    process._transport.close()  # type: ignore[attr-defined]


async def output_of(*argv: str, within_s: float = ANSWER_WITHIN_S) -> tuple[int, str] | None:
    """(exit status, standard output) of a command, or None when it is missing or does not end in time."""
    if shutil.which(argv[0]) is None:
        return None
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return None
    try:
        out, dummy = await asyncio.wait_for(process.communicate(), within_s)
    except TimeoutError:
        # in D state even SIGKILL waits; we do not
        await abandon(process)
        return None
    return process.returncode or 0, out.decode("utf-8", "replace")


def is_local(url: str) -> bool:
    """The address is this machine's own: loopback, or one of its interfaces'. Names are resolved; doubt is no."""
    host, dummy = urls.host_and_port(url)
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return False
    return bool(addresses) and all(_own_address(str(address)) for address in addresses)


def _own_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text.split("%")[0])
    except ValueError:
        return False
    if address.is_loopback:
        return True
    if address.is_unspecified or address.is_multicast:
        return False
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((text, 0))  # only an own address can be bound
        except OSError:
            return False
    return True


async def gpu() -> Host:
    """Presence, power and utilisation of the GPU. No nvidia-smi: all unknown, never absent."""
    said = await output_of("nvidia-smi", "--query-gpu=power.draw,utilization.gpu", "--format=csv,noheader,nounits")
    if said is None:
        return Host()
    status, text = said
    if status != 0:
        gone = any(word in text.lower() for word in ("no devices were found", "gpu is lost", "fallen off"))
        return Host(gpu_present=False if gone else None)
    powers: list[float] = []
    uses: list[float] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        for cell, found in zip(cells, (powers, uses), strict=False):
            try:
                found.append(float(cell))
            except ValueError:
                continue  # [N/A] on GB10
    return Host(
        gpu_present=bool(text.strip()) or None,
        gpu_power_w=max(powers) if powers else None,
        gpu_utilization=max(uses) / 100 if uses else None,
    )


def faults_in(kernel_log: str) -> tuple[str, ...]:
    """The hardware's complaints in a kernel log, each once, as "Xid N" or by name."""
    found = [f"Xid {number}" for number in _XID.findall(kernel_log)]
    found += [name for pattern, name in _OTHER_FAULTS if pattern.search(kernel_log)]
    return tuple(dict.fromkeys(found))


async def kernel_faults() -> tuple[str, ...] | None:
    """Complaints of this boot; None when the kernel's log cannot be read."""
    said = await output_of(
        "journalctl", "--dmesg", of_this_boot(), "--no-pager", "--quiet", "--output=cat", "--grep=NVRM|mlx5|PCIe"
    )
    if said is None or said[0] not in (0, 1):
        return None
    return faults_in(said[1])


_SHOW = "ActiveState,SubState,UnitFileState,MainPID,LoadState,Result,ExecMainStartTimestampMonotonic"


async def systemd_unit(unit: str, user: str | None, now: Callable[[], float]) -> Service:
    """State, start and intent of a unit. `since` is on the clock `now`, which must be this machine's monotonic one."""
    scope = ["--user", f"--machine={user}@.host"] if user else []
    said = await output_of("systemctl", *scope, "show", unit, f"--property={_SHOW}")
    if said is None or said[0] != 0:
        return Service()
    shown = dict(line.split("=", 1) for line in said[1].splitlines() if "=" in line)
    if shown.get("LoadState") in (None, "", "not-found"):
        return Service()
    states = {"reloading": "active", "deactivating": "inactive"}
    state = shown.get("ActiveState", "unknown")
    state = states.get(state, state)
    if state == "activating" and shown.get("SubState") == "auto-restart":
        state = "activating"
    since = None
    started = shown.get("ExecMainStartTimestampMonotonic", "0")
    if started.isdigit() and int(started) > 0:
        since = int(started) / 1e6
        since += now() - time.monotonic()
    wanted: bool | None = True if state in ("active", "activating") else None
    if shown.get("LoadState") == "masked" or shown.get("UnitFileState") in ("disabled", "masked"):
        wanted = state in ("active", "activating")
    elif state in ("inactive", "failed"):
        wanted = await _intent(unit, scope, shown)
    return Service(state=state, since=since, wanted=wanted)


async def _intent(unit: str, scope: list[str], shown: dict[str, str]) -> bool | None:
    """Whether a unit that is down is meant to be up: only the journal's stop job tells an intended stop from a crash
    (vLLM exits 0 in both). None when the journal cannot be read."""
    field = "USER_UNIT" if scope else "UNIT"
    said = await output_of(
        "journalctl", f"{field}={unit}", of_this_boot(), "--no-pager", "--quiet", "--output=cat", "--lines=40"
    )
    if said is None or said[0] not in (0, 1):
        return None
    # systemd writes "Stopping NAME..." when a stop job runs, and never when the process ends by itself
    lines = [line for line in said[1].splitlines() if line.startswith(("Stopping ", "Started ", "Starting "))]
    if lines:
        return not lines[-1].startswith("Stopping ")
    return None


def server_tree(pid: int, seen: proc.Snapshot) -> list[proc.Process]:
    """All processes of a server: those of its unit or container (its control group), else its descendants."""
    group = proc.cgroup(pid) or ""
    leaf = group.rsplit("/", 1)[-1]
    if leaf.endswith((".service", ".scope")) and not leaf.startswith(("session-", "user@", "init.scope")):
        return seen.in_cgroup(group)
    return seen.tree(pid)


def _processes(url: str, seen: proc.Snapshot) -> Host:
    """What the server's process tree shows."""
    available, dummy = proc.memory_gib()
    host = Host(memory_pressure=proc.memory_pressure(), memory_available_gib=available)
    found = seen.listener(urls.host_and_port(url)[1])
    if found is None:
        return host
    members = server_tree(found[0], seen)
    return replace(
        host,
        compilers=proc.compilers(members),
        cpu_seconds=round(sum(one.cpu_s for one in members), 2),
    )


async def _clients(url: str, seen: proc.Snapshot) -> int | None:
    """Clients of the server now, counted twice: our own questions of a moment ago are none."""
    found = seen.listener(urls.host_and_port(url)[1])
    first = proc.clients(*found) if found is not None else None
    if found is None or not first:
        return None if first is None else 0
    await asyncio.sleep(SECOND_COUNT_AFTER_S)
    second = proc.clients(*found)
    return None if second is None else len(first & second)


def _program(url: str, seen: proc.Snapshot) -> str | None:
    """What the server runs: the oldest process of its unit, container or tree has its arguments."""
    found = seen.listener(urls.host_and_port(url)[1])
    members = server_tree(found[0], seen) if found is not None else []
    return proc.program(min(members, key=lambda one: (one.start_ticks, one.pid)).pid) if members else None


def unit_of(pid: int) -> tuple[str, str | None] | None:
    """(unit, user) of a process by its control group; None for containers, sessions and the like."""
    group = proc.cgroup(pid) or ""
    parts = [part for part in group.split("/") if part]
    if not parts or not parts[-1].endswith(".service"):
        return None
    for part in parts[:-1]:
        if part.startswith("user@") and part.endswith(".service"):
            return parts[-1], part[len("user@") : -len(".service")]
    return parts[-1], None


class Machine:
    """This machine's witnesses for all servers of a run; what they share is asked once for all within `shared_s`."""

    def __init__(self, now: Callable[[], float] = time.monotonic, shared_s: float = 1.0) -> None:
        self.now, self.shared_s = now, shared_s
        self._lock = asyncio.Lock()
        self._at = -1e9
        self._shared: tuple[proc.Snapshot, Host, tuple[str, ...] | None] | None = None

    async def shared(self) -> tuple[proc.Snapshot, Host, tuple[str, ...] | None]:
        """(processes and sockets, the GPU, the kernel's complaints)."""
        async with self._lock:
            if self._shared is None or time.monotonic() - self._at > self.shared_s:
                snapshot, shown, faults = await asyncio.gather(asyncio.to_thread(proc.Snapshot), gpu(), kernel_faults())
                self._shared, self._at = (snapshot, shown, faults), time.monotonic()
            return self._shared

    async def service(self, url: str, restart: Restart | None, seen: proc.Snapshot) -> Service:
        """The unit that is named, or that the listening process belongs to."""
        if restart is not None and restart.kind == "systemd":
            return await systemd_unit(restart.target, restart.user, self.now)
        if restart is not None:
            return Service()
        found = seen.listener(urls.host_and_port(url)[1])
        if found is None:
            return Service()
        unit = unit_of(found[0])
        if unit is not None:
            return await systemd_unit(unit[0], unit[1], self.now)
        # in a container or started by hand: when he started tells one run from the next; whether he may still be
        # loading, nobody but a service manager knows
        owner = seen.everyone.get(found[0])
        age = proc.started_ago_s(owner) if owner is not None else None
        return Service(since=None if age is None else self.now() - age)

    async def look(self, url: str, restart: Restart | None = None) -> Witnesses:
        """All witnesses of one server on this machine."""
        snapshot, shown, faults = await self.shared()
        state = await self.service(url, restart, snapshot)
        host = replace(
            _processes(url, snapshot),
            clients=await _clients(url, snapshot),
            gpu_present=shown.gpu_present,
            gpu_power_w=shown.gpu_power_w,
            gpu_utilization=shown.gpu_utilization,
            kernel_faults=faults,
        )
        return Witnesses(service=state, host=host, program=_program(url, snapshot))


def on_this_machine() -> Callable[[Subject], Witness]:
    """Gives each server its witness, which sees nothing of a server elsewhere. Call it inside the event loop."""
    machine = Machine()

    def for_subject(subject: Subject) -> Witness:
        async def look() -> Witnesses:
            if subject.role == "proxy":
                return Witnesses()
            # in a thread, and only of a server that has answered: a name that resolves slowly holds nobody up
            with contextlib.suppress(TimeoutError):
                if await asyncio.wait_for(asyncio.to_thread(is_local, subject.base), ANSWER_WITHIN_S):
                    return await machine.look(subject.base, subject.restart)
            return Witnesses()

        return look

    return for_subject
