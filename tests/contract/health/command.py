# SPDX-License-Identifier: GPL-3.0-or-later
"""llm-health as a user calls it, and the pages that its tests share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.contract.scripted import TOKEN, Say, vllm_page

ROOT = Path(__file__).parents[3]
COMMAND = ROOT / "roles/health_check/files/llm-health"
QUICK = ["--wait", "0.2", "--read-timeout", "2", "--probe-timeout", "1"]
W = {"num_requests_running": 2.0}


def llm_health(*args, env=None):
    """(exit status, stdout, stderr) of the command."""
    done = subprocess.run(
        [sys.executable, str(COMMAND), *args],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT / ".collections"), **(env or {})},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def judged(*args, env=None):
    status, out, err = llm_health(*args, "--format", "json", env=env)
    assert out, err
    return status, json.loads(out)["servers"]


def one(*args, env=None):
    status, servers = judged(*args, env=env)
    assert len(servers) == 1
    return status, servers[0]


STILL = vllm_page(**W)
LITELLM = {
    "GET /v1/models": Say(b'{"data":[{"id":"m","owned_by":"openai"}]}'),
    "GET /metrics": Say(status=307, headers={"Location": "/metrics/"}),
    "GET /health/liveliness": Say(b'"I\'m alive!"'),
}
OLLAMA = {
    "GET /v1/models": Say(b'{"data":[{"id":"big:70b","owned_by":"library"}]}'),
    "POST /v1/chat/completions": Say(TOKEN),
}


def pair(*ranks):
    """A page of several ranks: running requests and generated tokens of each."""
    return "".join(
        f'vllm:num_requests_running{{engine="{n}"}} {running}\nvllm:num_requests_waiting{{engine="{n}"}} 0\n'
        f'vllm:generation_tokens_total{{engine="{n}"}} {tokens}\n'
        for n, (running, tokens) in enumerate(ranks)
    )
