"""A real vLLM on loopback for the engine tests: start it, load it, freeze it, and always clean up.

Nothing here sleeps for a fixed time and hopes: every wait names a condition and a generous limit, since the same server that
is ready in 19 s on a quiet machine was seen to take 250 s beside a compile job.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import os
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TextIO, TypeVar

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

T = TypeVar("T")

READY_LIMIT_S = 600  # 250 s was measured on a loaded machine
STOP_LIMIT_S = 30  # a clean stop takes 0.3 to 1.7 s
CONDITION_LIMIT_S = 240  # for a state that comes within seconds on a quiet machine; a slow one was seen to need 130 s
LOG_TAIL_LINES = 60
# The byte alphabet of the test models begins after their four special tokens.
FIRST_PLAIN_TOKEN, LAST_PLAIN_TOKEN = 4, 259


def number_format(cpuinfo: str) -> str:
    """What a model of ours is computed in. A CPU without instructions for bfloat16 works five times faster in float32
    (500 tokens of ``mid`` in 5 s instead of 28 s on one of AVX2 only)."""
    flags = set(cpuinfo.split())
    return "bfloat16" if flags & {"avx512_bf16", "amx_bf16", "bf16"} else "float32"


class BedError(AssertionError):
    """The server did not do what the test bed needs; carries the end of its log."""


@dataclass(frozen=True)
class Bed:
    """Where the real vLLM and its models are."""

    venv: Path
    models: Path

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"


@dataclass(frozen=True)
class Page:
    """One /metrics page, asked by sample name (families of a counter may be split by the parser, names are not)."""

    text: str

    @functools.cached_property
    def _samples(self) -> list[Sample]:
        return [sample for family in text_string_to_metric_families(self.text) for sample in family.samples]

    def get(self, name: str, **labels: str) -> float | None:
        """The sum of all samples of that name with these labels; None when there is none."""
        values = [
            sample.value for sample in self._samples if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return sum(values) if values else None

    def require(self, name: str, **labels: str) -> float:
        value = self.get(name, **labels)
        if value is None:
            raise BedError(f"no sample {name}{labels or ''} on the page")
        return value

    def engine_lines(self, engine: str = "0") -> list[str]:
        """Every vllm: sample line of one engine, sorted (their order on the page is not stable)."""
        return sorted(
            line for line in self.text.splitlines() if line.startswith("vllm:") and f'engine="{engine}"' in line
        )

    @property
    def running(self) -> float:
        return self.get("vllm:num_requests_running") or 0.0

    @property
    def waiting(self) -> float:
        return self.get("vllm:num_requests_waiting") or 0.0


def wait_until(condition: Callable[[], T], what: str, limit_s: float = CONDITION_LIMIT_S, every_s: float = 0.1) -> T:
    """Poll until the condition is true and hand back what it said."""
    deadline = time.monotonic() + limit_s
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise BedError(f"not within {limit_s:g} s: {what}")
        time.sleep(every_s)
    return result


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def only_one_vllm() -> Iterator[None]:
    """One real vLLM at a time on this machine, whoever runs the tests: two would starve each other on two cores."""
    with (Path(tempfile.gettempdir()) / f"gb10-serving-vllm-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# -- processes ---------------------------------------------------------------------------------------------------------


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _state(pid: int) -> str:
    fields = _stat_fields(pid)
    return fields[0] if fields else ""


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def session_members(session: int) -> list[int]:
    """Every living process of a session: finds what was orphaned too, which a walk from the parent does not."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [
        pid for pid in pids if (fields := _stat_fields(pid)) and fields[3] == str(session) and fields[0] not in "ZX"
    ]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(child) for child in task.read_text().split()]
    return found


def _tree(pid: int) -> list[int]:
    return [pid, *(descendant for child in _children(pid) for descendant in _tree(child))]


