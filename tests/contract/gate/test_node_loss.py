"""The proof: a node dies under load behind the real LiteLLM, and nobody is served unchecked. And its control."""

from __future__ import annotations

import asyncio
import functools
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import pytest
import yaml

from tests.contract.gate.backend import Backend
from tests.contract.gate.netns import Lab, need_namespaces
from tests.contract.gate.proxy import COLLECTION, MASTER, Proxy, deployment, eventually, litellm_python

#: One run is enough: LiteLLM brings its own Python and libraries.
pytestmark = [pytest.mark.slow, pytest.mark.alone]
#: Checks a second. A machine that cannot carry the first is tried with the others.
RATES = (50, 25, 12)
HEDGE_S = 0.05
#: The issue's bound on what a fault may add at p99: the hedge delay plus 30 ms. Against the same load without the fault:
#: twenty requests at once keep one LiteLLM worker busy for 300 ms by themselves.
BOUND_S = HEDGE_S + 0.03
#: A loaded machine adds latency of its own, now and then. Only the bound is measured again, and so often.
ROUNDS = 3
#: Undisturbed p99, in seconds, beyond which a machine is too busy to say anything of 80 ms (35 ms when it is quiet).
BUSY_S = 0.1
#: Undisturbed p99, in seconds, up to which a replica's 20 ms answer can come within the 0.5 s of a try at all.
CARRIED_S = 0.2
CAPPED = "glm5.2"

#: Exclusion, ejection and hedging off: what a plain client with one blind retry does.
CONTROL = """
from ansible_collections.gb10.serving.plugins.module_utils._gate import pool as _pool
_pool.Pool.choose = lambda self, tried, now_s: self._rng.choice(self._order).endpoint
"""


class Stand:
    """Three replicas in namespaces, LiteLLM and its backend in a fourth."""

    def __init__(self, folder, control: bool = False) -> None:
        self.rate = RATES[0]
        self.lab = Lab(3)
        self.lab.__enter__()
        try:
            self.backend = self.lab.call(Backend)
            gate = {
                "endpoints": {"static": self.lab.urls},
                "capped_models": [CAPPED],
                # A remembered verdict would hide what this is to show.
                "verdict_cache": {"denied_s": 0, "allowed_s": 0, "allowed_uses": 0},
                "ejection": {"cooldown_s": 1, "cooldown_max_s": 2},
            }
            hook = None
            if control:
                gate["ejection"] |= {"after_errors": 0, "after_5xx": 0}
                gate["limits"] = {"hedge_share": 0}
                source = (COLLECTION / "roles/usage_gate/files/usage_gate.py").read_text()
                hook = folder / "control.py"
                hook.write_text(source.replace("usage_gate = UsageGate()", CONTROL + "\nusage_gate = UsageGate()"))
            self.gate = gate
            config = {
                "model_list": [deployment(CAPPED, "glm-up", self.backend.url)],
                "litellm_settings": {"callbacks": ["usage_gate.usage_gate", "prometheus"], "num_retries": 0},
                "router_settings": {"num_retries": 0, "disable_cooldowns": True},
                "general_settings": {"custom_auth": "who.user_api_key_auth"},
            }
            self.proxy = Proxy(folder / "p", config, gate, 4000, prefix=self.lab.inside, hook=hook)
            self.lab.call(self.proxy.wait_ready)
            self.load(1.0)  # pools warm, counters moving
            self.mark()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if hasattr(self, "proxy"):
            self.proxy.stop()
        if hasattr(self, "backend"):
            self.backend.close()
        self.lab.__exit__()

    def metrics(self) -> dict[str, float]:
        return self.lab.call(self.proxy.metrics)

    def _opened(self) -> dict[str, float]:
        return {name: value for name, value in self.metrics().items() if name.startswith("usage_gate_fail_open_total")}

    def mark(self) -> None:
        """From here on fail-opens are counted."""
        self._marked = self._opened()

    def fail_opens(self) -> dict[str, float]:
        """By cause, since the mark."""
        return {
            name: value - self._marked[name] for name, value in self._opened().items() if value != self._marked[name]
        }

    @property
    def burst(self) -> int:
        """So many requests at once, where a load has an extra."""
        return self.rate * 2 // 5

    def load(self, for_s: float, *events: tuple[float, Callable[[], None]], extra_at_s: float | None = None) -> Load:
        """Requests at the steady rate, with things that happen meanwhile."""
        return self.lab.call(
            lambda: asyncio.run(_load(self.proxy.url, self.rate, for_s, events, extra_at_s, self.burst))
        )

    def all_ready(self) -> bool:
        return self.metrics()['usage_gate_endpoints{state="ready"}'] == len(self.lab.nodes)


@dataclass
class Load:
    statuses: list[int]
    times_s: list[float]

    @property
    def p99_s(self) -> float:
        return sorted(self.times_s)[int(len(self.times_s) * 0.99)]


