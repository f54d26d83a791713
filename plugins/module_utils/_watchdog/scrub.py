# SPDX-License-Identifier: GPL-3.0-or-later
"""What may leave a host of logs, records and what people wrote: no prompts, no answers, no keys. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

REMOVED = "[removed]"

#: Lines of an engine's log that carry what somebody asked or was answered (vLLM's request logger, SGLang's, uvicorn's
#: access log). "Avg prompt throughput" carries only numbers, and says whether the engine moved.
_REQUEST_LINE = re.compile(
    r"(prompt(?! throughput)|messages|Received request|Generated response|GenerateReqInput|input_ids|params: |POST /|GET /"
    r"|\b(?:content|text|output|output_text|completion|delta|choices|input|input_value|question|query)['\"]?\s*[:=])",
    re.IGNORECASE,
)
#: What a name ends with whose value is a secret. Not "tokens", of which there are counts.
_NAME = r"(?<![\w.-])[\w.-]{0,80}(?:api_?keys?|[_-]keys?|key_id|token|passw(?:or)?d|passphrase|pwd|[_-]pass|secret|credentials?|authorization|cookie|dsn)"
#: A list, a text in quotes, a scheme and what follows it, or one word.
_VALUE = r"(?:\[[^\]]*\]?|\\*\"[^\"]*\"?|\\*'[^']*'?|(?:bearer|basic|digest)\s+[^\s,'\"]+|[^\s,'\"&;]+)"
_SECRET = re.compile(
    rf"(?i)(?P<name>{_NAME}['\"]?\s*[=:]\s*){_VALUE}"
    rf"|(?P<option>(?<!\S)(?=-){_NAME}\s+){_VALUE}"
    r"|(?P<scheme>\b(?:bearer|basic)\s+)[\w.~+/=-]{6,}"
    r"|\bsk-[\w-]{6,}|\b(?:hf_|gh[opsu]_|github_pat_|glpat-|nvapi-|xox[abps]-|AKIA|AIza)[\w-]{8,}|\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]+)?"
)
_ADDRESS = re.compile(r"(?<=://)[^\s'\"]+")
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)", re.DOTALL)


def without_secrets(text: str) -> str:
    """The text with everything replaced that looks like a key, a password or an address's credentials and query."""

    return _SECRET.sub(_named, _ADDRESS.sub(_bare, _PEM.sub(REMOVED, text)))


def _named(found: re.Match[str]) -> str:
    return (found[found.lastgroup] if found.lastgroup else "") + REMOVED


def _bare(found: re.Match[str]) -> str:
    """An address without what stands before its last @, since a password may hold @ and /, and without its query."""
    at, place = found[0].rpartition("@")[1:]
    return (REMOVED + at if at else "") + re.sub(r"([?#]).+", rf"\1{REMOVED}", place, count=1)


def scrubbed(text: str) -> str:
    """An engine's log without request lines, and with secrets replaced."""
    lines = [line for line in text.splitlines() if not _REQUEST_LINE.search(line)]
    return without_secrets("\n".join(lines) + "\n") if lines else ""


def scrubbed_rows(text: str) -> str:
    """Our own JSON lines with secrets replaced in what they say; numbers and names stay as they are."""
    return "".join(f"{_row(line)}\n" for line in text.splitlines() if line.strip())


def _row(line: str) -> str:
    try:
        return json.dumps(_value(json.loads(line)))
    except (ValueError, RecursionError):
        return without_secrets(line)  # cut off


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return {without_secrets(key): _value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_value(item) for item in value]
    return without_secrets(value) if isinstance(value, str) else value
