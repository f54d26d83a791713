"""The test bed itself: a real vLLM starts, shows the pages the other engine tests rely on, freezes and ends without a trace."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.engines.vllm_server import VllmServer, session_members

STEPS = "vllm:iteration_tokens_total_count"


@pytest.fixture(scope="module")
def server(vllm: Callable[..., VllmServer]) -> Iterator[VllmServer]:
    with vllm(model="mid") as running:
        yield running


def test_a_fresh_server_shows_every_series_at_zero(server: VllmServer) -> None:
    page = server.page()
    assert (page.running, page.waiting, page.require(STEPS)) == (0, 0, 0)
    assert page.require("process_start_time_seconds") > 0
    assert server.status("/health") == server.status("/v1/models") == 200


def test_an_idle_server_keeps_its_counters_still(server: VllmServer) -> None:
    server.complete(prompt_tokens=8, max_tokens=4)
    page = server.wait_for_page(lambda page: page.get("vllm:request_success_total") == 1, "the request is counted")
    assert page.require("vllm:generation_tokens_total") == 4
    assert server.page().engine_lines() == page.engine_lines()


def test_a_busy_server_moves_and_a_frozen_one_is_byte_identical(server: VllmServer) -> None:
    with server.load(streams=2) as load:
        before = server.wait_for_page(lambda page: page.running == 2 and page.require(STEPS) > 10, "both streams run")
        server.wait_for_page(lambda page: page.require(STEPS) > before.require(STEPS), "steps move")
        with server.frozen(server.engine_core):
            still = server.wait_for_still()
            assert server.status("/health") == 200
            assert server.page().engine_lines() == still
        server.wait_for_page(lambda page: page.engine_lines() != still, "it goes on once continued")
        assert load.errors == []
    server.wait_for_page(lambda page: page.running == 0, "the streams are gone")


def test_nothing_is_left_behind_even_of_a_frozen_server(server: VllmServer) -> None:
    """Last in this file: it stops the shared server."""
    session = os.getsid(server.engine_core)
    with server.frozen(server.engine_core, server.worker):
        server.stop()
    assert session_members(session) == []
    with pytest.raises(httpx.ConnectError):
        server.page()


def test_a_server_that_ends_before_it_is_ready_says_why(vllm: Callable[..., VllmServer], tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"(?s)ended with status.*no-such-flag"):
        vllm("--no-such-flag").start()
