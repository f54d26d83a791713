# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Is this configuration sound? For usage-gate.yml and LiteLLM's config.yaml, told apart by their top keys.

What is right for LiteLLM's is the lint's to say (_litellm); it is handed in, since the gate knows nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

from .config import TOP_KEYS, GateConfig, file_problems, parse_config
from .errors import ConfigError
from .yaml_file import read_yaml

#: Top keys of a LiteLLM configuration.
LITELLM_KEYS = (
    "model_list",
    "litellm_settings",
    "general_settings",
    "router_settings",
    "environment_variables",
    "include",
)


class Severity(StrEnum):
    """How bad."""

    ERROR = "error"  # the gate would not work, or would be bypassed
    WARNING = "warning"  # look at it


@dataclass(frozen=True)
class Remark:
    """One thing found in one file."""

    file: str
    severity: Severity
    sentence: str

    def as_dict(self) -> dict[str, Any]:
        return {"file": self.file, "severity": self.severity.value, "sentence": self.sentence}


#: Looks at a LiteLLM configuration (file, document, the gate's configuration if there is one); the lint brings it.
#: ConfigError when something that belongs to it cannot be used.
ProxyCheck: TypeAlias = Callable[[str, Mapping[str, Any], "GateConfig | None"], Sequence[Remark]]


@dataclass
class Report:
    """What was found in all files. Exit status: 3 a file cannot be used as it is, 1 an error found in it, 0 sound."""

    files: dict[str, str] = field(default_factory=dict)  # file -> usage-gate or litellm
    remarks: list[Remark] = field(default_factory=list)
    unusable: bool = False

    @property
    def exit_status(self) -> int:
        if self.unusable:
            return 3
        return 1 if any(remark.severity is Severity.ERROR for remark in self.remarks) else 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "files": [{"file": file, "kind": kind} for file, kind in self.files.items()],
            "remarks": [remark.as_dict() for remark in self.remarks],
            "sound": self.exit_status == 0,
        }

    def lines(self) -> list[str]:
        lines = [f"{remark.severity.value}: {located(remark)}" for remark in self.remarks]
        told = {remark.file for remark in self.remarks}
        return lines + [
            f"{file}: sound ({kind} configuration)" for file, kind in self.files.items() if file not in told
        ]


def located(remark: Remark) -> str:
    """The sentence, beginning with its file."""
    return remark.sentence if remark.sentence.startswith(remark.file) else f"{remark.file}: {remark.sentence}"


def check_files(files: Sequence[str], check_proxy: ProxyCheck) -> Report:
    """Looks at each file, and at LiteLLM's together with the gate's when one of each is given or lies beside it."""
    report = Report()
    gates: list[GateConfig] = []
    proxies: list[tuple[str, Mapping[str, Any]]] = []
    for file in files:
        try:
            document = read_yaml(file, "a configuration")
            kind = kind_of(document, file)
            report.files[file] = kind
            if kind == "usage-gate":
                config = parse_config(document, file)
                problems = file_problems(config, file)
                if problems:
                    raise ConfigError(problems)
                gates.append(config)
            else:
                proxies.append((file, document))
        except ConfigError as error:
            report.unusable = True
            report.remarks += [Remark(file, Severity.ERROR, sentence) for sentence in error.problems]
    for file, document in proxies:
        try:
            gate = gates[0] if gates else _gate_beside(file)
            report.remarks += check_proxy(file, document, gate)
        except ConfigError as error:  # what belongs to it cannot be used, so LiteLLM would not start
            report.unusable = True
            report.remarks += [Remark(file, Severity.ERROR, sentence) for sentence in error.problems]
    return report


def kind_of(document: Any, where: str) -> str:
    """``usage-gate`` or ``litellm``; ConfigError when its top keys are neither's."""
    if not isinstance(document, dict) or not document:
        raise ConfigError([f"{where}: a mapping of settings is needed, of usage-gate.yml or LiteLLM's config.yaml"])
    ours = sum(key in document for key in TOP_KEYS)
    theirs = sum(key in document for key in LITELLM_KEYS)
    if ours == theirs:
        raise ConfigError(
            [
                f"{where}: cannot tell what this is; usage-gate.yml has endpoints and capped_models, "
                "LiteLLM's config.yaml has model_list"
            ]
        )
    return "usage-gate" if ours > theirs else "litellm"


def _gate_beside(file: str) -> GateConfig | None:
    """The gate's configuration in LiteLLM's folder, where there is one. ConfigError when it cannot be used."""
    beside = Path(file).with_name("usage-gate.yml")
    return parse_config(read_yaml(beside, "the gate's configuration"), str(beside)) if beside.exists() else None
