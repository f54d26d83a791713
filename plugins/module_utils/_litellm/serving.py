# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a configuration does to slow servers: retries, time-outs, health checks, cool-downs, routing. Pure.

Only servers of one's own are judged by these: with a cloud's fleet behind an address, retries are right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .._gate.check_config import Severity
from .proxy import LONGEST_ANSWER_S, SHORT_MODES, Deployment, Proxy, mapping, number
from .rule import Finding

#: What LiteLLM 1.108.4 does when nothing is set: the OpenAI client's own default.
DEFAULT_RETRIES = 2
#: Up to this many backends, one cooled out is a third of a group's slots or more.
FEW_BACKENDS = 3
#: A hung backend holds a slot this long at most before anybody is told; LiteLLM's own default is 6000 s.
LONG_TIMEOUT_S = 3600
#: Errors that a busy or slow server makes; retrying them adds load where there is too much already.
_BUSY_ERRORS = ("TimeoutErrorRetries", "RateLimitErrorRetries", "InternalServerErrorRetries", "ServiceUnavailableErrorRetries")  # fmt: skip


def names(deployments: Iterable[Deployment]) -> str:
    """Groups of these deployments, for a sentence; the first few."""
    found = list(dict.fromkeys(deployment.group or deployment.where for deployment in deployments))
    return ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")


def retries(proxy: Proxy) -> Iterator[Finding]:
    if not proxy.own:
        return
    where, value = proxy.first("num_retries", "router", "settings")
    times = DEFAULT_RETRIES if value is None else number(value)
    if times and times > 0:
        said = (
            f"{where} is {times:g}" if where else f"num_retries is not set, and LiteLLM's default is {DEFAULT_RETRIES}"
        )
        yield Finding(
            "" if where else "router_settings",
            f"{said}: a request that fails or times out is sent to {names(proxy.own)} {1 + times:g} times",
        )

    for key, value in proxy.defaults.items():
        # they go with each request, as if its client had asked for them
        if key in ("num_retries", "max_retries") and (number(value) or 0.0) >= 1:
            yield Finding(
                f"router_settings.default_litellm_params.{key}",
                f"wins over num_retries, and has a request that fails or times out sent to {names(proxy.own)} again",
                fix="remove it, or set it to 0",
            )


def deployment_retries(proxy: Proxy) -> Iterator[Finding]:
    for deployment in proxy.own:
        for key in ("num_retries", "max_retries"):
            times = number(deployment.params.get(key)) or 0.0
            if times >= 1:
                yield Finding(
                    f"{deployment.where}.litellm_params.{key}",
                    f"{deployment.group} is asked {1 + times:g} times for one request that fails or times out"
                    if key == "num_retries"
                    else f"where a release heeds it, {deployment.group} is asked {1 + times:g} times for each attempt",
                    None if key == "num_retries" else Severity.WARNING,
                )


def embedding_retries(proxy: Proxy) -> Iterator[Finding]:
    for deployment in proxy.own:
        model = deployment.params.get("model")
        if deployment.info.get("mode") == "embedding" and isinstance(model, str) and deployment.provider == "openai":
            yield Finding(
                f"{deployment.where}.litellm_params.model",
                f"embeddings of {deployment.group} go through LiteLLM's openai/, whose client repeats them by itself",
            )


def retry_policy(proxy: Proxy) -> Iterator[Finding]:
    if not proxy.own:
        return
    policies: list[tuple[str, Mapping[str, Any]]] = [
        ("router_settings.retry_policy", mapping(proxy.router.get("retry_policy")))
    ]
    for group, policy in mapping(proxy.router.get("model_group_retry_policy")).items():
        if group in {deployment.group for deployment in proxy.own}:
            policies.append((f"router_settings.model_group_retry_policy.{group}", mapping(policy)))
    for where, policy in policies:
        set_keys = [key for key in _BUSY_ERRORS if number(policy.get(key))]
        if set_keys:
            yield Finding(where, f"{', '.join(set_keys)} win over num_retries: 0")


