#!/usr/bin/env python3
"""How soon a frozen vLLM is proven hung, with and without the heartbeat:  python -m tests.benchmark.bench_detection

The pages are real: a vLLM with the heartbeat is loaded, read, and its engine frozen. The waiting is not: the policy takes time as an
argument, so the same pages are walked through it at the pace of the watchdog's timer, from every phase of that timer, once as
they are and once without the heartbeat's lines. The table goes to docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / ".collections")]  # run as a file, too

from ansible_collections.gb10.serving.plugins.module_utils._core.settings import Settings  # noqa: E402
from ansible_collections.gb10.serving.plugins.module_utils._health.observation import Observation  # noqa: E402
from ansible_collections.gb10.serving.plugins.module_utils._health.reading import Reading, parse  # noqa: E402
from ansible_collections.gb10.serving.plugins.module_utils._health.verdict import State  # noqa: E402
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.decide import step  # noqa: E402
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.memory import Memory  # noqa: E402

from tests.benchmark.figures import put  # noqa: E402
from tests.benchmark.markers import table  # noqa: E402
from tests.engines.vllm_server import Bed, VllmServer, only_one_vllm  # noqa: E402

PLUGIN = CHECKOUT / "roles" / "engine_heartbeat" / "files" / "gb10_heartbeat"
STEPS = "vllm:iteration_tokens_total_count"
TIMER_S = 60.0  # the watchdog's, from the end of one run to the start of the next
PHASES = 120  # half a second apart
GIVE_UP_S = 2 * 3600.0


def record(bed: Bed) -> tuple[list[str], str]:
    """Pages of a busy server, and its page once it is frozen."""
    with tempfile.TemporaryDirectory() as logs:
        server = VllmServer(bed, model="mid", env={"PYTHONPATH": str(PLUGIN)}, log_folder=Path(logs))
        with server, server.load(streams=2):
            pages = [server.wait_for_page(lambda page: page.running == 2, "both streams run")]
            for _turn in range(5):
                steps = pages[-1].require(STEPS) + 10
                pages.append(server.wait_for_page(lambda page, steps=steps: page.require(STEPS) > steps, "it moves"))
            with server.frozen(server.engine_core):
                server.wait_for_still()
                # The last page is left out: the first look after the freeze shows what was done since the look before.
                return [page.text for page in pages[:-1]], server.page().text


def reading(page: str, heartbeat: bool) -> Reading:
    lines = page.splitlines(keepends=True)
    found = parse(
        "".join(line for line in lines if heartbeat or ("llm_engine_" not in line and "llm_heartbeat" not in line))
    )
    if found.reading is None:
        raise SystemExit(f"the page cannot be read: {found.problem}")
    return found.reading


def seconds_to_hung(busy: Sequence[Reading], frozen: Reading, phase_s: float) -> float:
    """From the freeze until the verdict; the first look after it comes ``phase_s`` later."""
    settings, memory = Settings(), Memory()
    looks = len(busy)
    for number, seen in enumerate(busy):
        at = phase_s - (looks - number) * TIMER_S
        memory = step(settings, memory, Observation(t=10_000 + at, metrics="ok", reading=seen, health="ok")).memory
    after_s = phase_s
    while after_s < GIVE_UP_S:
        done = step(settings, memory, Observation(t=10_000 + after_s, metrics="ok", reading=frozen, health="ok"))
        if done.verdict.state is State.HUNG:
            return after_s
        memory = done.memory
        after_s += TIMER_S
    raise SystemExit(f"not hung within {GIVE_UP_S:g} s")


def main() -> int:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    bed = Bed(*(Path(os.environ.get(name) or CHECKOUT / ".dev" / folder) for name, folder in [("GB10_VLLM_VENV", "vllm"), ("GB10_VLLM_MODELS", "vllm-models")]))  # fmt: skip
    with only_one_vllm():
        busy, frozen = record(bed)
    rows = []
    for name, heartbeat in (("with the heartbeat", True), ("stock counters alone", False)):
        walked = [reading(page, heartbeat) for page in busy]
        times = [
            seconds_to_hung(walked, reading(frozen, heartbeat), TIMER_S * n / PHASES) for n in range(1, PHASES + 1)
        ]
        rows.append([name, *(f"{value:.0f} s" for value in (statistics.median(times), min(times), max(times)))])
    text = (
        "## Time to a proven hang\n\n"
        "A vLLM whose engine is stopped while it decodes, looked at by the watchdog's timer every "
        f"{TIMER_S:.0f} s: from the stop to the verdict `hung`, over all phases of the timer.\n\n"
        f"{table(('what the page has', 'median', 'least', 'most'), rows)}\n\n"
        "By `python -m tests.benchmark.bench_detection`: real pages, walked through the policy in its own time."
    )
    put("detection", text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
