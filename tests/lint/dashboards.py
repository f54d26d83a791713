#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the Grafana dashboards of the role monitoring; with --check says which are not what is made here.

usage: dashboards.py [--check]

Every query is run against a real Prometheus by tests/contract/monitoring/test_dashboards.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ansible_collections.gb10.serving.plugins.module_utils._health.verdict import State
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.page import COLOURS
from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    GraphDrawStyle,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
    VariableRefresh,
    VariableSort,
)

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "roles/monitoring/files/dashboards"
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
ALL = 'server=~"$server"'
ONE = 'instance="$instance", server="$server"'
# without the hook there is no series of it: what a proxy that is up had within a day counts as 0
ACTIVE = "min(usage_gate_active or 0 * (max_over_time(usage_gate_active[1d]) and on (job, instance) up == 1))"
Queries = dict[str, str]  # expression by the words of its legend


def in_row(selector: str) -> str:
    """The state as one number: a row a server, which the panel's mappings turn into words."""
    states = " or ".join(
        f'{n} * (llm_server_state{{{selector}, state="{state.value}"}} == 1)' for n, state in enumerate(State, 1)
    )
    return f"max by (instance, server) ({states})"


def mappings() -> list[ValueMap]:
    words = {
        str(n): ValueMappingResult(text=state.value.replace("_", " "), color=COLOURS[state], index=n)
        for n, state in enumerate(State, 1)
    }
    return [ValueMap(options=words)]


def targets(queries: Queries, instant: bool = False) -> list[prometheus.Dataquery]:
    made = []
    for n, (legend, expression) in enumerate(queries.items()):
        one = prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(chr(ord("A") + n)).datasource(SOURCE)
        made.append(one.instant() if instant else one.range())
    return made


def numbers(
    title: str, says: str, unit: str, queries: Queries, *, top: float | None = None, steps: bool = False
) -> Any:
    panel = (
        timeseries.Panel()
        .title(title)
        .description(says)
        .unit(unit)
        .min(0)
        .datasource(SOURCE)
        .targets(targets(queries))
        .show_points(VisibilityMode.NEVER)
        .fill_opacity(15)
        .height(7)
        .span(12)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    )
    if top is not None:
        panel.max(top)
    if steps:
        panel.draw_style(GraphDrawStyle.BARS).stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    return panel


