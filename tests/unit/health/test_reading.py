# SPDX-License-Identifier: GPL-3.0-or-later
"""Pages that are no pages, pages of every engine in the table, and what their numbers become."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._core import servers
from ansible_collections.gb10.serving.plugins.module_utils._health.engines import BY_NAME, ENGINES
from ansible_collections.gb10.serving.plugins.module_utils._health.reading import parse

CAPTURES = Path(__file__).parents[2] / "fixtures" / "captures"
BUSY = (CAPTURES / "vllm-0.32.0-busy-1.prom").read_text()

NO_PAGES = [
    ("", "empty"),
    ("   \n", "empty"),
    ("<!DOCTYPE html><html>", "HTML"),
    ('{"a": 1}', "JSON"),
    ("[]", "JSON"),
    ("# just a comment\n", "no series"),
    ("some_metric 1\n", "no series"),
    (BUSY[: BUSY.index("vllm:num_requests_waiting{") + 20], "cut off"),
]


@pytest.mark.parametrize(("text", "word"), NO_PAGES, ids=[case[1] + str(n) for n, case in enumerate(NO_PAGES)])
def test_no_page(text, word):
    page = parse(text)
    assert page.reading is None
    assert word in page.problem


def test_a_last_line_without_newline_that_is_whole_is_read():
    assert parse("vllm:generation_tokens_total 1\nvllm:num_requests_running 2").reading.engines["0"].running == 2


@pytest.mark.parametrize("bad", ["NaN", "+Inf", "-1", "abc"])
def test_a_gauge_that_is_no_number_is_unknown_not_zero(bad):
    text = f"vllm:num_requests_running {bad}\nvllm:num_requests_waiting {bad}\nvllm:generation_tokens_total 5\n"
    engine = parse(text).reading.engines["0"]
    assert (engine.running, engine.waiting, engine.work) == (None, None, None)
    assert engine.generation_tokens == 5


ONE = 'vllm:generation_tokens_total{engine="0"} 5\n'
DECLARED = "# TYPE vllm:num_requests_running gauge\n# TYPE vllm:num_requests_waiting gauge\n"
WAITING = 'vllm:num_requests_waiting{engine="0"} 0\n'
# id, page, running, work
GAUGES = [
    ("a queue that is no number", 'vllm:num_requests_running{engine="0"} 0\nvllm:num_requests_waiting NaN\n', 0, None),
    ("no queue on the page", 'vllm:num_requests_running{engine="0"} 0\n', 0, None),
    ("no queue on the page, and some run", 'vllm:num_requests_running{engine="0"} 2\n', 2, 2),
    ("a sample without a value", DECLARED + WAITING + 'vllm:num_requests_running{engine="0"}\n', None, None),
    ("a sample cut off in its labels", DECLARED + WAITING + 'vllm:num_requests_running{engine="0\n', None, None),
    ("no gauge though it has counted something", DECLARED, None, None),
]


@pytest.mark.parametrize(("text", "running", "work"), [c[1:] for c in GAUGES], ids=[c[0] for c in GAUGES])
def test_a_gauge_that_is_missing_is_unknown_not_zero(text, running, work):
    engine = parse(text + ONE).reading.engines["0"]
    assert (engine.running, engine.work) == (running, work)


def test_before_the_first_request_a_declared_gauge_is_zero():
    engine = parse(DECLARED + ONE.replace("5", "0")).reading.engines["0"]
    assert (engine.running, engine.waiting) == (0, 0)


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("qwen {a} 0 z", "qwen {a} 0 z"),
        ("a} 9 x", "a} 9 x"),
        (r"a\"b\\c{d} 9 x", 'a"b\\c{d} 9 x'),
        (r"engine=\"7\",x", 'engine="7",x'),
    ],
)
def test_a_brace_or_a_quote_in_a_label_ends_nothing(label, name):
    reading = parse(f'vllm:num_requests_running{{model_name="{label}",engine="1"}} 3\n').reading
    assert (reading.models, reading.engines["1"].running) == ((name,), 3)


def test_numbers_that_no_server_counts_are_unknown():
    pages = "".join(
        f'vllm:num_requests_running{{engine="{n}"}} 1e308\nvllm:prompt_tokens_total{{engine="{n}"}} 1\n' for n in (0, 1)
    )
    assert parse(pages).reading.engines["0"].running is None


PAGES = {
    "vllm": 'vllm:num_requests_running{engine="0"} 2\nvllm:num_requests_waiting 1\nvllm:prompt_tokens_total 3\n',
    "sglang": 'sglang:num_running_reqs 2\nsglang:num_queue_reqs 1\nsglang:realtime_tokens_total{mode="decode"} 3\n',
    "llamacpp": "llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\nllamacpp:n_decode_total 3\n",
    "ik_llamacpp": "llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\nllamacpp:prompt_tokens_total 3\n",
    "tgi": 'tgi_batch_current_size 2\ntgi_queue_size 1\ntgi_batch_inference_success{method="decode"} 3\n',
    "tensorrt_llm": "trtllm_num_requests_running 2\ntrtllm_num_requests_waiting 1\ntrtllm_generation_tokens_total 3\n",
    "lmdeploy": "lmdeploy:num_requests_running 2\nlmdeploy:num_requests_waiting 1\nlmdeploy:generation_tokens_total 3\n",
    "nim": "num_requests_running 2\nnum_requests_waiting 1\ngeneration_tokens_total 3\n",
}


@pytest.mark.parametrize("name", PAGES)
def test_each_engine_is_recognised_by_its_page(name):
    page = parse(PAGES[name])
    assert page.engine.name == name
    (engine,) = page.reading.engines.values()
    assert (engine.running, engine.waiting) == (2, 1)
    assert engine.work == 3


def test_every_engine_with_a_page_has_a_case_here():
    assert set(PAGES) == {engine.name for engine in ENGINES if engine.page}


def test_ray_writes_underscores():
    page = parse("ray_vllm_num_requests_running 2\nray_vllm_generation_tokens_total 7\n")
    assert page.engine.name == "vllm"
    assert page.reading.engines["0"].generation_tokens == 7


def test_v0_pages_have_no_engine_label():
    engine = parse('vllm:num_requests_running{model_name="m"} 1\nvllm:num_requests_swapped{model_name="m"} 2\n')
    assert engine.reading.engines["0"].waiting == 2


def test_the_production_stack_router_is_a_proxy():
    page = parse(
        'vllm:num_requests_running{server="http://a:8000"} 3\nvllm:num_requests_running{server="http://b"} 0\n'
    )
    assert page.proxy == "vllm-router"
    assert page.reading is None


def test_the_heartbeat_is_read_beside_the_engine():
    text = (
        'vllm:num_requests_running{engine="0"} 1\nllm_engine_steps_total{engine="0"} 17\n'
        'llm_engine_last_step_timestamp_seconds{engine="0"} 1.7e9\n'
        'llm_engine_step_seconds_bucket{engine="0",le="0.5"} 10\nllm_engine_step_seconds_bucket{engine="0",le="5.0"} 12\n'
        'llm_engine_step_seconds_bucket{engine="0",le="+Inf"} 12\n'
    )
    reading = parse(text).reading
    assert reading.true_steps
    engine = reading.engines["0"]
    assert (engine.heartbeat, engine.last_step, engine.longest_step_s) == (17, 1.7e9, 5.0)


def test_a_heartbeat_that_turned_itself_off_is_no_heartbeat():
    text = 'vllm:num_requests_running{engine="0"} 1\nllm_engine_steps_total{engine="0"} 17\n'
    on, off = (parse(text + f'llm_heartbeat_info{{version="1.0.0"}} {n}\n').reading for n in (1, 0))
    assert (on.engines["0"].heartbeat, on.true_steps) == (17, True)
    assert (off.engines["0"].heartbeat, off.true_steps) == (None, False)


def test_aborts_and_errors_are_not_finished_requests():
    text = "".join(
        f'vllm:request_success_total{{finished_reason="{reason}"}} 1\n'
        for reason in ("stop", "length", "repetition", "abort", "error")
    )
    engine = parse(text + "vllm:num_requests_running 0\n").reading.engines["0"]
    assert (engine.finished, engine.aborted) == (3, 2)


def sglang(tokens, *ranks):
    own = "".join(
        f'sglang:{name}{{dp_rank="{rank}",tp_rank="0"}} {value}\n'
        for rank in ranks
        for name, value in (("num_running_reqs", 1), ("num_queue_reqs", 0), ("realtime_tokens_total", 50))
    )
    return parse(own + f'sglang:generation_tokens_total{{model_name="m"}} {tokens}\n').reading.engines


def test_the_tokens_of_all_ranks_are_no_sign_of_the_first():
    """SGLang's schedulers name their rank; its front end counts the tokens of all ranks in one series without it."""
    assert {label: engine.generation_tokens for label, engine in sglang(900, 0, 1).items()} == {"0": None, "1": None}
    assert {label: engine.generation_tokens for label, engine in sglang(900, 1).items()} == {"1": 900}
    assert {label: engine.running for label, engine in sglang(900, 1).items()} == {"1": 1}


def test_the_description_of_servers_knows_every_engine():
    assert set(servers.ENGINES) == {"auto", *BY_NAME}
    assert set(servers.ENGINE_ALIASES.values()) <= set(BY_NAME)
