# SPDX-License-Identifier: GPL-3.0-or-later
"""How the hook takes over its configuration: what lies beside it may come later, go, or fail, and requests go on."""

from __future__ import annotations

import asyncio
import logging
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("prometheus_client")
from ansible_collections.gb10.serving.plugins.module_utils._gate import hook
from ansible_collections.gb10.serving.plugins.module_utils._gate.endpoint import Endpoint
from ansible_collections.gb10.serving.plugins.module_utils._gate.errors import ConfigError
from ansible_collections.gb10.serving.plugins.module_utils._gate.metrics import NoMetrics
from ansible_collections.gb10.serving.plugins.module_utils._gate.outcome import Outcome
from ansible_collections.gb10.serving.plugins.module_utils._gate.verdict import Cause, Question, Verdict


@pytest.fixture
def token(tmp_path):
    return tmp_path / "token"


@pytest.fixture
def gate_file(tmp_path, token):
    path = tmp_path / "usage-gate.yml"
    path.write_text(
        f"endpoints: {{static: [http://127.0.0.1:9]}}\ncapped_models: [glm]\nrequest: {{token_file: {token}}}\n"
    )
    return path


def core_of(gate_file, tmp_path):
    return hook.HookCore(gate_file, hook.Live, tmp_path / "state")


def reloaded(core):
    """What a tick of its background work makes of its configuration: the models that are capped."""

    async def tick():
        await core._reload()
        await asyncio.sleep(0)
        if core._gate is not None:
            await core._gate.stop()
        return core._config.capped_models if core._config is not None else None

    return asyncio.run(tick())


def test_a_token_that_comes_after_the_start_is_found_though_the_file_itself_did_not_change(gate_file, token, tmp_path):
    core = core_of(gate_file, tmp_path)
    assert reloaded(core) is None
    token.write_text("one\n")
    assert list(reloaded(core)) == ["glm"]


def test_what_goes_between_the_check_and_its_use_leaves_the_last_good_gate_at_work(
    gate_file, token, tmp_path, monkeypatch, caplog
):
    token.write_text("one\n")
    core = core_of(gate_file, tmp_path)
    gate = core._gate
    gate_file.write_text(gate_file.read_text().replace("[glm]", "[glm, qwen]"))

    def gone(config, metrics):
        raise ConfigError([f"request.token_file: cannot read {token}: No such file or directory"])

    with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
        patched.setattr(hook, "Gate", gone)
        assert list(reloaded(core)) == ["glm"]
    assert core._gate is gate
    assert "cannot read" in caplog.text and "the last good configuration stays in use" in caplog.text
    assert list(reloaded(core)) == ["glm", "qwen"], "it is tried again"


def test_a_router_is_looked_at_again_only_when_it_has_changed(gate_file, token, tmp_path, monkeypatch):
    """Seen: with 2,000 groups each look held every request up for 0.1 s, every two seconds."""
    token.write_text("one\n")
    deployments = [{"model_name": name, "litellm_params": {"model": f"openai/{name}"}} for name in ("glm", "x/*")]
    router = SimpleNamespace(model_list=deployments)
    core = hook.HookCore(gate_file, lambda: hook.Live(router), tmp_path / "state")
    looks = []
    monkeypatch.setattr(hook, "find_bypasses", lambda routing, capped: looks.append(capped.names) or [])
    monkeypatch.setattr(hook, "ROUTING_S", -1)

    async def look(times=3):
        for dummy in range(times):
            core._look_at_router()
        return len(looks)

    assert asyncio.run(look()) == 1
    deployments.append({"model_name": "other", "litellm_params": {"model": "openai/other"}})
    assert asyncio.run(look()) == 2
    gate_file.write_text(gate_file.read_text().replace("[glm]", "[glm, qwen]"))
    reloaded(core)
    assert asyncio.run(look()) == 3 and looks[-1] == ("glm", "qwen")


