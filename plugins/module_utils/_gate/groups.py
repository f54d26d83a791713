# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which model groups a request may end up at, and what would slip past a list of capped ones. Pure.

The hook sees the name a client sent. LiteLLM may serve it through an alias, a wildcard, a deployment's id or upstream
name, a routing group or a fallback. One description (``Routing``) and one set of rules serve the hook at run time and
the lint of a configuration file.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Capped:
    """The capped list. An entry with ``*`` stands for every name it matches."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._exact = frozenset(name for name in self.names if "*" not in name)
        self._patterns = [_pattern(name) for name in self.names if "*" in name]

    def __contains__(self, name: str) -> bool:
        return name in self._exact or any(pattern.fullmatch(name) for pattern in self._patterns)


@dataclass(frozen=True)
class Routing:
    """What a LiteLLM router would do with a name."""

    groups: Mapping[str, frozenset[str]] = field(default_factory=dict)  # model_name -> upstream models
    ids: Mapping[str, str] = field(default_factory=dict)  # deployment id -> model_name
    upstreams: Mapping[str, frozenset[str]] = field(default_factory=dict)  # upstream model -> model_names
    wildcards: tuple[tuple[str, re.Pattern[str], tuple[str, ...]], ...] = ()  # most specific first
    aliases: Mapping[str, frozenset[str]] = field(default_factory=dict)  # global and router aliases
    routing_groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    team_groups: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)  # (team, public name)
    fallbacks: tuple[tuple[str, tuple[str, ...]], ...] = ()  # key ("*": any) -> targets
    leads_to: Mapping[str, frozenset[str]] = field(default_factory=dict)  # an auto-router's groups, and silent_model's
    served: Mapping[str, frozenset[tuple[str, str]]] = field(
        default_factory=dict
    )  # model_name -> servers, models there

    def names_for(
        self, requested: str, own_aliases: Sequence[Mapping[str, Any]] = (), team: str | None = None
    ) -> list[str]:
        """Every name under which this request may be served, the requested one first; fallbacks are not followed.

        Aliases are followed as a union, not a path: LiteLLM applies them in an order that differs by route, and a name
        too many costs one check, a name too few a bypass.
        """
        found: dict[str, None] = {}
        # Chat completions take several models in one request, separated by commas: as many as somebody writes. All that
        # they lead to is in the configuration, so this ends.
        waiting = [requested, *(part.strip() for part in requested.split(","))] if "," in requested else [requested]
        for name in waiting:  # it grows meanwhile
            if not name or name in found:
                continue
            found[name] = None
            waiting += sorted(self.aliases.get(name, ()))
            waiting += [target for table in own_aliases if (target := alias_target(table.get(name)))]
            waiting += self.routing_groups.get(name, ())
            waiting += sorted(self.leads_to.get(name, ()))
            if team is not None:
                waiting += sorted(self.team_groups.get((team, name), ()))
            if name in self.ids:
                waiting.append(self.ids[name])
            if name not in self.groups:
                waiting += self._through_wildcard(name)
                # Without an exact group, a name may be the upstream name of some group's deployment.
                waiting += sorted(self.upstreams.get(name, ()))
        return list(found)

    def _through_wildcard(self, name: str) -> list[str]:
        for group, pattern, upstreams in self.wildcards:
            match = pattern.match(name)  # as LiteLLM does: what follows the last fixed part is no hindrance
            if match is None:
                continue
            names = [group]
            for upstream in upstreams:
                reached = upstream
                for part in match.groups():
                    reached = reached.replace("*", part, 1)
                names += sorted(self.upstreams.get(reached, ()))
            return names
        # LiteLLM tries once more with the provider that it infers from the name; which one, only it knows
        return [
            group
            for group, pattern, dummy in self.wildcards
            if "/" in group and "*" not in (provider := group.split("/", 1)[0]) and pattern.match(f"{provider}/{name}")
        ]

    def fallbacks_of(self, names: Iterable[str], known: dict[str, list[str]] | None = None) -> list[str]:
        """The groups that may serve instead, fallbacks of fallbacks included; without the names themselves.

        ``known``: what was found for one name, kept by who asks for many.
        """
        known = {} if known is None else known
        start = list(names)
        found: dict[str, None] = {}
        waiting = list(start)
        for name in waiting:  # it grows meanwhile
            if name not in known:
                known[name] = self._falls_to(name)
            for reached in known[name]:
                if reached not in found and reached not in start:
                    found[reached] = None
                    waiting.append(reached)
        return list(found)

    def _falls_to(self, name: str) -> list[str]:
        """Where a request for this name goes on to at its first fallback."""
        return [
            reached
            for key, targets in self.fallbacks
            if key in ("*", name) or name.endswith("/" + key) or key.endswith("/" + name)
            for target in targets
            for reached in self.names_for(target)
        ]

    def serves(self, name: str) -> bool:
        """Whether anything answers to this name."""
        return (
            name in self.groups
            or name in self.aliases
            or name in self.routing_groups
            or any(public == name for dummy, public in self.team_groups)
            or any(pattern.match(name) for dummy, pattern, dummy2 in self.wildcards)
        )

    def serves_any(self, pattern: re.Pattern[str]) -> bool:
        """Whether anything that answers matches; with wildcard groups nobody can tell what they answer to."""
        names = (*self.groups, *self.aliases, *self.routing_groups, *(public for dummy, public in self.team_groups))
        return bool(self.wildcards) or any(pattern.fullmatch(name) for name in names)


def capped_among(names: Iterable[str], capped: Capped) -> list[str]:
    """The names that are capped, in the order given."""
    return [name for name in names if name in capped]


def asked_about(names: Iterable[str], capped: Capped) -> list[str]:
    """The capped names that the API is asked about: a wildcard group not beside a name that it stands for."""
    found = capped_among(names, capped)
    return [
        name
        for name in found
        if "*" not in name or not any(other != name and _pattern(name).fullmatch(other) for other in found)
    ]


class Kind(StrEnum):
    """What would go wrong."""

    FALLBACK = "fallback"  # a request goes on to a capped group unchecked
    UNSERVED = "unserved"  # a capped name that nothing answers to: mistyped, or renamed
    SAME_UPSTREAM = "same_upstream"  # an uncapped group serves what a capped one serves


@dataclass(frozen=True)
class Finding:
    """One thing that slips past the list. ``sentence`` says what and the way out; ``refused``: it must not be deployed."""

    kind: Kind
    group: str
    sentence: str
    refused: bool


def find_bypasses(routing: Routing, capped: Capped) -> list[Finding]:
    """Everything in a configuration that would slip past the capped list."""
    findings = []
    for name in capped.names:
        if not (routing.serves_any(_pattern(name)) if "*" in name else routing.serves(name)):
            findings.append(
                Finding(
                    Kind.UNSERVED,
                    name,
                    f"capped_models names {name}, which no model group, alias or wildcard serves; correct the name, or remove it",
                    refused=True,
                )
            )
    known: dict[str, list[str]] = {}
    falling = {key for key, dummy in routing.fallbacks if key != "*"}  # a name that a wildcard serves is no group's
    for name in sorted({*routing.groups, *routing.aliases, *routing.routing_groups, *falling}):
        own = routing.names_for(name)
        own_capped = capped_among(own, capped)
        for target in capped_among(routing.fallbacks_of(own, known), capped):
            if target in own_capped:
                continue
            kind_of_group = "capped by another name" if own_capped else "not capped"
            findings.append(
                Finding(
                    Kind.FALLBACK,
                    name,
                    f"{name} ({kind_of_group}) falls back to the capped group {target}, and LiteLLM asks no hook before a "
                    f"fallback; remove that fallback, or cap {name} too",
                    refused=not own_capped,
                )
            )
    owners = {there: group for group in sorted(routing.groups) if group in capped for there in routing.served[group]}
    for group in sorted(routing.groups):
        shared = sorted(owners[there] for there in owners if _reaches(routing.served[group], there))
        if shared and not capped_among(routing.names_for(group), capped):
            findings.append(
                Finding(
                    Kind.SAME_UPSTREAM,
                    group,
                    f"{group} is not capped but serves the same upstream model as the capped group {shared[0]}; cap it too, "
                    "unless that is meant",
                    refused=False,
                )
            )
    return findings


def _reaches(served: Iterable[tuple[str, str]], there: tuple[str, str]) -> bool:
    """Whether a group of these servers and models, which may be wildcards, can ask for that model there."""
    server, model = there
    return any(
        where == server and (what == model or ("*" in what and _pattern(what).fullmatch(model)))
        for where, what in served
    )


# -- building the description ------------------------------------------------------------------------------------


def make_routing(
    model_list: Iterable[Any],
    aliases: Iterable[Mapping[Any, Any] | None] = (),
    fallbacks: Iterable[Any] = (),
    default_fallbacks: Any = None,
    routing_groups: Any = None,
) -> Routing:
    """A description from what a configuration file or a live router holds. What is malformed is passed over: LiteLLM
    refuses it, or ignores it as we do."""
    groups: dict[str, set[str]] = {}
    served: dict[str, set[tuple[str, str]]] = {}
    ids: dict[str, str] = {}
    teams: dict[tuple[str, str], set[str]] = {}
    leads_to: dict[str, set[str]] = {}
    unread: set[str] = set()
    for deployment in model_list:
        if not isinstance(deployment, Mapping):
            continue
        name = deployment.get("model_name")
        params, info = deployment.get("litellm_params"), deployment.get("model_info")
        if not isinstance(name, str):
            continue
        upstream = params.get("model") if isinstance(params, Mapping) else None
        groups.setdefault(name, set())
        served.setdefault(name, set())
        if isinstance(upstream, str):
            groups[name].add(upstream)
        if isinstance(params, Mapping):
            if isinstance(upstream, str):
                served[name].add(_served(upstream, params))
            leads_to.setdefault(name, set()).update(_led_to(params))
            if isinstance(params.get("auto_router_config_path"), str):
                unread.add(name)
        if isinstance(info, Mapping):
            if isinstance(info.get("id"), str):
                ids[info["id"]] = name
            team, public = info.get("team_id"), info.get("team_public_model_name")
            if isinstance(team, str) and isinstance(public, str):
                teams.setdefault((team, public), set()).add(name)
    upstreams: dict[str, set[str]] = {}
    for name, models in groups.items():
        for model in models:
            upstreams.setdefault(model, set()).add(name)
    merged: dict[str, set[str]] = {}
    for table in aliases:
        for alias, item in (table or {}).items() if isinstance(table, Mapping) else ():
            target = alias_target(item)
            if isinstance(alias, str) and target:
                merged.setdefault(alias, set()).add(target)
    for name in unread:  # its file is LiteLLM's to read: it may lead anywhere
        leads_to[name].update(other for other in groups if other != name)
    wild = sorted((name for name in groups if "*" in name), key=_specificity, reverse=True)
    return Routing(
        groups={name: frozenset(models) for name, models in groups.items()},
        served={name: frozenset(there) for name, there in served.items()},
        ids=ids,
        upstreams={model: frozenset(names) for model, names in upstreams.items()},
        wildcards=tuple((name, _pattern(name), tuple(sorted(groups[name]))) for name in wild),
        aliases={alias: frozenset(targets) for alias, targets in merged.items()},
        routing_groups=_routing_groups(routing_groups),
        team_groups={key: frozenset(names) for key, names in teams.items()},
        fallbacks=read_fallbacks([*fallbacks, default_fallbacks]),
        # whatever text an auto-router's settings hold: only that of a group is one
        leads_to={
            name: frozenset(target for target in targets if target in groups or target in merged)
            for name, targets in leads_to.items()
            if targets
        },
    )


def _served(upstream: str, params: Mapping[str, Any]) -> tuple[str, str]:
    """The server, and what it knows the model by; without an address the provider stands for it."""
    provider, slash, model = upstream.partition("/")
    base = params.get("api_base") or params.get("base_url")
    if not isinstance(base, str) or not base:
        return (provider, model) if slash else ("", upstream)
    return base.rstrip("/").removesuffix("/v1").lower(), model if slash else upstream


def _led_to(params: Mapping[str, Any]) -> set[str]:
    """Texts of a deployment's settings that may name the group that serves instead, or too."""
    found: set[str] = set()
    waiting = [
        value
        for key, value in params.items()
        if isinstance(key, str) and (key == "silent_model" or key.startswith(("auto_router_", "complexity_router_")))
    ]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            found.add(value)
            if value.lstrip().startswith("{"):
                with contextlib.suppress(ValueError, RecursionError):
                    waiting.append(json.loads(value))
        elif isinstance(value, Mapping):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple)):
            waiting += value
    return found


