# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Makes the text of one document that of another by cutting and inserting: what does not change stays as it is, letter by letter.

A comment with a line for itself always stays. One at the end of a line goes with that line only. Whoever calls this reads
the result and compares: what is too odd to be cut (``Unsplicable``), or comes out as something else, is not written.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._gate.same import same
from .layout import MERGE, Entry, Layout, Value
from .written import Style, inline, style_of


class Unsplicable(Exception):
    """This text cannot be changed by cutting."""


@dataclass(frozen=True)
class Spliced:
    """The new text. ``gone``: which comments of the old one, by number, stood at the end of a line that went."""

    text: str
    gone: frozenset[int]


def splice(layout: Layout, before: Mapping[str, Any], after: Mapping[str, Any]) -> Spliced:
    """The text of ``after``, made from that of ``before``. Both are plain data."""
    root = layout.root()
    work = _Work(layout, style_of(layout, root))
    if root is not None and root.kind != "mapping":
        raise Unsplicable
    if root is None or not root.entries:
        if root is not None:
            alone = layout.begins_line(root.start) and not layout.text[root.end : layout.line_end(root.end)].strip(
                " \t"
            )
            work.cut(root.start, layout.next_line(root.end) if alone else root.end)
        work.insert(layout.next_line(root.end) if root else layout.documents_end, work.style.lines(after, 0))
    else:
        work.change_mapping(root, before, after, floor=-1)
    return work.done()


