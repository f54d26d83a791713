# SPDX-License-Identifier: GPL-3.0-or-later
"""The host's witnesses on this very machine: whose socket it is, who is connected, and one that hangs is not waited for."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._health import observe, proc, witness
from ansible_collections.gb10.serving.plugins.module_utils._health.check import Subject
from ansible_collections.gb10.serving.plugins.module_utils._health.observation import Observation

SERVER = """
import socket, sys, os, time
listener = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0:
    print(listener.getsockname()[1], flush=True)  # now there are two
    while True:
        time.sleep(1)
kept = []
while True:
    kept.append(listener.accept())
"""


@pytest.fixture
def server():
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    port = int(process.stdout.readline())
    yield process.pid, port
    os.killpg(process.pid, 9)
    process.wait()


def test_the_server_is_the_oldest_owner_of_the_listening_socket(server):
    pid, port = server
    assert proc.Snapshot().listener(port) == (pid, port), "the child holds the same socket and is not the server"
    assert {one.pid for one in proc.Snapshot().tree(pid)} > {pid}


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert proc.Snapshot().listener(port) is None


FORWARDER = """
import socket, sys, subprocess, time
name, ports = sys.argv[1], sys.argv[2:]
open("/proc/self/comm", "w").write(name)
listener = socket.create_server(("127.0.0.1", 0))
if ports:
    inner = "import socket, time\\nkept = [socket.create_server(('', int(port))) for port in %r]" % ports
    inner += "\\nprint('up', flush=True)\\ntime.sleep(1000)"
    child = subprocess.Popen(["unshare", "--net", sys.executable, "-c", inner], stdout=subprocess.PIPE)
    child.stdout.readline()
    print(listener.getsockname()[1], child.pid, flush=True)
else:
    print(listener.getsockname()[1], 0, flush=True)
time.sleep(1000)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.parametrize(
    ("name", "ports", "inner"),
    [
        ("conmon", ["8001"], 8001),
        ("conmon", ["8001", "8002"], None),  # whichever is published, nobody here can tell
        ("rootlesskit", ["8001"], None),
        ("rootlessport", [], None),
        ("pasta.avx2", [], None),
    ],
)
def test_who_only_passes_a_published_port_on_is_not_the_server(name, ports, inner):
    process = subprocess.Popen(
        [sys.executable, "-c", FORWARDER, name, *ports], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        port, child = (int(word) for word in process.stdout.readline().split())
        seen = proc.Snapshot()
        assert seen.listener(port) == (None if inner is None else (child, inner))
        assert seen.holder(port).pid == process.pid
        if ports:
            assert seen.listener_beside(child, 8001) == child
            assert seen.listener_beside(child, 7999) is None
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def connect(port):
    """Another process with a connection to the server; ends when its input does."""
    code = f"import socket, sys; s = socket.create_connection(('127.0.0.1', {port})); print(1, flush=True); sys.stdin.read()"
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    other.stdout.readline()
    return other


def test_clients_are_counted_without_ourselves(server):
    pid, port = server
    with socket.create_connection(("127.0.0.1", port)):
        assert not proc.clients(pid, port), "this process's own connections are no clients"
        other = connect(port)
        try:
            assert len(proc.clients(pid, port)) == 1
            assert asyncio.run(witness._clients(f"http://127.0.0.1:{port}", proc.Snapshot())) == 1
        finally:
            other.communicate("")


def test_a_question_of_ours_that_begins_while_sockets_are_read_is_no_client(server, monkeypatch):
    pid, port = server
    opened, sockets = [], proc._sockets

    def late(of):
        opened.append(socket.create_connection(("127.0.0.1", port)))
        return sockets(of)

    monkeypatch.setattr(proc, "_sockets", late)
    assert not proc.clients(pid, port)
    opened[0].close()


def test_a_question_of_ours_that_ends_while_sockets_are_read_is_no_client(server, monkeypatch):
    dummy_pid, port = server
    held, rows = [], proc._tcp_rows

    def then_ends(pid):
        found = rows(pid)
        if held:
            held.pop().close()
        return found

    snapshot = proc.Snapshot()
    held.append(socket.create_connection(("127.0.0.1", port)))
    monkeypatch.setattr(proc, "_tcp_rows", then_ends)
    assert asyncio.run(witness._clients(f"http://127.0.0.1:{port}", snapshot)) == 0
    assert not held


def test_who_connects_after_the_shared_snapshot_is_a_client(server):
    """One snapshot serves all servers of a run; connections are counted at each one's own moment."""
    dummy_pid, port = server

    async def both():
        machine = witness.Machine(shared_s=60.0)
        url = f"http://127.0.0.1:{port}"
        before = await machine.look(url)
        other = await asyncio.to_thread(connect, port)
        try:
            return before.host.clients, (await machine.look(url)).host.clients
        finally:
            await asyncio.to_thread(other.communicate, "")

    assert asyncio.run(both()) == (0, 1)


async def test_side_questions_are_over_before_connections_are_counted(monkeypatch):
    order = []

    async def sides(http, target):
        order.append("asked")
        await asyncio.sleep(0.05)
        order.append("answered")
        return observe.Sides()

    async def look():
        order.append("counted")
        return observe.Witnesses()

    monkeypatch.setattr(observe, "ask_sides", sides)
    await observe.observe_around(None, observe.Target("http://h"), look, Observation(0.0))
    assert order == ["asked", "answered", "counted"]


async def test_all_servers_of_a_run_share_one_snapshot(monkeypatch):
    taken = []
    monkeypatch.setattr(proc, "Snapshot", lambda: taken.append(1) or len(taken))
    machine = witness.Machine(shared_s=60.0)
    seen = await asyncio.gather(*(machine.shared() for dummy in range(3)))
    assert [one[0] for one in seen] == [1, 1, 1]


def test_a_name_that_resolves_slowly_does_not_hold_up_the_others(monkeypatch):
    def slow(*args, **kwargs):
        time.sleep(1.0)
        raise OSError

    async def both():
        monkeypatch.setattr(witness.socket, "getaddrinfo", slow)
        witness_of = witness.on_this_machine()
        begun = time.monotonic()
        look = asyncio.create_task(witness_of(Subject("a", "http://slow", "http://slow"))())
        await asyncio.sleep(0.01)
        waited = time.monotonic() - begun
        return waited, await look

    waited, seen = asyncio.run(both())
    assert waited < 0.5
    assert seen == observe.Witnesses()


def test_who_listens_outside_a_unit_is_known_by_its_start_alone(server):
    dummy_pid, port = server
    seen = asyncio.run(witness.Machine().look(f"http://127.0.0.1:{port}"))
    assert (seen.service.state, seen.service.wanted) == ("unknown", None)
    assert -1 < time.monotonic() - seen.service.since < 120
    assert seen.host.cpu_seconds is not None
    assert seen.host.clients == 0


def stand_in(tmp_path, monkeypatch, name, script):
    path = tmp_path / name
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_a_gpu_tool_that_hangs_is_not_waited_for(tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, "nvidia-smi", "exec sleep 60\n")
    monkeypatch.setattr(witness, "ANSWER_WITHIN_S", 0.2)
    assert asyncio.run(witness.output_of("nvidia-smi", within_s=0.2)) is None


GPU = [
    ("18.52, 95\n", 0, (True, 18.52, 0.95)),
    ("[N/A], [N/A]\n", 0, (True, None, None)),
    ("No devices were found\n", 6, (False, None, None)),
    ("Unable to determine the device handle: GPU is lost\n", 15, (False, None, None)),
    ("NVML: Driver/library version mismatch\n", 18, (None, None, None)),
]


@pytest.mark.parametrize(("text", "status", "right"), GPU, ids=[case[0].strip() for case in GPU])
def test_gpu(tmp_path, monkeypatch, text, status, right):
    stand_in(tmp_path, monkeypatch, "nvidia-smi", f"printf '%s\\n' '{text.strip()}'\nexit {status}\n")
    host = asyncio.run(witness.gpu())
    assert (host.gpu_present, host.gpu_power_w, host.gpu_utilization) == right


def test_no_gpu_tool_is_unknown_and_not_absent(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert asyncio.run(witness.gpu()).gpu_present is None


FAULTS = [
    ("NVRM: Xid (PCI:000f:01:00): 79, pid=1234, GPU has fallen off the bus.", ("Xid 79",)),
    ("NVRM: Xid (PCI:000f:01:00): 43, pid=9, Ch 00000010", ("Xid 43",)),
    ("NVRM: nvAssertFailed: NV_ERR_NO_MEMORY", ("NV_ERR_NO_MEMORY",)),
    ("pcieport: PCIe Bus Error: severity=Corrected, type=Physical Layer", ()),
    ("pcieport: PCIe Bus Error: severity=Uncorrectable (Fatal)", ("PCIe Bus Error: fatal",)),
    ("usb 1-1: new device", ()),
]


@pytest.mark.parametrize(("line", "right"), FAULTS, ids=[case[0][:40] for case in FAULTS])
def test_kernel_lines(line, right):
    assert witness.faults_in(line) == right


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:1", True),
        ("http://localhost:1", True),
        ("http://[::1]:1", True),
        ("http://203.0.113.7:1", False),
        ("http://no-such-host.invalid:1", False),
    ],
)
def test_this_machine_or_another(url, local):
    assert witness.is_local(url) is local