async def _load(url, rate, for_s, events, extra_at_s, burst) -> Load:
    statuses, times = [], []
    headers = {"Authorization": "Bearer sk-allowed"}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=200)
    async with httpx.AsyncClient(headers=headers, timeout=20, limits=limits) as client:

        async def one() -> None:
            began_s = time.monotonic()
            try:
                body = {"model": CAPPED, "messages": [{"role": "user", "content": "x"}]}
                statuses.append((await client.post(f"{url}/v1/chat/completions", json=body)).status_code)
            except httpx.HTTPError:
                statuses.append(0)
            times.append(time.monotonic() - began_s)

        began_s = time.monotonic()
        tasks = []
        waiting = sorted(events, key=lambda event: event[0])
        happening = []
        for number in range(round(for_s * rate)):
            await asyncio.sleep(max(0.0, began_s + number / rate - time.monotonic()))
            passed_s = time.monotonic() - began_s
            if extra_at_s is not None and passed_s >= extra_at_s:
                tasks += [asyncio.ensure_future(one()) for _ in range(burst)]
                extra_at_s = None
            while waiting and passed_s >= waiting[0][0]:
                happening.append(asyncio.get_running_loop().run_in_executor(None, waiting.pop(0)[1]))
            tasks.append(asyncio.ensure_future(one()))
        await asyncio.gather(*tasks, *happening)
    return Load(statuses, times)


@pytest.fixture(scope="module")
def standing(tmp_path_factory):
    need_namespaces()
    litellm_python()
    built = Stand(tmp_path_factory.mktemp("stand"))
    yield built
    built.close()


@pytest.fixture
def stand(standing):
    need_quiet(standing)
    eventually(standing.all_ready, what="all replicas in use before the test")
    standing.mark()
    return standing


def need_quiet(stand) -> None:
    """Asks less often where proxy and replicas do not carry the plain load: what then goes unchecked is the machine's.
    Skips where they carry none."""
    seen = []
    for rate in (rate for rate in RATES if rate <= stand.rate):
        stand.rate = rate
        for _ in range(3):
            seen.append(stand.load(1).p99_s)
            if seen[-1] <= BUSY_S:
                return
    if min(seen[-3:]) > CARRIED_S:
        pytest.skip(f"this machine is too busy: the plain load's p99 was {', '.join(f'{p99:.2f}' for p99 in seen)} s")


def judge_latency(stand, added: list[float]) -> None:
    """The bound was missed in every round: the gate's fault, unless the machine cannot even carry the plain load."""
    plain = stand.load(3)
    if plain.p99_s > BUSY_S:
        pytest.skip(
            f"nobody went unchecked; the machine is too busy for the latency bound: p99 {plain.p99_s:.3f} s undisturbed"
        )
    pytest.fail(f"the fault added at p99, in seconds: {added}; undisturbed p99 {plain.p99_s:.3f}")


def nobody_unchecked(stand) -> None:
    """The proof itself. A machine that has become too busy meanwhile to carry the plain load proves nothing either way."""
    opened = stand.fail_opens()
    if opened:
        need_quiet(stand)
        raise Unchecked(f"served unchecked: {opened}")


class Unchecked(AssertionError):
    """Requests were served unchecked though the machine could carry the load."""


def thrice(test):
    """Two cores carry proxy, replicas, load and namespaces: half a second in which the machine itself stood still looks
    like a fault of the gate. A gate that is at fault is so in each of three rounds (the control always is)."""

    @functools.wraps(test)
    def rounds(stand, **more):
        for left in (2, 1, 0):
            try:
                return test(stand, **more)
            except Unchecked:
                if not left:
                    raise
                stand.mark()
                eventually(stand.all_ready, what="all replicas in use again")
        return None

    return rounds


@thrice
def test_a_node_dies_under_load_and_nobody_is_served_unchecked(stand):
    node = stand.lab.nodes[0]
    left_out = f"leaving out {node.url}: no whole answer"
    added = []
    for turn in range(3 * ROUNDS):
        eventually(stand.all_ready)
        # the cut takes some ten milliseconds to be made, sooner or later by the machine: questions have to be under way then
        extra_at_s = (0.99, 1.0, 0.98)[turn % 3]
        undisturbed = stand.load(3, extra_at_s=extra_at_s)
        said_before = stand.proxy.text().count(left_out)
        asked_before = node.tell("count")
        load = stand.load(5, (1.0, node.drop), extra_at_s=extra_at_s)
        after = stand.metrics()
        node.heal()
        assert node.tell("count") > asked_before, "the node that was cut had been in use"
        nobody_unchecked(stand)
        assert len(load.statuses) == 5 * stand.rate + stand.burst
        assert set(load.statuses) == {200}, "no client sees an error"
        assert after[f'usage_gate_ejections_total{{endpoint="{node.url}"}}'] >= 1
        on_their_way = stand.proxy.text().count(left_out) > said_before
        eventually(stand.all_ready, what="the healed node is asked again")
        asked_before = node.tell("count")
        assert set(stand.load(1).statuses) == {200}
        assert node.tell("count") > asked_before
        if not on_their_way:
            continue  # a cut that met no question proves nothing
        added.append(load.p99_s - undisturbed.p99_s)
        if added[-1] <= BOUND_S:
            return
        if len(added) == ROUNDS:
            break
    assert added, f"in no round were questions on their way to it: {stand.proxy.text()[-2000:]}"
    judge_latency(stand, added)


