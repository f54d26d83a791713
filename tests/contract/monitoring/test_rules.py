# SPDX-License-Identifier: GPL-3.0-or-later
"""Every alert rule fires on what it is for and is silent on what it is not for; by Prometheus's own promtool."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from ansible_collections.gb10.serving.plugins.module_utils._core.settings import Settings
from ansible_collections.gb10.serving.plugins.module_utils._health.judge import Limits, judge
from ansible_collections.gb10.serving.plugins.module_utils._health.observation import Observation, Service
from ansible_collections.gb10.serving.plugins.module_utils._health.progress import advance
from ansible_collections.gb10.serving.plugins.module_utils._health.reading import EngineReading, Reading
from ansible_collections.gb10.serving.plugins.module_utils._watchdog import metrics
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.memory import Memory
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.store import ServerState

ROOT = Path(__file__).parents[3]
FILES = ROOT / "roles/monitoring/files"
RULES = {path.name: yaml.safe_load(path.read_text()) for path in FILES.glob("*.rules.yml")}
REPOSITORY = yaml.safe_load((ROOT / "galaxy.yml").read_text())["repository"]
RUNBOOKS = f"{REPOSITORY}/blob/main/docs/runbooks.md"
S = 'instance="spark1", server="qwen"'


def state(kind, values):
    return (f'llm_server_state{{{S}, state="{kind}"}}', values)


def speeds(tokens, running):
    return [
        (f"llm_server_generated_tokens_per_second{{{S}}}", tokens),
        (f"llm_server_requests_running{{{S}}}", running),
    ]


RUN = 'llm_watchdog_last_run_timestamp_seconds{instance="spark1"}'
RUNS = (RUN, "0+60x60")
PRESSURE = 'node_pressure_memory_stalled_seconds_total{instance="spark1"}'


def memory(available):
    """What node_exporter says of a GB10's 128 GB. `available`: (GB, change a minute, minutes) one after the other."""
    return [
        ('node_memory_MemTotal_bytes{instance="spark1"}', "128000000000x200"),
        (
            'node_memory_MemAvailable_bytes{instance="spark1"}',
            " ".join(f"{gb * 1e9:.0f}{change * 1e9:+.0f}x{minutes}" for gb, change, minutes in available),
        ),
    ]


