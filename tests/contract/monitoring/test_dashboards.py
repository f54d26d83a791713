# SPDX-License-Identifier: GPL-3.0-or-later
"""Every query of every dashboard, asked of a real Prometheus that holds what the product's own writers make."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._core.settings import Settings
from ansible_collections.gb10.serving.plugins.module_utils._gate.metrics import GateMetrics
from ansible_collections.gb10.serving.plugins.module_utils._gate.outcome import Cause, Checked, Outcome
from ansible_collections.gb10.serving.plugins.module_utils._health.progress import EngineTrack, Track
from ansible_collections.gb10.serving.plugins.module_utils._health.reading import EngineReading
from ansible_collections.gb10.serving.plugins.module_utils._watchdog import metrics
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.memory import Memory
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.store import ServerState, Transaction
from prometheus_client import CollectorRegistry, generate_latest

from tests.contract.monitoring import prometheus
from tests.contract.scripted import until

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "roles/monitoring/files/dashboards"
BOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
# what Grafana puts in for the variables
CHOSEN = {"$instance": "spark1", "$server": "qwen", "$__rate_interval": "1m"}
pytestmark = pytest.mark.slow


def queries():
    """(dashboard, where, expression) of every panel, mark and variable."""
    for name, board in BOARDS.items():
        for panel in board["panels"]:
            for target in panel["targets"]:
                yield name, panel["title"], target["expr"]
        for one in board["annotations"]["list"]:
            yield name, one["name"], one["expr"]
        for one in board["templating"]["list"]:
            if one["type"] == "query":
                found = re.fullmatch(r"label_values\((.*), (\w+)\)", one["query"]["query"])
                assert found is not None, one["query"]
                yield name, f"the variable {one['name']}", f"count by ({found[2]}) ({found[1]})"


QUERIES = list(queries())


def filled(expression):
    for name, value in CHOSEN.items():
        expression = expression.replace(name, value)
    return expression


class Host:
    """A server whose restart is under way and ends while Prometheus looks, and a gate whose counters grow."""

    def __init__(self, folder):
        self.folder, self.scrapes = folder, 0
        self.registry = CollectorRegistry()
        self.gate = GateMetrics("usage_gate", self.registry)

    def watchdog_page(self):
        self.scrapes += 1
        ended = self.scrapes > 3
        last = EngineReading(kv_usage=0.4)
        state = ServerState(
            "qwen",
            Memory(track=Track(90.0, {"0": EngineTrack(90.0, last)}), latched="budget" if ended else None),
            transaction=Transaction("a", "restart", "hung", "stop", 1.0, 1.0),
            state="hung",
            running=2.0,
            waiting=1.0,
            tokens_per_second=3.5,
            steps_per_second=1.0,
            silence_s=12.0,
            patience_s=600.0,
            looked_wall=time.time(),
            power_w=46.0,
            ended={"hung serving": 1} if ended else {},
        )
        made = metrics.registry(Settings(), [(state, 100.0)], leases=1, wall=time.time(), competing={"qwen": 1})
        metrics.write(self.folder / "llm.prom", made)
        return (self.folder / "llm.prom").read_text()

    def gate_page(self):
        for outcome, cause in ((Outcome.ALLOWED, None), (Outcome.FAILED_OPEN, Cause.TIMEOUT)):
            self.gate.checked(Checked(outcome=outcome, cause=cause, took_s=0.01, retries=1, hedges=1))
        self.gate.ejected("http://10.0.0.1:8080")
        self.gate.bypass("fallback")
        self.gate.health(True, 3.0)
        self.gate.journal(1, 1, 1)
        return generate_latest(self.registry).decode()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    if prometheus.PROGRAM is None:
        pytest.skip("prometheus is not installed (package prometheus)")
    folder = tmp_path_factory.mktemp("prometheus")
    host = Host(folder)
    one = prometheus.Prometheus(folder, {"/watchdog": host.watchdog_page, "/gate": host.gate_page})
    try:
        until(one.ready, 60)
        until(lambda: one.query("changes(llm_watchdog_latched[2m]) > 0") and one.query("usage_gate_active"), 90)
        yield one
    finally:
        one.close()


@pytest.mark.parametrize(
    ("board", "where", "expression"),
    QUERIES,
    ids=[f"{board}-{where}-{n}" for n, (board, where, _) in enumerate(QUERIES)],
)
def test_every_query_returns_data(server, board, where, expression):
    until(lambda: server.query(filled(expression)), 30)
    found = server.query(filled(expression))
    assert all(row["value"][1] != "NaN" for row in found), f"{board}, {where}: {expression}"


@pytest.mark.parametrize(
    "misspelt", ["sum(llm_watchdog_server)", 'llm_server_state{server="$sever"}', "sum by (cause (usage_gate_active)"]
)
def test_a_misspelt_query_is_found(server, misspelt):
    try:
        assert server.query(filled(misspelt)) == []
    except ValueError as error:
        assert "parse error" in str(error)


def test_the_series_of_the_writers_are_all_drawn_somewhere():
    """A metric that no dashboard shows is one that nobody sees; those of one moment in time are in others' queries."""
    source = (ROOT / "plugins/module_utils/_watchdog/metrics.py").read_text()
    names = set(re.findall(r'"(llm_[a-z_]+)"', source))
    drawn = " ".join(expression for _, _, expression in QUERIES)
    assert len(names) > 15
    assert {name for name in names if name not in drawn} == set()


def test_the_files_are_what_the_script_makes(tmp_path):
    pytest.importorskip("grafana_foundation_sdk")
    script = ROOT / "tests/lint/dashboards.py"
    env = {"PYTHONPATH": str(ROOT / ".collections"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    # and it says so when they are not: the same script over a tree with one changed file
    copy = tmp_path / "tests/lint/dashboards.py"
    copy.parent.mkdir(parents=True)
    copy.write_text(script.read_text())
    boards = tmp_path / "roles/monitoring/files/dashboards"
    boards.mkdir(parents=True)
    for path in FOLDER.glob("*.json"):
        (boards / path.name).write_text(path.read_text().replace("llm_server_requests_running", "llm_server_running"))
    done = subprocess.run([sys.executable, str(copy), "--check"], capture_output=True, text=True, env=env)
    assert done.returncode == 1
    assert "fleet.json: is not what" in done.stderr
    assert "usage-gate.json" not in done.stderr


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_can_be_imported_anywhere(name):
    """It names no Prometheus of its own, and its panels lie side by side without one over another."""
    board = BOARDS[name]
    assert board["uid"].startswith("gb10-")
    for panel in board["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
        assert panel["title"]
        assert panel["description"]
    cells = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not mine & cells
        cells |= mine
