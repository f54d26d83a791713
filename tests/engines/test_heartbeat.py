"""The heartbeat on a real vLLM: it moves with every step and with nothing else, and a server never suffers from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engines.vllm_server import Page, VllmServer, wait_until

FOLDER = Path(__file__).resolve().parents[2] / "roles" / "engine_heartbeat" / "files" / "gb10_heartbeat"

BEAT = "llm_engine_steps_total"
LAST = "llm_engine_last_step_timestamp_seconds"
STEP_COUNT, STEP_SUM = "llm_engine_step_seconds_count", "llm_engine_step_seconds_sum"
INFO = "llm_heartbeat_info"
# What a stock vLLM offers as a sign of work being done.
STOCK = (
    "vllm:iteration_tokens_total_count",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
)
CHUNK, PROMPT = 512, 3500  # 7 chunks of about 2 s each on the slow model


def stock(page: Page) -> dict[str, float]:
    return {name: page.require(name) for name in STOCK}


def beats(page: Page, engine: str = "0") -> float:
    return page.require(BEAT, engine=engine)


def our_lines(page: Page) -> list[str]:
    return sorted(line for line in page.text.splitlines() if line.startswith("llm_"))


def wait_for_no_beats(server: VllmServer, engine: str = "0", gap_s: float = 1.0) -> float:
    """What was under way when an engine was frozen still arrives; after that the count stands still."""

    def look() -> float | None:
        first = beats(server.page(), engine)
        time.sleep(gap_s)
        return first if beats(server.page(), engine) == first else None

    still = wait_until(look, f"no more beats of engine {engine}", every_s=0)
    assert still is not None
    return still


# -- one engine, the slow model ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(vllm: Callable[..., VllmServer]) -> Iterator[VllmServer]:
    flags = ("--max-num-batched-tokens", str(CHUNK), "--no-enable-prefix-caching", "--enable-server-load-tracking")
    with vllm(*flags, model="mid", env={"PYTHONPATH": str(FOLDER)}) as running:
        yield running


def test_a_fresh_server_has_a_heartbeat_that_never_beat(server: VllmServer) -> None:
    page = server.page()
    assert page.require(INFO, version="1.0.0") == 1
    assert beats(page) == 0
    assert page.get(LAST) is None


def test_a_chunked_prefill_beats_with_every_chunk_while_the_stock_counters_stand_still(server: VllmServer) -> None:
    before = server.page()
    seen: list[Page] = []
    with server.load(streams=1, prompt_tokens=PROMPT, max_tokens=1, repeat=False) as load:
        while load.finished == 0 and load.errors == []:
            seen.append(server.page())
            time.sleep(0.1)
        assert load.errors == []
    after = server.wait_for_page(lambda page: stock(page) != stock(before), "the prompt is counted")
    flat = [page for page in seen if stock(page) == stock(before)]
    # Every chunk but the last, which gives the token, was visible in the heartbeat and in nothing else.
    chunks = -(-PROMPT // CHUNK)
    assert sorted({beats(page) - beats(before) for page in flat}) == list(range(chunks))
    assert beats(after) - beats(before) == chunks
    # The first chunk of an idle engine cannot be timed, nobody knows when it began: all others are.
    assert after.require(STEP_COUNT) - before.require(STEP_COUNT) == chunks - 1


def test_decoding_beats_once_a_token(server: VllmServer) -> None:
    before = server.page()
    server.complete(prompt_tokens=8, max_tokens=40)
    after = server.wait_for_page(lambda page: page.require(STOCK[3]) > before.require(STOCK[3]), "it is counted")
    assert beats(after) - beats(before) == after.require(STOCK[0]) - before.require(STOCK[0]) == 40


def test_an_idle_engine_does_not_beat(server: VllmServer) -> None:
    server.complete()
    wait_for_no_beats(server)
    before = our_lines(server.page())
    assert len(before) > 20
    time.sleep(3)  # the idle spell itself
    page = server.page()
    assert our_lines(page) == before
    assert time.time() - page.require(LAST) >= 3
    # The idle spell is in no step's time either, whoever comes next.
    server.complete()
    assert server.page().require(STEP_SUM) - page.require(STEP_SUM) < 3


def test_a_frozen_engine_stands_still_and_one_reading_tells_for_how_long(server: VllmServer) -> None:
    with server.load(streams=2) as load:
        server.wait_for_page(lambda page: page.running == 2, "both streams run")
        with server.frozen(server.engine_core):
            frozen_at = time.time()
            still = wait_for_no_beats(server)
            page = server.wait_for_page(lambda page: time.time() - page.require(LAST) > 3, "three seconds of silence")
            assert beats(page) == still
            assert page.require(LAST) <= frozen_at + 1
            assert page.running == 2 and server.status("/health") == 200
        server.wait_for_page(lambda page: beats(page) > still, "it beats again")
        assert load.errors == []


# -- several front ends and engines ------------------------------------------------------------------------------------
# On the slow model too: thousands of tokens a second from the tiny one starve everything else on two cores, the test first.


def test_two_api_servers_count_every_step_once(vllm: Callable[..., VllmServer]) -> None:
    with vllm("--api-server-count", "2", model="mid", env={"PYTHONPATH": str(FOLDER)}) as server:
        began = time.monotonic()
        assert server.page().require(INFO) == 1
        assert beats(server.page()) == 0
        # One request at a time: each step's output belongs to one front end, so the stock counter is right too.
        for _turn in range(6):
            server.complete(prompt_tokens=8, max_tokens=20)
        # ours are written FLUSH_S later
        page = server.wait_for_page(lambda page: page.get(STOCK[3]) == 6 and beats(page) >= 120, "all are counted")
        assert beats(page) == page.require(STOCK[0]) == 120
        with server.load(streams=4) as load:
            page = server.wait_for_page(lambda page: beats(page) > 150, "it beats under load")
            # Each front end counts a shared step for itself: the stock counter is never behind, usually ahead.
            with server.frozen(server.engine_core):
                still = wait_for_no_beats(server)
                page = server.page()
                assert beats(page) == still
                assert page.require(STOCK[0]) >= still
            server.wait_for_page(lambda page: beats(page) > still, "it beats again")
            assert load.errors == []
            # No moment is counted twice, however the steps are shared out.
            assert server.page().require(STEP_SUM) <= time.monotonic() - began


def test_data_parallel_ranks_beat_for_themselves(vllm: Callable[..., VllmServer]) -> None:
    with (
        vllm("--data-parallel-size", "2", model="mid", env={"PYTHONPATH": str(FOLDER)}) as server,
        server.load(4) as load,
    ):
        server.wait_for_page(lambda page: min(beats(page, "0"), beats(page, "1")) > 20, "both ranks beat")
        with server.frozen(server.pid("VLLM::EngineCore_DP0")):
            still = wait_for_no_beats(server, "0")
            other = beats(server.page(), "1")
            page = server.wait_for_page(lambda page: beats(page, "1") > other + 20, "the other rank goes on")
            assert beats(page, "0") == still
        server.wait_for_page(lambda page: beats(page, "0") > still, "the frozen rank beats again")
        assert load.errors == []


# -- it does no harm ---------------------------------------------------------------------------------------------------

BROKEN = """
from gb10_heartbeat import Heartbeat

