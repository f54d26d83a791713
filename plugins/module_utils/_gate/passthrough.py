# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""LiteLLM's pass-through routes (/vllm/…, /azure/…) that reach a model group: they call the router and ask no hook.

[M] LiteLLM 1.108.4, llm_passthrough_endpoints.py: vllm_proxy_route and _relay_router_model call
Router.allm_passthrough_route with the caller in its metadata. That method is made by Router.factory_function.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

#: Asked before a request goes on: the model, and LiteLLM's metadata of the caller. Raises to refuse.
Ask = Callable[[str, Mapping[str, Any]], Awaitable[None]]

CALL_TYPE = "allm_passthrough_route"
#: Whether the hook was asked for this request already: routes that do ask it end at the same method.
_ASKED: ContextVar[bool] = ContextVar("usage_gate_asked", default=False)


def note_asked() -> None:
    """The hook has been asked for the request of this context."""
    _ASKED.set(True)


def guard(router_class: Any, router: Any, ask: Ask) -> None:
    """Puts `ask` before the method of every router made from now on, and of one that is there already. Does nothing where
    a release has no such method."""
    made = getattr(router_class, "factory_function", None)
    if callable(made) and not hasattr(made, "usage_gate"):

        @functools.wraps(made)
        def factory(self: Any, original_function: Any, *args: Any, **kwargs: Any) -> Any:
            found = made(self, original_function, *args, **kwargs)
            call_type = kwargs.get("call_type", args[0] if args else None)
            return _guarded(found, ask) if call_type == CALL_TYPE else found

        factory.usage_gate = True  # type: ignore[attr-defined]
        router_class.factory_function = factory
    method = getattr(router, CALL_TYPE, None)
    if callable(method) and not hasattr(method, "usage_gate"):
        setattr(router, CALL_TYPE, _guarded(method, ask))


def _guarded(method: Callable[..., Awaitable[Any]], ask: Ask) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(method)
    async def asked_first(*args: Any, **kwargs: Any) -> Any:
        model, metadata = kwargs.get("model"), kwargs.get("litellm_metadata")
        if isinstance(model, str) and not _ASKED.get():
            await ask(model, metadata if isinstance(metadata, Mapping) else {})
        return await method(*args, **kwargs)

    asked_first.usage_gate = True  # type: ignore[attr-defined]
    return asked_first
