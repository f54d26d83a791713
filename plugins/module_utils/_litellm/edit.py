# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A config.yaml as a file that people edit too: changed with comments, order and everything foreign kept, or not at all."""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._gate.check_config import kind_of
from .._gate.errors import ConfigError
from .._gate.same import same
from .._gate.yaml_file import parse_yaml, read_text
from .layout import Layout, comments_of
from .merge import Wanted, merge, plain
from .secrets import without_secrets
from .splice import Unsplicable, splice

try:
    import yaml
    from ruamel.yaml import YAML
    from ruamel.yaml.comments import CommentedMap, CommentedSeq
    from ruamel.yaml.error import YAMLError
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString
    from ruamel.yaml.util import load_yaml_guess_indent
except ImportError:  # the module that needs them says so
    pass


@dataclass(frozen=True)
class Edited:
    """A file before and after. Equal texts: nothing to do."""

    before: str | None  # None: there is no file
    after: str
    shown_before: str  # without secrets and comments, which may hold some
    shown_after: str
    document: Mapping[str, Any]

    @property
    def changed(self) -> bool:
        return self.before != self.after


def edit_file(path: str, wanted: Wanted) -> Edited:
    """What the file would be; ConfigError, with line and column where there is one, when it cannot be."""
    text = read_text(path, "LiteLLM's configuration", newline="") if Path(path).exists() else None
    return edit(text, wanted, path)


def edit(text: str | None, wanted: Wanted, where: str) -> Edited:
    """The same for a text."""
    loaded = parse_yaml(text or "", where)
    if loaded is None:
        loaded = {}
    if not isinstance(loaded, dict):
        raise ConfigError([f"{where}: a mapping of LiteLLM's settings is needed"])
    if loaded and kind_of(loaded, where) != "litellm":
        raise ConfigError([f"{where}: this is usage-gate.yml; name LiteLLM's config.yaml"])
    after = plain(loaded)
    merge(after, wanted, where)
    _validate(after, wanted, where)
    if same(after, loaded):
        return Edited(text, text or "", _shown(loaded), _shown(loaded), after)
    changed = _changed(text or "", loaded, after, wanted, where)
    return Edited(text, changed, _shown(loaded) if text is not None else "", _shown(after), after)


def _changed(text: str, loaded: Mapping[str, Any], after: Mapping[str, Any], wanted: Wanted, where: str) -> str:
    """The text of what is wanted: cut from the one that is there, else written anew. Neither is believed unread."""
    layout = Layout(text)
    try:
        spliced = splice(layout, loaded, after)
        if _says(spliced.text, after, where) and _first_lost(layout, spliced.text, spliced.gone) is None:
            return spliced.text
    except (Unsplicable, ValueError):
        pass
    try:
        changed = _round_trip(text, wanted, where)
    except ConfigError:
        raise
    except Exception as error:  # ruamel.yaml trips over some odd files in ways of its own
        raise ConfigError(
            [f"{where}: it cannot be changed here (ruamel.yaml: {type(error).__name__}); make the change by hand"]
        ) from None
    if not _says(changed, after, where):
        raise ConfigError(
            [
                f"{where}: it cannot be changed without changing something else in it too; where it shares values by anchors, write them "
                "out, or make the change by hand"
            ]
        )
    lost = _first_lost(layout, changed, frozenset())
    if lost is not None:
        raise ConfigError(
            [
                f"{where}: it cannot be changed without losing or moving the comment in line {lost}; make the change by hand"
            ]
        )
    return changed


def _says(text: str, after: Mapping[str, Any], where: str) -> bool:
    """Whether a text is read as what is wanted."""
    try:
        return same(parse_yaml(text, where) or {}, after)
    except ConfigError:
        return False


def _first_lost(layout: Layout, text: str, gone: Collection[int]) -> int | None:
    """The line of the first comment that is not in the text any more, in its order; ``gone`` may be missing."""
    there = iter(comments_of(text))
    for number, comment in enumerate(layout.comments):
        if number not in gone and comment.text not in there:
            return layout.number(comment.start)
    return None


def _validate(document: Mapping[str, Any], wanted: Wanted, where: str) -> None:
    """What is put in must be what LiteLLM takes; what others wrote is theirs."""
    problems = []
    for number, deployment in enumerate(wanted.deployments if wanted.present else ()):
        params = deployment.get("litellm_params")
        if not isinstance(deployment.get("model_name"), str) or not deployment["model_name"]:
            problems.append(f"deployments[{number}].model_name: a name is needed")
        if not isinstance(params, Mapping) or not isinstance(params.get("model"), str):
            problems.append(
                f"deployments[{number}].litellm_params.model: the model is needed, such as hosted_vllm/qwen"
            )
    if document and wanted.present:
        kind_of(document, where)
    if problems:
        raise ConfigError(problems)


def _shown(document: Mapping[str, Any]) -> str:
    return (
        yaml.safe_dump(without_secrets(dict(document)), sort_keys=False, allow_unicode=True, width=120)
        if document
        else ""
    )


def _round_trip(text: str, wanted: Wanted, where: str) -> str:
    writer = YAML()
    writer.preserve_quotes = True
    writer.width = 4096
    writer.allow_unicode = True
    try:
        # loaded twice: Debian 12's release guesses with a reader of its own, which forgets quotes
        dummy, sequence, offset = load_yaml_guess_indent(text)
        document = writer.load(text)
    except YAMLError as error:  # YAML 1.2 refuses some of what 1.1 takes
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        raise ConfigError([f"{where}:{place} not valid YAML 1.2: {getattr(error, 'problem', None) or error}"]) from None
    head = ""
    if document is None:
        document, head = CommentedMap(), text
        if head and not head.endswith("\n"):
            head += "\n"
    mapping_indent = _mapping_indent(text)
    if offset is None:  # there is no list yet, whatever was guessed
        offset = mapping_indent
        sequence = offset + 2
    writer.indent(mapping=mapping_indent, sequence=sequence, offset=offset)
    merge(document, wanted, where, _make)
    out = io.StringIO()
    writer.dump(document, out)
    newline = "\r\n" if "\r\n" in text else "\n"
    return head + out.getvalue().replace("\n", newline)


def _mapping_indent(text: str) -> int:
    found = re.search(r"^[\w-]+:[ \t]*(?:#.*)?\n(?:[ \t]*(?:#.*)?\n)*( +)[^\s#-]", text, re.MULTILINE)
    return len(found.group(1)) if found else 2


def _make(value: Any) -> Any:
    """A value in the round trip's own types. A text that YAML 1.1, which LiteLLM reads, would take for something else is quoted."""
    if isinstance(value, Mapping):
        return CommentedMap((key, _make(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return CommentedSeq(_make(item) for item in value)
    if isinstance(value, str) and not _is_plain(value):
        return DoubleQuotedScalarString(value)
    return value


def _is_plain(value: str) -> bool:
    try:
        return bool(yaml.safe_load(value) == value)
    except yaml.YAMLError:
        return False
