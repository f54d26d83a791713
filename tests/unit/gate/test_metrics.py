# SPDX-License-Identifier: GPL-3.0-or-later
"""With several workers a scrape shows the worst of them; and what there is a series of."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys

import pytest

pytest.importorskip("prometheus_client")
import prometheus_client
from ansible_collections.gb10.serving.plugins.module_utils._gate import metrics
from ansible_collections.gb10.serving.plugins.module_utils._gate.config import Ejection
from ansible_collections.gb10.serving.plugins.module_utils._gate.endpoint import Endpoint
from ansible_collections.gb10.serving.plugins.module_utils._gate.pool import Pool

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
metrics.journal(7)
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
    assert "usage_gate_unchecked_pending 7.0" in text.splitlines(), "the workers share one file"


def test_endpoints_that_left_long_ago_have_no_series(monkeypatch):
    """Each pod of each rollout has an address of its own."""
    monkeypatch.setattr(metrics, "MAX_GONE", 3)
    monkeypatch.setattr(metrics, "_SHARED", False)
    registry = prometheus_client.CollectorRegistry()
    counters = metrics.GateMetrics("usage_gate", registry)
    pool = Pool(Ejection(), 0.05, random.Random(1))
    for number in range(20):
        pool.replace([Endpoint(f"http://10.0.0.{last}:1") for last in (1, 100 + number)])
        counters.pool(pool)
        counters.ejected(f"http://10.0.0.{100 + number}:1")
    text = prometheus_client.generate_latest(registry).decode()
    shown = re.findall(r'usage_gate_ejections_total{endpoint="http://10.0.0.(\d+):1"}', text)
    assert shown == ["1", "116", "117", "118", "119"]
