# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who may ask, and who checks it: the usage gate's place among the callbacks, keys, metrics. Pure; names no key."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from .._gate.check_config import Severity
from .._gate.groups import Capped, find_bypasses, routing_of_config
from .proxy import GATE_CALLBACK, Proxy
from .rule import Finding

_HOOK = "async_pre_call_hook"
#: LiteLLM's own classes: what they define is not the gate.
_LITELLM_BASES = ("CustomLogger", "CustomGuardrail")
_LITELLM_LOGGERS = "litellm.integrations."
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
    tree = _parsed(source)
    if tree is None:
        return None
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    imported = {
        alias.asname or alias.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or not isinstance(node.value, ast.Call):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        made = classes.get(ast.unparse(node.value.func))
        if made is None or instance not in {target.id for target in targets if isinstance(target, ast.Name)}:
            continue
        if not _defines_hook(made) and any(_may_hook(base, classes, imported) for base in made.bases):
            return made.name
        return None
    return None


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # LiteLLM says so itself and does not start


def _defines_hook(node: ast.ClassDef) -> bool:
    for item in node.body:
        if isinstance(item, (ast.AsyncFunctionDef, ast.FunctionDef)) and item.name == _HOOK:
            return True
        if isinstance(item, ast.Assign) and any(isinstance(one, ast.Name) and one.id == _HOOK for one in item.targets):
            return True
    return False


def _may_hook(base: ast.expr, classes: Mapping[str, ast.ClassDef], imported: Mapping[str, str], depth: int = 0) -> bool:
    """Whether a hook may come from that base: of a class that is not in the file, only LiteLLM's loggers are known."""
    name = ast.unparse(base).rpartition(".")[2]
    known = classes.get(name)
    if known is not None and depth < 20:
        return _defines_hook(known) or any(_may_hook(one, classes, imported, depth + 1) for one in known.bases)
    return name not in _LITELLM_BASES and name != "object" and not imported.get(name, "").startswith(_LITELLM_LOGGERS)


def gate_order(proxy: Proxy) -> Iterator[Finding]:
    callbacks = proxy.callbacks
    if GATE_CALLBACK not in callbacks:
        return
    for callback in callbacks[callbacks.index(GATE_CALLBACK) + 1 :]:
        source = proxy.hooks.get(callback)
        if source is not None and _sets_model(source):
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


def _sets_model(source: str) -> bool:
    """Whether it puts another model into a request: data["model"] = …, data.update(model=…), {**data, "model": …}."""
    tree = _parsed(source)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Subscript) and _is_model(target.slice) for target in targets):
                return True
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("update", "__setitem__")
        ):
            given = [*node.args, *(key for one in node.args if isinstance(one, ast.Dict) for key in one.keys)]
            if any(word.arg == "model" for word in node.keywords) or any(_is_model(one) for one in given):
                return True
        if isinstance(node, ast.Dict) and None in node.keys and any(_is_model(key) for key in node.keys):
            return True
    return False


def _is_model(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value == "model"


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
    for where, named in places.items():
        key = named
        if isinstance(named, str) and named.startswith("os.environ/"):
            variable = named.removeprefix("os.environ/")
            # LiteLLM sets these before it looks
            where, key = f"environment_variables.{variable}", proxy.environment.get(variable)
            if where in places:
                continue
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
