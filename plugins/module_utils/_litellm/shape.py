# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether what stands in a config.yaml is of the kind LiteLLM takes. Pure: tables of keys, and what each must be."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .._gate.shown import shown
from .proxy import Proxy
from .rule import Finding


@dataclass(frozen=True)
class Kind:
    """What a value must be, and how that is told."""

    said: str
    fits: Callable[[Any], bool]


def _number(value: Any) -> float | None:
    """The number; LiteLLM takes one written as text too."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _elsewhere(value: Any) -> bool:
    """Whether only the environment of the proxy knows the value."""
    return isinstance(value, str) and (value.startswith("os.environ/") or "${" in value)


def _at_least_0(value: Any) -> bool:
    number = _number(value)
    return _elsewhere(value) or (number is not None and number >= 0)


def _whole(value: Any) -> bool:
    number = _number(value)
    return _elsewhere(value) or (number is not None and number >= 0 and number == int(number))


MAPPING = Kind("a mapping", lambda value: isinstance(value, Mapping))
LIST = Kind("a list", lambda value: isinstance(value, list))
TEXT = Kind("a text", lambda value: isinstance(value, str) and bool(value))
NAMES = Kind(
    "a list of names",
    lambda value: (
        isinstance(value, str)
        or (isinstance(value, list) and all(isinstance(name, str) or name is None for name in value))
    ),
)
SECONDS = Kind("a number of seconds", _at_least_0)
COUNT = Kind("a whole number, not below 0,", _whole)
YES_OR_NO = Kind("true or false", lambda value: isinstance(value, bool) or _elsewhere(value))

#: The sections. What has nothing in it (null) LiteLLM passes over.
SECTIONS: Mapping[str, Kind] = {
    "model_list": LIST,
    "router_settings": MAPPING,
    "litellm_settings": MAPPING,
    "general_settings": MAPPING,
    "environment_variables": MAPPING,
}
_FALLBACKS: Mapping[str, Kind] = dict.fromkeys(
    ("fallbacks", "context_window_fallbacks", "content_policy_fallbacks", "default_fallbacks"), LIST
)
#: What else has parts of its own.
PARTS: Mapping[str, Mapping[str, Kind]] = {
    "router_settings": {
        **_FALLBACKS,
        "model_group_alias": MAPPING,
        "retry_policy": MAPPING,
        "model_group_retry_policy": MAPPING,
        "allowed_fails_policy": MAPPING,
        "routing_groups": LIST,
    },
    "litellm_settings": {**_FALLBACKS, "callbacks": NAMES, "model_alias_map": MAPPING, "cache_params": MAPPING},
}
_TIMES: Mapping[str, Kind] = dict.fromkeys(("timeout", "stream_timeout", "request_timeout"), SECONDS)
_RETRIES: Mapping[str, Kind] = dict.fromkeys(("num_retries", "max_retries"), COUNT)
_FAILS: Mapping[str, Kind] = {"allowed_fails": COUNT, "cooldown_time": SECONDS}
#: Numbers and switches that the rules, and LiteLLM's router, go by.
VALUES: Mapping[str, Mapping[str, Kind]] = {
    "router_settings": {
        **_TIMES,
        **_RETRIES,
        **_FAILS,
        "retry_after": SECONDS,
        "default_max_parallel_requests": COUNT,
        "disable_cooldowns": YES_OR_NO,
        "enable_pre_call_checks": YES_OR_NO,
    },
    "litellm_settings": {
        **_TIMES,
        **_RETRIES,
        **_FAILS,
        "enable_pre_call_checks": YES_OR_NO,
        "require_auth_for_metrics_endpoint": YES_OR_NO,
    },
    "general_settings": {
        "max_parallel_requests": COUNT,
        "global_max_parallel_requests": COUNT,
        "health_check_interval": SECONDS,
        "background_health_checks": YES_OR_NO,
        "health_check_skip_disabled_background_models": YES_OR_NO,
        "dangerously_permit_weak_or_unset_master_key": YES_OR_NO,
    },
}
_PARAMS: Mapping[str, Kind] = {
    **_TIMES,
    **_RETRIES,
    **_FAILS,
    "max_parallel_requests": COUNT,
    "rpm": COUNT,
    "tpm": COUNT,
}
_INFO: Mapping[str, Kind] = {"disable_background_health_check": YES_OR_NO, "allowed_fails": COUNT}


def malformed(proxy: Proxy) -> Iterator[Finding]:
    """Sections and parts of the wrong kind: the other rules cannot judge what is none."""
    document = proxy.document
    for name, kind in SECTIONS.items():
        value = document.get(name)
        if value is None:
            continue
        if not kind.fits(value):
            yield _finding(name, kind, value)
        else:
            yield from _misfits(name, value, PARTS.get(name, {}))
    models = document.get("model_list")
    for index, entry in enumerate(models if isinstance(models, list) else []):
        yield from _odd_entry(proxy.where(index), entry)


def _odd_entry(where: str, entry: Any) -> Iterator[Finding]:
    if not isinstance(entry, Mapping):
        yield Finding(where, f"a mapping with model_name and litellm_params is needed, not {_what(entry)}")
        return
    for key, kind, needed in (
        ("model_name", TEXT, True),
        ("litellm_params", MAPPING, True),
        ("model_info", MAPPING, False),
    ):
        if (needed or key in entry) and not kind.fits(entry.get(key)):
            yield _finding(f"{where}.{key}", kind, entry.get(key))
    params = entry.get("litellm_params")
    if isinstance(params, Mapping) and not TEXT.fits(params.get("model")):
        yield _finding(f"{where}.litellm_params.model", TEXT, params.get("model"))


def bad_values(proxy: Proxy) -> Iterator[Finding]:
    """Numbers that are none, and switches that are neither on nor off."""
    for name in VALUES:
        yield from _misfits(name, proxy.document.get(name), VALUES[name])
    router = proxy.router
    for key, policy in (
        ("retry_policy", router.get("retry_policy")),
        ("allowed_fails_policy", router.get("allowed_fails_policy")),
        *((f"model_group_retry_policy.{group}", one) for group, one in _items(router.get("model_group_retry_policy"))),
    ):
        counts = {name: COUNT for name, dummy in _items(policy)}
        yield from _misfits(f"router_settings.{key}", policy, counts)
    for deployment in proxy.deployments:
        yield from _misfits(f"{deployment.where}.litellm_params", deployment.params, _PARAMS)
        yield from _misfits(f"{deployment.where}.model_info", deployment.info, _INFO)


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((str(key), item) for key, item in value.items())


def _misfits(where: str, section: Any, table: Mapping[str, Kind]) -> Iterator[Finding]:
    for key, value in section.items() if isinstance(section, Mapping) else ():
        kind = table.get(str(key))
        if kind is not None and value is not None and not kind.fits(value):
            yield _finding(f"{where}.{key}", kind, value)


def _finding(where: str, kind: Kind, value: Any) -> Finding:
    return Finding(where, f"{kind.said} is needed, not {_what(value)}")


def _what(value: Any) -> str:
    """What is there; a text only where it cannot be a key."""
    if isinstance(value, str):
        return shown(value) if len(value) <= 12 and not value.startswith("sk-") else "a text"
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list) else shown(value)
