# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which releases of LiteLLM a file beside a config.yaml asks for: by package, image, wheel or lock. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from .._gate.shown import without_users
from .beside import Beside


@dataclass(frozen=True)
class Release:
    """A LiteLLM that a file asks for. ``version`` None: whatever is newest that day."""

    where: str
    said: str
    version: str | None


_IMAGE = re.compile(r"(?<![\w./-])(?:[\w.-]+(?::\d+)?/)+litellm[\w-]*(?=[:@\s\"']|$)[^\s\"',\]}]*", re.IGNORECASE)
_PACKAGE = re.compile(r"(?<![\w./:-])litellm(?![\w-])(?:\s*\[[\w,\s.-]*\])?\s*(?:(===?|[<>~!]=?|@)\s*[\"']?([^\s\"',;)]+))?", re.IGNORECASE)  # fmt: skip
#: A file of the package, wherever it lies.
_FILE = re.compile(r"(?<![\w-])litellm-(\d[\w.!+]*?)(?:-\d\w*)?(?:-(?:py|cp)\d[\w.-]*\.whl|\.tar\.gz|\.zip)", re.IGNORECASE)  # fmt: skip
_VERSION = re.compile(r"v?(\d+\.\d+\.\d+)")
_WHOLE_VERSION = re.compile(r"\s*v?(?:0!)?(\d+(?:\.\d+)*)\s*")
_INSTALLS = re.compile(r"\b(pip3?|uv|uvx|pipx|poetry|pdm)\b")
_RUNS_IMAGE = re.compile(r"\bFROM\s|^Image=|docker|podman")
_GIVEN = re.compile(r"(?:\b(?:ARG|ENV)\s+|^Environment=[\"']?)([A-Za-z_]\w*)(?:=|\s+)[\"']?([^\s\"']+)", re.MULTILINE)
_USED = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|([A-Za-z_]\w*))")
#: How Poetry writes it: litellm = "1.2.3", litellm = {version = "1.2.3", …}
_POETRY = re.compile(r"^\s*[\"']?litellm[\"']?\s*=\s*(?:[\"']([^\"']*)[\"']|(\{[^}\n]*\}))", re.IGNORECASE | re.MULTILINE)  # fmt: skip


def releases(beside: Beside) -> Iterator[Release]:
    """Which releases the file asks for."""
    name = PurePath(beside.file).name.lower()
    for where, text in beside.parts.items():
        if name.endswith(".lock"):
            found = _of_lock(where, text)
        elif name.endswith(".toml"):
            found = _of_project(where, text)
        elif beside.kind == "requirements":
            found = (release for line in text.splitlines() for release in _of_requirement(where, line))
        else:
            found = _of_commands(where, _filled(text), beside.kind in ("compose", "manifest"))
        yield from found


def canonical(version: str) -> str:
    """A version as PEP 440 compares it: 1.82.7, v1.82.7 and 1.82.7.0 are one."""
    found = _WHOLE_VERSION.fullmatch(version.lower())
    if not found:
        return version.strip()
    numbers = [str(int(number)) for number in found.group(1).split(".")]
    while len(numbers) > 3 and numbers[-1] == "0":
        numbers.pop()
    return ".".join([*numbers, "0", "0"][: max(len(numbers), 3)])


def _filled(text: str) -> str:
    """A text with the values of the variables that it gives itself, or a default for."""
    given: dict[str, str] = {}

    def value(found: re.Match[str]) -> str:
        return given.get(found.group(1) or found.group(3), found.group(2) or found.group(0))

    for name, said in _GIVEN.findall(text):
        given[name] = _USED.sub(value, said)
    return _USED.sub(value, text)


def _of_commands(where: str, text: str, has_images: bool) -> Iterator[Release]:
    for line in text.splitlines():
        image = re.match(r"image: (\S+)$", line) if has_images else None
        if image:
            if "litellm" in image.group(1).lower():
                yield _of_image(where, image.group(1))
            continue
        if _RUNS_IMAGE.search(line):
            yield from (_of_image(where, said) for said in _IMAGE.findall(line))
        if _INSTALLS.search(line):
            asked = list(_of_words(where, line))
            # uvx --from litellm==1.2.3 litellm: the second is the command in the first
            yield from [release for release in asked if release.version] or asked[:1]


def _of_words(where: str, text: str) -> Iterator[Release]:
    done = 0
    for found in _PACKAGE.finditer(text):
        yield from _of_files(where, text[done : found.start()])
        yield _of_package(where, found)
        done = found.end()
    yield from _of_files(where, text[done:])


def _of_files(where: str, text: str) -> Iterator[Release]:
    for found in _FILE.finditer(text):
        yield Release(where, found.group(0), canonical(found.group(1)))


def _of_requirement(where: str, line: str) -> Iterator[Release]:
    quote = re.match(r"\s*[\"']?", line)
    found = _PACKAGE.match(line, quote.end() if quote else 0)
    if found:
        yield _of_package(where, found)
    else:
        yield from _of_files(where, line)


def _of_project(where: str, text: str) -> Iterator[Release]:
    """pyproject.toml: requirements are texts in quotes, or Poetry's keys."""
    for quoted in re.findall(r"\"([^\"\n]*)\"|'([^'\n]*)'", text):
        found = _PACKAGE.match("".join(quoted).strip())
        if found and found.group(0).strip().lower() != "litellm":
            yield _of_package(where, found)
    if re.search(r"[\[,]\s*[\"']litellm[\"']\s*[\],]", text, re.IGNORECASE):
        yield Release(where, "litellm", None)
    for plain, table in _POETRY.findall(text):
        version = re.search(r"\bversion\s*=\s*[\"']([^\"']*)[\"']", table)
        said = (version.group(1) if version else plain).strip()
        exact = _WHOLE_VERSION.fullmatch(said.lower().lstrip("="))
        file = _FILE.search(table)
        if file:
            yield Release(where, file.group(0), canonical(file.group(1)))
        elif said or "path" not in table:
            yield Release(where, f"litellm {said}".strip(), canonical(said.lstrip("=")) if exact else None)


def _of_lock(where: str, text: str) -> Iterator[Release]:
    """A lock names every package with the one version of it."""
    for package in re.split(r"^\[\[", text, flags=re.MULTILINE)[1:]:
        name = re.search(r"^name\s*=\s*[\"'](.*?)[\"']", package, re.MULTILINE)
        version = re.search(r"^version\s*=\s*[\"'](.*?)[\"']", package, re.MULTILINE)
        if package.startswith("package]") and name and name.group(1).lower() == "litellm" and version:
            yield Release(where, f"litellm {version.group(1)}", canonical(version.group(1)))


def _of_image(where: str, image: str) -> Release:
    tag = image.rsplit("/", 1)[-1]
    version = _VERSION.search(tag)
    if version:
        return Release(where, image, canonical(version.group(1)))
    return Release(where, image, "digest" if "@sha256:" in image else None)


def _of_package(where: str, found: re.Match[str]) -> Release:
    sign, asked = found.group(1), found.group(2) or ""
    version: str | None = None
    if sign in ("==", "===") and "*" not in asked:
        version = canonical(asked)
    elif sign == "@":  # a file, a tag in a repository, or uvx litellm@1.2.3
        file = _FILE.search(asked)
        tag = _WHOLE_VERSION.fullmatch(asked.lower().partition("#")[0].rpartition("@")[2])
        version = canonical(file.group(1)) if file else canonical(tag.group(0)) if tag else None
    return Release(where, without_users(found.group(0).strip()), version)
