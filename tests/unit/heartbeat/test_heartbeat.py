"""The plug-in against stand-ins for vLLM's stats objects: what counts as a step, what as idle, and that it never harms."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import logging
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from configparser import ConfigParser
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

FOLDER = Path(__file__).resolve().parents[3] / "roles" / "engine_heartbeat" / "files" / "gb10_heartbeat"


@dataclass
class Scheduler:
    """The part of vLLM's SchedulerStats that the plug-in looks at."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0


@dataclass
class Iteration:
    """The part of vLLM's IterationStats that the plug-in looks at."""

    time_to_first_tokens_iter: list[float] = field(default_factory=list)


BUSY, IDLE, STUCK = Scheduler(1), Scheduler(0), Scheduler(0, 1)
TOKENS = Iteration()

STAND_IN = """
from abc import ABC, abstractmethod

class StatLoggerBase(ABC):
    @abstractmethod
    def __init__(self, vllm_config, engine_index=0): ...
    @abstractmethod
    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0): ...
    @abstractmethod
    def log_engine_initialized(self): ...
    @abstractmethod
    def something_of_a_later_release(self): ...
    def log(self): ...
"""


@dataclass
class Beat:
    """The plug-in as one server process has it: its own registry, its own clock."""

    module: ModuleType
    registry: CollectorRegistry
    now: float = 1000.0

    def logger(self, engine: int = 0) -> Any:
        return self.module.Heartbeat(object(), engine)

    def step(self, logger: Any, after_s: float, scheduler: object, iteration: object = None) -> None:
        self.now += after_s
        logger.record(scheduler, iteration, mm_cache_stats=None, engine_idx=0)

    def samples(self, name: str) -> dict[tuple[str, ...], float]:
        return samples(generate_latest(self.registry).decode(), name)

    def one(self, name: str) -> float:
        [value] = self.samples(name).values()
        return value


def samples(text: str, name: str) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(text)
    return {tuple(s.labels.values()): s.value for family in families for s in family.samples if s.name == name}


