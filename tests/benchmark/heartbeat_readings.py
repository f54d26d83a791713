#!/usr/bin/env python3
"""What a stock vLLM shows and what the heartbeat shows, side by side:  python -m tests.benchmark.heartbeat_readings

Starts a real vLLM (tests/engines/install_vllm and make_model, found by GB10_VLLM_VENV and GB10_VLLM_MODELS) and reads its page
through a long chunked prefill, a prefill in one giant step and a frozen engine. About four minutes; the tables go to docs/heartbeat.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT))  # run as a file, too

from tests.benchmark.markers import table, write_between  # noqa: E402
from tests.engines.vllm_server import Bed, Load, Page, VllmServer, only_one_vllm  # noqa: E402

PLUGIN = CHECKOUT / "roles" / "engine_heartbeat" / "files" / "gb10_heartbeat"
HEAD = ("second", "`llm_engine_steps_total`", "seconds since the last step", "`/load`", "running", "waiting", "`iteration_tokens_total_count`", "`prompt_tokens_total`", "`generation_tokens_total`", "`kv_cache_usage_perc`")  # fmt: skip
READINGS = 8


def row(server: VllmServer, began: float, base: Page) -> list[object]:
    """One reading, counters as their growth since the base."""
    page = server.page()

    def grown(name: str) -> str:
        return f"{page.require(name) - base.require(name):.0f}"

    last = page.get("llm_engine_last_step_timestamp_seconds")
    return [
        f"{time.monotonic() - began:.0f}",
        grown("llm_engine_steps_total"),
        "never one" if last is None else f"{time.time() - last:.1f}",
        httpx.get(f"{server.url}/load", trust_env=False).json()["server_load"],
        f"{page.running:.0f}",
        f"{page.waiting:.0f}",
        grown("vllm:iteration_tokens_total_count"),
        grown("vllm:prompt_tokens_total"),
        grown("vllm:generation_tokens_total"),
        f"{page.require('vllm:kv_cache_usage_perc'):.3f}",
    ]


def through(server: VllmServer, load: Load, every_s: float) -> list[list[object]]:
    """Readings until the load is done, then one more."""
    base, began = server.page(), time.monotonic()
    rows = []
    with load:
        while load.finished < load.streams:
            if load.errors:
                raise SystemExit(f"the load failed: {load.errors}")
            rows.append(row(server, began, base))
            time.sleep(every_s)
    time.sleep(1)
    return [*thin(rows), row(server, began, base)]


def thin(rows: list[list[object]]) -> list[list[object]]:
    """As many as a reader wants to see, the first and the last among them."""
    if len(rows) <= READINGS:
        return rows
    return [rows[round(i * (len(rows) - 1) / (READINGS - 1))] for i in range(READINGS)]


@contextmanager
def a_server(bed: Bed, logs: Path, *flags: str) -> Iterator[VllmServer]:
    flags = (*flags, "--no-enable-prefix-caching", "--enable-server-load-tracking")
    with VllmServer(bed, *flags, model="mid", env={"PYTHONPATH": str(PLUGIN)}, log_folder=logs) as server:
        yield server


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=15000, help="length of the prompt (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=CHECKOUT / "docs" / "heartbeat.md")
    arguments = parser.parse_args()
    bed = Bed(*(Path(os.environ.get(name) or CHECKOUT / ".dev" / folder) for name, folder in [("GB10_VLLM_VENV", "vllm"), ("GB10_VLLM_MODELS", "vllm-models")]))  # fmt: skip
    tokens = arguments.tokens
    parts = []
    with tempfile.TemporaryDirectory() as logs, only_one_vllm():
        with a_server(bed, Path(logs), "--max-num-batched-tokens", "512") as server:
            print("chunked prefill", file=sys.stderr)
            rows = through(server, server.load(1, tokens, 1, repeat=False), 1)
            parts.append(
                f"**A prompt of {tokens:,} tokens, 512 a step, alone.** Healthy throughout.\n\n{table(HEAD, rows)}"
            )
            print("frozen", file=sys.stderr)
            with server.load(streams=2):
                base = server.wait_for_page(lambda page: page.running == 2, "both streams run")
                began = time.monotonic()
                rows = [row(server, began, base)]
                time.sleep(2)
                rows.append(row(server, began, base))
                with server.frozen(server.engine_core):
                    for _turn in range(4):
                        time.sleep(3)
                        rows.append(row(server, began, base))
            parts.append(f"**Two requests decoding; the engine is stopped after the second reading.** `/health` says 200 throughout.\n\n{table(HEAD, rows)}")  # fmt: skip
        with a_server(bed, Path(logs), "--max-num-batched-tokens", "16384") as server:
            print("one giant step", file=sys.stderr)
            rows = through(server, server.load(1, tokens, 1, repeat=False), 1)
            parts.append(
                f"**The same prompt in one giant step, the first of this server.** Only `/load` knows of it.\n\n{table(HEAD, rows)}"
            )
    write_between(arguments.output, "readings", "\n\n".join(parts), "The heartbeat")
    return 0


if __name__ == "__main__":
    sys.exit(main())