class VllmServer:
    """One ``vllm serve`` and everything it starts. A context manager: inside it the server is ready."""

    def __init__(
        self,
        bed: Bed,
        *flags: str,
        model: str = "tiny",
        env: Mapping[str, str] | None = None,
        log_folder: Path,
        port: int | None = None,
    ) -> None:
        self.bed = bed
        self.flags = flags
        self.model = model
        self.env = dict(env or {})
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log_folder / f"vllm-{self.port}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._log_file: TextIO | None = None
        self._client = httpx.Client(base_url=self.url, timeout=30, trust_env=False)

    # -- life

    def __enter__(self) -> VllmServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if error is not None and self.log.exists():
            print(f"--- the end of {self.log.name} ---\n{self.log_tail()}")

    def start(self) -> None:
        dtype = number_format(Path("/proc/cpuinfo").read_text())
        command = [
            str(self.bed.venv / "bin" / "vllm"), "serve", str(self.bed.models / self.model),
            "--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", self.model,
            "--enforce-eager", "--dtype", dtype, *(() if "--max-model-len" in self.flags else ("--max-model-len", "16384")), *self.flags,
        ]  # fmt: skip
        environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("VLLM_", "PYTHON", "PROMETHEUS_"))
            },
            "PATH": f"{self.bed.venv / 'bin'}:{os.environ['PATH']}",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "2" if dtype == "float32" else "1",
            # One thread an engine. With the default, a spinning thread on every core, two ranks starve the front ends on
            # a machine of two cores: a /metrics page was seen to take 15 s.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            **self.env,
        }
        self._log_file = self.log.open("a")
        # A session of its own, so that clean-up finds orphans too and never anything that is not ours.
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=self._log_file, stderr=subprocess.STDOUT, start_new_session=True
        )  # fmt: skip
        try:
            wait_until(self._ready, f"{self.url}/health answers 200\n{self.log_tail()}", READY_LIMIT_S, every_s=0.25)
        except BaseException:
            self.stop()
            raise

    def _ready(self) -> bool:
        if self.exit_status is not None:
            raise BedError(f"vLLM ended with status {self.exit_status} before it was ready\n{self.log_tail()}")
        try:
            return self._client.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    def stop(self) -> None:
        """End all of it, also when parts of it are frozen: continue, ask, then kill."""
        if self._process is None:
            return
        session = self._process.pid
        for pid in session_members(session):
            self._signal(pid, signal.SIGCONT)
        if self._process.poll() is None:
            self._signal(session, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_LIMIT_S)
        deadline = time.monotonic() + STOP_LIMIT_S
        while members := session_members(session):
            for pid in members:
                self._signal(pid, signal.SIGKILL)
            self._process.poll()
            if time.monotonic() > deadline:
                raise BedError(f"processes {members} of the test server cannot be ended")
            time.sleep(0.1)
        self._process.wait(STOP_LIMIT_S)
        self._process = None
        if self._log_file is not None:
            self._log_file.close()

    def restart(self) -> None:
        self.stop()
        self.start()

    @property
    def exit_status(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def wait_for_exit(self, limit_s: float = CONDITION_LIMIT_S) -> int:
        assert self._process is not None
        return self._process.wait(limit_s)

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def log_tail(self) -> str:
        return "\n".join(self.log_text().splitlines()[-LOG_TAIL_LINES:])

    # -- its processes

    @staticmethod
    def _signal(pid: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def pids(self, title: str) -> list[int]:
        """Our processes whose title begins with that: ``VLLM::EngineCore``, ``VLLM::Worker``, ``VLLM::APIServer``."""
        assert self._process is not None
        return sorted(pid for pid in _tree(self._process.pid) if _command(pid).startswith(title))

    def pid(self, title: str) -> int:
        """The one process of that title."""
        found = self.pids(title)
        if len(found) != 1:
            raise BedError(f"{len(found)} processes are called {title}, one was expected: {found}")
        return found[0]

    @property
    def engine_core(self) -> int:
        return self.pid("VLLM::EngineCore")

    @property
    def worker(self) -> int:
        return self.pid("VLLM::Worker")

    @contextlib.contextmanager
    def frozen(self, *pids: int) -> Iterator[None]:
        """Stop these processes of ours (SIGSTOP) and let them go on afterwards, whatever happens."""
        for pid in pids:
            self._signal(pid, signal.SIGSTOP)
        try:
            wait_until(lambda: all(_state(pid) == "T" for pid in pids), f"{pids} are stopped")
            yield
        finally:
            for pid in pids:
                self._signal(pid, signal.SIGCONT)

    def kill(self, pid: int) -> None:
        self._signal(pid, signal.SIGKILL)

    # -- what it says

    def page(self) -> Page:
        answer = self._client.get("/metrics", headers={"Accept": "text/plain"})
        answer.raise_for_status()
        return Page(answer.text)

    def status(self, path: str, **headers: str) -> int:
        return self._client.get(path, headers=headers).status_code

    def wait_for_page(self, condition: Callable[[Page], bool], what: str, limit_s: float = CONDITION_LIMIT_S) -> Page:
        """Read /metrics until it shows something."""

        def look() -> Page | None:
            page = self.page()
            return page if condition(page) else None

        page = wait_until(look, what, limit_s)
        assert page is not None
        return page

    def wait_for_still(self, engine: str = "0", gap_s: float = 1.0) -> list[str]:
        """Read until two pages that far apart are the same for one engine: what was under way when it was frozen has
        arrived by then. Hands back its lines."""

        def look() -> list[str] | None:
            first = self.page().engine_lines(engine)
            time.sleep(gap_s)
            return first if self.page().engine_lines(engine) == first else None

        still = wait_until(look, f"the series of engine {engine} stand still", every_s=0)
        assert still is not None
        return still

    def complete(self, prompt_tokens: int = 8, max_tokens: int = 4, **headers: str) -> None:
        """One completion, waited for."""
        body = completion_body(self.model, prompt_tokens, max_tokens)
        self._client.post("/v1/completions", json=body, headers=headers, timeout=CONDITION_LIMIT_S).raise_for_status()

    def load(
        self,
        streams: int = 2,
        prompt_tokens: int = 16,
        max_tokens: int = 15000,
        repeat: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> Load:
        return Load(self.url, self.model, streams, prompt_tokens, max_tokens, repeat, headers or {})


# -- load --------------------------------------------------------------------------------------------------------------


def completion_body(model: str, prompt_tokens: int, max_tokens: int, stream: bool = False) -> dict[str, object]:
    """A request of exactly that many tokens; random, so that a prefix cache never shortens it."""
    prompt = [random.randint(FIRST_PLAIN_TOKEN, LAST_PLAIN_TOKEN) for _turn in range(prompt_tokens)]
    return {"model": model, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": stream}


@dataclass
class Load:
    """Streaming completions until left: each stream begins anew when it is done (or not), so the server stays busy."""

    url: str
    model: str
    streams: int
    prompt_tokens: int
    max_tokens: int
    repeat: bool
    headers: Mapping[str, str] = field(default_factory=dict)
    finished: int = 0
    errors: list[str] = field(default_factory=list)
    _loop: asyncio.AbstractEventLoop | None = None
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Load:
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(started)), daemon=True)
        self._thread.start()
        started.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None and self._thread is not None
        with contextlib.suppress(RuntimeError):  # all streams ended by themselves, and the loop with them
            self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._tasks])
        self._thread.join(STOP_LIMIT_S)

    async def _run(self, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        async with httpx.AsyncClient(
            base_url=self.url, timeout=None, trust_env=False, limits=httpx.Limits(max_connections=None)
        ) as client:
            self._tasks = [asyncio.create_task(self._stream(client)) for _turn in range(self.streams)]
            started.set()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _stream(self, client: httpx.AsyncClient) -> None:
        while True:
            body = completion_body(self.model, self.prompt_tokens, self.max_tokens, stream=True)
            try:
                async with client.stream("POST", "/v1/completions", json=body, headers=self.headers) as answer:
                    if answer.status_code != 200:
                        self.errors.append(f"{answer.status_code} {(await answer.aread())[:200]!r}")
                        return
                    async for _turn in answer.aiter_raw():
                        pass
            except httpx.HTTPError as error:  # a killed server ends its streams: the test decides what that means
                self.errors.append(repr(error))
                return
            self.finished += 1
            if not self.repeat:
                return
