# SPDX-License-Identifier: GPL-3.0-or-later
"""How fast a server generates, and whether that is like it. Pure. It makes a note for people, never a reason to act: what
is slow moves, and a restart cures neither a full server nor a GB10 that is stuck in low power.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from .._core.settings import Settings
from .._health.progress import Track

A_DAY_S = 86_400.0
#: Today and the seven days before it.
DAYS_KEPT = 8
#: Speeds are kept by steps of an eighth of a doubling, 9 %: half is told from three quarters, and a week is a few kB.
STEPS_OF_A_DOUBLING = 8

Days = Mapping[str, Mapping[str, Mapping[str, int]]]


@dataclass(frozen=True)
class Speeds:
    """`days`: day → concurrency → speed → looks; the last two in powers of two. `slow_looks`: slow ones in a row."""

    days: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    slow_looks: int = 0


def rates(before: Track | None, after: Track | None, with_page: bool) -> tuple[float | None, float | None]:
    """(engine steps, generated tokens) a second between two looks at one process; None where they cannot be told."""
    if before is None or after is None or not with_page or after.new_process or after.t <= before.t:
        return None, None
    old_engines, engines, span = before.engines, after.engines, after.t - before.t

    def rate(*names: str) -> float | None:
        for name in names:
            pairs = [
                (getattr(old.last, name), getattr(new.last, name))
                for label, new in engines.items()
                if (old := old_engines.get(label)) is not None and old.last is not None and new.last is not None
            ]
            if pairs and all(a is not None and b is not None for a, b in pairs):
                return round(float(sum(b - a for a, b in pairs)) / span, 3)
        return None

    return rate("heartbeat", "steps"), rate("generation_tokens")


def running(track: Track | None) -> float:
    """Requests in execution, of all engines."""
    if track is None:
        return 0.0
    return sum(engine.last.running or 0.0 for engine in track.engines.values() if engine.last is not None)


def _alike(requests: float) -> str:
    """1, 2–3, 4–7, 8–15 … requests are like concurrency."""
    return str(int(math.log2(requests)))


def usual(settings: Settings, speeds: Speeds, requests: float) -> float | None:
    """The median of generated tokens a second at like concurrency; None until enough was seen."""
    if requests < 1:
        return None
    looks: dict[int, int] = {}
    for day in speeds.days.values():
        for step, count in day.get(_alike(requests), {}).items():
            looks[int(step)] = looks.get(int(step), 0) + count
    total = sum(looks.values())
    if total < settings.usual_looks:
        return None
    seen = 0
    for height in sorted(looks):
        seen += looks[height]
        if 2 * seen >= total:
            return float(2.0 ** (height / STEPS_OF_A_DOUBLING))
    return None


def learn(settings: Settings, speeds: Speeds, t: float, requests: float, tokens_per_second: float | None) -> Speeds:
    """The speeds with one look more. Looks without a token, such as those of a long prefill, say nothing about speed."""
    if requests < 1 or tokens_per_second is None or tokens_per_second <= 0:
        return speeds
    known = usual(settings, speeds, requests)
    slow = known is not None and tokens_per_second < settings.slow_share * known
    today, like = int(t // A_DAY_S), _alike(requests)
    step = str(round(math.log2(tokens_per_second) * STEPS_OF_A_DOUBLING))
    days = {day: seen for day, seen in speeds.days.items() if 0 <= today - int(day) < DAYS_KEPT}
    of_day = dict(days.get(str(today), {}))
    of_like = dict(of_day.get(like, {}))
    of_like[step] = of_like.get(step, 0) + 1
    of_day[like] = of_like
    days[str(today)] = of_day
    return Speeds(days, speeds.slow_looks + 1 if slow else 0)


def note(
    settings: Settings,
    speeds: Speeds,
    requests: float,
    tokens_per_second: float | None,
    power_w: float | None = None,
    powers_w: tuple[float, ...] = (),
) -> str | None:
    """One sentence where it has been slow for a while, else None. `powers_w`: what the GPU drew while it worked."""
    known = usual(settings, speeds, requests)
    if known is None or tokens_per_second is None or speeds.slow_looks < settings.slow_looks:
        return None
    part = "half" if settings.slow_share == 0.5 else f"{100 * settings.slow_share:.3g} %"
    said = (
        f"slow: {tokens_per_second:.3g} tokens/s with {requests:.0f} running, less than {part} of the usual {known:.3g} "
        f"(its median of a week at like concurrency)"
    )
    ordinary = sorted(powers_w)[len(powers_w) // 2] if len(powers_w) >= settings.power_samples else None
    if power_w is not None and ordinary is not None and power_w < settings.low_power_share * ordinary:
        said += (
            f"; the GPU draws {power_w:.3g} W of its usual {ordinary:.3g}: a GB10 stuck in low power serves like this"
        )
    return said
