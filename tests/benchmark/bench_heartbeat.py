#!/usr/bin/env python3
"""What the heartbeat costs:  python -m tests.benchmark.bench_heartbeat

Two measurements on a real vLLM (found by GB10_VLLM_VENV and GB10_VLLM_MODELS), the tables go to docs/benchmarks.md:

1. Its own code: ``record()`` called as vLLM calls it, with vLLM's own stats objects, against the time of a step of the tiny
   model. Steps of a real model are a hundred times longer, so this is the worst case.
2. Alternating runs: one server with and one without, both up, loaded in turns. Their ratio says whether anything else is
   slowed; what the machine does beside it is in its confidence interval.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import httpx

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT))  # run as a file, too

from tests.benchmark.figures import put  # noqa: E402
from tests.benchmark.markers import table  # noqa: E402
from tests.engines.vllm_server import Bed, VllmServer, completion_body, only_one_vllm  # noqa: E402

PLUGIN = CHECKOUT / "roles" / "engine_heartbeat" / "files" / "gb10_heartbeat"
STEPS = "llm_engine_steps_total"
# Student's t for 95 %, by degrees of freedom: the pairs are few.
T95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}

# Run by the server's own Python. Decode steps of one request through vLLM's adapter for such loggers, in an event loop
# that gets to its timers: CPU time of the calls and of what their timer does later, beside a logger that does nothing.
# That the loop wakes up for the timer, twice a second, is not in it: it wakes for every step.
OWN_COST = """
import asyncio, json, time
from types import SimpleNamespace
from vllm.v1.metrics.loggers import PerEngineStatLoggerAdapter
from vllm.v1.metrics.stats import IterationStats, SchedulerStats
import gb10_heartbeat

STEPS = round(gb10_heartbeat.FLUSH_S / 0.0016)  # of the tiny model between two writes
later = []

def timed(flush):
    def flush_timed(self):
        began = time.thread_time()
        flush(self)
        later.append(time.thread_time() - began)
    return flush_timed

gb10_heartbeat.SharedTally._flush = timed(gb10_heartbeat.SharedTally._flush)

class Nothing(gb10_heartbeat.StatLoggerBase):
    def __init__(self, *_): ...
    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0): ...
    def log_engine_initialized(self): ...

async def main(turns=40):
    kinds = {k.__name__: PerEngineStatLoggerAdapter(SimpleNamespace(), [0], k) for k in (gb10_heartbeat.Heartbeat, Nothing)}
    scheduler, iteration = SchedulerStats(num_running_reqs=1), IterationStats()
    found = {name: [] for name in kinds}
    for _turn in range(turns):
        for name, logger in kinds.items():
            began = time.thread_time()
            for _step in range(STEPS):
                logger.record(scheduler, iteration, mm_cache_stats=None, engine_idx=0)
            spent = time.thread_time() - began
            await asyncio.sleep(gb10_heartbeat.FLUSH_S * 1.1)
            found[name].append((spent + sum(later)) / STEPS * 1e6)
            later.clear()
    return found

print(json.dumps(asyncio.run(main())))
"""


def own_cost_us(bed: Bed, several_api_servers: bool) -> tuple[float, float]:
    """Microseconds a step more than an empty logger: median and 95th percentile of runs."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PLUGIN), "HOME": os.environ.get("HOME", "/")}
    with tempfile.TemporaryDirectory() as folder:
        if several_api_servers:
            environment["PROMETHEUS_MULTIPROC_DIR"] = folder
        done = subprocess.run([str(bed.python), "-c", OWN_COST], env=environment, text=True, capture_output=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    found = json.loads(done.stdout.splitlines()[-1])
    ours, nothing = sorted(found["Heartbeat"]), statistics.median(found["Nothing"])
    return statistics.median(ours) - nothing, ours[int(len(ours) * 0.95)] - nothing


def steps_per_second(server: VllmServer, tokens: int) -> float:
    """One request alone: the shortest steps there are, one for each token. Not streamed, so that the reader is no load."""
    body = completion_body(server.model, 8, tokens)
    began = time.perf_counter()
    httpx.post(f"{server.url}/v1/completions", json=body, timeout=300, trust_env=False).raise_for_status()
    return tokens / (time.perf_counter() - began)


def alternate(bed: Bed, rounds: int, tokens: int, turn: int) -> tuple[list[float], list[float]]:
    """One pair of servers, loaded in turns: the ratios with/without of neighbouring runs, and the speeds without."""
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def start(env: dict[str, str]) -> VllmServer:
            return stack.enter_context(VllmServer(bed, model="tiny", env=env, log_folder=logs))

        ours = {"PYTHONPATH": str(PLUGIN)}
        # Which of them is started first alternates too.
        without, with_it = (start({}), start(ours)) if turn % 2 else reversed((start(ours), start({})))
        if with_it.page().get(STEPS) is None or without.page().get(STEPS) is not None:
            raise SystemExit("the heartbeat is not on the one page, or is on the other")
        for server in (without, with_it):
            steps_per_second(server, tokens)  # warm
        ratios, speeds = [], []
        for number in range(rounds):
            first, second = (with_it, without) if number % 2 else (without, with_it)
            found = {first: steps_per_second(first, tokens), second: steps_per_second(second, tokens)}
            ratios.append(found[with_it] / found[without])
            speeds.append(found[without])
        return ratios, speeds


def interval(values: list[float]) -> tuple[float, float, float]:
    """Mean with the 95 % confidence interval of it."""
    mean = statistics.fmean(values)
    half = T95.get(len(values) - 1, 1.96) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=4, help="pairs of servers (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=12, help="alternating runs in each pair (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=2000, help="steps in each run (default: %(default)s)")
    arguments = parser.parse_args()
    bed = Bed(*(Path(os.environ.get(name) or CHECKOUT / ".dev" / folder) for name, folder in [("GB10_VLLM_VENV", "vllm"), ("GB10_VLLM_MODELS", "vllm-models")]))  # fmt: skip

    load_before = os.getloadavg()[0]
    with only_one_vllm():
        single, several = own_cost_us(bed, False), own_cost_us(bed, True)
        pairs = []
        speeds: list[float] = []
        for turn in range(arguments.pairs):
            ratios, without = alternate(bed, arguments.rounds, arguments.tokens, turn)
            pairs.append(statistics.fmean(ratios))
            speeds += without
            print(
                f"pair {turn + 1}: with/without {pairs[-1]:.4f}, {statistics.median(without):.0f} steps/s",
                file=sys.stderr,
            )

    step_us = 1e6 / max(speeds)  # the shortest step seen: the worst case
    rows = [
        [f"its own code, {name}", f"{median:.2f} µs a step (95th percentile {p95:.2f})", f"{median / step_us:.3%} of a step of {step_us:.0f} µs"]
        for name, (median, p95) in [("one API server", single), ("several API servers", several)]
    ]  # fmt: skip
    mean, low, high = interval(pairs)
    rows.append(
        [
            f"alternating runs, {arguments.pairs} pairs of servers x {arguments.rounds} x {arguments.tokens} steps",
            f"{statistics.median(speeds):.0f} steps/s without",
            f"throughput with / without {mean:.4f} (95 % interval {low:.4f} to {high:.4f})",
        ]
    )
    text = (
        "## The heartbeat's cost\n\n"
        "The tiny model (0.3 M parameters) on two CPU cores, one request alone: the shortest steps there are.\n\n"
        f"{table(('measured', 'figure', 'share'), rows)}\n\n"
        f"By `python -m tests.benchmark.bench_heartbeat`; load of the machine before it began: {load_before:.2f}."
    )
    put("heartbeat", text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
