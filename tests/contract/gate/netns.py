"""Network namespaces: a proxy's, and one for each replica, joined by a bridge in the proxy's."""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

COLLECTION = Path(__file__).resolve().parents[3]
NET = "10.231.77"
PORT = 8080
CLONE_NEWNET = 0x40000000
_NUMBERS = itertools.count()


def run(*command: str, check: bool = True, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, input=stdin)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done


def need_namespaces() -> None:
    """Skips with one line where namespaces cannot be had."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    missing = [tool for tool in ("ip", "nft") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"network namespaces need {' and '.join(missing)} (iproute2, nftables)")
    probe = f"gb-probe-{os.getpid()}"
    if run("ip", "netns", "add", probe, check=False).returncode:
        pytest.skip("network namespaces cannot be made here")
    run("ip", "netns", "del", probe)


class Node:
    """One replica's namespace and process."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address, self.url = name, address, f"http://{address}:{PORT}"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", self.name, sys.executable, "-m", "tests.contract.gate.replica_main", self.address, str(PORT)],
            cwd=COLLECTION, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def tell(self, line: str) -> int:
        """Changes how it answers; how many questions it has read."""
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def end(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(10)

    def nft(self, rules: str) -> None:
        run("ip", "netns", "exec", self.name, "nft", "-f", "-", stdin=rules)

    def drop(self) -> None:
        """The node vanishes: no packet in or out, nobody is told."""
        self.nft(
            "table inet cut {\nchain in { type filter hook input priority 0; policy drop; }\n"
            "chain out { type filter hook output priority 0; policy drop; }\n}\n"
        )

    def reset(self) -> None:
        """Every packet is answered by RST, as from a machine that has restarted."""
        self.nft(
            "table inet cut {\nchain in { type filter hook input priority 0;\n"
            "tcp dport 8080 reject with tcp reset\n}\n}\n"
        )

    def heal(self) -> None:
        self.nft("flush ruleset")

    def link(self, state: str) -> None:
        run("ip", "netns", "exec", self.name, "ip", "link", "set", "eth0", state)


class Lab:
    """``proxy`` is the namespace of the proxy, ``nodes`` the replicas."""

    def __init__(self, count: int = 3) -> None:
        tag = f"gb{os.getpid() % 100000}{next(_NUMBERS)}"
        self.proxy = f"{tag}p"
        self.nodes = [Node(f"{tag}r{number}", f"{NET}.{number}") for number in range(1, count + 1)]

    def __enter__(self) -> Lab:
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self) -> None:
        p = self.proxy
        run("ip", "netns", "add", p)
        run("ip", "-n", p, "link", "set", "lo", "up")
        run("ip", "-n", p, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", p, "addr", "add", f"{NET}.254/24", "dev", "br0")
        run("ip", "-n", p, "link", "set", "br0", "up")
        for number, node in enumerate(self.nodes):
            run("ip", "netns", "add", node.name)
            run("ip", "-n", p, "link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", node.name)
            run("ip", "-n", p, "link", "set", f"v{number}", "master", "br0", "up")
            run("ip", "-n", node.name, "addr", "add", f"{node.address}/24", "dev", "eth0")
            run("ip", "-n", node.name, "link", "set", "eth0", "up")
            node.start()

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            if node.process is not None:
                node.process.kill()
                node.process.wait(10)
            run("ip", "netns", "del", node.name, check=False)
        run("ip", "netns", "del", self.proxy, check=False)

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    @property
    def inside(self) -> list[str]:
        """The prefix of a command that is to run in the proxy's namespace."""
        return ["ip", "netns", "exec", self.proxy]

    def call(self, function: Callable[[], Any]) -> Any:
        """Runs a function in a thread inside the proxy's namespace; its value."""
        box: dict[str, Any] = {}

        def enter() -> None:
            try:
                with Path(f"/var/run/netns/{self.proxy}").open() as handle:
                    libc = ctypes.CDLL(None, use_errno=True)
                    if libc.setns(handle.fileno(), CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), "setns")
                box["value"] = function()
            except BaseException as error:
                box["error"] = error

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        if "error" in box:
            raise box["error"]
        return box["value"]
