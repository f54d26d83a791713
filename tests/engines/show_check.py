# SPDX-License-Identifier: GPL-3.0-or-later
"""The README's table, made again: `llm-health` on a real vLLM, busy and then with its engine process stopped.

`./dev shell python -m tests.engines.show_check` after `./dev test engines` has made the vLLM; `--write` puts it into README.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmark.markers import write_between
from tests.engines.vllm_server import Bed, VllmServer, only_one_vllm

ROOT = Path(__file__).parents[2]


def said(*args: str) -> str:
    """What the command prints."""
    command = [sys.executable, str(ROOT / "roles/health_check/files/llm-health"), *args]
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".collections")}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False).stdout.rstrip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    bed = Bed(
        Path(os.environ.get("GB10_VLLM_VENV") or ROOT / ".dev/vllm"),
        Path(os.environ.get("GB10_VLLM_MODELS") or ROOT / ".dev/vllm-models"),
    )
    with (
        only_one_vllm(),
        VllmServer(bed, log_folder=Path(tempfile.mkdtemp())) as server,
        server.load(4, max_tokens=15000),
    ):
        server.wait_for_page(lambda page: page.running == 4, "four streams")
        busy = said(server.url)
        with server.frozen(server.engine_core):
            server.wait_for_still()
            hung = said(server.url, "--wait", "1", "--wait", "1", "--patience", "2")
    if " busy " not in busy or " hung " not in hung:
        print(busy, hung, sep="\n\n")
        return 1
    text = f"```\n$ llm-health {server.url}\n{busy}\n\n$ llm-health {server.url} --wait 1 --wait 1 --patience 2\n{hung}\n```"
    print(text)
    if args.write:
        write_between(ROOT / "README.md", "example:check", text, "gb10.serving")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