def test_a_changed_configuration_keeps_the_list_and_the_verdicts_of_the_one_before(gate_file, tmp_path, monkeypatch):
    """Seen: one more capped model, written while DNS was gone, and nothing was checked until DNS was back."""
    text = "endpoints: {dns: {name: api.invalid, port: 9}}\ncapped_models: [glm]\n"
    gate_file.write_text(text)
    core = core_of(gate_file, tmp_path)

    async def gone(*dummy):
        raise OSError(-3, "try again")

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", gone)

    async def story():
        before = core._gate
        before.publish([Endpoint("http://127.0.0.1:9")])
        before._cache.learn(Question("k", "glm"), Verdict(False, "cap", 3600.0), time.monotonic())
        gate_file.write_text(text.replace("[glm]", "[glm, qwen]"))
        await core._reload()
        after = core._gate
        assert after is not before
        after.publish([Endpoint("http://api.invalid:9", address="127.0.0.1"), Endpoint("http://127.0.0.1:9")])
        after.publish([Endpoint("http://api.invalid:9", address=""), Endpoint("http://127.0.0.1:9")])
        assert after.pool.members[0].endpoint.address == "127.0.0.1", (
            "a name that is not found any more is where it was"
        )
        checked = [await after.check(Question("k", name)) for name in ("glm", "qwen")]
        gate_file.write_text(text.replace("api.invalid", "other.invalid"))
        await core._reload()
        await after.stop()
        await core._gate.stop()
        return [(check.outcome, check.cause) for check in checked], core._gate.pool.members

    known, elsewhere = asyncio.run(story())
    assert known == [(Outcome.CACHED_DENIED, Cause.UNREACHABLE), (Outcome.FAILED_OPEN, Cause.UNREACHABLE)]
    assert elsewhere == (), "another source's list is not this one's"


def test_a_rotated_authority_is_taken_up_and_a_broken_one_is_not(gate_file, tmp_path, caplog):
    """Seen: after the authority's rotation no replica could be spoken to until the proxy was restarted."""
    trustme = pytest.importorskip("trustme")
    bundle = tmp_path / "ca.pem"
    gate_file.write_text(
        f"endpoints: {{static: ['https://127.0.0.1:9']}}\ncapped_models: [glm]\nrequest: {{ca_file: {bundle}}}\n"
    )

    def rotate():
        trustme.CA().cert_pem.write_to_path(str(bundle))

    def serials(gate):
        return [one["serialNumber"] for one in gate.channels._tls.get_ca_certs()]

    async def story():
        rotate()
        core = core_of(gate_file, tmp_path)
        first = core._gate
        await core._reload()
        assert core._gate is first
        rotate()
        await core._reload()
        second = core._gate
        assert second is not first and serials(second) != serials(first)
        bundle.write_text("no certificate\n")
        await core._reload()
        assert core._gate is second and "holds no PEM certificate" in caplog.text
        rotate()
        await core._reload()
        assert serials(core._gate) != serials(second)
        await core._gate.stop()

    asyncio.run(story())


def test_what_is_wrong_is_said_once_however_often_it_is_tried(gate_file, tmp_path, caplog):
    core = core_of(gate_file, tmp_path)
    for dummy in range(3):
        reloaded(core)
    assert len([one for one in caplog.records if "token_file" in one.getMessage()]) == 1


@pytest.mark.parametrize(
    "error", [NameError("name 'Counter' is not defined"), PermissionError(13, "Permission denied")]
)
def test_where_no_counters_can_be_made_it_checks_all_the_same(gate_file, token, tmp_path, monkeypatch, caplog, error):
    token.write_text("one\n")

    def none(prefix):
        raise error

    monkeypatch.setattr(hook.GateMetrics, "of", none)
    core = core_of(gate_file, tmp_path)
    assert core._gate is not None
    assert isinstance(core.metrics, NoMetrics)
    assert "COUNTS NOTHING" in caplog.text


def test_what_counts_nothing_takes_all_that_counters_take():
    """Each public method of the counters is overridden: one that is not would fail at its first use."""
    methods = {name for name, what in vars(hook.GateMetrics).items() if callable(what) and not name.startswith("_")}
    assert methods - {"of"} <= set(vars(NoMetrics))
