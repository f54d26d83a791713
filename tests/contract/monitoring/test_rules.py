# SPDX-License-Identifier: GPL-3.0-or-later
"""Every alert rule fires on what it is for and is silent on what it is not for; by Prometheus's own promtool."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
FILES = ROOT / "roles/monitoring/files"
RULES = {path.name: yaml.safe_load(path.read_text()) for path in FILES.glob("*.rules.yml")}
S = 'instance="spark1", server="qwen"'


def state(kind, values):
    return (f'llm_server_state{{{S}, state="{kind}"}}', values)


# alert, what the series show (by the minute), when to look, whether it must fire
CASES = [
    ("LlmServerHung", [state("hung", "0x4 1x10")], "10m", True),
    ("LlmServerHung", [state("hung", "0x4 1 0x10")], "10m", False),
    ("LlmServerHung", [state("stalled", "1x20")], "10m", False),
    ("LlmServerLatched", [(f"llm_watchdog_latched{{{S}}}", "1x5")], "2m", True),
    ("LlmServerLatched", [(f"llm_watchdog_latched{{{S}}}", "0x5")], "2m", False),
    ("LlmServerCannotAsk", [state("unknown", "1x20")], "16m", True),
    ("LlmServerCannotAsk", [state("unknown", "1x9 0x20"), state("unresponsive", "0x9 1x20")], "20m", True),
    ("LlmServerCannotAsk", [state("unknown", "1x10 0x20")], "16m", False),
    ("LlmServerSuspect", [state("suspect", "1x20")], "16m", True),
    ("LlmServerSuspect", [state("suspect", "1x3 0x20")], "16m", False),
    ("LlmServerHostFault", [state("host_fault", "1x3")], "2m", True),
    ("LlmServerHostFault", [state("host_fault", "0x3")], "2m", False),
    ("LlmServerNeverReady", [state("starting", "1x70")], "61m", True),
    ("LlmServerNeverReady", [state("starting", "1x29 0x40")], "61m", False),
    ("LlmServerDead", [state("dead", "1x20")], "16m", True),
    ("LlmServerDead", [state("dead", "1x5 0x20")], "16m", False),
    ("LlmNothingWatched", [('llm_watchdog_servers{instance="spark1"}', "0x20")], "16m", True),
    ("LlmNothingWatched", [('llm_watchdog_servers{instance="spark1"}', "2x20")], "16m", False),
    ("LlmWatchdogSilent", [('llm_watchdog_last_run_timestamp_seconds{instance="spark1"}', "0x20")], "11m", True),
    ("LlmWatchdogSilent", [('llm_watchdog_last_run_timestamp_seconds{instance="spark1"}', "0+60x20")], "11m", False),
    ("LlmCompetingRestarter", [(f"llm_watchdog_competing_restarters{{{S}}}", "4x5")], "2m", True),
    ("LlmCompetingRestarter", [(f"llm_watchdog_competing_restarters{{{S}}}", "0x5")], "2m", False),
    (
        "LlmQueueTimeRising",
        [
            ('vllm:request_queue_time_seconds_sum{instance="s"}', "0+600x40"),
            ('vllm:request_queue_time_seconds_count{instance="s"}', "0+5x40"),
        ],
        "30m",
        True,
    ),
    (
        "LlmQueueTimeRising",
        [
            ('vllm:request_queue_time_seconds_sum{instance="s"}', "0+60x40"),
            ('vllm:request_queue_time_seconds_count{instance="s"}', "0+5x40"),
        ],
        "30m",
        False,
    ),
    (
        "LlmSlowButMoving",
        [
            (f"llm_server_generated_tokens_per_second{{{S}}}", "80x300 30x60"),
            (f"llm_server_requests_running{{{S}}}", "4x360"),
        ],
        "350m",
        True,
    ),
    (
        "LlmSlowButMoving",
        [
            (f"llm_server_generated_tokens_per_second{{{S}}}", "80x300 30x60"),
            (f"llm_server_requests_running{{{S}}}", "4x300 1x60"),
        ],
        "350m",
        False,
    ),
    (
        "LlmMemoryRunningOut",
        [('node_memory_MemAvailable_bytes{instance="s"}', "100000000000-1000000000x80")],
        "75m",
        True,
    ),
    ("LlmMemoryRunningOut", [('node_memory_MemAvailable_bytes{instance="s"}', "100000000000x80")], "75m", False),
    ("LlmMemoryRunningOut", [('node_pressure_memory_stalled_seconds_total{instance="s"}', "0+12x80")], "75m", True),
    # the second incident: 19 requests in two windows
    ("UsageGateFailingOpenNow", [('usage_gate_fail_open_total{cause="timeout"}', "0x9 12x2 12x60")], "12m", True),
    ("UsageGateFailingOpenNow", [('usage_gate_fail_open_total{cause="timeout"}', "0x9 12x2 12x60")], "30m", False),
    ("UsageGateTrickle", [('usage_gate_fail_open_total{cause="timeout"}', "0x9 12x60 19x300")], "200m", True),
    ("UsageGateTrickle", [('usage_gate_fail_open_total{cause="timeout"}', "0x9 12x60 12x300")], "200m", False),
    ("UsageGateTrickle", [('usage_gate_fail_open_total{cause="timeout"}', "0x9 19x500")], "400m", False),
    (
        "UsageGateAllEjected",
        [
            ('usage_gate_endpoints{instance="g", state="ready"}', "0x5"),
            ('usage_gate_endpoints{instance="g", state="slow"}', "0x5"),
            ('usage_gate_endpoints{instance="g", state="failing"}', "1x5"),
            ('usage_gate_endpoints{instance="g", state="ejected"}', "2x5"),
        ],
        "3m",
        True,
    ),
    (
        "UsageGateAllEjected",
        [
            ('usage_gate_endpoints{instance="g", state="ready"}', "2x5"),
            ('usage_gate_endpoints{instance="g", state="ejected"}', "1x5"),
        ],
        "3m",
        False,
    ),
    ("UsageGateSourceStale", [('usage_gate_source_age_seconds{instance="g"}', "1000x9")], "6m", True),
    ("UsageGateSourceStale", [('usage_gate_source_age_seconds{instance="g"}', "10x9")], "6m", False),
    ("UsageGateInactive", [('usage_gate_active{instance="g"}', "0x9")], "6m", True),
    ("UsageGateInactive", [('usage_gate_active{instance="g"}', "1x9")], "6m", False),
]
ALERTS = {
    rule["alert"]: (name, rule) for name, doc in RULES.items() for group in doc["groups"] for rule in group["rules"]
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (package prometheus)"),
]


def promtool(*args):
    return subprocess.run(["promtool", *map(str, args)], capture_output=True, text=True, timeout=60)


def test_every_rule_has_a_case_for_firing_and_one_for_not_firing():
    assert {case[0] for case in CASES if case[3]} == set(ALERTS)
    assert {case[0] for case in CASES if not case[3]} == set(ALERTS)


@pytest.mark.parametrize("name", RULES)
def test_prometheus_accepts_the_file(name):
    done = promtool("check", "rules", FILES / name)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("alert", "series", "at", "fires"), CASES, ids=[f"{c[0]}-{c[3]}-{n}" for n, c in enumerate(CASES)]
)
def test_rule(tmp_path, alert, series, at, fires):
    file = FILES / ALERTS[alert][0]
    # what fires is found out by expecting nothing: promtool then says what it got
    test = {
        "rule_files": [str(file)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series],
                "alert_rule_test": [{"eval_time": at, "alertname": alert, "exp_alerts": []}],
            }
        ],
    }
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump(test))
    done = promtool("test", "rules", path)
    said = done.stdout + done.stderr
    assert (done.returncode != 0) == fires, said
    if fires:
        assert f'alertname="{alert}"' in said, said
        assert "error executing template" not in said.lower()


def test_every_alert_has_its_runbook():
    page = (ROOT / "docs/runbooks.md").read_text()
    heads = {re.sub(r"[^a-z0-9]", "", head.lower()) for head in re.findall(r"^## (.+)$", page, re.M)}
    for alert, (_, rule) in ALERTS.items():
        assert rule["annotations"]["runbook"] == f"docs/runbooks.md#{alert.lower()}"
        assert alert.lower() in heads
        assert rule["labels"]["severity"] in ("critical", "warning")