def figure(
    title: str,
    says: str,
    expression: str,
    *,
    red_from: float | None = None,
    green_from: float | None = None,
    unit: str = "none",
) -> Any:
    steps = [Threshold(value=None, color="green" if green_from is None else "red")]
    if green_from is not None:
        steps.append(Threshold(value=green_from, color="green"))
    if red_from is not None:
        steps.append(Threshold(value=red_from, color="red"))
    return (
        stat.Panel()
        .title(title)
        .description(says)
        .unit(unit)
        .datasource(SOURCE)
        .targets(targets({title: expression}, instant=True))
        .thresholds(dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
        .graph_mode(BigValueGraphMode.NONE)
        .height(4)
        .span(4)
    )


def states(title: str, selector: str, legend: str, height: int) -> Any:
    return (
        statetimeline.Panel()
        .title(title)
        .description("What each server was doing, as the watchdog judged it. A gap: nobody looked.")
        .datasource(SOURCE)
        .targets(targets({legend: in_row(selector)}))
        .mappings(mappings())
        .merge_values(True)
        .show_value(VisibilityMode.AUTO)
        .fill_opacity(85)
        .height(height)
        .span(24)
        .legend(common.VizLegendOptions().show_legend(False))
    )


def variable(name: str, label: str, query: str, *, every: bool) -> Any:
    made = (
        dashboard.QueryVariable(name)
        .label(label)
        .query({"query": query, "refId": name})
        .datasource(SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
    return made.multi(True).include_all(True).all_value(".*") if every else made


def mark(name: str, expression: str, colour: str) -> Any:
    return (
        dashboard.AnnotationQuery()
        .name(name)
        .datasource(SOURCE)
        .enable(True)
        .hide(False)
        .icon_color(colour)
        .expr(expression)
    )


def decisions(selector: str) -> list[Any]:
    """What was done, and what forbids more of it, as marks over every panel."""
    return [
        mark(
            "Restarts and starts that ended",
            f"sum by (instance, server, reason, outcome) (changes(llm_watchdog_restarts_total{{{selector}}}[2m])) > 0",
            "red",
        ),
        mark("A restart or start is under way", f"llm_watchdog_restart_under_way{{{selector}}} == 1", "orange"),
        mark("Latched or cleared", f"changes(llm_watchdog_latched{{{selector}}}[2m]) > 0", "purple"),
    ]


def board(uid: str, title: str, says: str, variables: list[Any], marks: list[Any], panels: list[Any]) -> dict[str, Any]:
    links = dashboard.DashboardLink("gb10.serving").type(DashboardLinkType.DASHBOARDS).tags(["gb10-serving"])
    made = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(says)
        .tags(["gb10-serving"])
        .time("now-24h", "now")
        .refresh("1m")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(links.keep_time(True))
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for one in variables:
        made.with_variable(one)
    for one in marks:
        made.annotation(one)
    for one in panels:
        made.with_panel(one)
    plain: dict[str, Any] = json.loads(JSONEncoder().encode(made.build()))
    return plain


def fleet() -> dict[str, Any]:
    return board(
        "gb10-fleet",
        "LLM servers: fleet",
        "All servers: is anything wrong, and is it being dealt with.",
        [variable("server", "server", "label_values(llm_server_state, server)", every=True)],
        decisions(ALL),
        [
            figure("watched", "Servers that a watchdog looks at.", "sum(llm_watchdog_servers)"),
            figure(
                "hung, dead or host fault",
                "Servers that do not serve.",
                f'sum(llm_server_state{{{ALL}, state=~"hung|dead|host_fault"}})',
                red_from=1,
            ),
            figure("latched", "Nothing more is done to them.", f"sum(llm_watchdog_latched{{{ALL}}})", red_from=1),
            figure(
                "restarts in 24 h",
                "Restarts and starts that ended.",
                f"sum(increase(llm_watchdog_restarts_total{{{ALL}}}[24h]))",
                red_from=3,
            ),
            figure("busy leases", "Batch jobs that have declared themselves.", "sum(llm_busy_leases)"),
            figure(
                "longest since a run",
                "The watchdog that has been silent for longest.",
                "max(time() - last_over_time(llm_watchdog_last_run_timestamp_seconds[1d]))",
                red_from=600,
                unit="s",
            ),
            states("States", ALL, "{{server}} ({{instance}})", 10),
            numbers(
                "Running",
                "Requests in execution.",
                "none",
                {"{{server}} ({{instance}})": f"llm_server_requests_running{{{ALL}}}"},
            ),
            numbers(
                "Waiting",
                "A long queue is busy, not sick.",
                "none",
                {"{{server}} ({{instance}})": f"llm_server_requests_waiting{{{ALL}}}"},
            ),
            numbers(
                "Generated tokens a second",
                "Between the last two looks.",
                "none",
                {"{{server}} ({{instance}})": f"llm_server_generated_tokens_per_second{{{ALL}}}"},
            ),
            numbers(
                "Silence, as a part of the patience",
                "At 1 it is proven hung.",
                "percentunit",
                {
                    "{{server}} ({{instance}})": f"llm_server_silence_seconds{{{ALL}}} / llm_server_patience_seconds{{{ALL}}}"
                },
            ),
            numbers(
                "Budget left",
                "0: nothing more is done.",
                "none",
                {"{{server}} ({{instance}})": f"llm_watchdog_budget_left{{{ALL}}}"},
            ),
            numbers(
                "Others that could restart it",
                "By the last audit; must be 0.",
                "none",
                {"{{server}} ({{instance}})": f"llm_watchdog_competing_restarters{{{ALL}}}"},
            ),
        ],
    )


def server() -> dict[str, Any]:
    return board(
        "gb10-server",
        "LLM servers: one server",
        "What one server did, and what was done to it. The same minutes in every panel.",
        [
            variable("instance", "host", "label_values(llm_server_state, instance)", every=False),
            variable("server", "server", 'label_values(llm_server_state{instance="$instance"}, server)', every=False),
        ],
        decisions(ONE),
        [
            states("State", ONE, "{{server}}", 4),
            numbers(
                "Requests",
                "In execution and in the queue.",
                "none",
                {
                    "running": f"llm_server_requests_running{{{ONE}}}",
                    "waiting": f"llm_server_requests_waiting{{{ONE}}}",
                },
            ),
            numbers(
                "Tokens and steps a second",
                "Between two looks. A long prompt can show none of either and be healthy.",
                "none",
                {
                    "generated tokens": f"llm_server_generated_tokens_per_second{{{ONE}}}",
                    "engine steps": f"llm_server_steps_per_second{{{ONE}}}",
                },
            ),
            numbers(
                "KV cache",
                "A new maximum is progress.",
                "percentunit",
                {"used": f"llm_server_kv_cache_usage_ratio{{{ONE}}}"},
                top=1,
            ),
            numbers(
                "GPU power", "It may confirm, never convict.", "watt", {"power": f"llm_server_gpu_power_watts{{{ONE}}}"}
            ),
            numbers(
                "Silence and patience",
                "Where the lines meet, it is proven hung.",
                "s",
                {
                    "silence": f"llm_server_silence_seconds{{{ONE}}}",
                    "patience": f"llm_server_patience_seconds{{{ONE}}}",
                },
            ),
            numbers(
                "What may be done",
                "Budget that is left; 1 while latched, in maintenance, under way, or past its start ceiling and never ready.",
                "none",
                {
                    "budget left": f"llm_watchdog_budget_left{{{ONE}}}",
                    "never ready": f"llm_server_never_ready{{{ONE}}}",
                    "latched": f"llm_watchdog_latched{{{ONE}}}",
                    "maintenance": f"llm_watchdog_maintenance{{{ONE}}}",
                    "under way": f"llm_watchdog_restart_under_way{{{ONE}}}",
                },
            ),
            numbers(
                "Restarts and starts",
                "That ended, by why and how.",
                "none",
                {"{{reason}}: {{outcome}}": f"increase(llm_watchdog_restarts_total{{{ONE}}}[$__rate_interval])"},
                steps=True,
            ),
            numbers(
                "Since the last look",
                "The timer looks every minute.",
                "s",
                {"seconds": f"time() - llm_watchdog_last_look_timestamp_seconds{{{ONE}}}"},
            ),
        ],
    )


def gate() -> dict[str, Any]:
    def quantile(q: str) -> str:
        return f"histogram_quantile({q}, sum by (le) (rate(usage_gate_check_seconds_bucket[$__rate_interval])))"

    return board(
        "gb10-gate",
        "Usage gate",
        "Whether requests to capped models are checked, and what that costs them.",
        [],
        [mark("Served unchecked", "sum by (cause) (increase(usage_gate_fail_open_total[2m])) > 0", "red")],
        [
            figure(
                "active",
                "1 while the hook is loaded and has endpoints; 0 too for a proxy that had one within a day, and has none.",
                ACTIVE,
                green_from=1,
            ),
            figure(
                "served unchecked in 24 h",
                "Each is a request nobody asked the API about.",
                "sum(increase(usage_gate_fail_open_total[24h]))",
                red_from=1,
            ),
            figure(
                "unchecked, not reported yet",
                "They wait in a journal.",
                "sum(usage_gate_unchecked_pending)",
                red_from=1,
            ),
            figure(
                "unchecked and lost in 24 h",
                "The journal could not keep them.",
                "sum(increase(usage_gate_unchecked_lost_total[24h]))",
                red_from=1,
            ),
            figure(
                "configuration in use",
                "0: the file is broken, the last good one is used.",
                "min(usage_gate_config_ok)",
                green_from=1,
            ),
            figure(
                "source heard of",
                "Since the list of endpoints was last confirmed.",
                "max(usage_gate_source_age_seconds)",
                red_from=900,
                unit="s",
            ),
            numbers(
                "Checks",
                "By how they ended.",
                "reqps",
                {"{{outcome}}": "sum by (outcome) (rate(usage_gate_checks_total[$__rate_interval]))"},
            ),
            numbers(
                "Served unchecked",
                "By cause. Anything above zero is an alert.",
                "reqps",
                {"{{cause}}": "sum by (cause) (rate(usage_gate_fail_open_total[$__rate_interval]))"},
            ),
            numbers(
                "What a check adds to a request",
                "Half of them, and all but one in a hundred, took less.",
                "s",
                {"p50": quantile("0.5"), "p99": quantile("0.99")},
            ),
            numbers(
                "Endpoints",
                "As one worker sees them.",
                "none",
                {"{{instance}}: {{state}}": "max by (instance, state) (usage_gate_endpoints)"},
            ),
            numbers(
                "Second tries",
                "Retries after a failure; hedges because the first was late.",
                "reqps",
                {
                    "retries": "sum(rate(usage_gate_check_retry_total[$__rate_interval]))",
                    "hedges": "sum(rate(usage_gate_hedges_total[$__rate_interval]))",
                },
            ),
            numbers(
                "Left out",
                "Endpoints, each time it was left out.",
                "none",
                {"{{endpoint}}": "sum by (endpoint) (increase(usage_gate_ejections_total[$__rate_interval]))"},
                steps=True,
            ),
            numbers(
                "Ways around the cap that were caught",
                "By kind.",
                "reqps",
                {"{{kind}}": "sum by (kind) (rate(usage_gate_bypass_total[$__rate_interval]))"},
            ),
            numbers(
                "Unchecked requests reported",
                "To the API, once it answered again.",
                "reqps",
                {"reported": "sum(rate(usage_gate_unchecked_reported_total[$__rate_interval]))"},
            ),
        ],
    )


def made() -> dict[str, str]:
    """File names and what is in them."""
    boards = {"fleet": fleet(), "server": server(), "usage-gate": gate()}
    return {f"{name}.json": json.dumps(one, indent=1, ensure_ascii=False) + "\n" for name, one in boards.items()}


def main() -> int:
    files, check = made(), "--check" in sys.argv[1:]
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    if check:
        wrong = sorted(name for name in {*files, *there} if files.get(name) != there.get(name))
        for name in wrong:
            print(
                f"{FOLDER.relative_to(ROOT)}/{name}: is not what tests/lint/dashboards.py makes; run it",
                file=sys.stderr,
            )
        return 1 if wrong else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
