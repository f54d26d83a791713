# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where in the text of a YAML file everything stands: lines, comments, and each entry with its value. Pure."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

try:
    import yaml

    class _Structure(yaml.SafeLoader):
        """Nodes as they are written: an alias is a place of its own, not what it stands for."""

        def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
            if self.check_event(yaml.AliasEvent):
                event = self.get_event()  # type: ignore[no-untyped-call]
                return yaml.ScalarNode(_ALIAS, event.anchor, event.start_mark, event.end_mark)
            return super().compose_node(parent, index)

except ImportError:  # the module that needs it says so
    pass

_BREAK = re.compile(r"\r\n|[\r\n\x85\u2028\u2029]")
_ALIAS = "!alias"
_MERGE_TAG = "tag:yaml.org,2002:merge"
#: Stands for the key ``<<``, whose value is other mappings'.
MERGE = object()


@dataclass(frozen=True)
class Comment:
    """One comment; ``own``: it has its line for itself."""

    start: int
    text: str
    own: bool


@dataclass
class Value:
    """A value as it is written in ``text[start:end]``; ``entries`` of a mapping or list."""

    kind: str  # mapping, list, scalar, block (a scalar with | or >), alias
    start: int
    end: int
    flow: bool = False
    entries: list[Entry] = field(default_factory=list)


@dataclass
class Entry:
    """One entry. ``start``: its key or dash; ``after``: where the sign before its value ends (None: there is none)."""

    key: Any
    start: int
    after: int | None
    value: Value

    @property
    def end(self) -> int:
        return max(self.value.end, self.after or 0)


class Layout:
    """A text and everything in it; ``yaml.YAMLError`` when it is no YAML."""

    def __init__(self, text: str) -> None:
        self.text = text
        first = 1 if text.startswith("\ufeff") else 0  # the byte order mark is no part of the first line
        breaks = list(_BREAK.finditer(text))
        self._starts = [first, *(found.end() for found in breaks)]
        self._ends = [*(found.start() for found in breaks), len(text)]
        self.newline = breaks[0].group() if breaks and breaks[0].group() in ("\n", "\r\n") else "\n"
        self.commas: list[int] = []
        self._dashes: list[int] = []
        self._colons: list[int] = []
        self.documents_end = len(text)
        self.comments = list(self._scan())
        self._comment_starts = [comment.start for comment in self.comments]

    def root(self) -> Value | None:
        """The whole document, if there is one; ``ValueError`` when a key is of a kind that nobody writes."""
        loader = _Structure(self.text)
        try:
            node = loader.get_single_node()
            return None if node is None or _is_nothing(node) else self._value(loader, node)
        finally:
            loader.dispose()

    # -- lines -------------------------------------------------------------------------------------------------

    def _line(self, position: int) -> int:
        return max(bisect_right(self._starts, position) - 1, 0)

    def line_start(self, position: int) -> int:
        return self._starts[self._line(position)]

    def line_end(self, position: int) -> int:
        """Before the line's break."""
        return self._ends[self._line(position)]

    def next_line(self, position: int) -> int:
        line = self._line(position) + 1
        return self._starts[line] if line < len(self._starts) else len(self.text)

    def column(self, position: int) -> int:
        return position - self.line_start(position)

    def number(self, position: int) -> int:
        return self._line(position) + 1

    def begins_line(self, position: int) -> bool:
        return not self.text[self.line_start(position) : position].strip(" \t")

    def comments_in(self, start: int, end: int) -> list[Comment]:
        return self.comments[bisect_left(self._comment_starts, start) : bisect_left(self._comment_starts, end)]

    # -- tokens ------------------------------------------------------------------------------------------------

    def _scan(self) -> Iterator[Comment]:
        loader = yaml.SafeLoader(self.text)
        done = 0
        try:
            while loader.check_token():
                token = loader.get_token()  # type: ignore[no-untyped-call]
                start, end = token.start_mark.index, token.end_mark.index
                if start > done:
                    yield from self._comments(done, start)
                done = max(done, end)
                if isinstance(token, yaml.FlowEntryToken):
                    self.commas.append(start)
                elif isinstance(token, yaml.BlockEntryToken):
                    self._dashes.append(start)
                elif isinstance(token, yaml.ValueToken):
                    self._colons.append(start)
                elif isinstance(token, yaml.DocumentEndToken):
                    self.documents_end = min(self.documents_end, start)
                elif isinstance(token, yaml.ScalarToken) and token.style in ("|", ">"):
                    yield from self._comments(start, self.line_end(start))
        finally:
            loader.dispose()

    def _comments(self, start: int, end: int) -> Iterator[Comment]:
        while True:
            found = self.text.find("#", start, end)
            if found < 0:
                return
            until = self.line_end(found)
            yield Comment(found, self.text[found:until].rstrip(), self.begins_line(found))
            start = until

    # -- nodes -------------------------------------------------------------------------------------------------

    def _value(self, loader: _Structure, node: yaml.Node) -> Value:
        start, end = node.start_mark.index, node.end_mark.index
        if isinstance(node, yaml.ScalarNode):
            if node.tag == _ALIAS:
                return Value("alias", start, end)
            if node.style in ("|", ">"):
                return Value("block", start, self._block_end(start, end))
            return Value("scalar", start, end)
        kind = "mapping" if isinstance(node, yaml.MappingNode) else "list"
        value = Value(kind, start, end, flow=bool(getattr(node, "flow_style", False)))
        if isinstance(node, yaml.MappingNode):
            for key, item in node.value:
                value.entries.append(self._pair(loader, key, item))
        else:
            for number, item in enumerate(node.value):
                value.entries.append(self._item(number, self._value(loader, item), value.flow))
        if not value.flow:
            value.end = max(entry.end for entry in value.entries)
        return value

    def _pair(self, loader: _Structure, key: yaml.Node, item: yaml.Node) -> Entry:
        if isinstance(key, yaml.ScalarNode) and key.tag == _MERGE_TAG:
            name: Any = MERGE
        elif isinstance(key, yaml.ScalarNode) and key.tag != _ALIAS:
            name = loader.construct_object(key)
        else:
            raise ValueError("a key that is no text")
        value = self._value(loader, item)
        colon = bisect_left(self._colons, key.end_mark.index)
        after = None
        if colon < len(self._colons) and self._colons[colon] <= value.start:
            after = self._colons[colon] + 1
        return Entry(name, key.start_mark.index, after, value)

    def _item(self, number: int, value: Value, flow: bool) -> Entry:
        if flow:
            return Entry(number, value.start, value.start, value)
        dash = bisect_left(self._dashes, value.start) - 1
        return Entry(number, self._dashes[dash], self._dashes[dash] + 1, value)

    def _block_end(self, start: int, end: int) -> int:
        """Where the text of a block scalar ends: lines without anything count only where they are to be kept."""
        if "+" in self.text[start : self.line_end(start)].partition("#")[0]:
            return end - 1 if end > start and self.text[end - 1] in "\r\n\x85\u2028\u2029" else end
        return start + len(self.text[start:end].rstrip())


def _is_nothing(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.start_mark.index == node.end_mark.index


def comments_of(text: str) -> list[str]:
    """All comments of a text, in order."""
    return [comment.text for comment in Layout(text).comments]