class Broken(Heartbeat):
    beats = 0

    def _step(self, *arguments):
        self.beats += 1
        if self.beats > 5:
            raise RuntimeError("broken on purpose")
        super()._step(*arguments)
"""


def test_a_heartbeat_that_fails_says_so_once_and_the_server_serves_on(
    vllm: Callable[..., VllmServer], tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    metadata = tmp_path / "broken-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[vllm.stat_logger_plugins]\nbroken = broken:Broken\n")
    env = {"PYTHONPATH": f"{tmp_path}:{FOLDER}", "VLLM_PLUGINS": "broken"}
    # And what docs/heartbeat.md says of --disable-log-stats: any such plug-in turns the statistics on again.
    with vllm("--disable-log-stats", env=env) as server:
        assert server.page().require(INFO) == 1
        for _turn in range(3):
            server.complete(max_tokens=20)
        page = server.wait_for_page(lambda page: page.get(STOCK[3]) == 3, "all three are served and counted")
        assert page.require(INFO) == 0
        assert page.get(BEAT) is None and page.get(LAST) is None
        assert server.log_text().count("disabled itself") == 1
        assert server.log_text().count("broken on purpose") == 1


def test_vllm_plugins_that_does_not_name_it_keeps_it_out_harmlessly(vllm: Callable[..., VllmServer]) -> None:
    with vllm(env={"PYTHONPATH": str(FOLDER), "VLLM_PLUGINS": "somebody_elses"}) as server:
        server.complete()
        page = server.wait_for_page(lambda page: page.get(STOCK[3]) == 1, "served and counted")
        assert our_lines(page) == []
