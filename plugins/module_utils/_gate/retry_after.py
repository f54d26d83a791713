# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Retry-After on the routes where LiteLLM makes a new exception of ours and forgets its headers (images, for one)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

#: Filled by the hook, read when the answer starts. A list, because middlewares may run the route in a copied context.
_WAIT: ContextVar[list[int] | None] = ContextVar("usage_gate_retry_after", default=None)


def note(retry_after_s: int) -> None:
    """This request is refused and may be repeated after so many seconds."""
    noted = _WAIT.get()
    if noted is not None:
        noted.append(retry_after_s)


class RetryAfter:
    """An ASGI application around another: adds the header to an answer the gate refused, where it is missing."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        noted: list[int] = []
        _WAIT.set(noted)

        async def send_with_header(message: Message) -> None:
            if noted and message["type"] == "http.response.start" and message["status"] in (429, 503):
                headers = list(message.get("headers") or [])
                if not any(bytes(name).lower() == b"retry-after" for name, dummy in headers):
                    message = {**message, "headers": [*headers, (b"retry-after", b"%d" % noted[-1])]}
            await send(message)

        await self._app(scope, receive, send_with_header)


def wrap(application: Any) -> None:
    """Puts it around a Starlette application that may be running already; does nothing where that is not possible."""
    stack = getattr(application, "middleware_stack", None)
    if callable(stack) and not isinstance(stack, RetryAfter):
        application.middleware_stack = RetryAfter(stack)