def _time_limit(proxy: Proxy, deployment: Deployment, streaming: bool) -> tuple[str, float | None, bool]:
    """Where the limit of one attempt is set, its seconds, and whether for this deployment; as LiteLLM 1.108.4 looks."""
    own = ("stream_timeout",) if streaming else ("timeout", "request_timeout")
    for key in own:
        value = number(deployment.params.get(key))
        if value:
            return f"{deployment.where}.litellm_params.{key}", value, True
    places: tuple[tuple[str, str], ...] = (
        ("request_timeout", "settings"),
        ("timeout", "router"),
        ("timeout", "defaults"),
    )
    if streaming:
        places = (("stream_timeout", "router"), ("request_timeout", "settings"), ("stream_timeout", "defaults"))
    for key, section in places:
        where, value = proxy.first(key, section)
        if number(value):
            return where, number(value), False
    return _time_limit(proxy, deployment, False) if streaming else ("", None, False)


def _unknown_limit(proxy: Proxy, deployment: Deployment) -> bool:
    """Whether something is set there that is no number here: the environment's, or a mistake that is told by itself."""
    values = [deployment.params.get(key) for key in ("timeout", "request_timeout", "stream_timeout")]
    values += [proxy.settings.get("request_timeout")]
    values += [section.get(key) for section in (proxy.router, proxy.defaults) for key in ("timeout", "stream_timeout")]
    return any(value is not None and number(value) is None for value in values)


def timeout_missing(proxy: Proxy) -> Iterator[Finding]:
    without = [
        deployment
        for deployment in proxy.own
        if not _unknown_limit(proxy, deployment) and _time_limit(proxy, deployment, False)[1] is None
    ]
    if without:
        yield Finding(
            without[0].where if len(without) == 1 else "model_list",
            f"nothing limits how long an answer of {names(without)} may take, and LiteLLM's default is 6000 s",
        )


def timeout_not_its_own(proxy: Proxy) -> Iterator[Finding]:
    by_place: dict[str, list[Deployment]] = {}
    for deployment in proxy.own:
        where, seconds, own = _time_limit(proxy, deployment, False)
        if seconds is not None and not own and not _unknown_limit(proxy, deployment):
            by_place.setdefault(f"{where} ({seconds:g} s)", []).append(deployment)
    for place, deployments in by_place.items():
        yield Finding("model_list", f"no time-out of its own for {names(deployments)}, only the proxy-wide {place}")


def timeout_short(proxy: Proxy) -> Iterator[Finding]:
    longest = proxy.longest_answer_s or LONGEST_ANSWER_S
    severity = Severity.WARNING if proxy.longest_answer_s is None else Severity.ERROR
    meant = "the longest legal answer" if proxy.longest_answer_s else "what a long answer takes"
    short: dict[str, dict[str, Deployment]] = {}
    for deployment in proxy.own:
        if deployment.info.get("mode") in SHORT_MODES:
            continue
        for streaming in (False, True):
            where, seconds, own = _time_limit(proxy, deployment, streaming)
            if seconds is not None and 0 <= seconds < longest:
                key = f"model_list: litellm_params.{where.rpartition('.')[2]}" if own else where
                short.setdefault(f"{key} is {seconds:g} s", {})[deployment.where] = deployment
    for said, deployments in short.items():
        yield Finding("", f"{said}, less than {meant} ({longest:g} s), for {names(deployments.values())}", severity)


def timeout_long(proxy: Proxy) -> Iterator[Finding]:
    found: dict[str, list[Deployment]] = {}
    for deployment in proxy.own:
        where, seconds, dummy = _time_limit(proxy, deployment, False)
        if seconds is not None and seconds > LONG_TIMEOUT_S:
            found.setdefault(f"{where} is {seconds:g} s", []).append(deployment)
    for said, deployments in found.items():
        yield Finding("", f"{said}: a hung backend of {names(deployments)} holds its requests that long")


def background_health_checks(proxy: Proxy) -> Iterator[Finding]:
    if proxy.general.get("background_health_checks") is not True:
        return
    asked = [one for one in proxy.own if one.info.get("disable_background_health_check") is not True]
    if asked:
        yield Finding(
            "general_settings.background_health_checks", f"every worker sends real requests to {names(asked)} all day"
        )


def health_flag_alone(proxy: Proxy) -> Iterator[Finding]:
    flagged = [one for one in proxy.own if one.info.get("disable_background_health_check") is True]
    if flagged and proxy.general.get("health_check_skip_disabled_background_models") is not True:
        yield Finding(
            "model_info.disable_background_health_check",
            f"{names(flagged)} are still asked by every GET /health, which the flag alone does not cover",
        )