def test_the_control_fails_open(tmp_path):
    """Without exclusion, ejection and hedging the same cut must be seen, else the test above proves nothing."""
    need_namespaces()
    litellm_python()
    stand = Stand(tmp_path, control=True)
    try:
        node = stand.lab.nodes[0]
        load = stand.load(6, (1.0, node.drop), extra_at_s=0.99)
        node.heal()
        assert set(load.statuses) == {200}, "it fails open: clients are served"
        assert sum(stand.fail_opens().values()) > 0
    finally:
        stand.close()


def mode(name: str):
    return (lambda node: node.tell(f"mode {name}"), lambda node: node.tell("mode good"))


FAULTS = {
    "reset": (lambda node: node.reset(), lambda node: node.heal()),
    "link down": (lambda node: node.link("down"), lambda node: node.link("up")),
    "SIGSTOP": (lambda node: node.signal(signal.SIGSTOP), lambda node: node.signal(signal.SIGCONT)),
    "500": mode("500"),
    "503": mode("503"),
    "slow": (lambda node: node.tell("delay 0.3"), lambda node: node.tell("delay 0.02")),
    "garbage": mode("garbage"),
    "redirect": mode("redirect"),
    "closed mid-answer": mode("closed mid-answer"),
    "dripping": mode("dripping"),
}


@pytest.mark.parametrize("fault", FAULTS)
@thrice
def test_one_faulty_replica_opens_nothing(stand, fault):
    begin, end = FAULTS[fault]
    node = stand.lab.nodes[1]
    added = []
    for _ in range(ROUNDS):
        eventually(stand.all_ready)
        undisturbed = stand.load(1.5)
        load = stand.load(3, (0.2, lambda: begin(node)))
        end(node)
        nobody_unchecked(stand)
        assert set(load.statuses) == {200}
        eventually(stand.all_ready, what="re-admitted")
        added.append(load.p99_s - undisturbed.p99_s)
        if added[-1] <= BOUND_S:
            return
    judge_latency(stand, added)


@thrice
def test_two_of_three_dead_opens_nothing(stand):
    first, second = stand.lab.nodes[:2]
    load = stand.load(4, (0.5, first.drop), (0.5, second.drop))
    for node in (first, second):
        node.heal()
    nobody_unchecked(stand)
    assert set(load.statuses) == {200}
    eventually(stand.all_ready)


@thrice
def test_a_rolling_restart_of_all_replicas_opens_nothing(stand):
    def restart(node):
        node.end()
        node.start()

    load = stand.load(
        6, *((0.5 + 1.5 * number, lambda node=node: restart(node)) for number, node in enumerate(stand.lab.nodes))
    )
    nobody_unchecked(stand)
    assert set(load.statuses) == {200}
    eventually(stand.all_ready)


@thrice
def test_endpoints_that_change_under_load_open_nothing(stand):
    eventually(stand.all_ready)
    urls = stand.lab.urls

    def publish(some):
        document = {**stand.gate, "endpoints": {"static": some}}
        stand.proxy.gate_file.write_text(yaml.safe_dump(document))

    load = stand.load(
        8, (0.2, lambda: publish(urls[:1])), (3.0, lambda: publish(urls[1:])), (5.5, lambda: publish(urls))
    )
    nobody_unchecked(stand)
    assert set(load.statuses) == {200}
    eventually(stand.all_ready)


def test_all_dead_fails_open_at_once_with_its_cause_and_recovers_within_one_probe(stand):
    undisturbed = stand.load(1)
    for node in stand.lab.nodes:
        node.drop()
    stand.load(1.5)  # time-outs of half a second, until all are known to be out
    added = []
    while len(added) < 3 and not (added and added[-1] < 0.4):  # one round is the machine's, see thrice
        load = stand.load(3)
        assert set(load.statuses) == {200}, "served unchecked"
        added.append(load.p99_s - undisturbed.p99_s)
    assert set(stand.fail_opens()) == {'usage_gate_fail_open_total{cause="timeout"}'}
    assert min(added) < 0.4, f"an outage does not cost each request its budget: {added}"
    for node in stand.lab.nodes:
        node.heal()

    def checked() -> bool:
        count = stand.metrics()['usage_gate_checks_total{outcome="allowed"}']
        stand.load(5 / stand.rate)
        return stand.metrics()['usage_gate_checks_total{outcome="allowed"}'] >= count + 5

    eventually(checked, timeout_s=5, what="checks are answered again")
    eventually(stand.all_ready)
    assert MASTER not in stand.proxy.text()
