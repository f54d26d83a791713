# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is to be in a config.yaml, or not, merged into what is there. Pure: it works on any mappings and lists.

What is not named stays. A mapping is merged key by key, anything else is replaced, and null takes a key away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._gate.errors import ConfigError

#: The sections that hold settings, by the name LiteLLM gives them.
SECTIONS = ("router_settings", "litellm_settings", "general_settings")


@dataclass(frozen=True)
class Wanted:
    """What the operator asked for."""

    present: bool = True
    deployments: tuple[Mapping[str, Any], ...] = ()
    callbacks: tuple[str, ...] = ()
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


Make = Callable[[Any], Any]


def plain(value: Any) -> Any:
    """The same without aliases: two places that YAML lets share a value get one each."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def merge(document: MutableMapping[str, Any], wanted: Wanted, where: str, make: Make = plain) -> None:
    """Changes the document. ``make`` builds what is put in anew, in the document's own types."""
    for name, settings in wanted.sections.items():
        section = _container(document, name, {}, where, make, wanted.present)
        if section is not None:
            (_put if wanted.present else _take)(section, settings, make)
            if not section and not wanted.present:
                del document[name]
    _deployments(document, wanted, where, make)
    _callbacks(document, wanted, where, make)


def _container(document: MutableMapping[str, Any], name: str, empty: Any, where: str, make: Make, create: bool) -> Any:
    """A section as it can be changed; made when it is to be. ConfigError when something else is there."""
    value = document.get(name)
    if value is None:
        if not create:
            return None
        document[name] = make(empty)
        return document[name]
    kind = MutableMapping if isinstance(empty, dict) else MutableSequence
    if not isinstance(value, kind):
        what = "a mapping" if isinstance(empty, dict) else "a list"
        raise ConfigError(
            [f"{where}: {name}: {what} is needed; correct it by hand, since nobody else knows what was meant"]
        )
    return value


def _put(place: MutableMapping[str, Any], wanted: Mapping[str, Any], make: Make) -> None:
    for key, value in wanted.items():
        there = place.get(key)
        if value is None:
            place.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(there, MutableMapping):
            _put(there, value, make)
        elif key not in place or there != value or isinstance(there, bool) != isinstance(value, bool):
            place[key] = make(_without_nulls(value))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value


def _take(place: MutableMapping[str, Any], unwanted: Mapping[str, Any], make: Make) -> None:
    for key, value in unwanted.items():
        there = place.get(key)
        if isinstance(value, Mapping) and value and isinstance(there, MutableMapping):
            _take(there, value, make)
            if not there:
                del place[key]
        else:
            place.pop(key, None)


# -- deployments -------------------------------------------------------------------------------------------------


def _deployments(document: MutableMapping[str, Any], wanted: Wanted, where: str, make: Make) -> None:
    if not wanted.deployments:
        return
    models = _container(document, "model_list", [], where, make, wanted.present)
    if models is None:
        return
    if not wanted.present:
        for deployment in wanted.deployments:
            for index in reversed(range(len(models))):
                if is_same(models[index], deployment) and _has_model(models[index], deployment):
                    del models[index]
        return
    double = [
        f"deployments[{first}] and [{second}] ({one['model_name']}) are the same; leave one out, or give each a model_info.id"
        for second, other in enumerate(wanted.deployments)
        for first, one in enumerate(wanted.deployments[:second])
        if any(is_same(a, b) and _has_model(a, b) for a, b in ((one, other), (other, one)))
    ]
    if double:
        raise ConfigError(double)
    # First those that are there to the letter: what one of them is, no other may become. One that is put in is nobody else's.
    taken: dict[int, list[int]] = {}
    for number, deployment in enumerate(wanted.deployments):
        found = [index for index, entry in enumerate(models) if is_same(entry, deployment)]
        exact = [index for index in found if _has_model(models[index], deployment)]
        if len(exact) == 1 or exact == found:
            taken[number] = exact
    claimed = {index for found in taken.values() for index in found}
    for number, deployment in enumerate(wanted.deployments):
        if number not in taken:
            found = [index for index, entry in enumerate(models) if is_same(entry, deployment)]
            taken[number] = [index for index in found if index not in claimed]
            claimed.update(taken[number])
    for number, deployment in enumerate(wanted.deployments):
        found = taken[number]
        if len(found) > 1:
            raise ConfigError(
                [
                    f"{where}: model_list: {len(found)} entries are deployments[{number}] ({deployment['model_name']}); "
                    "give each a model_info.id, or remove what is double"
                ]
            )
        if found:
            _put(models[found[0]], {key: value for key, value in deployment.items() if value is not None}, make)
        else:
            models.append(make(_without_nulls(deployment)))


def is_same(entry: Any, wanted: Mapping[str, Any]) -> bool:
    """Whether an entry of model_list is the deployment meant: by its id; else by its group, and in it its address
    (else its model). Of an unwanted deployment with nothing but a group, all of that group are meant."""
    if not isinstance(entry, Mapping):
        return False
    info, params = _mapping(wanted.get("model_info")), _mapping(wanted.get("litellm_params"))
    if info.get("id") is not None:
        return bool(_mapping(entry.get("model_info")).get("id") == info["id"])
    if entry.get("model_name") != wanted.get("model_name"):
        return False
    theirs = _mapping(entry.get("litellm_params"))
    for key in ("api_base", "model"):
        if params.get(key) is not None:
            return bool(theirs.get(key) == params[key])
    return True


def _has_model(entry: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether the model is the one named too: one server may serve several in one group. An id says enough."""
    if _mapping(wanted.get("model_info")).get("id") is not None:
        return True
    model = _mapping(wanted.get("litellm_params")).get("model")
    return model is None or bool(_mapping(entry.get("litellm_params")).get("model") == model)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


# -- callbacks ---------------------------------------------------------------------------------------------------


def _callbacks(document: MutableMapping[str, Any], wanted: Wanted, where: str, make: Make) -> None:
    if not wanted.callbacks:
        return
    settings = _container(document, "litellm_settings", {}, where, make, wanted.present)
    if settings is None:
        return
    there = settings.get("callbacks")
    if there is None or isinstance(there, str):
        there = make([there] if there else [])
    if not isinstance(there, list):
        raise ConfigError([f"{where}: litellm_settings.callbacks: a list of names is needed; correct it by hand"])
    if not wanted.present:
        unwanted = [index for index, name in enumerate(there) if name in wanted.callbacks]
        if not unwanted:
            return
        for index in reversed(unwanted):
            del there[index]
        if not there:
            settings.pop("callbacks", None)
        if not settings:
            del document["litellm_settings"]
        return
    after = order(there, wanted.callbacks)
    if there and [name for name in after if name in there] == list(there):
        for index, name in enumerate(after):  # in place: comments beside the others stay
            if name not in there:
                there.insert(index, name)
    else:
        there = make(after)
    if settings.get("callbacks") != there:
        settings["callbacks"] = there


def order(there: Sequence[Any], wanted: Sequence[str]) -> list[Any]:
    """All wanted callbacks in their order. Others keep their places; ours stand where the last of ours stood, else last:
    one that changes the model must come before one that checks it."""
    ours = [name for name in there if name in wanted]
    if ours == list(wanted):
        return list(there)
    last = max((index for index, name in enumerate(there) if name in wanted), default=len(there))
    before = [name for name in there[:last] if name not in wanted]
    return [*before, *wanted, *(name for name in there[last:] if name not in wanted)]