def loading(ceiling_s, word="refused", ready_after=None):
    """The series that the product's own judgement and writer make of a server that loads, minute by minute."""
    track, found = None, {}
    for minute in range(80):
        ready = ready_after is not None and minute >= ready_after
        reading = (
            Reading(engines={"0": EngineReading(running=0.0, waiting=0.0, steps=float(minute))}) if ready else None
        )
        seen = Observation(
            t=60.0 * minute,
            metrics="ok" if ready else word,
            reading=reading,
            service=Service("active", 0.0, True),
        )
        track = advance(track, seen, None)
        verdict = judge(track, seen, Limits(start_ceiling_s=ceiling_s))
        state = ServerState("qwen", Memory(track=track), state=verdict.state.value, rule=verdict.rule)
        made = metrics.registry(Settings(), [(state, seen.t)], leases=0, wall=seen.t)
        for family in made.collect():
            for sample in family.samples:
                if sample.name in ("llm_server_state", "llm_server_never_ready"):
                    labels = ", ".join(f'{name}="{value}"' for name, value in sample.labels.items())
                    series = f'{sample.name}{{instance="spark1", {labels}}}'
                    found.setdefault(series, []).append(f"{sample.value:.0f}")
    return [(series, " ".join(values)) for series, values in found.items()]


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
    # one GB10's start ceiling, and that of a server over two nodes; it loads, and never serves
    ("LlmServerNeverReady", loading(1800.0), "61m", True),
    ("LlmServerNeverReady", loading(3600.0), "70m", True),
    ("LlmServerNeverReady", loading(1800.0), "59m", False),
    ("LlmServerNeverReady", loading(1800.0, ready_after=40), "75m", False),
    # a loading page of its own has no ceiling
    ("LlmServerNeverReady", loading(1800.0, word="loading"), "61m", True),
    ("LlmServerDead", [state("dead", "1x20")], "16m", True),
    ("LlmServerDead", [state("dead", "1x5 0x20")], "16m", False),
    # it refuses for longer than its start ceiling, and may still be loading
    ("LlmServerDead", loading(1800.0), "59m", False),
    ("LlmNothingWatched", [('llm_watchdog_servers{instance="spark1"}', "0x20")], "16m", True),
    ("LlmNothingWatched", [('llm_watchdog_servers{instance="spark1"}', "2x20")], "16m", False),
    ("LlmWatchdogSilent", [('llm_watchdog_last_run_timestamp_seconds{instance="spark1"}', "0x20")], "11m", True),
    ("LlmWatchdogSilent", [('llm_watchdog_last_run_timestamp_seconds{instance="spark1"}', "0+60x20")], "11m", False),
    # the host or its exporter is gone; and comes back
    (
        "LlmWatchdogSilent",
        [('llm_watchdog_last_run_timestamp_seconds{instance="spark1"}', "0+60x20 _x99")],
        "35m",
        True,
    ),
    (
        "LlmWatchdogSilent",
        [('llm_watchdog_last_run_timestamp_seconds{instance="spark1"}', "0+60x20 _x9 1800+60x20")],
        "31m",
        False,
    ),
    # the clock was a day ahead for two minutes; later it died
    ("LlmWatchdogSilent", [(RUN, "0+60x10 90000 90000 780+60x10 1380x600")], "20m", False),
    ("LlmWatchdogSilent", [(RUN, "0+60x10 90000 90000 780+60x10 1380x600")], "60m", True),
    # somebody holds the lock of one server; nobody does; the whole watchdog is silent, which is said once
    ("LlmServerNotLookedAt", [(f"llm_watchdog_last_look_timestamp_seconds{{{S}}}", "0x60"), RUNS], "31m", True),
    ("LlmServerNotLookedAt", [(f"llm_watchdog_last_look_timestamp_seconds{{{S}}}", "0+60x60"), RUNS], "31m", False),
    (
        "LlmServerNotLookedAt",
        [
            (f"llm_watchdog_last_look_timestamp_seconds{{{S}}}", "0x60"),
            ('llm_watchdog_last_run_timestamp_seconds{instance="spark1"}', "0x60"),
        ],
        "31m",
        False,
    ),
    # it was taken out of the description; the clock was a day ahead
    (
        "LlmServerNotLookedAt",
        [(f"llm_watchdog_last_look_timestamp_seconds{{{S}}}", "0+60x60 _x600"), (RUN, "0+60x660")],
        "100m",
        False,
    ),
    (
        "LlmServerNotLookedAt",
        [(f"llm_watchdog_last_look_timestamp_seconds{{{S}}}", "0+60x9 90000 600x60"), (RUN, "0+60x660")],
        "60m",
        True,
    ),
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
    ("LlmSlowButMoving", speeds("80x300 30x60", "4x360"), "350m", True),
    ("LlmSlowButMoving", speeds("80x300 30x60", "4x300 1x60"), "350m", False),
    # idle most of the time, and then slow; and one stream after a spell with twelve, as fast as ever
    ("LlmSlowButMoving", speeds("0x600 100x300 25x60", "0x600 4x360"), "950m", True),
    ("LlmSlowButMoving", speeds("20x100 400x600 20x100", "1x100 12x600 1x100"), "790m", False),
    ("LlmSlowButMoving", speeds("20x100 400x600 5x100", "1x100 12x600 1x100"), "790m", True),
    # it is hung, and only observed
    ("LlmSlowButMoving", [*speeds("80x300 0x60", "4x360"), state("hung", "0x305 1x60")], "350m", False),
    ("LlmSlowButMoving", [*speeds("80x300 20x60", "4x360"), state("hung", "0x365")], "350m", True),
    # something leaks, on a host with a server that serves and on one where nobody watches
    ("LlmMemoryRunningOut", [*memory([(100, 0, 20), (30, -0.27, 95)]), state("starting", "0x120")], "115m", True),
    ("LlmMemoryRunningOut", memory([(100, 0, 20), (30, -0.27, 95)]), "115m", True),
    # a model is loaded in ten minutes, an hour after the last one was stopped; then nothing changes
    *[
        ("LlmMemoryRunningOut", memory([(115, 0, 60), (106, -9, 9), (25, 0, 120)]), f"{at}m", False)
        for at in range(60, 181, 10)
    ],
    # a larger one, with a little less than a tenth left over
    *[
        (
            "LlmMemoryRunningOut",
            [*memory([(115, 0, 60), (104.5, -10.5, 9), (10, 0, 120)]), state("starting", "0x58 1x14 0x120")],
            f"{at}m",
            False,
        )
        for at in range(60, 181, 10)
    ],
    # the same on the worker's host of a pair, which watches nothing
    *[
        ("LlmMemoryRunningOut", [*memory([(120, 0, 10), (120, -7.6, 15), (6, 0, 60)])], f"{at}m", False)
        for at in range(20, 60, 2)
    ],
    # a tenth is left and stays left, and half of it that shrinks is not near its end
    ("LlmMemoryRunningOut", memory([(9, 0, 120)]), "115m", False),
    ("LlmMemoryRunningOut", memory([(100, -0.4, 120)]), "115m", False),
    ("LlmMemoryRunningOut", [(PRESSURE, "0+12x80")], "75m", True),
    ("LlmMemoryRunningOut", [(PRESSURE, "0+3x80")], "75m", False),
    # it thrashes for three minutes while something is loaded
    *[("LlmMemoryRunningOut", [(PRESSURE, "0x40 0+30x3 90x40")], f"{at}m", False) for at in (42, 45, 50, 55)],
    # the second incident: 19 requests in two windows
    ("UsageGateFailingOpenNow", [('usage_gate_fail_open_total{cause="timeout"}', "0x9 12x2 12x60")], "12m", True),
    ("UsageGateFailingOpenNow", [('usage_gate_fail_open_total{cause="timeout"}', "0x9 12x2 12x60")], "30m", False),
    ("UsageGateTrickle", [('usage_gate_fail_open_total{cause="timeout"}', "0x9 12x60 19x300")], "200m", True),
    ("UsageGateTrickle", [('usage_gate_fail_open_total{cause="timeout"}', "0x9 12x60 12x300")], "200m", False),
    ("UsageGateTrickle", [('usage_gate_fail_open_total{cause="timeout"}', "0x9 19x500")], "400m", False),
    (
        "UsageGateAllEjected",
        [('usage_gate_endpoints_usable{instance="g"}', "0x5"), ('usage_gate_active{instance="g"}', "1x5")],
        "3m",
        True,
    ),
    (
        "UsageGateAllEjected",
        [('usage_gate_endpoints_usable{instance="g"}', "1x5"), ('usage_gate_active{instance="g"}', "1x5")],
        "3m",
        False,
    ),
    # it has no endpoints at all, which is another alert
    (
        "UsageGateAllEjected",
        [('usage_gate_endpoints_usable{instance="g"}', "0x5"), ('usage_gate_active{instance="g"}', "0x5")],
        "3m",
        False,
    ),
    ("UsageGateSourceStale", [('usage_gate_source_age_seconds{instance="g"}', "1000x9")], "6m", True),
    ("UsageGateSourceStale", [('usage_gate_source_age_seconds{instance="g"}', "10x9")], "6m", False),
    ("UsageGateInactive", [('usage_gate_active{instance="g"}', "0x9")], "6m", True),
    ("UsageGateInactive", [('usage_gate_active{instance="g"}', "1x9")], "6m", False),
    # the proxy was started anew without the hook; it is down itself
    (
        "UsageGateInactive",
        [('usage_gate_active{job="l", instance="g"}', "1x9 _x60"), ('up{job="l", instance="g"}', "1x70")],
        "30m",
        True,
    ),
    (
        "UsageGateInactive",
        [('usage_gate_active{job="l", instance="g"}', "1x9 _x60"), ('up{job="l", instance="g"}', "1x9 0x60")],
        "30m",
        False,
    ),
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