@pytest.fixture
def sleeper(tmp_path):
    """Starts a copy of sh with arguments; gives its pid."""
    started, script = [], tmp_path / "server"
    script.write_text("#!/bin/sh\nread line\n")
    script.chmod(0o755)

    def start(*arguments):
        process = subprocess.Popen([str(script), *arguments], stdin=subprocess.PIPE)
        started.append(process)
        while not Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(b"/bin/sh"):
            time.sleep(0.01)
        return process.pid

    yield script, start
    for process in started:
        process.kill()
        process.wait(10)
        process.stdin.close()


def test_a_program_is_told_by_its_arguments_and_its_files(sleeper):
    script, start = sleeper
    one = proc.program(start("serve", "--max-num-batched-tokens", "512"))
    assert one is not None and proc.program(start("serve", "--max-num-batched-tokens", "512")) == one
    assert proc.program(start("serve", "--max-num-batched-tokens", "1024")) != one
    script.write_text("#!/bin/sh\nread another_line\n")
    assert proc.program(start("serve", "--max-num-batched-tokens", "512")) != one
    assert proc.program(2**22 + 1) is None


@pytest.mark.parametrize(
    "given", [("--api-key", "sk-1"), ("--api-key=sk-2",), ("--hf-token", "hf_3"), ("--password=4",)]
)
def test_a_secret_is_no_part_of_it(sleeper, given):
    _script, start = sleeper
    assert proc.program(start("serve", *given, "--port", "1")) == proc.program(start("serve", "--port", "1"))


ABANDONS = """
import asyncio
from ansible_collections.gb10.serving.plugins.module_utils._health.witness import output_of
for argv in (["sleep", "60"], ["sh", "-c", "sleep 5 & wait"]):
    print(asyncio.run(output_of(*argv, within_s=0.1)))
"""


def test_a_witness_that_hangs_is_left_without_a_word_of_asyncios():
    done = subprocess.run([sys.executable, "-c", ABANDONS], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("None\nNone\n", "")
