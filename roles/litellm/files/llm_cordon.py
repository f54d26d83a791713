# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps new requests from a model server while its watchdog restarts it, or holds it hung, dead or latched.

LiteLLM loads it: litellm_settings.callbacks: ["llm_cordon.cordon"], this file and llm-cordon.json beside its config.yaml. It reads what
the watchdog writes for node_exporter (watchdog_textfile), and asks no model server anything. What cannot be read, or is old, holds nobody:
a gateway must not lose its servers with a monitoring port. Requests under way are not touched.

llm-cordon.json: {"every_s": 5, "backends": [{"api_base": "http://spark1:8000/v1", "page": "http://spark1:9100/metrics", "server": "qwen"}]}
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from litellm.integrations.custom_logger import CustomLogger

LOG = logging.getLogger("gb10.llm_cordon")
if not LOG.handlers and not logging.getLogger().handlers:
    _HANDLER = logging.StreamHandler()
    _HANDLER.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    LOG.addHandler(_HANDLER)
    LOG.setLevel(logging.INFO)

#: Seconds. The watchdog looks every minute; a page in which it has not looked for five says nothing about now.
OLD_S = 300.0
#: Seconds for one page. It comes from a host that may be dying; nobody waits for it.
READ_S = 3.0
#: States in which a request would wait for nothing.
LOST = ("hung", "dead")
#: States in which it serves, whatever was decided about it before.
SERVING = ("busy", "idle")
_LINE = re.compile(r"^(llm_\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Backend(NamedTuple):  # not a dataclass: LiteLLM loads this file without entering it into sys.modules
    """A server as LiteLLM knows it, and where its watchdog speaks of it under which name."""

    api_base: str
    page: str
    server: str


def held(page: str, server: str, now_s: float) -> str | None:
    """Why the server gets nothing new by what the page says; None: it gets its share."""
    state, latched, under_way, looked_s = None, False, False, None
    for name, labels, value in _LINE.findall(page):
        if name == "llm_watchdog_last_run_timestamp_seconds":
            looked_s = float(value)
        known = dict(_LABEL.findall(labels))
        if known.get("server") != server or float(value) != 1:
            continue
        if name == "llm_server_state":
            state = known.get("state")
        latched |= name == "llm_watchdog_latched"
        under_way |= name == "llm_watchdog_restart_under_way"
    if looked_s is None or now_s - looked_s > OLD_S:
        return None
    if under_way:
        return "it is being restarted"
    if state in LOST:
        return f"it is {state}"
    return "it is latched" if latched and state not in SERVING else None


def remaining(deployments: Iterable[dict[str, Any]], bases: Iterable[str]) -> list[dict[str, Any]]:
    """The deployments whose server is not among those that get nothing new."""
    without = {base.rstrip("/") for base in bases}
    return [
        one for one in deployments if str((one.get("litellm_params") or {}).get("api_base")).rstrip("/") not in without
    ]


class Cordon(CustomLogger):
    """Its own class defines the hook. Whatever goes wrong here, LiteLLM chooses as if it were not there."""

    def __init__(self, file: Path | None = None) -> None:
        super().__init__()
        self.without: dict[str, str] = {}  # api_base -> why
        self._task: asyncio.Task[None] | None = None
        try:
            config = json.loads((file or Path(__file__).with_name("llm-cordon.json")).read_text())
            self.backends = [Backend(**backend) for backend in config["backends"]]
            self.every_s = float(config.get("every_s", 5))
        except (OSError, ValueError, TypeError, KeyError) as error:
            LOG.error("cordon: NOT ACTIVE, llm-cordon.json cannot be used: %s; run the role litellm again", error)
            self.backends, self.every_s = [], 5.0
        self.start()

    def start(self) -> None:
        """Begin to read; without a running loop this waits for the first request."""
        if self._task is None and self.backends:
            try:
                self._task = asyncio.get_running_loop().create_task(self._run())
            except RuntimeError:
                pass

    async def _run(self) -> None:
        async with httpx.AsyncClient(timeout=READ_S, trust_env=False) as client:
            while True:
                await asyncio.gather(*(self._look(client, backend) for backend in self.backends))
                await asyncio.sleep(self.every_s)

    async def _look(self, client: httpx.AsyncClient, backend: Backend) -> None:
        why = None
        try:
            answer = await client.get(backend.page)
            if answer.status_code == 200:
                why = held(answer.text, backend.server, time.time())
        except Exception as error:
            LOG.debug("cordon: %s: %s", backend.page, type(error).__name__)
        before = self.without.get(backend.api_base)
        if why is None:
            self.without.pop(backend.api_base, None)
        else:
            self.without[backend.api_base] = why
        if (before is None) != (why is None):
            LOG.warning(
                "cordon: %s %s", backend.api_base, f"gets nothing new: {why}" if why else "gets its share again"
            )

    async def async_filter_deployments(
        self,
        model: str,
        healthy_deployments: list[dict[str, Any]],
        messages: Any,
        request_kwargs: Any = None,
        parent_otel_span: Any = None,
    ) -> list[dict[str, Any]]:
        self.start()
        return remaining(healthy_deployments, self.without) if self.without else healthy_deployments


cordon = Cordon()
