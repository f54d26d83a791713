# SPDX-License-Identifier: GPL-3.0-or-later
"""Clients choose the names they ask for: what the gate says of them is one line that can be written, and not for ever more."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest

pytest.importorskip("prometheus_client")
from ansible_collections.gb10.serving.plugins.module_utils._gate import hook
from ansible_collections.gb10.serving.plugins.module_utils._gate.outcome import Checked, Outcome
from ansible_collections.gb10.serving.plugins.module_utils._gate.verdict import Cause, Question

EVIL = "glm\nusage gate active: \ud800" + "x" * 10_000


@pytest.fixture
def core(tmp_path):
    path = tmp_path / "usage-gate.yml"
    path.write_text("endpoints: {static: [http://127.0.0.1:9]}\ncapped_models: ['glm*', deepseek]\n")
    deployments = [{"model_name": name, "litellm_params": {"model": f"openai/{name}"}} for name in ("glm", "deepseek")]
    router = SimpleNamespace(model_list=deployments, fallbacks=[{"*": ["deepseek"]}])
    return hook.HookCore(path, lambda: hook.Live(router), tmp_path / "state")


@pytest.mark.parametrize("outcome", [Outcome.DENIED, Outcome.FAILED_CLOSED])
def test_a_refusal_can_be_sent_whatever_was_asked_for(outcome):
    """Seen: a name that no UTF-8 can hold, allowed in JSON, made a 500 of the refusal."""
    sentence = hook._refusal(Question("k", EVIL), Checked(outcome)).sentence
    assert sentence.encode() and "\n" not in sentence and len(sentence) < 400


def test_what_was_served_unchecked_is_one_line_in_the_log(core, caplog):
    checked = Checked(Outcome.FAILED_OPEN, cause=Cause.TIMEOUT)
    core._remember(Question("k" * 64, EVIL), checked, {})
    (record,) = [one for one in caplog.records if "served unchecked" in one.getMessage()]
    assert record.getMessage().encode() and len(record.getMessage().splitlines()) == 1


def test_a_thousand_names_that_fall_back_to_a_capped_group_are_refused_and_said_once(core, caplog):
    async def story():
        with caplog.at_level(logging.ERROR):
            before = len(core._said)
            for number in range(1_000):
                refused = await core.before(hook.Caller("k"), {"model": f"x{number}{EVIL}"})
                assert refused is not None and refused.status == 503 and refused.sentence.encode()
            return len(core._said) - before

    assert asyncio.run(story()) == 1, "and kept once"
    assert len([one for one in caplog.records if "is refused" in one.getMessage()]) == 1