def allowed_fails_single(proxy: Proxy) -> Iterator[Finding]:
    if proxy.router.get("disable_cooldowns") is True:
        return
    alone = [members[0] for members in proxy.own_groups.values() if len(members) == 1 and members[0].cools_down]
    where, value = proxy.first("allowed_fails", "router", "settings")
    policy_where, policy = proxy.first("allowed_fails_policy", "router")
    if alone and policy is not None:
        yield Finding(policy_where, f"cools out {names(alone)}, the only deployment there is", Severity.ERROR)
    elif alone and value is not None:
        yield Finding(where, f"may cool out {names(alone)}, the only deployment there is")
    for deployment in alone:
        for key in ("allowed_fails", "allowed_fails_policy"):
            for place, settings in (("litellm_params", deployment.params), ("model_info", deployment.info)):
                if settings.get(key) is not None:
                    yield Finding(
                        f"{deployment.where}.{place}.{key}",
                        f"may cool out {deployment.group}, the only deployment there is",
                    )


def cooldowns(proxy: Proxy) -> Iterator[Finding]:
    if proxy.router.get("disable_cooldowns") is True:
        return
    few = [
        members[0]
        for members in proxy.own_groups.values()
        if 2 <= len(members) <= FEW_BACKENDS and any(member.cools_down for member in members)
    ]
    if not few:
        return
    where, value = proxy.first("allowed_fails", "router", "settings")
    if value is None:
        where, value = proxy.first("cooldown_time", "router", "settings")
    said = f"cool-downs take a backend of {names(few)} out when a burst fills it, and the rest has its load too"
    yield Finding(
        where or "router_settings.disable_cooldowns", said, Severity.WARNING if value is None else Severity.ERROR
    )


def parallel_limit(proxy: Proxy) -> Iterator[Finding]:
    limited = [one for one in proxy.own if number(one.params.get("max_parallel_requests"))]
    if limited:
        yield Finding(
            f"{limited[0].where}.litellm_params.max_parallel_requests",
            f"what is above it for {names(limited)} is refused",
        )
    where, value = proxy.first("default_max_parallel_requests", "router")
    if number(value) and proxy.own:
        yield Finding(where, f"what is above it for {names(proxy.own)} is refused")
    for key in ("max_parallel_requests", "global_max_parallel_requests"):
        where, value = proxy.first(key, "general")
        if number(value) and proxy.own:
            yield Finding(where, "what is above it is refused")


def least_busy(proxy: Proxy) -> Iterator[Finding]:
    grouped = proxy.router.get("routing_groups")
    places = {"router_settings.routing_strategy": proxy.router.get("routing_strategy")}
    for n, one in enumerate(grouped if isinstance(grouped, list) else []):
        places[f"router_settings.routing_groups[{n}].routing_strategy"] = mapping(one).get("routing_strategy")
    chosen = [where for where, strategy in places.items() if strategy == "least-busy"]
    if not chosen or proxy.workers == 1:
        return
    groups = [deployment.group for deployment in proxy.deployments]
    if len(groups) == len(set(groups)) and "routing_groups" not in chosen[0]:
        return  # nothing to choose from
    cache = mapping(proxy.settings.get("cache_params"))
    if any(proxy.router.get(key) for key in ("redis_host", "redis_url")) or (
        proxy.settings.get("cache") is True and "redis" in str(cache.get("type") or "redis")
    ):
        return
    workers = proxy.workers
    said = f"each of {workers} workers" if workers else "each worker (and each proxy)"
    yield Finding(
        chosen[0],
        f"least-busy without Redis: {said} counts only its own requests",
        Severity.ERROR if workers else Severity.WARNING,
    )


def pre_call_checks(proxy: Proxy) -> Iterator[Finding]:
    for section in ("router", "settings"):
        where, value = proxy.first("enable_pre_call_checks", section)
        used = any(
            one.info.get(key) is not None or one.params.get(key) is not None
            for one in proxy.deployments
            for key in ("max_input_tokens", "base_model", "region_name", "supported_environments", "rpm", "tpm")
        )
        if value is True and not used:
            yield Finding(
                where,
                "every prompt is counted in tokens in the proxy, and no deployment states a limit to compare with",
            )
