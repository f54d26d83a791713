# SPDX-License-Identifier: GPL-3.0-or-later
"""With several workers a scrape shows the worst of them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("prometheus_client")
#: A worker to which the pool looks as given, that ends when its input does.
WORKER = """
import sys
from ansible_collections.gb10.serving.plugins.module_utils._gate.metrics import GateMetrics
from ansible_collections.gb10.serving.plugins.module_utils._gate.pool import State
class Pool:
    members = ()
    def states(self):
        return {state: int(count) for state, count in zip(State, sys.argv[1:])}
metrics = GateMetrics.of("usage_gate")
metrics.pool(Pool())
metrics.health(True, 1.0)
print("told", flush=True)
sys.stdin.read()
"""
SCRAPE = """
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def test_one_worker_without_an_endpoint_is_seen_beside_one_that_has_not_asked_yet(tmp_path):
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    pools = [("0", "0", "1", "2"), ("3", "0", "0", "0")]
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, *pool], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for pool in pools
    ]  # fmt: skip
    assert [worker.stdout.readline() for worker in workers] == ["told\n", "told\n"]
    text = subprocess.run([sys.executable, "-c", SCRAPE], env=env, capture_output=True, text=True, check=True).stdout
    for worker in workers:
        worker.communicate("")
    assert "usage_gate_endpoints_usable 0.0" in text.splitlines(), text
    assert "usage_gate_active 1.0" in text.splitlines()
