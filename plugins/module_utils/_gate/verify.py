# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Looking at a configuration's endpoints one by one, before it is used."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass

from .channel import Channels
from .config import GateConfig
from .endpoint import Endpoint
from .gate import Gate, make_source
from .verdict import Fault, Question

#: The hash of no key. A platform API says what it says about a stranger; that it is a verdict is what matters.
STRANGER = hashlib.sha256(b"gb10.serving usage gate: is this endpoint there?").hexdigest()


@dataclass(frozen=True)
class EndpointSeen:
    """One endpoint. ``gave_verdict`` is None where it was not asked; ``detail`` says what it did instead."""

    url: str
    gave_verdict: bool | None
    detail: str
    took_ms: float | None


async def find_endpoints(config: GateConfig, wait_s: float) -> tuple[list[Endpoint], str | None]:
    """What the source gives within ``wait_s``, and its complaint where it had one."""
    gate = Gate(config, use_cache=False, source=make_source(config))
    gate.start()
    try:
        await gate.first_list(wait_s)
        return [member.endpoint for member in gate.pool.members], gate.complaint
    finally:
        await gate.stop()


async def verify_endpoints(config: GateConfig, endpoints: list[Endpoint], key: str = STRANGER) -> list[EndpointSeen]:
    """Asks each endpoint once, all at a time; in the order given."""
    channels = Channels(config.request, config.limits.connect_s)
    question = Question(key, config.capped_models[0])
    try:
        return list(await asyncio.gather(*(_look(channels, endpoint, question, config) for endpoint in endpoints)))
    finally:
        channels.close()


async def _look(channels: Channels, endpoint: Endpoint, question: Question, config: GateConfig) -> EndpointSeen:
    loop = asyncio.get_running_loop()
    limit_s = config.limits.attempt_s
    began_s = loop.time()
    try:
        async with asyncio.timeout(limit_s):
            result = await channels.send(endpoint, question, limit_s)
    except TimeoutError:
        return EndpointSeen(endpoint.url, False, f"no whole answer within {limit_s:g} s", None)
    took_ms = round((loop.time() - began_s) * 1_000, 1)
    if isinstance(result, Fault):
        return EndpointSeen(endpoint.url, False, result.detail, took_ms)
    return EndpointSeen(endpoint.url, True, "allowed" if result.allowed else "denied", took_ms)
