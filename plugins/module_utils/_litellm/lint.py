# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The lint of files: reads them and what lies beside them, lets the rules look, and reports."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._gate import check_config
from .._gate.check_config import Remark, Report, Severity, located
from .._gate.config import GateConfig
from .._gate.errors import ConfigError
from .._gate.yaml_file import parse_yaml, read_text
from .beside import Beside, read_beside
from .includes import INCLUDE, Merged, merge_includes
from .proxy import mapping, read_proxy
from .rule import Finding, Rule
from .rules import look_at_proxy, look_beside

__all__ = [
    "check_beside",
    "check_document",
    "check_files",
    "check_text",
    "hooks_beside",
    "located",
    "rules_behind",
    "sentences_about",
]

_SECTION = re.compile(r"\b(?:router_settings|litellm_settings|general_settings|environment_variables|model_list)\b")


@dataclass(frozen=True)
class RuleRemark(Remark):
    """A remark with the rule behind it."""

    rule: Rule

    def as_dict(self) -> dict[str, Any]:
        return {
            **super().as_dict(),
            "rule": self.rule.id,
            "harm": self.rule.harm,
            "evidence": self.rule.evidence,
            "fix": self.rule.fix,
        }


def _remark(file: str, rule: Rule, finding: Finding, sections: Mapping[str, str] | None = None) -> RuleRemark:
    sentence = rule.sentence(finding)
    named = set(_SECTION.findall(f"{finding.where} {finding.said}")) & set(sections or {})
    if named:
        sentence += f" ({', '.join(f'{name} is that of {(sections or {})[name]}' for name in sorted(named))})"
    return RuleRemark(file, finding.severity or rule.severity, sentence, rule)


def check_document(
    file: str,
    document: Mapping[str, Any],
    gate: GateConfig | None = None,
    beside: Sequence[Beside] = (),
    longest_answer_s: float | None = None,
    hooks: Mapping[str, str] | None = None,
    merged: Merged | None = None,
) -> list[Remark]:
    """What the rules say to a configuration. ``merged`` has it with what it includes."""
    whole = merged or Merged(document)
    proxy = read_proxy(
        whole.document,
        models=whole.models,
        gate=gate,
        hooks=hooks,
        beside=tuple(beside),
        longest_answer_s=longest_answer_s,
    )
    return [_remark(file, rule, finding, whole.sections) for rule, finding in look_at_proxy(proxy)]


def sentences_about(file: str, document: Mapping[str, Any]) -> list[str]:
    """What the rules say to a configuration that is about to lie there, or why they cannot."""
    try:
        merged = merge_includes(document, file)
    except ConfigError as error:
        return error.problems
    hooks = hooks_beside(file, merged.document)
    return [remark.sentence for remark in check_document(file, document, hooks=hooks, merged=merged)]


def check_beside(beside: Beside) -> list[Remark]:
    """What the rules say to a file beside it."""
    return [_remark(beside.file, rule, finding) for rule, finding in look_beside(beside)]


def check_files(files: Sequence[str], longest_answer_s: float | None = None, destination: str | None = None) -> Report:
    """Looks at each file: configurations of the gate and of LiteLLM, and units, compose files, manifests, requirements.

    ``destination`` is where LiteLLM's will lie, when that is elsewhere: from there it includes others.
    """
    beside: dict[str, Beside] = {}
    refused: list[Remark] = []
    configurations = []
    for file in files:
        try:
            read = read_beside(file, read_text(file, "a configuration"))
        except ConfigError as error:
            read = None
            if not _is_configuration(error, file):
                refused += [Remark(file, Severity.ERROR, sentence) for sentence in error.problems]
                continue
        if read is None:
            configurations.append(file)
        else:
            beside[file] = read

    def check_proxy(file: str, document: Mapping[str, Any], gate: GateConfig | None) -> Sequence[Remark]:
        merged = merge_includes(document, destination or file)
        hooks = hooks_beside(file, merged.document)
        return check_document(file, document, gate, tuple(beside.values()), longest_answer_s, hooks, merged)

    report = check_config.check_files(configurations, check_proxy)
    kinds = {**report.files, **{file: read.kind for file, read in beside.items()}}
    report.files = {file: kinds[file] for file in files if file in kinds}
    report.unusable = report.unusable or bool(refused)
    report.remarks += refused + [remark for read in beside.values() for remark in check_beside(read)]
    return report


def _is_configuration(error: ConfigError, file: str) -> bool:
    """A file that cannot be read at all is reported once, by whoever reads configurations."""
    return all(problem.startswith(f"{file}: ") for problem in error.problems) and not Path(file).is_file()


def check_text(
    where: str,
    text: str,
    gate: GateConfig | None = None,
    longest_answer_s: float | None = None,
    destination: str | None = None,
) -> list[Remark]:
    """The same for a configuration that is no file yet; ConfigError when it is none."""
    document = parse_yaml(text, where)
    if check_config.kind_of(document, where) != "litellm":
        raise ConfigError([f"{where}: this is usage-gate.yml; LiteLLM's config.yaml is needed"])
    if INCLUDE in document and destination is None:
        raise ConfigError([f"{where}: {INCLUDE}: give destination, the place from which included files are looked for"])
    merged = merge_includes(document, destination or where)
    return check_document(where, document, gate, longest_answer_s=longest_answer_s, merged=merged)


def hooks_beside(file: str, document: Mapping[str, Any]) -> dict[str, str]:
    """Sources of the callbacks that lie beside a config.yaml, as LiteLLM looks for them; our own too, somebody may have put another there."""
    named = mapping(document.get("litellm_settings")).get("callbacks")
    found = {}
    for callback in [named] if isinstance(named, str) else named if isinstance(named, list) else []:
        if not isinstance(callback, str) or "." not in callback:
            continue
        source = Path(file).parent.joinpath(*callback.split(".")[:-1]).with_suffix(".py")
        try:
            found[callback] = read_text(source, "a callback")
        except ConfigError:
            continue  # imported from elsewhere
    return found


def rules_behind(report: Report) -> list[Rule]:
    """The rules that fired, once each."""
    return list({remark.rule.id: remark.rule for remark in report.remarks if isinstance(remark, RuleRemark)}.values())