@pytest.fixture
def beat(monkeypatch: pytest.MonkeyPatch) -> Iterator[Beat]:
    """The module loaded anew over a stand-in for vLLM, with a clock of our own."""
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    loggers = types.ModuleType("vllm.v1.metrics.loggers")
    exec(STAND_IN, loggers.__dict__)
    for name in ("vllm", "vllm.v1", "vllm.v1.metrics"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.v1.metrics.loggers", loggers)
    spec = importlib.util.spec_from_file_location("gb10_heartbeat", FOLDER / "gb10_heartbeat.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    registry = CollectorRegistry(auto_describe=True)
    beat = Beat(module, registry)
    monkeypatch.setattr(module, "REGISTRY", registry)
    clock = types.SimpleNamespace(monotonic=lambda: beat.now, time=lambda: beat.now + 1_700_000_000)
    monkeypatch.setattr(module, "time", clock)
    yield beat


STEPS = "llm_engine_steps_total"
LAST = "llm_engine_last_step_timestamp_seconds"
COUNT, SUM, BUCKET = "llm_engine_step_seconds_count", "llm_engine_step_seconds_sum", "llm_engine_step_seconds_bucket"
INFO = "llm_heartbeat_info"


# -- what is a step ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheduler", "iteration", "steps"),
    [
        pytest.param(BUSY, TOKENS, 1, id="a decode step"),
        pytest.param(BUSY, None, 1, id="a prefill chunk: no output for anyone"),
        pytest.param(IDLE, TOKENS, 1, id="the last step of the last request"),
        pytest.param(STUCK, TOKENS, 1, id="the last step of one request while another waits"),
        pytest.param(None, TOKENS, 0, id="another API server's share of a step"),
        pytest.param(None, None, 0, id="nothing at all"),
        pytest.param(STUCK, None, 0, id="a scheduler that cannot place what is waiting turns over, it does not step"),
        pytest.param(IDLE, None, 0, id="cleaning up after an abort"),
    ],
)
def test_what_counts_as_a_step(beat: Beat, scheduler: object, iteration: object, steps: int) -> None:
    beat.step(beat.logger(), 1, scheduler, iteration)
    assert beat.one(STEPS) == steps


def test_a_scheduler_stall_stands_still_and_shows_as_one_long_step_afterwards(beat: Beat) -> None:
    logger = beat.logger()
    beat.step(logger, 0.1, BUSY, TOKENS)
    beat.step(logger, 0.1, STUCK, TOKENS)
    for _turn in range(1000):
        beat.step(logger, 0.001, STUCK)
    assert beat.one(STEPS) == 2
    beat.step(logger, 0, BUSY, TOKENS)
    assert beat.one(STEPS) == 3
    assert beat.one(SUM) == pytest.approx(0.1 + 1.0)


# -- time between steps ------------------------------------------------------------------------------------------------


def test_before_the_first_step_there_is_a_zero_and_no_time_stamp(beat: Beat) -> None:
    beat.logger()
    assert beat.one(STEPS) == 0
    assert beat.samples(LAST) == {}
    assert beat.one(COUNT) == 0


def test_steps_with_work_in_flight_are_timed(beat: Beat) -> None:
    logger = beat.logger()
    for after_s in (5, 0.5, 70):
        beat.step(logger, after_s, BUSY, TOKENS)
    assert [beat.one(COUNT), beat.one(SUM)] == pytest.approx([2, 70.5])
    assert beat.samples(BUCKET)[("0", "60.0")] == 1
    assert beat.samples(BUCKET)[("0", "90.0")] == 2
    assert beat.samples(BUCKET)[("0", "+Inf")] == 2


def test_the_longest_bucket_tells_a_step_beyond_all_bounds(beat: Beat) -> None:
    logger = beat.logger()
    beat.step(logger, 1, BUSY, TOKENS)
    beat.step(logger, 5000, BUSY, TOKENS)
    assert beat.samples(BUCKET)[("0", "1200.0")] == 0
    assert beat.samples(BUCKET)[("0", "+Inf")] == 1


def test_idle_gaps_do_not_count(beat: Beat) -> None:
    logger = beat.logger()
    for _turn in range(3):
        beat.step(logger, 3600, BUSY)  # after an hour of nothing the first chunk: nobody knows when it began
        beat.step(logger, 2, IDLE, TOKENS)
    assert beat.one(STEPS) == 6
    assert beat.one(SUM) == pytest.approx(3 * 2)


def test_an_idle_gap_after_an_abort_does_not_count(beat: Beat) -> None:
    logger = beat.logger()
    beat.step(logger, 1, BUSY, TOKENS)
    beat.step(logger, 1, IDLE)
    beat.step(logger, 3600, BUSY)
    assert beat.samples(COUNT) == {("0",): 0}


def test_one_giant_first_step_is_measured_from_the_arrival_of_its_request(beat: Beat) -> None:
    """A prefill in a single step, 61 s on a slow machine, is the first step after idle: its length must not be lost."""
    logger = beat.logger()
    beat.step(logger, 3600, BUSY, Iteration([61.0]))
    assert beat.one(SUM) == pytest.approx(61)


def test_a_last_chunk_lasts_as_long_as_the_chunk_not_as_the_whole_prefill(beat: Beat) -> None:
    logger = beat.logger()
    beat.step(logger, 1, BUSY)
    beat.step(logger, 2, BUSY, Iteration([60.0]))
    assert beat.one(SUM) == pytest.approx(2)


def test_stale_gauges_after_a_mass_abort_do_not_make_an_idle_night_one_step(beat: Beat) -> None:
    """Seen in the field: an idle engine whose last numbers said running 106."""
    logger = beat.logger()
    beat.step(logger, 1, Scheduler(106), TOKENS)
    beat.step(logger, 30000, BUSY, Iteration([0.5]))
    assert beat.one(SUM) == pytest.approx(0.5)


def test_a_clock_set_back_makes_no_negative_time(beat: Beat) -> None:
    logger = beat.logger()
    beat.step(logger, 1, BUSY, Iteration([-30.0]))
    beat.step(logger, 1, BUSY, Iteration([-30.0, 0.0]))
    assert [beat.one(COUNT), beat.one(SUM)] == pytest.approx([1, 1])


def test_the_time_stamp_is_that_of_the_last_step_not_of_the_reading(beat: Beat) -> None:
    logger = beat.logger()
    beat.step(logger, 1, BUSY, TOKENS)
    stamped = beat.now + 1_700_000_000
    beat.now += 300
    assert beat.one(LAST) == pytest.approx(stamped)


# -- several engines ---------------------------------------------------------------------------------------------------


def test_each_data_parallel_rank_has_its_own_numbers(beat: Beat) -> None:
    first, second = beat.logger(0), beat.logger(1)
    for _turn in range(3):
        beat.step(first, 1, BUSY, TOKENS)
    beat.step(second, 1, BUSY, TOKENS)
    assert beat.samples(STEPS) == {("0",): 3, ("1",): 1}
    assert beat.samples(COUNT) == {("0",): 2, ("1",): 0}
    assert set(beat.samples(LAST)) == {("0",), ("1",)}


def test_a_logger_made_again_goes_on_counting(beat: Beat) -> None:
    """vLLM makes its loggers anew when it scales: a counter that falls would look like a restart."""
    beat.step(beat.logger(), 1, BUSY, TOKENS)
    beat.step(beat.logger(), 1, BUSY, TOKENS)
    assert beat.one(STEPS) == 2


# -- it never harms ----------------------------------------------------------------------------------------------------


class Hostile:
    """Stats of a release that renamed everything."""


def test_an_error_disables_it_once_with_one_line(beat: Beat, caplog: pytest.LogCaptureFixture) -> None:
    logger = beat.logger()
    beat.step(logger, 1, BUSY, TOKENS)
    with caplog.at_level(logging.DEBUG):
        for _turn in range(5):
            beat.step(logger, 1, Hostile(), TOKENS)
        beat.step(beat.logger(1), 1, BUSY, TOKENS)
    [line] = caplog.records
    assert "disabled itself" in line.message and "num_running_reqs" in line.message and "\n" not in line.message
    assert beat.one(INFO) == 0
    # A count that stands still for ever would read as a hang.
    assert beat.samples(STEPS) == beat.samples(LAST) == beat.samples(COUNT) == {}


def test_it_is_announced_with_its_version(beat: Beat) -> None:
    beat.logger()
    assert beat.samples(INFO) == {(beat.module.__version__,): 1}


@pytest.mark.parametrize("broken", ["tally", "withdraw", "logger"])
def test_nothing_comes_out_of_it_whatever_breaks(beat: Beat, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    def explode(*_: object, **__: object) -> None:
        raise RuntimeError("on purpose")

    if broken == "tally":
        monkeypatch.setattr(beat.module.PageSink, "tally", explode)
    if broken == "withdraw":
        monkeypatch.setattr(beat.module.PageSink, "withdraw", explode)
    if broken == "logger":
        monkeypatch.setattr(beat.module.logger, "warning", explode)
    logger = beat.logger()
    beat.step(logger, 1, Hostile(), TOKENS)
    beat.step(logger, 1, BUSY, TOKENS)
    assert beat.one(INFO) == 0


def test_a_page_that_cannot_be_made_costs_the_heartbeat_only(beat: Beat, monkeypatch: pytest.MonkeyPatch) -> None:
    beat.logger()
    monkeypatch.setattr(beat.module, "CounterMetricFamily", None)
    assert beat.one(INFO) == 0


def test_arguments_of_other_releases_are_taken(beat: Beat) -> None:
    logger = beat.module.Heartbeat(object(), engine_index=0, client_count=3)
    logger.record(BUSY, TOKENS, None, 0, "one more", and_another=True)
    logger.record(scheduler_stats=BUSY, iteration_stats=TOKENS, engine_idx=0)
    logger.log_engine_initialized()
    assert beat.one(STEPS) == 2


# -- several API servers -----------------------------------------------------------------------------------------------

MULTIPROCESS_SCRIPT = """
import asyncio, sys, types
loggers = types.ModuleType("vllm.v1.metrics.loggers")
exec(sys.argv[1], loggers.__dict__)
for name in ("vllm", "vllm.v1", "vllm.v1.metrics"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["vllm.v1.metrics.loggers"] = loggers
import gb10_heartbeat

class Stats:
    def __init__(self, running):
        self.num_running_reqs, self.num_waiting_reqs = running, 0

known = {"step": (Stats(1), None), "last step": (Stats(0), object()), "nonsense": (object(), None)}
logger = gb10_heartbeat.Heartbeat(None, 0)
print("done", flush=True)
one_by_one = "one by one" in sys.argv
if one_by_one:  # a prometheus_client whose histogram has no parts that we know
    logger._tally._parts = None

def record(what):
    logger.record(*known[what], mm_cache_stats=None, engine_idx=0)

async def in_a_loop():  # as in the server
    written = logger._tally._steps._value.get
    before = written()
    for _turn in range(100):
        record("step")
    assert written() == before, "written at every step"
    while written() == before:
        await asyncio.sleep(0.01)

for line in sys.stdin:
    if line == "in a loop\\n":
        asyncio.run(in_a_loop())
    else:
        record(line.strip())
    print("done", flush=True)
"""


class ApiServer:
    """One process of several that count for the same engine."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", MULTIPROCESS_SCRIPT, STAND_IN, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(FOLDER), "PROMETHEUS_MULTIPROC_DIR": str(folder)},
        )

    def send(self, what: str) -> None:
        assert self._process.stdin is not None
        print(what, file=self._process.stdin, flush=True)
        self.wait()

    def wait(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line == "done\n", self._process.communicate()[1]

    def end(self) -> str:
        """End it, once; hands back what it said on stderr."""
        return "" if self._process.poll() is not None else self._process.communicate()[1]


def shared_page(folder: Path) -> str:
    """The page as an API server makes it: from the files, in a process that has the folder set."""
    script = "import prometheus_client as p, prometheus_client.multiprocess as m\nr = p.CollectorRegistry(); m.MultiProcessCollector(r)\nprint(p.generate_latest(r).decode())"  # fmt: skip
    env = {"PROMETHEUS_MULTIPROC_DIR": str(folder)}
    return subprocess.run([sys.executable, "-c", script], env=env, text=True, capture_output=True, check=True).stdout


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[ApiServer, ApiServer]]:
    both = ApiServer(tmp_path), ApiServer(tmp_path)
    for server in both:
        server.wait()
    yield both
    for server in both:
        server.end()


def test_two_api_servers_count_one_engine_together(pair: tuple[ApiServer, ApiServer], tmp_path: Path) -> None:
    first, second = pair
    first.send("step")
    for _turn in range(9):
        second.send("step")
    first.send("step")
    page = shared_page(tmp_path)
    assert samples(page, STEPS) == {("0",): 11}
    assert samples(page, COUNT) == {("0",): 10}
    assert samples(page, LAST)[("0",)] > 1_700_000_000
    assert samples(page, INFO) == {("1.0.0",): 1}
    assert first.end() + second.end() == ""


@pytest.mark.parametrize("words", [(), ("one by one",)], ids=["together", "one by one"])
def test_the_servers_loop_writes_what_came_together(words: tuple[str, ...], tmp_path: Path) -> None:
    server = ApiServer(tmp_path, *words)
    server.wait()
    for _turn in range(2):
        server.send("in a loop")
    page = shared_page(tmp_path)
    assert server.end() == ""
    assert samples(page, STEPS) == {("0",): 200}
    assert samples(page, COUNT) == {("0",): 199}
    buckets = samples(page, "llm_engine_step_seconds_bucket")
    assert max(buckets.values()) == 199
    assert 0 < samples(page, SUM)[("0",)] < 60


def test_the_others_steps_are_no_long_step_of_mine(pair: tuple[ApiServer, ApiServer], tmp_path: Path) -> None:
    """The first server sees two steps far apart, the second all those between: each moment belongs to one step only."""
    first, second = pair
    began = time.monotonic()
    first.send("step")
    for _turn in range(300):
        second.send("step")
    first.send("step")
    passed = time.monotonic() - began
    page = shared_page(tmp_path)
    assert samples(page, COUNT) == {("0",): 301}
    # A server that looked at its own steps only would count this time twice.
    assert samples(page, SUM)[("0",)] <= passed


def test_an_idle_spell_seen_by_one_is_known_to_the_other(pair: tuple[ApiServer, ApiServer], tmp_path: Path) -> None:
    first, second = pair
    began = time.monotonic()
    first.send("step")
    second.send("last step")
    idle_since = time.monotonic()
    time.sleep(0.3)  # the idle spell itself
    idle_s = time.monotonic() - idle_since
    first.send("step")
    passed = time.monotonic() - began
    assert samples(shared_page(tmp_path), SUM)[("0",)] <= passed - idle_s


def test_one_that_disabled_itself_shows_through_the_others(pair: tuple[ApiServer, ApiServer], tmp_path: Path) -> None:
    first, second = pair
    first.send("step")
    second.send("nonsense")
    first.send("step")
    assert samples(shared_page(tmp_path), INFO) == {("1.0.0",): 0}
    assert second.end().count("disabled itself") == 1


# -- the folder itself -------------------------------------------------------------------------------------------------


def test_the_folder_is_what_its_metadata_says() -> None:
    [metadata] = FOLDER.glob("gb10_heartbeat-*.dist-info")
    version = metadata.name.removeprefix("gb10_heartbeat-").removesuffix(".dist-info")
    assert f"Version: {version}\n" in (metadata / "METADATA").read_text()
    assert f'__version__ = "{version}"' in (FOLDER / "gb10_heartbeat.py").read_text()
    assert f'version = "{version}"' in (FOLDER / "pyproject.toml").read_text()
    points = ConfigParser()
    points.read(metadata / "entry_points.txt")
    assert dict(points["vllm.stat_logger_plugins"]) == {"gb10_heartbeat": "gb10_heartbeat:Heartbeat"}


def test_the_record_is_right_so_that_the_folder_is_a_wheel_once_zipped() -> None:
    [metadata] = FOLDER.glob("gb10_heartbeat-*.dist-info")
    lines = [line.split(",") for line in (metadata / "RECORD").read_text().splitlines()]
    found = sorted(str(path.relative_to(FOLDER)) for path in [FOLDER / "gb10_heartbeat.py", *metadata.iterdir()])
    assert sorted(name for name, _, _ in lines) == found
    for name, digest, size in lines:
        if name.endswith("RECORD"):
            continue
        content = (FOLDER / name).read_bytes()
        expected = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        assert (digest, int(size)) == (f"sha256={expected}", len(content)), f"{name} changed: correct RECORD"
