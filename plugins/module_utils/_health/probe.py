# SPDX-License-Identifier: GPL-3.0-or-later
"""The one thing that takes a request slot: a single-token request, sent only where counters say that one is free."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

try:
    import httpx
except ImportError:  # the module or command that needs it says so
    pass

from .http import Answer, ask

KINDS = ("chat", "completion", "embedding")
PATHS = {"chat": "/v1/chat/completions", "completion": "/v1/completions", "embedding": "/v1/embeddings"}
# Model names that are embedding models' by custom.
_EMBEDDING_NAMES = ("embed", "bge-", "gte-", "e5-", "minilm")
# Statuses by which a route says that it is not this model's. 400 is told by its words.
_NO_SUCH_ROUTE = (404, 405, 501)
_DEAD_WORDS = ("enginedead", "enginecore encountered", "engine is dead", "engine core", "dead engine", "engine died")


@dataclass(frozen=True)
class ProbeResult:
    """`word`: ok, timeout, reset, or "http NNN", as an observation has it. `sent`: requests that were sent."""

    word: str
    kind: str
    sent: int
    says_dead: bool | None = None
    detail: str | None = None


def first_kind(model: str | None, asked: str) -> str:
    """Which kind to try: the one asked for, else the one the model's name suggests."""
    if asked in KINDS:
        return asked
    name = (model or "").lower()
    return "embedding" if any(word in name for word in _EMBEDDING_NAMES) else "chat"


def other_kind(kind: str, answer: Answer) -> str | None:
    """The kind to try once after a refusal that was about the kind, or None when it was about something else."""
    words = answer.text.lower()
    about_kind = answer.status in _NO_SUCH_ROUTE or (
        answer.status in (400, 422)
        and any(w in words for w in ("template", "does not support", "not supported", "embedding", "pooling", "chat"))
    )
    if not about_kind or (answer.status == 404 and "model" in words and "not exist" in words):
        return None
    if kind == "chat":
        pooling = any(w in words for w in ("embedding", "pooling", "does not support", "not supported"))
        return "embedding" if pooling and "template" not in words else "completion"
    return "chat"


def says_dead(answer: Answer) -> bool:
    """The answer is an engine's death notice, by its words."""
    words = answer.text.lower()
    return any(word in words for word in _DEAD_WORDS)


def _body(kind: str, model: str | None) -> dict[str, object]:
    body: dict[str, object] = {"model": model} if model else {}
    if kind == "chat":
        return {**body, "messages": [{"role": "user", "content": "1"}], "max_tokens": 1, "temperature": 0}
    if kind == "completion":
        return {**body, "prompt": "1", "max_tokens": 1, "temperature": 0}
    return {**body, "input": "1"}


def _has_token(kind: str, answer: Answer) -> bool:
    """A token came: the whole answer is there and holds one. Headers alone prove nothing (a hung vLLM sends them)."""
    try:
        said = json.loads(answer.body)
    except (ValueError, RecursionError):
        return False
    return isinstance(said, dict) and bool(said.get("data" if kind == "embedding" else "choices"))


async def probe(
    http: httpx.AsyncClient,
    base: str,
    *,
    model: str | None,
    asked: str,
    headers: Mapping[str, str],
    connect_s: float,
    probe_s: float,
) -> ProbeResult:
    """One request of one token. Never two at a time; of `auto` a kind that is refused as such is tried once as the
    other, and a kind that somebody named is the only one sent."""
    kind = first_kind(model, asked)
    sent = 0
    while True:
        answer = await ask(
            http,
            "POST",
            base + PATHS[kind],
            headers=headers,
            json=_body(kind, model),
            connect_s=connect_s,
            read_s=probe_s,
        )
        sent += answer.sent
        if answer.how == "timeout":
            return ProbeResult("timeout", kind, sent, detail=f"no token within {probe_s:g} s")
        if answer.how in ("reset", "truncated", "refused"):
            return ProbeResult("reset", kind, sent, detail="the probe's connection was closed without an answer")
        if answer.how != "ok" or answer.status is None:
            return ProbeResult("unreadable", kind, sent, detail=answer.detail)
        if answer.status == 200:
            if _has_token(kind, answer):
                return ProbeResult("ok", kind, sent)
            return ProbeResult(
                "unreadable", kind, sent, detail="the probe was answered with something that is no token"
            )
        if answer.status >= 500 and answer.status not in _NO_SUCH_ROUTE:
            return ProbeResult(f"http {answer.status}", kind, sent, says_dead=says_dead(answer))
        other = other_kind(kind, answer) if sent == 1 and asked not in KINDS else None
        if other is None:
            return ProbeResult(f"http {answer.status}", kind, sent)
        kind = other
