# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""New values as text, with the depths of indentation that a file has already. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .layout import Layout, Value

try:
    import yaml
except ImportError:  # the module that needs it says so
    pass

_WIDEST = 1_000_000


@dataclass(frozen=True)
class Style:
    """How deep a mapping and a list's dash stand under the key they belong to."""

    mapping: int = 2
    dash: int = 2

    def lines(self, value: Any, column: int) -> list[str]:
        """The entries of a mapping or list that is not empty, one below the other."""
        found: list[str] = []
        if isinstance(value, Mapping):
            for key, item in value.items():
                found += self.pair(key, item, column)
        else:
            for item in value:
                found += self.item(item, column)
        return found

    def pair(self, key: Any, value: Any, column: int) -> list[str]:
        head = f"{' ' * column}{inline(key)}:"
        if _is_block(value):
            return [head, *self.lines(value, column + self.depth(value))]
        return [f"{head} {inline(value)}"]

    def item(self, value: Any, column: int) -> list[str]:
        if not _is_block(value):
            return [f"{' ' * column}- {inline(value)}"]
        first, *rest = self.lines(value, column + 2)
        return [f"{' ' * column}- {first.lstrip(' ')}", *rest]

    def depth(self, value: Any) -> int:
        return self.mapping if isinstance(value, Mapping) else self.dash


def _is_block(value: Any) -> bool:
    return isinstance(value, (Mapping, list)) and bool(value)


def inline(value: Any) -> str:
    """A value in one line, to be read back as the same by YAML 1.1, which LiteLLM reads."""
    style = '"' if isinstance(value, str) and not value.isprintable() else None
    flow = isinstance(value, (Mapping, list))
    text: str = yaml.safe_dump(
        value, default_flow_style=True, default_style=style, width=_WIDEST, allow_unicode=True, sort_keys=False
    )
    text = text.removesuffix("\n").removesuffix("\n...")
    # within a list or mapping in one line nothing may hold a break
    return inline_parts(value) if flow and "\n" in text else text


def inline_parts(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{inline(key)}: {inline_parts(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(inline_parts(item) for item in value) + "]"
    return inline(value)


def style_of(layout: Layout, root: Value | None) -> Style:
    """What the file has first of each; dashes, where it has no list, stand as deep as mappings."""
    found: dict[str, int] = {}

    def look(value: Value) -> None:
        for entry in value.entries:
            child = entry.value
            if child.flow or not child.entries:
                continue
            if value.kind == "mapping":
                depth = layout.column(child.entries[0].start) - layout.column(entry.start)
                found.setdefault(child.kind, depth)
            look(child)

    if root is not None and not root.flow:
        look(root)
    mapping = found.get("mapping", 2)
    return Style(mapping if mapping > 0 else 2, max(found.get("list", mapping), 0))
