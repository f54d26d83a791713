# SPDX-License-Identifier: GPL-3.0-or-later
"""What becomes of the report of a request that was served unchecked."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("prometheus_client")
from ansible_collections.gb10.serving.plugins.module_utils._gate import hook
from ansible_collections.gb10.serving.plugins.module_utils._gate.endpoint import Endpoint
from ansible_collections.gb10.serving.plugins.module_utils._gate.journal import Unchecked
from ansible_collections.gb10.serving.plugins.module_utils._gate.verdict import Cause, Question

#: (what the API answers, reports that still wait afterwards); of two.
ANSWERS = [
    *[(status, 0) for status in (200, 201, 204)],
    *[(status, 0) for status in (400, 409, 413, 422)],  # about this report: it is lost, and counted
    *[(status, 2) for status in (301, 302, 307, 401, 403, 404, 405, 407, 408, 410, 415, 425, 429, 500, 503)],
]


@pytest.mark.parametrize(("status", "waiting"), ANSWERS)
def test_only_what_is_refused_for_good_is_given_up(tmp_path, status, waiting):
    """Seen: a redirect to a login, by a proxy before the API, cost every report."""
    path = tmp_path / "usage-gate.yml"
    path.write_text(
        "endpoints: {static: [http://10.0.0.1:8080]}\ncapped_models: [m]\nrequest: {unchecked_path: /unchecked}\n"
    )

    async def story():
        core = hook.HookCore(path, hook.Live, tmp_path / "state")
        core._gate.pool.replace([Endpoint("http://10.0.0.1:8080")])

        async def post(*dummy):
            return status

        core._gate.channels.post = post
        for dummy in range(2):
            core._journal.add(Unchecked.of(Question("k", "m"), Cause.TIMEOUT, None))
        await core._report()  # takes the file in hand
        await core._report()
        return core._journal.pending()

    assert asyncio.run(story()) == waiting