class _Work:
    def __init__(self, layout: Layout, style: Style) -> None:
        self.layout, self.text, self.style = layout, layout.text, style
        self.edits: list[tuple[int, int, str, bool]] = []  # from, to, what instead, whether that is whole lines
        self.gone: set[int] = set()  # where those comments start

    def done(self) -> Spliced:
        made, at = "", 0
        for start, end, text, lines in sorted(self.edits, key=lambda edit: edit[:2]):
            if start < at:
                raise Unsplicable
            made += self.text[at:start]
            if lines and made.strip("\ufeff") and made[-1] not in "\r\n\x85\u2028\u2029":
                made += self.layout.newline
            made += text
            at = end
        numbers = {comment.start: number for number, comment in enumerate(self.layout.comments)}
        return Spliced(made + self.text[at:], frozenset(numbers[start] for start in self.gone))

    # -- hands ---------------------------------------------------------------------------------------------------

    def cut(self, start: int, end: int, instead: str = "") -> None:
        self.edits.append((start, end, instead, False))

    def insert(self, position: int, lines: Iterable[str]) -> None:
        """New lines before the line that begins there, or at the end of the text."""
        self.edits.append((position, position, "".join(line + self.layout.newline for line in lines), True))

    def _back(self, position: int, floor: int) -> int:
        """Before the spaces that stand before a position."""
        while position > floor and self.text[position - 1] in " \t":
            position -= 1
        return position

    def _kept(self, start: int, end: int, column: int) -> str:
        """What stays of lines that go: the comments that have their own, never deeper than what they stand among now."""
        lines = ""
        for comment in self.layout.comments_in(start, end):
            if comment.own:
                depth = min(column, self.layout.column(comment.start))
                lines += " " * depth + comment.text + self.layout.newline
            else:
                self.gone.add(comment.start)
        return lines

    # -- values --------------------------------------------------------------------------------------------------

    def value(self, entry: Entry, before: Any, after: Any, flow: bool) -> None:
        """Makes the value of an entry another."""
        if same(before, after):
            return
        value = entry.value
        if value.entries and after and isinstance(after, Mapping) and value.kind == "mapping":
            self.change_mapping(value, before, after, floor=self._column(entry, flow))
        elif value.entries and after and isinstance(after, list) and value.kind == "list":
            self.change_list(value, before, after, floor=self._column(entry, flow))
        else:
            self._replace(entry, after, flow)

    def _column(self, entry: Entry, flow: bool) -> int:
        return -1 if flow else self.layout.column(entry.start)

    def change_mapping(self, value: Value, before: Mapping[str, Any], after: Mapping[str, Any], floor: int) -> None:
        own = {entry.key: entry for entry in value.entries}
        unwanted = [
            number for number, entry in enumerate(value.entries) if not (entry.key is MERGE or entry.key in after)
        ]
        for key, entry in own.items():
            if key in after:
                self.value(entry, before[key], after[key], value.flow)
        # what comes from elsewhere by << and stays as it is needs no entry
        added = {
            key: item
            for key, item in after.items()
            if key not in own and not (key in before and same(before[key], item))
        }
        self._take(value, unwanted)
        if added and value.flow:
            pairs = [f"{inline(key)}: {inline(item)}" for key, item in added.items()]
            self._add_inline(value, len(value.entries), pairs, unwanted)
        elif added:
            column = self.layout.column(value.entries[0].start)
            self.insert(self._below(value, len(value.entries), floor), self.style.lines(added, column))

    def change_list(self, value: Value, before: Sequence[Any], after: Sequence[Any], floor: int) -> None:
        prints = [_print(item) for item in before], [_print(item) for item in after]
        unwanted: list[int] = []
        added: list[tuple[int, int]] = []  # before which of the old ones, which of the new ones
        for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, *prints, autojunk=False).get_opcodes():
            if tag == "equal":
                continue
            # what only moves is neither made another nor made anew
            old = [number for number in range(i1, i2) if prints[0][number] not in prints[1]]
            new = [number for number in range(j1, j2) if prints[1][number] not in prints[0]]
            pairs = dict(zip(new, old, strict=False))
            for there, here in pairs.items():
                self.value(value.entries[here], before[here], after[there], value.flow)
            unwanted += [number for number in range(i1, i2) if number not in pairs.values()]
            place = min(pairs.values(), default=i2)
            for number in range(j1, j2):
                if number in pairs:
                    place = pairs[number] + 1
                else:
                    added.append((place, number))
        if value.flow and len(unwanted) == len(value.entries):
            added = [(0, number) for dummy, number in added]
        moved = {prints[0][number]: value.entries[number] for number in unwanted}
        self._take(value, unwanted)
        for place in sorted({place for place, dummy in added}):
            numbers = [number for where, number in added if where == place]
            if value.flow:
                self._add_inline(value, place, [self._inline(moved, prints[1][n], after[n]) for n in numbers], unwanted)
            else:
                column = self.layout.column(value.entries[0].start)
                lines = [line for n in numbers for line in self._lines(moved, prints[1][n], after[n], column)]
                self._add_items(value, place, lines, floor)

    def _inline(self, moved: Mapping[str, Entry], mark: str, item: Any) -> str:
        entry = moved.get(mark)
        if entry is None or self.layout.comments_in(entry.start, entry.end):
            return inline(item)
        return self.text[entry.start : entry.end]

    def _lines(self, moved: Mapping[str, Entry], mark: str, item: Any, column: int) -> list[str]:
        """An item's lines; those of one that only moves go with it, and the comments at their ends."""
        entry = moved.get(mark)
        if entry is None or not self.layout.begins_line(entry.start):
            return self.style.item(item, column)
        own = {self.layout.line_start(c.start) for c in self.layout.comments_in(entry.start, entry.end) if c.own}
        lines, at = [], self.layout.line_start(entry.start)
        while at < entry.end:
            if at not in own:
                lines.append(self.text[at : self.layout.line_end(at)])
            at = self.layout.next_line(at)
        return lines

    # -- taking --------------------------------------------------------------------------------------------------

    def _take(self, value: Value, unwanted: Sequence[int]) -> None:
        if not unwanted:
            return
        if value.flow:
            self._take_inline(value, unwanted)
            return
        column = self.layout.column(value.entries[0].start)
        rest = list(unwanted)
        if 0 in rest and not self.layout.begins_line(value.entries[0].start):
            # it stands behind the dash of the entry that all this is in
            first = next(number for number in range(len(value.entries) + 1) if number not in rest)
            if first < len(value.entries):
                start, end = value.entries[0].start, value.entries[first].start
                if not self.layout.comments_in(start, end):
                    self.cut(start, end)
                    rest = [number for number in rest if number > first]
        for number in rest:
            self._take_lines(value.entries[number], column)

    def _take_lines(self, entry: Entry, column: int) -> None:
        layout = self.layout
        last = layout.line_end(entry.end)
        tail = self.text[entry.end : last].strip(" \t")
        if tail and not tail.startswith("#"):
            raise Unsplicable
        end = layout.next_line(entry.end)
        end = self._past(end, lambda comment: layout.column(comment) > column)
        if layout.begins_line(entry.start):
            start = layout.line_start(entry.start)
            self.cut(start, end, self._kept(start, end, column))
            return
        start, first_end = self._back(entry.start, 0), layout.line_end(entry.start)
        beside = next((c.start for c in layout.comments_in(start, first_end)), None)
        self.cut(start, first_end if beside is None else self._back(beside, start))
        begin = layout.next_line(entry.start)
        if begin < end:
            self.cut(begin, end, self._kept(begin, end, column))

    def _past(self, position: int, wanted: Any, blank: bool = True) -> int:
        """Past the comment lines that follow and are wanted. ``blank``: lines with nothing in them do not end them."""
        found = at = position
        while at < len(self.text):
            line = self.text[at : self.layout.line_end(at)]
            if line.strip(" \t"):
                own = self.layout.comments_in(at, self.layout.line_end(at))
                if not own or not own[0].own or not wanted(own[0].start):
                    break
                found = self.layout.next_line(at)
            elif not blank:
                break
            at = self.layout.next_line(at)
        return found

    def _take_inline(self, value: Value, unwanted: Sequence[int]) -> None:
        """Entries between brackets, each run of them at once."""
        for number in unwanted:
            if number - 1 in unwanted:
                continue
            last = number
            while last + 1 in unwanted:
                last += 1
            start, end = value.entries[number].start, value.entries[last].end
            if last + 1 < len(value.entries):
                self._take_run(start, value.entries[last + 1].start)
                continue
            comma = self._comma(value, last)
            if comma is not None:
                end = comma + 1
            else:
                comma = self._comma(value, number - 1) if number else None
            alone = self.layout.begins_line(start)
            rest = self.text[end : self.layout.line_end(end)].strip(" \t")
            if comma is not None and comma < start:
                if not alone and not self.layout.comments_in(comma, start):
                    self._take_run(comma, end)
                    continue
                self.cut(comma, comma + 1)
            if alone and (not rest or rest.startswith("#")):
                start, end = self.layout.line_start(start), self.layout.next_line(end)
                self.cut(start, end, self._kept(start, end, self.layout.column(value.entries[number].start)))
            else:
                self._take_run(start, end)

    def _take_run(self, start: int, end: int) -> None:
        """All between two places but the comments, of which those go whose lines do."""
        layout, kept = self.layout, ""
        line = self.text[layout.line_start(start) : start]
        indent = " " * (len(line) - len(line.lstrip(" \t")) + 2)
        for comment in layout.comments_in(start, end):
            whole = layout.line_start(comment.start) >= start or layout.begins_line(start)
            if whole and not comment.own:
                self.gone.add(comment.start)
            else:
                if not kept and not layout.begins_line(start):  # behind what stays in that line, or below it
                    kept = layout.newline + indent if comment.own else " "
                kept += comment.text + layout.newline + indent
        self.cut(start, end, kept)

    def _comma(self, value: Value, number: int) -> int | None:
        """The comma behind an entry of a list or mapping in brackets."""
        entry = value.entries[number]
        until = value.entries[number + 1].start if number + 1 < len(value.entries) else value.end
        return next((comma for comma in self.layout.commas if entry.end <= comma < until), None)

    # -- adding --------------------------------------------------------------------------------------------------

    def _below(self, value: Value, place: int, floor: int) -> int:
        """Where the lines of a new entry begin that follows the one before ``place``: below what comments belong to that,
        and above the heading of whatever comes next."""
        column = self.layout.column(value.entries[0].start)
        position = self.layout.next_line(value.entries[place - 1].end)
        position = self._past(position, lambda comment: self.layout.column(comment) > column)
        if place == len(value.entries) and column > max(floor, 0):
            position = self._past(position, lambda comment: self.layout.column(comment) >= column, blank=False)
        return position

    def _add_items(self, value: Value, place: int, lines: list[str], floor: int) -> None:
        first = value.entries[0].start
        if place > 0:
            self.insert(self._below(value, place, floor), lines)
        elif self.layout.begins_line(first):
            self.insert(self.layout.line_start(first), lines)
        else:
            lines[0] = lines[0].lstrip(" ")
            joined = self.layout.newline.join(lines)
            self.cut(first, first, joined + self.layout.newline + " " * self.layout.column(first))

    def _add_inline(self, value: Value, place: int, texts: list[str], unwanted: Sequence[int]) -> None:
        kept = [number for number in range(len(value.entries)) if number not in unwanted]
        before = [number for number in kept if number < place]
        joined = ", ".join(texts)
        if before:
            end = value.entries[before[-1]].end
            self.cut(end, end, f", {joined}")
        elif kept:
            start = value.entries[kept[0]].start
            self.cut(start, start, f"{joined}, ")
        else:
            self.cut(value.start + 1, value.start + 1, joined)

    # -- replacing -----------------------------------------------------------------------------------------------

    def _replace(self, entry: Entry, after: Any, flow: bool) -> None:
        lines: list[str] = []
        if not flow and isinstance(after, (Mapping, list)) and after:
            base = self.layout.column(entry.start)
            dash = self.text[entry.start] == "-" and entry.after == entry.start + 1
            depth = 2 if dash else self.style.depth(after)
            lines = self.style.lines(after, base + depth)
        said = "" if lines else inline(after)
        value = entry.value
        if entry.after is None:
            if lines or value.start != value.end:
                raise Unsplicable
            self.cut(value.start, value.start, f": {said}")
            return
        below = self.layout.next_line(entry.after)
        if value.entries and not value.flow:
            column = self.layout.column(value.entries[0].start)
            self.cut(entry.after, entry.after, f" {said}" if said else "")
            for one in value.entries:
                self._take_lines(one, column)
        else:
            self._replace_inline(entry, said)
            below = self.layout.next_line(value.end)
        if lines:
            self.insert(below, lines)

    def _replace_inline(self, entry: Entry, said: str) -> None:
        value, layout = entry.value, self.layout
        start, after = value.start, entry.after or 0
        within = layout.comments_in(start, value.end)
        if value.kind == "block" and within and not within[0].own:  # beside the | itself
            said += f"  {within[0].text}" if said else f" {within[0].text}"
            within = within[1:]
        if within:  # they stand above then
            line = layout.line_start(entry.start)
            indent = len(self.text[line : entry.start]) - len(self.text[line : entry.start].lstrip(" \t"))
            lines = [" " * indent + comment.text for comment in within]
            self.insert(line, lines)
        if start == value.end:
            self.cut(after, after, f" {said}" if said else "")
        elif not said:
            self.cut(self._back(start, after), value.end)
        else:
            self.cut(start, value.end, said)


def _print(item: Any) -> str:
    """Equal for what is the same."""
    if isinstance(item, Mapping):
        return "{" + ",".join(sorted(f"{key!r}:{_print(value)}" for key, value in item.items())) + "}"
    if isinstance(item, list):
        return "[" + ",".join(_print(value) for value in item) + "]"
    return repr(item)
