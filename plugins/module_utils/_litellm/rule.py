# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a rule is and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from .._gate.check_config import Severity
from .beside import Beside
from .proxy import Proxy


@dataclass(frozen=True)
class Finding:
    """One place where a rule fires. ``severity`` None: the rule's own; ``fix`` None: the rule's own, "": said already."""

    where: str
    said: str
    severity: Severity | None = None
    fix: str | None = None


ProxyCheck: TypeAlias = Callable[[Proxy], Iterable[Finding]]
BesideCheck: TypeAlias = Callable[[Beside], Iterable[Finding]]


@dataclass(frozen=True)
class Rule:
    """One harm. ``check`` looks at a configuration, ``beside`` at a file beside it."""

    id: str
    severity: Severity
    harm: str  # what happens to servers or people
    evidence: str  # where that was seen or measured
    fix: str  # the way out, as an imperative
    check: ProxyCheck | None = None
    beside: BesideCheck | None = None

    def sentence(self, finding: Finding) -> str:
        fix = self.fix if finding.fix is None else finding.fix
        said = f"{finding.where}: {finding.said}" if finding.where else finding.said
        return f"{said}; {fix}" if fix else said
