# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The rules, one row each: what is looked for, what it does to whom, how we know, the way out.

``[M]`` in the evidence: measured or read in LiteLLM 1.108.4. docs/litellm.md shows this table; a test holds them together.
"""

from __future__ import annotations

from collections.abc import Iterator

from .._gate.check_config import Severity
from .._gate.releases import COMPROMISED
from . import access, serving, shape
from .beside import Beside, health_probes
from .proxy import Proxy
from .requested import releases
from .rule import Finding, Rule


def _release_compromised(beside: Beside) -> Iterator[Finding]:
    for release in releases(beside):
        if release.version in COMPROMISED:
            yield Finding(release.where, f"{release.said} is a release that steals credentials")


def _release_unpinned(beside: Beside) -> Iterator[Finding]:
    for release in releases(beside):
        if release.version is None:
            yield Finding(release.where, f"{release.said} is whatever is published on the day it is fetched")


def _health_probe(beside: Beside) -> Iterator[Finding]:
    for where in health_probes(beside):
        yield Finding(where, "asks the proxy's /health, which sends a real request to every backend")


RULES: tuple[Rule, ...] = (
    Rule(
        "malformed",
        Severity.ERROR,
        harm="LiteLLM does not start, or goes on without what was meant; nothing else in the file can be judged.",
        evidence="[M] proxy_server.py, load_config: an odd entry ends it with an AttributeError or KeyError, a router_settings that is a "
        "list is passed over in silence.",
        fix="correct it by hand, since nobody else knows what was meant",
        check=shape.malformed,
    ),
    Rule(
        "bad_value",
        Severity.ERROR,
        harm="LiteLLM starts with it and fails at the first request that needs the number, or takes a text for yes whatever it says.",
        evidence="[M] num_retries: x and timeout: .nan are loaded without a word.",
        fix="correct it, or remove it",
        check=shape.bad_values,
    ),
    Rule(
        "retries",
        Severity.ERROR,
        harm="Each client request that meets a busy, hung or failing server becomes three, and the load rises just when there is too much.",
        evidence="[M] 3 upstream requests for 1 that timed out, counted at the backend; tests/contract/litellm/test_upstream_hits.py.",
        fix="set router_settings.num_retries: 0",
        check=serving.retries,
    ),
    Rule(
        "deployment_retries",
        Severity.ERROR,
        harm="A deployment's own num_retries wins over the router's; max_retries is for the HTTP client below it.",
        evidence="[M] router.py, async_function_with_retries: the deployment's value replaces the router's when the request names none. "
        "Of max_retries 1.108.4 makes nothing, since the router gives each request its own 0: a warning.",
        fix="remove it, or set it to 0",
        check=serving.deployment_retries,
    ),
    Rule(
        "embedding_retries",
        Severity.WARNING,
        harm="An embedding that fails or times out is sent three times, whatever num_retries and max_retries say.",
        evidence="[M] 3 upstream requests for 1 with 0 everywhere, counted at the backend; 1 with hosted_vllm/; "
        "tests/contract/litellm/test_upstream_hits.py.",
        fix="write hosted_vllm/ instead of openai/ before the model's name",
        check=serving.embedding_retries,
    ),
    Rule(
        "retry_policy",
        Severity.ERROR,
        harm="Time-outs and refusals of a full server are repeated although num_retries says 0.",
        evidence="[M] router.py, async_function_with_retries: a retry policy that names the error replaces num_retries.",
        fix="set those counts to 0 for servers of your own",
        check=serving.retry_policy,
    ),
    Rule(
        "timeout_missing",
        Severity.ERROR,
        harm="A hung backend holds its requests, and the clients behind them, for 100 minutes before anybody hears of it.",
        evidence="[M] constants.py: the time-out is 6000 s where nothing sets one.",
        fix="set litellm_params.timeout and stream_timeout, above the longest legal answer (900)",
        check=serving.timeout_missing,
    ),
    Rule(
        "timeout_not_its_own",
        Severity.WARNING,
        harm="One limit for all is too long for an embedding and too short for a long answer; streams take litellm_settings.request_timeout first.",
        evidence="[M] router.py, _get_timeout: deployment, then litellm_settings.request_timeout, then router_settings.timeout.",
        fix="give each deployment litellm_params.timeout and stream_timeout",
        check=serving.timeout_not_its_own,
    ),
    Rule(
        "timeout_short",
        Severity.WARNING,
        harm="A long answer is cut off after the server has worked for it, and asked for again by whoever wants it.",
        evidence="A 339k-token prefill showed nothing for 505 s, and 32k tokens at 40 a second take 820 s; an error when the longest answer is stated.",
        fix="raise it, or state the longest legal answer if this is above it",
        check=serving.timeout_short,
    ),
    Rule(
        "timeout_long",
        Severity.WARNING,
        harm="A hung backend holds its requests for more than an hour.",
        evidence="[M] LiteLLM waits for the whole time-out; nothing else ends a request that gets no byte.",
        fix="set it just above the longest legal answer (900)",
        check=serving.timeout_long,
    ),
    Rule(
        "background_health_checks",
        Severity.ERROR,
        harm="Real chat requests take slots from clients, all day, from each worker, and a full server that answers late counts as ill.",
        evidence="[M] proxy_server.py, _run_background_health_check, started in every worker.",
        fix="remove it and probe /health/liveliness or /health/readiness; llm-health tells how the servers are without a request",
        check=serving.background_health_checks,
    ),
    Rule(
        "health_flag_alone",
        Severity.WARNING,
        harm="A dashboard or a curious person who opens /health sends a chat to every backend.",
        evidence="[M] health_check.py, perform_health_check: the flag counts there only with its companion.",
        fix="set general_settings.health_check_skip_disabled_background_models: true",
        check=serving.health_flag_alone,
    ),
    Rule(
        "allowed_fails_single",
        Severity.WARNING,
        harm="With the only deployment cooled out every request is refused, though the server would have served it.",
        evidence="[M] cooldown_handlers.py: 1.108.4 spares a lone deployment from allowed_fails unless it has a fallback or a policy names "
        "the error (then an error here); earlier releases do not.",
        fix="remove it, and set router_settings.disable_cooldowns: true",
        check=serving.allowed_fails_single,
    ),
    Rule(
        "cooldowns",
        Severity.WARNING,
        harm="A burst of 429s or time-outs takes one of two backends out, the other gets its load and follows.",
        evidence="[M] cooldown_handlers.py, _should_cooldown_deployment: one 429 is enough in a group of two; an error where cool-downs are set on purpose.",
        fix="set router_settings.disable_cooldowns: true",
        check=serving.cooldowns,
    ),
    Rule(
        "parallel_limit",
        Severity.WARNING,
        harm="Clients get 429 where the server's own queue would have served them some seconds later.",
        evidence="[M] LiteLLM counts and refuses; it has no queue of its own.",
        fix="remove it, unless refusing is meant; vLLM queues by itself",
        check=serving.parallel_limit,
    ),
    Rule(
        "least_busy",
        Severity.WARNING,
        harm="Requests pile up on one backend while another is idle, because no worker sees what the others sent.",
        evidence="[M] router_strategy/least_busy.py keeps its counts in the router's cache, which is the worker's memory without Redis.",
        fix="give router_settings a redis_host, run one worker, or use simple-shuffle",
        check=serving.least_busy,
    ),
    Rule(
        "pre_call_checks",
        Severity.WARNING,
        harm="Every request walks all deployments for nothing; once somebody states a limit, long prompts are tokenised in the proxy.",
        evidence="[M] router.py, _pre_call_checks: 1.108.4 walks always and counts tokens where a limit is stated.",
        fix="remove it, or state model_info.max_input_tokens",
        check=serving.pre_call_checks,
    ),
    Rule(
        "gate_absent",
        Severity.ERROR,
        harm="Every request is served unchecked, and nothing counts it.",
        evidence="[M] LiteLLM loads only what callbacks names.",
        fix="add it, with usage_gate.py beside this file",
        check=access.gate_absent,
    ),
    Rule(
        "gate_unknown",
        Severity.WARNING,
        harm="A fallback or alias that goes round the caps stays unseen until it is used.",
        evidence="The rules that compare need the capped list.",
        fix="give both files",
        check=access.gate_unknown,
    ),
    Rule(
        "gate_bypass",
        Severity.ERROR,
        harm="Capped models are served to whoever is over the cap, by a fallback, an alias, a wildcard or a second name.",
        evidence="[M] a router fallback calls no hook; tests/contract/gate/test_litellm_hook.py. A warning where it may be meant.",
        fix="remove that way, or cap it too",
        check=access.gate_bypass,
    ),
    Rule(
        "hook_inherited",
        Severity.ERROR,
        harm="The hook is skipped silently: no error, no log line, nothing checked.",
        evidence="[M] proxy/utils.py looks for the hook in the class's own dictionary.",
        fix="define async_pre_call_hook in that class itself and call the inherited one from it",
        check=access.hook_inherited,
    ),
    Rule(
        "gate_order",
        Severity.ERROR,
        harm="What was checked is not what is served.",
        evidence="[M] callbacks run in the order of the list, each on what the one before left.",
        fix="name usage_gate.usage_gate last among the callbacks of your own",
        check=access.gate_order,
    ),
    Rule(
        "master_key_missing",
        Severity.WARNING,
        harm="Whoever reaches the proxy uses every model; releases before the start-up check serve them without a word.",
        evidence="[M] proxy/auth/master_key_boot_check.py: 1.108.4 refuses to start unless it is overridden (then an error here).",
        fix="set LITELLM_MASTER_KEY in the proxy's environment and name it as os.environ/LITELLM_MASTER_KEY",
        check=access.master_key_missing,
    ),
    Rule(
        "master_key_weak",
        Severity.ERROR,
        harm="Whoever guesses it makes keys, reads every prompt that is logged, and spends what there is to spend.",
        evidence="[M] only one publicly known key is refused at start; every other weak one is taken.",
        fix="make one with openssl rand -hex 32, and keep it in the environment as os.environ/LITELLM_MASTER_KEY",
        check=access.master_key_weak,
    ),
    Rule(
        "metrics_open",
        Severity.WARNING,
        harm="Names and spending of people are readable without a key.",
        evidence="[M] the Prometheus callback labels its series with key alias, team and user.",
        fix="remove it (1.108.4 asks for a key by default) and give Prometheus a bearer token",
        check=access.metrics_open,
    ),
    Rule(
        "release_compromised",
        Severity.ERROR,
        harm="It sends away every credential it can read, and leaves files behind that run with every Python.",
        evidence="1.82.7, 1.82.8 and 1.107.0 carried credential stealers.",
        fix="pin another release, make the environment anew, and change every key it could read",
        beside=_release_compromised,
    ),
    Rule(
        "release_unpinned",
        Severity.WARNING,
        harm="The next rebuild runs a release nobody has looked at; the compromised ones were the newest of their day.",
        evidence="1.82.7, 1.82.8 and 1.107.0 reached those who had not pinned.",
        fix="pin an exact release (litellm[proxy]==1.108.4), or an image by its digest",
        beside=_release_unpinned,
    ),
    Rule(
        "health_probe",
        Severity.ERROR,
        harm="Every probe takes a slot on every backend; with one of them stopped it does not answer in time and the proxy is restarted for it.",
        evidence="[M] /health did not answer in 30 s with one backend stopped; liveliness and readiness answered at once.",
        fix="ask /health/liveliness, or /health/readiness",
        beside=_health_probe,
    ),
)


def by_id(name: str) -> Rule:
    """The rule of that name."""
    return next(rule for rule in RULES if rule.id == name)


def look_at_proxy(proxy: Proxy) -> Iterator[tuple[Rule, Finding]]:
    """What all rules find in a configuration. In one that is malformed others would judge what is not there."""
    odd = [(rule, finding) for rule in RULES if rule.check is shape.malformed for finding in shape.malformed(proxy)]
    if odd:
        yield from odd
        return
    for rule in RULES:
        for finding in rule.check(proxy) if rule.check else ():
            yield rule, finding


def look_beside(beside: Beside) -> Iterator[tuple[Rule, Finding]]:
    """What all rules find in a file beside it."""
    for rule in RULES:
        for finding in rule.beside(beside) if rule.beside else ():
            yield rule, finding
