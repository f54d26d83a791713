# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The question, and what an answer to it means."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from enum import StrEnum

from .shown import one_line

#: Seconds. Longer than a year is a mistake of the API's; the header would only look silly.
MAX_RETRY_AFTER_S = 366 * 86_400
#: Characters of the API's reason that a client gets to see.
MAX_REASON = 300


class Cause(StrEnum):
    """Why a question got no verdict: the values of the ``cause`` label."""

    UNREACHABLE = "platform_api_unreachable"  # refused, reset, closed, no route: a connection problem
    TIMEOUT = "timeout"  # no whole answer within the limits
    BAD_ANSWER = "bad_answer"  # an answer that is no verdict: garbage, a redirect, a 4xx without ``allowed``
    SERVER_ERROR = "server_error"  # 5xx
    NO_ENDPOINTS = "no_endpoints"  # the source of endpoints never gave one
    INTERNAL = "internal"  # a fault of the gate's own


class Blame(StrEnum):
    """What a fault says about the endpoint."""

    CONNECTION = "connection"  # dead or silent: ``ejection.after_errors``
    ANSWER = "answer"  # alive but useless: ``ejection.after_5xx``
    NOBODY = "nobody"  # every endpoint would say the same, or the fault is ours


@dataclass(frozen=True)
class Question:
    """May this key spend on this model? ``key`` is a hash, never the key itself."""

    key: str
    model: str
    user: str | None = None
    team: str | None = None

    def body(self) -> bytes:
        """The JSON sent to the API."""
        fields = {"key": self.key, "model": self.model, "user": self.user, "team": self.team}
        return json.dumps(fields, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Verdict:
    """The API's word. ``retry_after_s``: seconds until the cap resets, where it said so."""

    allowed: bool
    reason: str | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True)
class Fault:
    """No verdict, and why. ``detail`` is for the log: no secrets, one line."""

    cause: Cause
    blame: Blame
    detail: str


def hash_key(key: str) -> str:
    """The form in which LiteLLM stores a virtual key; a value that is no ``sk-`` key is taken as the hash itself."""
    return hashlib.sha256(key.encode()).hexdigest() if key.startswith("sk-") else key


def read_answer(status: int, body: bytes) -> Verdict | Fault:
    """What a whole HTTP answer means. A verdict is a 200 or a 4xx whose JSON has a boolean ``allowed``."""
    if status >= 500:
        return Fault(Cause.SERVER_ERROR, Blame.ANSWER, f"answered {status}")
    if 300 <= status < 400:
        return Fault(Cause.BAD_ANSWER, Blame.ANSWER, f"answered {status}, a redirect; it is not followed")
    understood = _read_verdict(body) if status == 200 or 400 <= status < 500 else None
    if understood is not None:
        return understood
    if 400 <= status < 500:
        # The question itself was refused (wrong path, wrong token): every endpoint would say the same.
        return Fault(Cause.BAD_ANSWER, Blame.NOBODY, f"answered {status} without a verdict")
    return Fault(Cause.BAD_ANSWER, Blame.ANSWER, f"answered {status} without a boolean 'allowed'")


def _read_verdict(body: bytes) -> Verdict | None:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict) or not isinstance(answer.get("allowed"), bool):
        return None
    reason = answer.get("reason")
    retry_after = answer.get("retry_after_s")
    retry_after_s = None
    if isinstance(retry_after, (int, float)) and not isinstance(retry_after, bool) and 0 <= retry_after < math.inf:
        retry_after_s = float(min(retry_after, MAX_RETRY_AFTER_S))
    return Verdict(
        allowed=answer["allowed"],
        reason=(one_line(reason, MAX_REASON) or None) if isinstance(reason, str) else None,
        retry_after_s=retry_after_s,
    )
