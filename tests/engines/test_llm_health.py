"""llm-health on a real vLLM, in every state that one can be put in. Each is judged from outside, by the command itself."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engines.vllm_server import CONDITION_LIMIT_S, VllmServer, wait_until

CHECKOUT = Path(__file__).resolve().parents[2]
COMMAND = CHECKOUT / "roles" / "health_check" / "files" / "llm-health"
PLUGIN = CHECKOUT / "roles" / "engine_heartbeat" / "files" / "gb10_heartbeat"

QUICK = ("--wait", "1", "--wait", "1")
PROOF = (*QUICK, "--patience", "2", "--probe-timeout", "2")
STEPS = "vllm:iteration_tokens_total_count"
Vllm = Callable[..., VllmServer]


@dataclass
class Checked:
    """What one call of the command said."""

    status: int
    report: dict[str, Any]
    page: str

    def __getattr__(self, name: str) -> Any:
        return self.report[name]

    def __str__(self) -> str:
        """For a failing assertion: the verdict and what the page said just after it."""
        signs = [
            line
            for line in self.page.splitlines()
            if line.startswith(("llm_engine_", "vllm:")) and "bucket" not in line
        ]
        return f"exit {self.status}\n{json.dumps(self.report, indent=1)}\n" + "\n".join(signs)


class Call:
    """A call of the command under way."""

    def __init__(self, server: VllmServer, *options: str, path: str = "") -> None:
        self.server = server
        self.readings_before = self.readings
        command = [sys.executable, str(COMMAND), server.url + path, "--format", "json", *options]
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT / ".collections")}
        self.process = subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    @property
    def readings(self) -> int:
        """Pages read from the server so far, by its own access log."""
        return self.server.log_text().count('"GET /metrics')

    def wait_for_the_first_wait(self) -> None:
        """Until it has read once, all of it, and waits."""
        wait_until(lambda: self.readings > self.readings_before, "the command has read the page once")

        def quiet() -> bool:
            before = self.server.log_text().count('"GET ')
            time.sleep(1)
            return self.server.log_text().count('"GET ') == before

        wait_until(quiet, "it asks for nothing more", every_s=0)
        assert self.readings == self.readings_before + 1

    def result(self) -> Checked:
        out, err = self.process.communicate(timeout=CONDITION_LIMIT_S)
        assert "Traceback" not in err, err
        assert out.startswith("{"), (out, err)
        [report] = json.loads(out)["servers"]
        try:
            page = self.server.page().text
        except Exception as error:  # a dead server has none
            page = repr(error)
        return Checked(self.process.returncode, report, page)


def check(server: VllmServer, *options: str, path: str = "") -> Checked:
    return Call(server, *options, path=path).result()


def posts(server: VllmServer) -> int:
    return server.log_text().count('"POST ')


def is_busy_without_a_post(found: Checked) -> bool:
    return (found.state, found.status, found.healthy, found.probe_sent) == ("busy", 0, True, False)


def is_proven_hung(found: Checked) -> bool:
    return (found.state, found.status, found.healthy, found.restart_justified) == ("hung", 2, False, True)


# -- one engine, stock, full at two requests; the tests of this group follow one another on one server ---------------------


@pytest.fixture(scope="module")
def one(vllm: Vllm) -> Iterator[VllmServer]:
    flags = ("--max-num-batched-tokens", "512", "--no-enable-prefix-caching", "--max-num-seqs", "2")
    with vllm(*flags, model="mid") as server:
        yield server


def test_fresh_is_idle_by_one_probe(one: VllmServer) -> None:
    found = check(one, *QUICK)
    assert (found.state, found.status, found.probe_sent) == ("idle", 0, True), found
    assert posts(one) == 1


def test_idle_after_work(one: VllmServer) -> None:
    one.complete()
    found = check(one, *QUICK)
    assert (found.state, found.status, found.running, found.waiting) == ("idle", 0, 0, 0), found


def test_busy_without_a_post(one: VllmServer) -> None:
    before = posts(one)
    with one.load(streams=1):
        one.wait_for_page(lambda page: page.running == 1 and page.require(STEPS) > 20, "it runs")
        found = check(one, *QUICK)
    assert is_busy_without_a_post(found), found
    assert found.steps_per_second > 0 and found.tokens_per_second > 0
    one.wait_for_page(lambda page: page.running == 0, "it is gone")
    assert posts(one) == before + 1  # the load's own


def test_a_full_queue_is_busy(one: VllmServer) -> None:
    before = posts(one)
    with one.load(streams=6):
        one.wait_for_page(lambda page: (page.running, page.waiting) == (2, 4), "two run, four wait")
        found = check(one, *QUICK)
    assert is_busy_without_a_post(found), found
    assert (found.running, found.waiting) == (2, 4)
    one.wait_for_page(lambda page: page.running == page.waiting == 0, "they are gone")
    assert posts(one) == before + 6


def test_a_long_chunked_prefill_is_busy(one: VllmServer) -> None:
    before, posts_before, seen = one.page().require(STEPS), posts(one), []
    with one.load(streams=1, prompt_tokens=15000, max_tokens=1, repeat=False) as load:
        # The first chunk shows in no gauge of a stock server: until it is through, nobody can know of it.
        began = time.monotonic()
        one.wait_for_page(lambda page: page.running == 1, "the first chunk is through")
        # A wait in which a later chunk, slower than the first, ends on any machine: nothing moves between two of them.
        wait_s = max(4, math.ceil(4 * (time.monotonic() - began)))
        # Half a minute here, minutes elsewhere: what was seen in the midst of it proves it, and then it is let go.
        while len(seen) < 3:
            found = check(one, "--wait", str(wait_s))
            assert not load.finished and one.page().require(STEPS) == before, (
                "the prefill was over too soon to prove anything"
            )
            seen.append(found)
        assert load.errors == []
    for found in seen:
        assert is_busy_without_a_post(found), found
    assert posts(one) == posts_before + 1  # the load's own
    one.wait_for_page(lambda page: page.running == 0, "it is gone")


@pytest.mark.parametrize("process", ["engine_core", "worker"])
def test_frozen_while_busy_is_hung_and_then_busy_again(one: VllmServer, process: str) -> None:
    with one.load(streams=2):
        one.wait_for_page(lambda page: page.running == 2, "both run")
        with one.frozen(getattr(one, process)):
            still = one.wait_for_still()
            doubtful, proven = check(one, *QUICK), check(one, *PROOF)
        one.wait_for_page(lambda page: page.engine_lines() != still, "it goes on")
        recovered = check(one, *QUICK)
    assert (doubtful.state, doubtful.restart_justified, doubtful.probe_sent) == ("stalled", False, False), doubtful
    assert is_proven_hung(proven) and not proven.probe_sent, proven
    assert is_busy_without_a_post(recovered), recovered
    one.wait_for_page(lambda page: page.running == 0, "they are gone")


def test_frozen_while_idle_is_never_called_idle(one: VllmServer) -> None:
    one.wait_for_still()
    with one.frozen(one.engine_core):
        doubtful, proven = check(one, *QUICK, "--probe-timeout", "2"), check(one, *PROOF)
    assert (doubtful.state, doubtful.restart_justified, doubtful.probe_sent) == ("stalled", False, True), doubtful
    assert proven.probe_sent and proven.state in ("stalled", "hung"), proven
    # The probes that waited are answered or gone; the next is.
    assert check(one, *QUICK).state == "idle"


def test_a_restart_between_readings_is_a_new_beginning(one: VllmServer) -> None:
    with one.load(streams=2):
        one.wait_for_page(lambda page: page.running == 2, "both run")
        call = Call(one, "--wait", "10", "--wait", "1", "--patience", "2")
        call.wait_for_the_first_wait()
        # Held still meanwhile: a server's start takes longer than any wait that a test can afford.
        call.process.send_signal(signal.SIGSTOP)
        one.restart()
        call.process.send_signal(signal.SIGCONT)
        found = call.result()
    assert (found.state, found.status, found.probe_sent) == ("idle", 0, True), found


def test_a_killed_engine_is_dead(one: VllmServer) -> None:
    """Last of this group: nothing is left of the server."""
    with one.load(streams=2):
        one.wait_for_page(lambda page: page.running == 2, "both run")
        one.kill(one.engine_core)
        wait_until(
            lambda: one.exit_status is not None or one.status("/health") == 503, "it is known to be dead", every_s=0.02
        )
        at_once = check(one, *QUICK)
    assert (at_once.state, at_once.status, at_once.healthy) == ("dead", 2, False), at_once
    assert one.wait_for_exit() == 0  # as if all had been well
    gone = check(one, *QUICK)
    assert (gone.state, gone.status) == ("dead", 2), gone
    # From outside nobody can tell whether it is loading again.
    assert gone.restart_justified is False and "loading" in gone.reason, gone


# -- one giant step ------------------------------------------------------------------------------------------------------


GIANT = ("--max-num-batched-tokens", "16384", "--no-enable-prefix-caching")
MEASURED_PROMPT = 500


def giant_prompt(server: VllmServer, **headers: str) -> int:
    """How many tokens one step of this machine takes at least a quarter of a minute for. Machines differ by a factor of
    five, and longer prompts take more a token."""
    server.complete(MEASURED_PROMPT, 1, **headers)  # the first one warms up
    began = time.monotonic()
    server.complete(MEASURED_PROMPT, 1, **headers)
    return min(15000, math.ceil(15 * MEASURED_PROMPT / (time.monotonic() - began)))


def test_with_load_tracking_and_heartbeat(vllm: Vllm) -> None:
    with vllm(*GIANT, "--enable-server-load-tracking", model="mid", env={"PYTHONPATH": str(PLUGIN)}) as server:
        giant = giant_prompt(server)
        before = posts(server)
        with server.load(streams=1, prompt_tokens=giant, max_tokens=1, repeat=False) as load:
            wait_until(lambda: posts(server) > before, "the request is in")
            found = check(server, *QUICK)
            assert server.page().running == 0 and load.finished == 0, "the step was over too soon to prove anything"
            # /load is the only sign of it: work, so no probe; no progress yet; and no proof of a hang.
            assert (found.state, found.status, found.in_flight, found.probe_sent) == ("stalled", 1, 1, False), found
            wait_until(lambda: load.finished == 1, "it is through")
        assert posts(server) == before + 1
        assert check(server, *QUICK).state == "idle"
        with server.load(streams=2):
            server.wait_for_page(lambda page: page.running == 2, "both run")
            found = check(server, *QUICK)
            assert is_busy_without_a_post(found), found
            with server.frozen(server.engine_core):
                server.wait_for_still()
                found = check(server, *PROOF)
        assert is_proven_hung(found), found
        # The heartbeat's time stamp knows of silence from before the first reading, too.
        assert found.no_progress_seconds >= 2


def test_without_load_tracking_behind_a_key_and_a_root_path(vllm: Vllm, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret-of-the-test\n")
    key.chmod(0o600)
    with vllm(*GIANT, "--api-key", "secret-of-the-test", "--root-path", "/llm", model="mid") as server:
        for path in ("", "/llm", "/llm/"):
            found = check(server, *QUICK, "--api-key-file", str(key), path=path)
            assert (found.state, found.status, found.probe_sent) == ("idle", 0, True), found
            assert "secret-of-the-test" not in json.dumps(found.report)
        keyless = check(server, *QUICK)
        assert (keyless.state, keyless.status) == ("unknown", 3) and "401" in keyless.reason, keyless
        headers = {"Authorization": "Bearer secret-of-the-test"}
        giant = giant_prompt(server, **headers)
        before = posts(server)
        with server.load(streams=1, prompt_tokens=giant, max_tokens=1, repeat=False, headers=headers) as load:
            wait_until(lambda: posts(server) > before, "the request is in")
            found = check(server, *QUICK, "--probe-timeout", "2", "--api-key-file", str(key))
            assert server.page().running == 0 and load.finished == 0, "the step was over too soon to prove anything"
            # Nothing shows it, so it is probed; the probe waits behind the step, which proves nothing.
            assert (found.state, found.status, found.probe_sent) == ("stalled", 1, True), found
            assert found.restart_justified is False
            wait_until(lambda: load.finished == 1, "it is through")


# -- several front ends, several ranks -------------------------------------------------------------------------------------


def test_two_api_servers(vllm: Vllm) -> None:
    with vllm("--api-server-count", "2", model="mid") as server:
        fresh = check(server, *QUICK)
        assert (fresh.state, fresh.probe_sent) == ("idle", True), fresh
        with server.load(streams=4):
            server.wait_for_page(lambda page: page.running == 4, "all run")
            found = check(server, *QUICK)
            assert is_busy_without_a_post(found), found
            with server.frozen(server.engine_core):
                server.wait_for_still()
                found = check(server, *PROOF)
            assert is_proven_hung(found), found


def test_one_frozen_rank_of_two_is_named(vllm: Vllm) -> None:
    with vllm("--data-parallel-size", "2", model="mid") as server, server.load(streams=4):
        server.wait_for_page(
            lambda page: all((page.get("vllm:num_requests_running", engine=rank) or 0) > 0 for rank in "01"), "both ranks run"
        )  # fmt: skip
        found = check(server, *QUICK)
        assert is_busy_without_a_post(found), found
        with server.frozen(server.pid("VLLM::EngineCore_DP0")):
            server.wait_for_still("0")
            found = check(server, *PROOF)
        assert is_proven_hung(found), found
        assert "engine 0" in found.reason, found
        states = {engine["engine"]: engine["state"] for engine in found.engines}
        assert states == {"0": "hung", "1": "busy"}, found


# -- nothing to judge by ----------------------------------------------------------------------------------------------------


def test_without_statistics_it_is_unknown_and_not_probed(vllm: Vllm) -> None:
    with vllm("--disable-log-stats") as server:
        idle = check(server, *QUICK)
        assert (idle.state, idle.status, idle.healthy, idle.probe_sent) == ("unknown", 3, None, False), idle
        assert posts(server) == 0
        began = time.monotonic()
        asked = check(server, *QUICK, "--probe", "completion")
        assert (asked.state, asked.status, asked.probe_sent) == ("idle", 0, True), (asked, time.monotonic() - began)
