# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hook LiteLLM loads: litellm_settings.callbacks: ["usage_gate.usage_gate"], this file beside its config.yaml.

It finds the core in a folder gb10-serving-lib beside this file (also a container's mount), at /opt/gb10-serving/lib, or in
the checkout this file lies in; and its configuration as usage-gate.yml beside this file, at /etc/gb10-serving, or where
USAGE_GATE_CONFIG says.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import litellm
from litellm.integrations.custom_logger import CustomLogger
from litellm.proxy._types import ProxyException

HERE = Path(__file__).parent
for _lib in (
    HERE / "gb10-serving-lib/lib",  # as the module llm_core puts it there
    HERE / "gb10-serving-lib",
    Path("/opt/gb10-serving/lib"),
    Path(__file__).resolve().parents[min(3, len(Path(__file__).resolve().parents) - 1)] / ".collections",
):
    if (_lib / "ansible_collections/gb10/serving").is_dir() and str(_lib) not in sys.path:
        sys.path.append(str(_lib))

_LOG = logging.getLogger("gb10.usage_gate")
if not _LOG.handlers and not logging.getLogger().handlers:
    _HANDLER = logging.StreamHandler()
    _HANDLER.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    _LOG.addHandler(_HANDLER)
    _LOG.setLevel(logging.INFO)

try:
    from ansible_collections.gb10.serving.plugins.module_utils._gate import hook, passthrough, releases, retry_after
except ImportError as _error:
    # Not served at all would be worse than unchecked; monitoring sees that {prefix}_active is absent.
    _LOG.error("usage gate: NOT ACTIVE, nothing is checked: %s; run the role usage_gate again", _error)
    hook = passthrough = releases = retry_after = None  # type: ignore[assignment]


def _release() -> str:
    try:
        return version("litellm")
    except PackageNotFoundError:  # run from its sources
        return "unknown"


# The one thing that stops the proxy: running on would hand out every key.
_REASON = releases and releases.compromised(_release(), [Path(litellm.__file__).parents[1]])
if _REASON:
    raise RuntimeError(_REASON)


def _live() -> hook.Live:
    from litellm.proxy import proxy_server

    return hook.Live(proxy_server.llm_router, litellm.model_alias_map)


def _app() -> Any:
    from litellm.proxy import proxy_server

    return proxy_server.app


class UsageGate(CustomLogger):
    """Its own class defines the hook: LiteLLM skips an inherited one silently."""

    def __init__(self) -> None:
        super().__init__()
        self.core = None
        if not hook:
            return
        try:
            self.core = hook.HookCore(hook.find_config(HERE), _live)
            self.core.start()
            retry_after.wrap(_app())
            passthrough.guard(litellm.Router, _live().router, self._before_passthrough)
        except Exception:  # what LiteLLM meets here keeps it from starting
            left = "some routes are NOT CHECKED" if self.core else "NOT ACTIVE, nothing is checked"
            _LOG.exception("usage gate: %s; please report this", left)

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> None:
        if not self.core:
            return
        passthrough.note_asked()
        tables = (getattr(user_api_key_dict, name, None) for name in ("aliases", "team_model_aliases"))
        caller = hook.Caller(
            key=getattr(user_api_key_dict, "token", None) or getattr(user_api_key_dict, "api_key", None),
            user=getattr(user_api_key_dict, "user_id", None),
            team=getattr(user_api_key_dict, "team_id", None),
            aliases=tuple(table for table in tables if isinstance(table, dict)),
        )
        await self._ask(caller, data)

    async def _before_passthrough(self, model: str, metadata: Mapping[str, Any]) -> None:
        aliases = metadata.get("user_api_key_auth")
        tables = (getattr(aliases, name, None) for name in ("aliases", "team_model_aliases"))
        caller = hook.Caller(
            key=metadata.get("user_api_key_hash") or metadata.get("user_api_key"),
            user=metadata.get("user_api_key_user_id"),
            team=metadata.get("user_api_key_team_id"),
            aliases=tuple(table for table in tables if isinstance(table, dict)),
        )
        await self._ask(caller, {"model": model, "litellm_call_id": metadata.get("litellm_call_id")})

    async def _ask(self, caller: hook.Caller, data: dict[str, Any]) -> None:
        refusal = await self.core.before(caller, data)
        if refusal is not None:
            retry_after.note(refusal.retry_after_s)
            # ProxyException: the only one whose status and headers arrive on most routes. Where LiteLLM makes a new
            # exception of it, retry_after brings the header back, and status_code the status (transcriptions read it).
            error = ProxyException(
                message=refusal.sentence,
                type=refusal.kind,
                param="model",
                code=refusal.status,
                headers={"Retry-After": str(refusal.retry_after_s)},
            )
            error.status_code = refusal.status  # type: ignore[attr-defined]
            raise error


usage_gate = UsageGate()
