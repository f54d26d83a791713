"""Endpoints from Kubernetes and DNS: what they give, and what they give while their source misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._gate import gate as gate_module
from ansible_collections.gb10.serving.plugins.module_utils._gate.channel import Channels
from ansible_collections.gb10.serving.plugins.module_utils._gate.config import (
    DnsEndpoints,
    KubernetesEndpoints,
    Request,
    parse_config,
)
from ansible_collections.gb10.serving.plugins.module_utils._gate.endpoint import Endpoint
from ansible_collections.gb10.serving.plugins.module_utils._gate.errors import SourceError
from ansible_collections.gb10.serving.plugins.module_utils._gate.gate import Gate
from ansible_collections.gb10.serving.plugins.module_utils._gate.outcome import Outcome
from ansible_collections.gb10.serving.plugins.module_utils._gate.source_dns import DnsSource, lookup_services
from ansible_collections.gb10.serving.plugins.module_utils._gate.source_kubernetes import KubernetesSource
from ansible_collections.gb10.serving.plugins.module_utils._gate.source_static import FixedSource
from ansible_collections.gb10.serving.plugins.module_utils._gate.verdict import Blame, Cause, Fault, Question

from tests.contract.gate.dns_server import DnsServer
from tests.contract.gate.kube_api import KubeApi, slice_of
from tests.contract.gate.servers import Api

PACE = 0.02  # a watch may be silent for 1.8 s, everything is listed anew after 6 s


class Listener:
    def __init__(self) -> None:
        self.lists: list[list[str]] = []
        self.complaints: list[str] = []
        self.beats = 0

    def publish(self, endpoints) -> None:
        self.lists.append([endpoint.url for endpoint in endpoints])

    def heard(self) -> None:
        self.beats += 1

    def failed(self, sentence) -> None:
        self.complaints.append(sentence)

    @property
    def urls(self) -> list[str]:
        return self.lists[-1] if self.lists else []


@contextlib.asynccontextmanager
async def following(source):
    listener = Listener()
    task = asyncio.ensure_future(source.run(listener))
    try:
        yield listener
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def kubernetes(api, **more) -> KubernetesSource:
    config = KubernetesEndpoints(
        "platform", "platform-api", "http", "http", api.url, more.pop("token_file", None), None
    )
    return KubernetesSource(config, pace=PACE)


async def until(condition, timeout_s=10):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def urls(*numbers, port=8080):
    return [f"http://10.0.0.{number}:{port}" for number in numbers]


async def test_list_then_watch():
    async with KubeApi() as api, following(kubernetes(api)) as seen:
        await until(lambda: api.watchers)
        assert seen.urls == urls(1, 2)
        kinds = [kind for kind, _, _ in api.requests]
        assert kinds == ["list", "watch"]
        _, params, _ = api.requests[1]
        assert params["path"] == "/apis/discovery.k8s.io/v1/namespaces/platform/endpointslices"
        assert params["labelSelector"] == "kubernetes.io/service-name=platform-api"
        assert (params["allowWatchBookmarks"], params["resourceVersion"]) == ("true", "10")
        await api.send("ADDED", slice_of("b", "10.0.0.3", version="11"))
        await until(lambda: seen.urls == urls(1, 2, 3))
        await api.send("MODIFIED", slice_of("a", "10.0.0.2", version="12"))
        await until(lambda: seen.urls == urls(2, 3))
        await api.send("DELETED", slice_of("b", "10.0.0.3", version="13"))
        await until(lambda: seen.urls == urls(2))
        await api.send("BOOKMARK", {"metadata": {"resourceVersion": "99"}})
        await until(lambda: seen.beats == 1)
        api.drop()
        await until(lambda: len(api.requests) >= 3)
        assert not any("traceback" in line.lower() for line in seen.complaints)


async def test_a_watch_that_ends_normally_goes_on_from_the_bookmark():
    async with KubeApi() as api, following(kubernetes(api)) as seen:
        await until(lambda: api.watchers)
        await api.send("BOOKMARK", {"metadata": {"resourceVersion": "99"}})
        await until(lambda: seen.beats == 1)
        for writer in api.watchers:
            writer.write(b"0\r\n\r\n")
            writer.close()
        api.watchers.clear()
        await until(lambda: len(api.requests) >= 3)
        assert api.requests[2][0] == "watch"
        assert api.requests[2][1]["resourceVersion"] == "99"


async def test_410_as_a_status_and_as_an_event_list_anew():
    async with KubeApi() as api, following(kubernetes(api)) as seen:
        await until(lambda: api.watchers)
        api.items = [slice_of("a", "10.0.0.7")]
        await api.send("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})
        await until(lambda: seen.urls == urls(7))
        api.watch_status = 410
        api.drop()
        api.items = [slice_of("a", "10.0.0.8")]
        await until(lambda: seen.urls == urls(8))
        assert any("410" in sentence for sentence in seen.complaints)
        count = len(api.requests)
        await asyncio.sleep(0.3)
        assert len(api.requests) - count < 40, "it does not hammer the API"


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[]",
        b'{"type": "ADDED"}',
        b'{"type": "STRANGE", "object": {}}',
        b'{"type":"ERROR","object":{"code":500}}',
    ],
)
async def test_events_nobody_understands_list_anew(line):
    async with KubeApi() as api, following(kubernetes(api)) as seen:
        await until(lambda: api.watchers)
        api.items = [slice_of("a", "10.0.0.7")]
        await api.send_line(line)
        await until(lambda: seen.urls == urls(7))
        assert [kind for kind, *_ in api.requests][:3] == ["list", "watch", "list"], "the line itself changed nothing"


@pytest.mark.parametrize("status", [401, 403, 500, 503])
async def test_an_api_that_refuses_leaves_the_last_list(status):
    async with KubeApi() as api, following(kubernetes(api)) as seen:
        await until(lambda: api.watchers)
        api.list_status = api.watch_status = status
        api.drop()
        await until(lambda: any(str(status) in sentence for sentence in seen.complaints))
        assert seen.urls == urls(1, 2)
        api.list_status = api.watch_status = 200
        api.items = [slice_of("a", "10.0.0.3")]
        await until(lambda: seen.urls == urls(3))


async def test_a_black_holed_api_is_noticed_and_left():
    async with KubeApi() as api, following(kubernetes(api)) as seen:
        await until(lambda: api.watchers)
        api.silent = True  # the watch stays open and silent, a new LIST is never answered
        await until(lambda: seen.complaints, timeout_s=15)
        assert seen.urls == urls(1, 2)
        api.silent = False
        api.items = [slice_of("a", "10.0.0.3")]
        await until(lambda: seen.urls == urls(3), timeout_s=15)


async def test_everything_is_listed_anew_now_and_then():
    async with KubeApi() as api, following(kubernetes(api)) as seen:
        await until(lambda: api.watchers)
        api.items = [slice_of("a", "10.0.0.4")]  # an event that was never sent

        async def bookmarks():
            while True:
                await api.send("BOOKMARK", {"metadata": {"resourceVersion": "50"}})
                await asyncio.sleep(0.2)

        task = asyncio.ensure_future(bookmarks())
        await until(lambda: seen.urls == urls(4), timeout_s=15)
        task.cancel()
        assert [kind for kind, *_ in api.requests][:3] == ["list", "watch", "list"]
        assert seen.beats > 1, "the watch was alive all that time"
        assert seen.complaints == []


async def test_a_rotated_token_is_used(tmp_path):
    token = tmp_path / "token"
    token.write_text("one\n")
    async with KubeApi() as api:
        api.token = "one"
        async with following(kubernetes(api, token_file=str(token))) as seen:
            await until(lambda: api.watchers)
            api.token = "two"
            token.write_text("two\n")
            api.items = [slice_of("a", "10.0.0.5")]
            api.drop()
            await until(lambda: seen.urls == urls(5))
            token.unlink()
            api.drop()
            await until(lambda: any("no token at" in sentence for sentence in seen.complaints))
            assert seen.urls == urls(5)
            assert "two" not in " ".join(seen.complaints)


async def test_pages_are_put_together():
    async with KubeApi() as api:
        api.items = [slice_of(str(n), f"10.0.0.{n}") for n in range(1, 8)]
        api.page_size = 3
        async with following(kubernetes(api)) as seen:
            await until(lambda: seen.lists)
            assert seen.urls == urls(*range(1, 8))


@pytest.mark.parametrize(
    "body",
    [b"<html>", b"[]", b'{"items": [1, null], "metadata": null}', b"{}", b'{"items": 5}', b'{"items": [{"metadata": "x"}]}',
     b'{"items": [], "metadata": "x"}'],
)  # fmt: skip
async def test_a_list_that_is_none(body):
    async with KubeApi() as api:
        api.list_body = body
        async with following(kubernetes(api)) as seen:
            await until(lambda: seen.complaints or seen.lists)
            api.list_body = None
            await until(lambda: seen.urls == urls(1, 2), timeout_s=15)
            assert all(found in ([], urls(1, 2)) for found in seen.lists), "nothing was made up from it"


async def test_where_watching_is_forbidden_it_lists_more_and_more_rarely():
    """Seen: a service account without "watch" listed everything, and read its authorities anew, each second."""
    async with KubeApi() as api:
        api.watch_status = 403
        config = KubernetesEndpoints("platform", "platform-api", "http", "http", api.url, None, None)
        async with following(KubernetesSource(config, pace=0.1)) as seen:
            await until(lambda: api.lists >= 3)
            began = time.monotonic()
            await until(lambda: api.lists >= 6)
            assert time.monotonic() - began > 0.1 * 0.5 * (4 + 8 + 16), "waits of half of that at least"
            assert seen.urls == urls(1, 2)
            api.items = [slice_of("a", "10.0.0.3")]
            await until(lambda: seen.urls == urls(3))


async def test_background_work_that_fails_is_begun_again(monkeypatch, caplog):
    class Broken:
        runs = 0

        async def run(self, listener):
            self.runs += 1
            if self.runs == 1:
                raise ZeroDivisionError("of our own")
            listener.publish(ONE_LIST)
            await asyncio.sleep(60)

    monkeypatch.setattr(gate_module, "AGAIN_S", 0.05)
    config = parse_config({"endpoints": {"dns": {"name": "x", "port": 1}}, "capped_models": ["m"]}, "test")
    gate = Gate(config, source=Broken())
    gate.start()
    try:
        assert await gate.first_list(5)
        assert "background work failed" in caplog.text
    finally:
        await gate.stop()


async def test_outside_a_cluster_it_says_what_to_set(monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    config = KubernetesEndpoints("n", "s", "http", "http", None, None, None)
    async with following(KubernetesSource(config, pace=PACE)) as seen:
        await until(lambda: seen.complaints)
        assert "endpoints.kubernetes.api_url" in seen.complaints[0]


async def test_an_empty_service_keeps_the_last_list_and_the_gate_checks_on():
    """The list comes from a gate, with requests under way while the API goes away."""
    with Api(2) as replicas:
        async with KubeApi() as api:
            api.items = [slice_of("a", "127.0.0.1", port=replicas[0].port)]
            config = parse_config(
                {
                    "endpoints": {"kubernetes": {"namespace": "n", "service": "s", "port": "http", "api_url": api.url}},
                    "capped_models": ["m"],
                    "verdict_cache": {"allowed_s": 0},
                },
                "test",
            )
            gate = Gate(config, source=KubernetesSource(config.source, pace=PACE))
            gate.start()
            try:
                assert await gate.first_list(5)
                outcomes = set()

                async def ask_until(condition):
                    end = time.monotonic() + 15
                    while not condition():
                        assert time.monotonic() < end
                        outcomes.add((await gate.check(Question("k", "m"))).outcome)
                        await asyncio.sleep(0.01)

                await ask_until(lambda: api.watchers)
                await api.send("MODIFIED", slice_of("a"))
                await ask_until(lambda: "has none" in (gate.complaint or ""))
                assert len(gate.pool.members) == 1
                await api.send("ADDED", slice_of("b", "127.0.0.1", port=replicas[1].port))
                await ask_until(lambda: [m.endpoint.url for m in gate.pool.members] == [replicas.urls[1]])
                api.silent = True
                api.drop()
                await ask_until(lambda: "the Kubernetes API" in (gate.complaint or ""))
                assert outcomes == {Outcome.ALLOWED}
            finally:
                await gate.stop()


# -- a source that has never given a list ------------------------------------------------------------------------

ONE_LIST = [Endpoint("http://127.0.0.1:9")]


class Told:
    """A source that does as it is told."""

    def __init__(self) -> None:
        self.says: asyncio.Queue = asyncio.Queue()

    async def run(self, listener) -> None:
        while True:
            said = await self.says.get()
            listener.failed(said) if isinstance(said, str) else listener.publish(said)


#: (what the source says 0.1 s after the question, seconds the question takes at least and at most)
FIRST_WORDS = [
    ("nothing", None, 0.45, 0.7),
    ("a failure", "dns: no such name", 0.08, 0.3),
    ("an empty list", [], 0.08, 0.3),
]


@pytest.mark.parametrize(
    ("said", "least_s", "most_s"), [case[1:] for case in FIRST_WORDS], ids=[c[0] for c in FIRST_WORDS]
)
async def test_only_the_first_answer_of_a_source_is_waited_for(said, least_s, most_s):
    config = parse_config(
        {
            "endpoints": {"dns": {"name": "x", "port": 1}},
            "capped_models": ["m"],
            "limits": {"budget_s": 0.5, "retries": 0},
        },
        "test",
    )
    source = Told()
    gate = Gate(config, source=source)
    gate.start()
    try:
        began = time.monotonic()
        asking = asyncio.ensure_future(gate.check(Question("k", "m")))
        await asyncio.sleep(0.1)
        if said is not None:
            source.says.put_nowait(said)
        checked = await asking
        assert least_s < time.monotonic() - began < most_s
        assert (checked.outcome, checked.cause) == (Outcome.FAILED_OPEN, Cause.NO_ENDPOINTS)
        if said is None:
            return
        assert "there is no list yet" in gate.complaint and "stays in use" not in gate.complaint
        began = time.monotonic()
        for dummy in range(20):
            assert (await gate.check(Question("k", "m"))).cause is Cause.NO_ENDPOINTS
        assert time.monotonic() - began < 0.2, "nobody waits for a source that has failed"
        source.says.put_nowait(ONE_LIST)
        await until(lambda: gate.pool.members)
        assert gate.complaint is None
        assert (await gate.check(Question("k", "m"))).cause is Cause.UNREACHABLE, "asked as soon as there is a list"
        source.says.put_nowait("dns: no such name")
        await until(lambda: gate.complaint)
        assert gate.complaint == "dns: no such name; the last list stays in use"
    finally:
        await gate.stop()


# -- DNS ---------------------------------------------------------------------------------------------------------


async def test_addresses_are_followed_and_failures_keep_the_list():
    answers: list = [["10.0.0.2", "10.0.0.1", "fd00::1"], ["10.0.0.3"]]

    async def addresses(host, port):
        answer = answers[0] if len(answers) == 1 else answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    source = DnsSource(DnsEndpoints("api.internal", 8080, 0.02, "http"), addresses=addresses)
    async with following(source) as seen:
        await until(lambda: len(seen.lists) >= 2)
        assert seen.lists[0] == ["http://10.0.0.1:8080", "http://10.0.0.2:8080", "http://[fd00::1]:8080"]
        assert seen.urls == urls(3)
        answers[:] = [OSError(-2, "Name or service not known")]
        await until(lambda: seen.complaints)
        assert seen.complaints[0] == "endpoints.dns api.internal: Name or service not known"
        assert seen.urls == urls(3)
        answers[:] = [["10.0.0.4"]]
        await until(lambda: seen.urls == urls(4))


async def test_srv_records_carry_hosts_and_ports():
    async with DnsServer(
        {"_http._tcp.api.internal": [(10, 5, 8081, "b.internal"), (0, 5, 8080, "a.internal")]}
    ) as server:
        found = await lookup_services("_http._tcp.api.internal", [server.host], server.port)
        assert found == [("a.internal", 8080), ("b.internal", 8081)]

        async def addresses(host, port):
            return [{"a.internal": "10.0.0.1", "b.internal": "10.0.0.2"}[host]]

        async def services(name):
            return await lookup_services(name, [server.host], server.port)

        source = DnsSource(DnsEndpoints("_http._tcp.api.internal", None, 0.02, "http"), addresses, services)
        async with following(source) as seen:
            await until(lambda: seen.lists)
            assert seen.urls == ["http://10.0.0.1:8080", "http://10.0.0.2:8081"]


async def test_one_srv_target_that_cannot_be_resolved_does_not_take_the_others_away():
    gone, failing = OSError(socket.EAI_NONAME, "no such name"), OSError(socket.EAI_AGAIN, "try again")
    hosts: dict = {"a": ["10.0.0.1"], "b": ["10.0.0.2"], "c": gone}

    async def addresses(host, port):
        if isinstance(hosts[host], Exception):
            raise hosts[host]
        return hosts[host]

    async def services(name):
        return [(host, 8080) for host in hosts]

    async with following(DnsSource(DnsEndpoints("_x._tcp.y", None, 0.02, "http"), addresses, services)) as seen:
        await until(lambda: len(seen.complaints) > 3)
        assert seen.lists == [urls(1, 2)], "told once, so that the log does not say each time that the source is back"
        assert set(seen.complaints) == {"endpoints.dns _x._tcp.y: c: no such name"}
        hosts.update(b=failing, c=["10.0.0.3"])
        await until(lambda: seen.urls == urls(1, 2, 3))  # b stays as it was known
        hosts["b"] = gone
        await until(lambda: seen.urls == urls(1, 3))
        hosts.update(a=failing, c=failing)
        count = len(seen.complaints)
        await until(lambda: len(seen.complaints) > count + 3)
        assert seen.urls == urls(1, 3)


async def test_an_srv_target_that_is_no_host_name_does_not_end_the_source():
    async def services(name):
        return [("a..b", 8080), ("127.0.0.1", 8081)]

    async with following(DnsSource(DnsEndpoints("_x._tcp.y", None, 0.02, "http"), services=services)) as seen:
        await until(lambda: seen.lists and seen.complaints)
        assert seen.urls == ["http://127.0.0.1:8081"]
        assert seen.complaints[0] == "endpoints.dns _x._tcp.y: a..b: is no host name"


async def test_a_name_that_ends_with_a_dot_is_looked_up_as_it_is():
    asked = []

    async def addresses(host, port):
        asked.append(host)
        return ["10.0.0.1"]

    async with following(DnsSource(DnsEndpoints("api.internal.", 8080, 5, "http"), addresses=addresses)) as seen:
        await until(lambda: seen.lists)
        assert asked == ["api.internal."], "without the dot the search list would come first"


# -- names written down ------------------------------------------------------------------------------------------


async def test_names_written_down_are_resolved_before_anybody_is_asked(monkeypatch):
    monkeypatch.setattr(FixedSource, "AGAIN_S", 0.02)
    answers: dict = {"good": ["10.0.0.1"], "bad": OSError(-3, "try again"), "hangs": asyncio.Event()}

    async def lookup(host, port):
        answer = answers[host]
        if isinstance(answer, asyncio.Event):
            await answer.wait()
        if isinstance(answer, Exception):
            raise answer
        return ["10.0.0.3"] if isinstance(answer, asyncio.Event) else answer

    endpoints = tuple(Endpoint(f"http://{host}:1") for host in ("10.0.0.9", "good", "bad", "hangs"))
    seen = Listener()
    seen.publish = seen.lists.append
    task = asyncio.ensure_future(FixedSource(endpoints, lookup).run(seen))
    try:
        await until(lambda: len(seen.lists) == 3)
        assert [one.address for one in seen.lists[0]] == [None], "an address needs no lookup"
        assert [one.address for one in seen.lists[2]] == [None, "10.0.0.1", ""], "a name that hangs holds nobody up"
        answers["hangs"].set()
        await until(lambda: len(seen.complaints) > 3)
        assert set(seen.complaints) == {"bad: try again"}
        assert len(seen.lists) == 4, "a name that stays bad is not back each time"
        answers["bad"] = ["10.0.0.2"]
        await until(lambda: seen.beats)
        assert [one.address for one in seen.lists[-1]] == [None, "10.0.0.1", "10.0.0.2", "10.0.0.3"]
        answers["bad"] = OSError(-3, "try again")
        await until(lambda: seen.complaints[-1] == "bad: try again")
        assert len(seen.lists) == 5, "its last address stays"
    finally:
        task.cancel()


async def test_a_name_that_cannot_be_resolved_is_not_looked_up_for_a_question(monkeypatch):
    """With DNS gone, each question would hold a thread of the proxy's for as long as the system's resolver waits."""
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", None)
    channels = Channels(Request(), 0.25)
    fault = await channels.send(Endpoint("http://api.internal:1", address=""), Question("k", "m"), 0.5)
    assert fault == Fault(Cause.UNREACHABLE, Blame.CONNECTION, "its name could not be resolved")


async def test_many_srv_records_come_over_tcp():
    records = [(0, 1, 8000 + n, f"replica-{n}.a-rather-long-zone-name.internal") for n in range(100)]
    async with DnsServer({"_http._tcp.big": records}) as server:
        assert len(await lookup_services("_http._tcp.big", [server.host], server.port)) == 100
        assert server.over_tcp == 1


@pytest.mark.parametrize(
    ("mode", "part"),
    [("nxdomain", "does not exist"), ("servfail", "error 2"), ("garbage", "broken"), ("other", "another question"),
     ("loop", "points to itself"), ("silent", "does not answer")],
)  # fmt: skip
async def test_a_dns_server_that_misbehaves(mode, part):
    async with DnsServer({}, mode=mode) as server:
        with pytest.raises(SourceError, match=part):
            await lookup_services("_http._tcp.x", [server.host], server.port)


def test_the_command_follows_a_cluster(llm_gate, tmp_path):
    """As in a pod: the environment says where the API is, the file where its token lies."""
    config = tmp_path / "gate.yml"

    async def story():
        async with KubeApi() as api:
            config.write_text(
                json.dumps(
                    {
                        "endpoints": {
                            "kubernetes": {"namespace": "n", "service": "s", "port": 8080, "api_url": api.url}
                        },
                        "capped_models": ["m"],
                    }
                )
            )
            return await asyncio.to_thread(llm_gate, "endpoints", "--config", str(config), "--format", "json")

    found = asyncio.run(story())
    assert found.returncode == 0
    assert [one["url"] for one in json.loads(found.stdout)["endpoints"]] == urls(1, 2)