# the second incident, as the trickle's annotations tell it
SPIKE = [
    ('usage_gate_fail_open_total{cause="timeout"}', "0x9 12 19x500"),
    ('usage_gate_fail_open_total{cause="bad_answer"}', "0x520"),
]
# a gate that has just been started, told of by the next scrape
AT_ONCE = [('usage_gate_fail_open_total{cause="timeout"}', "0 19x10")]
TOLD = [
    (AT_ONCE, "10s", "The last one was at 1970-01-01 00:00:10 +0000 UTC. It goes on: 19 in the last 10 minutes."),
    (SPIKE, "13m", "The last one was at 1970-01-01 00:11:00 +0000 UTC. It goes on: 19 in the last 10 minutes."),
    (
        SPIKE,
        "250m",
        "The last one was at 1970-01-01 00:11:00 +0000 UTC. It is over: none in the last 10 minutes. "
        "This stays up for six hours after the last spike.",
    ),
]


@pytest.mark.parametrize(("series", "at", "says"), TOLD, ids=["at once", "during", "four hours after"])
def test_the_trickle_says_when_the_last_one_was_and_whether_it_goes_on(tmp_path, series, at, says):
    wanted = {
        "exp_labels": {"severity": "warning"},
        "exp_annotations": {
            "summary": "19 requests were served unchecked within 6 hours",
            "description": says,
            "runbook_url": f"{RUNBOOKS}#usagegatetrickle",
        },
    }
    test = {
        "rule_files": [str(FILES / "usage-gate.rules.yml")],
        "evaluation_interval": "10s" if series is AT_ONCE else "1m",
        "tests": [
            {
                "interval": "10s" if series is AT_ONCE else "1m",
                "input_series": [{"series": name, "values": values} for name, values in series],
                "alert_rule_test": [{"eval_time": at, "alertname": "UsageGateTrickle", "exp_alerts": [wanted]}],
            }
        ],
    }
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump(test))
    done = promtool("test", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_its_runbook():
    page = (ROOT / "docs/runbooks.md").read_text()
    heads = {re.sub(r"[^a-z0-9]", "", head.lower()) for head in re.findall(r"^## (.+)$", page, re.M)}
    for alert, (_, rule) in ALERTS.items():
        assert rule["annotations"]["runbook_url"] == f"{RUNBOOKS}#{alert.lower()}"
        assert alert.lower() in heads
        assert rule["labels"]["severity"] in ("critical", "warning")
