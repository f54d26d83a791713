# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who may ask, and who checks it: the usage gate's place among the callbacks, keys, metrics. Pure; names no key."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .._gate.check_config import Severity
from .._gate.groups import Capped, find_bypasses, routing_of_config
from .proxy import GATE_CALLBACK, Proxy
from .rule import Finding

_HOOK = "async_pre_call_hook"
#: LiteLLM's own classes: what they define is not the gate.
_LITELLM_BASES = ("CustomLogger", "CustomGuardrail")
#: A key shorter than this after its sk- is guessed or found in a list.
_KEY_CHARACTERS = 16
_PLACEHOLDER = re.compile(
    r"1234|change.?me|secret|passw|example|your|placeholder|dummy|super|replace|xxxx|admin", re.IGNORECASE
)
_PERMIT_WEAK = "dangerously_permit_weak_or_unset_master_key"


def gate_absent(proxy: Proxy) -> Iterator[Finding]:
    if proxy.gate is not None and GATE_CALLBACK not in proxy.callbacks:
        yield Finding("", f"litellm_settings.callbacks does not name {GATE_CALLBACK}: the gate is not asked at all")


def gate_unknown(proxy: Proxy) -> Iterator[Finding]:
    if proxy.gate is None and GATE_CALLBACK in proxy.callbacks:
        yield Finding(
            "",
            "no usage-gate.yml was given or lies beside it, so fallbacks and names could not be compared with the capped list",
        )


def gate_bypass(proxy: Proxy) -> Iterator[Finding]:
    if proxy.gate is None:
        return
    for found in find_bypasses(routing_of_config(proxy.document), Capped(proxy.gate.capped_models)):
        yield Finding("", found.sentence, Severity.ERROR if found.refused else Severity.WARNING, fix="")


def hook_inherited(proxy: Proxy) -> Iterator[Finding]:
    for callback, source in proxy.hooks.items():
        class_name = _class_without_hook(source, callback.rpartition(".")[2])
        if class_name:
            yield Finding(
                f"litellm_settings.callbacks: {callback}",
                f"its class {class_name} inherits {_HOOK} and LiteLLM never calls it",
            )


def _class_without_hook(source: str, instance: str) -> str | None:
    """The class of that instance when its hook, if any, can only be an inherited one."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return None  # LiteLLM says so itself and does not start
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    for node in body:
        if not (
            isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name)
        ):
            continue
        made = classes.get(node.value.func.id)
        if made is None or instance not in {target.id for target in node.targets if isinstance(target, ast.Name)}:
            continue
        if _defines_hook(made):
            return None
        bases = {ast.unparse(base).rpartition(".")[2] for base in made.bases}
        return made.name if bases - set(_LITELLM_BASES) else None
    return None


def _defines_hook(node: ast.ClassDef) -> bool:
    return any(isinstance(item, (ast.AsyncFunctionDef, ast.FunctionDef)) and item.name == _HOOK for item in node.body)


def gate_order(proxy: Proxy) -> Iterator[Finding]:
    callbacks = proxy.callbacks
    if GATE_CALLBACK not in callbacks:
        return
    for callback in callbacks[callbacks.index(GATE_CALLBACK) + 1 :]:
        source = proxy.hooks.get(callback)
        if source is not None and re.search(r"""data\[["']model["']\]\s*=|data\.update\(.*model""", source):
            yield Finding(
                f"litellm_settings.callbacks: {callback}",
                "it comes after the gate and changes the model that was checked",
            )
        elif source is None and "." in callback:
            yield Finding(
                f"litellm_settings.callbacks: {callback}",
                "it comes after the gate, and whether it changes the model could not be read",
                Severity.WARNING,
            )


def master_key_missing(proxy: Proxy) -> Iterator[Finding]:
    if proxy.general.get(_PERMIT_WEAK) is True:
        yield Finding(f"general_settings.{_PERMIT_WEAK}", "the proxy starts with no key or a known one", Severity.ERROR)
    if proxy.general.get("master_key") or proxy.environment.get("LITELLM_MASTER_KEY"):
        return
    starters = [beside for beside in proxy.beside if beside.starts_proxy]
    if any(beside.may_give_master_key for beside in starters) or not (starters or proxy.own or proxy.general):
        return
    told = f", and {', '.join(beside.file for beside in starters)} gives none" if starters else ""
    yield Finding("general_settings.master_key", f"no master key is set here{told}")


def master_key_weak(proxy: Proxy) -> Iterator[Finding]:
    places = {
        "general_settings.master_key": proxy.general.get("master_key"),
        "environment_variables.LITELLM_MASTER_KEY": proxy.environment.get("LITELLM_MASTER_KEY"),
    }
    for where, key in places.items():
        if isinstance(key, (str, int)) and not str(key).startswith("os.environ/") and "$" not in str(key) and str(key):
            fault = _weakness(str(key))
            if fault:
                yield Finding(where, f"the master key {fault}")


def _weakness(key: str) -> str | None:
    secret = key.removeprefix("sk-")
    if len(secret) < _KEY_CHARACTERS:
        return f"has fewer than {_KEY_CHARACTERS} characters"
    if len(set(secret)) < 8:
        return "is made of very few different characters"
    if len(secret) < 32 and _PLACEHOLDER.search(secret):
        return "looks like a placeholder"
    return None


def metrics_open(proxy: Proxy) -> Iterator[Finding]:
    if proxy.settings.get("require_auth_for_metrics_endpoint") is False:
        yield Finding(
            "litellm_settings.require_auth_for_metrics_endpoint",
            "whoever reaches the proxy reads /metrics: names of keys, teams and users, and what they spend",
        )
