# SPDX-License-Identifier: GPL-3.0-or-later
"""What leaves a host carries no prompt, no answer and no key, and keeps what proves something."""

from __future__ import annotations

import json
import time

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.scrub import (
    scrubbed,
    scrubbed_rows,
    without_secrets,
)

#: (line, what must not be in it afterwards)
SECRETS = [
    ("Authorization: Bearer tok-abc123def456", "tok-abc"),
    ("Authorization: Basic dXNlcjpwYXNzd29yZA==", "dXNl"),
    ("headers={'Authorization': 'Bearer tok-abc123def456'}", "tok-abc"),
    ("INFO non-default args: {'model': 'x', 'api_key': ['tok-abc123', 'tok-2'], 'port': 8000}", "tok-"),
    ("vllm serve x --api-key tok-abc123 --port 8000", "tok-abc"),
    ('/usr/bin/llama-server --api-key "tok abc123"', "abc123"),
    ("connecting to redis://:s3cretpw@10.0.0.5:6379/0", "s3cret"),
    ("connecting to https://ghp_abcdefghijk@github.com/x", "ghp_"),
    ("postgresql://user:p/w@x@db/x", "p/w"),
    ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI", "wJal"),
    ("LITELLM_MASTER_KEY=mk-12345678", "mk-"),
    ("Environment=VLLM_API_KEY=abc DB_PASS=hunter2", "hunter2"),
    ("http://127.0.0.1:8000/v1?key=QQQ", "QQQ"),
    ("using key nvapi-aaaaaaaaaaaaaaaaaaaa", "nvapi-"),
    ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx.abc", "eyJ"),
    ('password: "hunter two words"', "words"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIEvQIBADANBg\n-----END RSA PRIVATE KEY-----", "MIIE"),
]
#: What vLLM's request logger, SGLang's and uvicorn's access log say.
REQUESTS = [
    "INFO Received request chatcmpl-1: prompt: 'a private question', params: SamplingParams(n=1)",
    "INFO Generated response chatcmpl-1: output: 'a private answer', output_token_ids: None, finish_reason: stop",
    "INFO Generated response chatcmpl-1 (streaming complete): output: 'private', finish_reason: stop",
    "Receive: obj=GenerateReqInput(rid='1', text='private question', sampling_params={})",
    "input_value={'role': 'user', 'text': 'private'}",
    'INFO: 10.0.0.9:5 - "POST /v1/chat/completions?q=private HTTP/1.1" 200 OK',
]
KEPT = [
    "Engine 000: Avg prompt throughput: 12.0 tokens/s, Avg generation throughput: 1 tokens/s, Running: 3 reqs",
    "max_num_batched_tokens=8192, tokenizer=Qwen/Qwen3, num_tokens: 5",
    'File "/opt/vllm/core.py", line 3, in _key',
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus",
    "see https://docs.vllm.ai/en/latest/models.html",
]


@pytest.mark.parametrize(("line", "gone"), SECRETS, ids=[case[0][:30] for case in SECRETS])
def test_secrets_go_wherever_they_stand(line, gone):
    for text in (scrubbed(line), without_secrets(f"before {line} behind")):
        assert gone not in text and "[removed]" in text
    assert gone not in scrubbed_rows(json.dumps({"reason": line}) + "\n")


@pytest.mark.parametrize("line", REQUESTS)
def test_lines_of_requests_and_answers_go(line):
    assert scrubbed(f"{line}\nkept\n") == "kept\n"


@pytest.mark.parametrize("line", KEPT)
def test_what_explains_stays(line):
    assert scrubbed(line) == line + "\n"


def test_records_stay_whole_and_so_does_their_cut_off_end():
    row = {"t": 1, "reading": {"engines": {"0": {"running": 2, "prompt_tokens": 55}}}, "reason": "token: abc"}
    text = scrubbed_rows(json.dumps(row) + '\n{"t": 2, "reason": "password: abc"')
    first, second = text.splitlines()
    assert json.loads(first) == {**row, "reason": "token: [removed]"}
    assert second.startswith('{"t": 2') and "abc" not in second


@pytest.mark.parametrize(
    "piece", ["a", "a-", "://", "://a ", "'", "api_key=", "eyJ", "--a ", "-----BEGIN PRIVATE KEY-----"]
)
def test_a_hostile_log_takes_no_longer_than_its_length(piece):
    def seconds(size: int) -> float:
        begun = time.process_time()
        scrubbed(piece * (size // len(piece)))
        return time.process_time() - begun

    # ten times the length: ten times as long, and not a hundred
    assert seconds(200_000) < 40 * max(seconds(20_000), 0.002)
