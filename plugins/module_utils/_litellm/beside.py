# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files beside a config.yaml that start or watch the proxy: units, compose files, manifests, requirements, Dockerfiles."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from .._gate.errors import ConfigError
from .._gate.yaml_file import parse_yaml

_WORKERS = re.compile(r"--num[_-]workers(?:[=\s,\"']+)(\d+)|\bNUM_WORKERS(?:[=:\s\"']+)(?:value:\s*)?(\d+)")
_REPLICAS = re.compile(r"\b(?:replicas|scale): (\d+)")
_MASTER_KEY = re.compile(r"\bLITELLM_MASTER_KEY\b|\bEnvironmentFile=|\benv_file\b|\benvFrom\b")
_NAMES_LITELLM = re.compile(r"litellm", re.IGNORECASE)


@dataclass(frozen=True)
class Beside:
    """One such file. ``parts``: what in it concerns LiteLLM, by name; other services are none of our business."""

    file: str
    kind: str  # unit, compose, manifest, requirements, dockerfile
    parts: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def workers(self) -> int | None:
        """How many workers serve in all replicas together; None where the file does not say it."""
        said: list[int] = []
        for text in self.parts.values():
            each = [int(one or two) for one, two in _WORKERS.findall(text)]
            replicas = max((int(number) for number in _REPLICAS.findall(text)), default=1) if self.starts_proxy else 1
            if each or replicas > 1:
                said.append(max(each, default=1) * replicas)
        return max(said, default=None)

    @property
    def starts_proxy(self) -> bool:
        return self.kind in ("unit", "compose", "manifest") and bool(self.parts)

    @property
    def may_give_master_key(self) -> bool:
        return any(_MASTER_KEY.search(text) for text in self.parts.values())


def beside_kind(name: str, text: str) -> str | None:
    """What kind of such a file this is; None when it is none of them (or a configuration)."""
    path = PurePath(name)
    suffix = path.suffix.lower()
    if suffix in (".service", ".container") or (
        suffix not in (".yml", ".yaml") and re.search(r"^\[(Service|Unit)\]\s*$", text, re.MULTILINE)
    ):
        return "unit"
    if path.name.lower().startswith(("dockerfile", "containerfile")) or suffix == ".dockerfile":
        return "dockerfile"
    if suffix in (".txt", ".in") or path.name in ("pyproject.toml", "uv.lock", "poetry.lock"):
        return "requirements"
    keys = _top_keys(text)
    if {"apiVersion", "kind"} <= keys:
        return "manifest"
    return "compose" if "services" in keys and "model_list" not in keys else None


def _top_keys(text: str) -> set[str]:
    """The keys at the left margin, or those of a document in JSON's form."""
    if text.lstrip().startswith("{"):
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            return set()
        return set(document)
    return set(re.findall(r"^([A-Za-z_]\w*):", text, re.MULTILINE))


def read_beside(file: str, text: str) -> Beside | None:
    """The file, when it is one of these; ConfigError when it is one and not YAML."""
    text = text.removeprefix("\ufeff")
    kind = beside_kind(file, text)
    if kind is None:
        return None
    if kind == "compose":
        return Beside(file, kind, dict(_services(parse_yaml(text, file))))
    if kind == "manifest":
        parts: dict[str, str] = {}
        for number, document in enumerate(re.split(r"^---.*$", text, flags=re.MULTILINE)):
            if document.strip():
                found = dict(_containers(parse_yaml(document, file), "", ""))
                # two Deployments have a container at the same place
                parts |= {
                    f"document {number + 1}: {where}" if where in parts else where: part
                    for where, part in found.items()
                }
        return Beside(file, kind, parts)
    text = re.sub(r"^[ \t]*[#;].*\n?|(?<=\s)#.*$", "", text.replace("\r\n", "\n"), flags=re.MULTILINE)
    text = re.sub(r"\\[ \t]*\n\s*", " ", text)  # one command, however many lines
    return Beside(file, kind, {kind: text} if _NAMES_LITELLM.search(text) else {})


def _services(document: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(document, Mapping) or not isinstance(document.get("services"), Mapping):
        raise ConfigError(["services: a mapping of services is needed"])
    for name, service in document["services"].items():
        if not isinstance(service, Mapping):
            continue
        text = _flat(service)
        if _NAMES_LITELLM.search(_flat([service.get("image"), service.get("command"), service.get("entrypoint")])) or (
            service.get("image") is None and _NAMES_LITELLM.search(str(name))
        ):
            yield f"services.{name}", text


def _containers(value: Any, where: str, replicas: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        if isinstance(value.get("replicas"), int):
            replicas = f"\nreplicas: {value['replicas']}"
        if isinstance(value.get("image"), str):
            if _NAMES_LITELLM.search(_flat([value["image"], value.get("command"), value.get("args")])):
                yield where or "container", _flat(value) + replicas
            return
        for key, item in value.items():
            yield from _containers(item, f"{where}.{key}" if where else str(key), replicas)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _containers(item, f"{where}[{index}]", replicas)


def _flat(value: Any) -> str:
    """The text of a part: one ``key: value`` a line, lists of words in one line as a command line has them."""
    if isinstance(value, Mapping):
        return "\n".join(f"{key}: {_flat(item)}" for key, item in value.items())
    if isinstance(value, list):
        if all(isinstance(item, (str, int, float)) for item in value):
            return " ".join(str(item) for item in value)
        return "\n".join(_flat(item) for item in value if item is not None)
    return "" if value is None else str(value)


# -- what the rules ask ------------------------------------------------------------------------------------------

#: /health itself, not /health/liveliness and its sisters: it calls every backend.
_HEALTH = re.compile(r"(?:^|[\s\"'=(\[,]|:\d+|//[^\s/\"']+|\}|\$\w+)/health/?(?![\w/-])", re.MULTILINE)


def health_probes(beside: Beside) -> Iterator[str]:
    """Where the file has the proxy's own /health asked."""
    for where, text in beside.parts.items():
        if beside.kind != "requirements" and _HEALTH.search(text):
            yield where