def routing_of_config(document: Mapping[str, Any]) -> Routing:
    """The description of a LiteLLM config.yaml."""

    def section(name: str) -> Mapping[str, Any]:
        value = document.get(name)
        return value if isinstance(value, Mapping) else {}

    router, settings = section("router_settings"), section("litellm_settings")
    models = document.get("model_list")
    kinds = ("fallbacks", "context_window_fallbacks", "content_policy_fallbacks", "default_fallbacks")
    return make_routing(
        models if isinstance(models, list) else [],
        [router.get("model_group_alias"), settings.get("model_alias_map")],
        [place.get(kind) for place in (router, settings) for kind in kinds],
        routing_groups=router.get("routing_groups"),
    )


def read_fallbacks(tables: Iterable[Any]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Fallbacks in every form LiteLLM takes: a list of names (for any group), or of mappings from group to names."""
    found: list[tuple[str, tuple[str, ...]]] = []
    for table in tables:
        if isinstance(table, str):
            table = [table]
        for entry in table if isinstance(table, (list, tuple)) else ():
            if isinstance(entry, Mapping) and isinstance(entry.get("model"), str):
                found.append(("*", (entry["model"],)))  # a whole request to make instead
            elif isinstance(entry, Mapping):
                found += [(str(key), _targets(targets)) for key, targets in entry.items()]
            elif isinstance(entry, str):
                found.append(("*", (entry,)))
    return tuple(found)


def alias_target(item: Any) -> str | None:
    """The group an alias stands for: a name, or a mapping that holds one."""
    if isinstance(item, Mapping):
        item = item.get("model")
    return item if isinstance(item, str) and item else None


def _targets(value: Any) -> tuple[str, ...]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return tuple(target for item in values if (target := alias_target(item)))


def _routing_groups(value: Any) -> dict[str, tuple[str, ...]]:
    found = {}
    for item in value if isinstance(value, (list, tuple)) else ():
        read = item.get if isinstance(item, Mapping) else lambda key, item=item: getattr(item, key, None)
        name, models = read("group_name"), read("models")
        if isinstance(name, str) and isinstance(models, (list, tuple)):
            found[name] = tuple(model for model in models if isinstance(model, str))
    return found


def _expression(name: str) -> str:
    return re.escape(name).replace(r"\*", "(.*)")


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(_expression(name), re.DOTALL)


def _specificity(name: str) -> tuple[int, int]:
    """LiteLLM's order of wildcards: the longest expression first, escapes counted."""
    expression = _expression(name)
    return len(expression), sum(expression.count(sign) for sign in "*+?\\^$|()")
