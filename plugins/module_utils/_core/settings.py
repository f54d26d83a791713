# SPDX-License-Identifier: GPL-3.0-or-later
"""Every number of the restart policy: its name, its default, its reason, and the check of a value somebody gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from .errors import ConfigError

BUSY_POLICIES = ("proof", "never")
MODES = ("act", "observe")
LIFECYCLES = ("always", "on_demand")


@dataclass(frozen=True)
class Settings:
    """The restart policy's settings. Times in seconds, sizes in GiB, shares 0–1."""

    patience_s: float = 600.0  # healthy 339k-token prefill on a GB10 showed nothing for 505 s
    patience_heartbeat_s: float = 180.0  # a true step counter only needs one step's time; autotuning took 70 s
    heartbeat_step_factor: float = 4.0  # no server seen took four times its own longest step
    patience_witness_s: float = 420.0  # two independent witnesses shorten the wait, never below the usual long prefill
    patience_waiting_s: float = 300.0  # a queue that nobody serves: a scheduler stall, not a prefill
    patience_extended_s: float = 2700.0  # one JIT run took 36 min; longer silence has no innocent cause left
    last_proof_s: float = 120.0  # a probe behind the longest innocent step still gets its token
    proof_least_s: float = 30.0  # with a true step counter the last proof needs one step, not a token; at least this
    start_ceiling_s: float = 1800.0  # loading took 4 to 30 min
    cooldown_s: float = 2700.0  # loading, warm-up and a full patience must fit between two restarts; 5400 with ranks
    budget_6h: int = 2  # the third restart of an afternoon never helped
    budget_24h: int = 3  # 35 restarts in a loop leaked unified memory until the power button
    alert_after_s: float = 900.0  # doubt that lasts a quarter of an hour is a person's
    probe_every_s: float = 600.0  # an idle server is asked six times an hour at most
    busy_policy: str = "proof"  # under a lease only a proven hang is restarted; `never`: not even that
    mode: str = "act"  # observe: decide and record, touch nothing
    lifecycle: str = "always"  # on_demand: refused is not loaded, and not dead
    memory_needed_gib: float | None = None  # waited for before a start; judged only with the server stopped
    proof_readings: int = 5  # a proof rests on five looks across the silence, not on two far ones
    gap_void_s: float = 180.0  # what happened while we did not look is not known
    step_limit_s: float | None = None  # the engine's own limit for one step, where it has one (vLLM: 300, often raised)
    step_limit_factor: float = 1.2  # its own watchdog goes first
    learned_factor: float = 1.5  # above the second-longest innocent pause of learned_days
    learned_days: float = 30.0  # a month of traffic
    learned_least_s: float = 90.0  # shorter pauses are the interval of our own looks
    power_percentile: float = 0.05  # below it, power says "stopped"; of this host's own power with progress
    power_samples: int = 60  # an hour of progress, before power may witness at all
    cpu_flat_share: float = 0.02  # of one core; a waiting server's threads wake now and then
    thrashing_share: float = 0.10  # PSI memory full: above, a server may stand still and be well
    confirmations: int = 2  # a dead server is believed to be dead when it was seen twice
    fruitless_restarts: int = 2  # restarts in a row that brought no progress
    never_ready_starts: int = 3  # in never_ready_window_s, whoever made them
    never_ready_window_s: float = 7200.0  # three loads of half an hour, and some
    reboot_blame_s: float = 1800.0  # a reboot that soon after our act is a restart that failed
    memory_wait_s: float = 1200.0  # memory came back 60 s to 4 min after a stop; after 20 min somebody holds it
    memory_alert_s: float = 300.0  # memory came back within 4 min wherever it came back
    slow_share: float = 0.5  # of the server's own usual speed; less is said and never acted on
    slow_looks: int = 10  # in a row before it is said: a single one is a prefill beside a decode
    usual_looks: int = 60  # at like concurrency before a speed is called usual: an hour of the timer
    low_power_share: float = 0.6  # of its own power while it works; a GB10 stuck in low power draws 19.5 W


_CHOICES: dict[str, tuple[str, ...]] = {"busy_policy": BUSY_POLICIES, "mode": MODES, "lifecycle": LIFECYCLES}
_MAY_BE_NULL = ("memory_needed_gib", "step_limit_s")
_WHOLE = (
    "budget_6h",
    "budget_24h",
    "proof_readings",
    "power_samples",
    "confirmations",
    "fruitless_restarts",
    "never_ready_starts",
    "slow_looks",
    "usual_looks",
)
_MAY_BE_ZERO = (
    "cooldown_s",
    "budget_6h",
    "budget_24h",
    "last_proof_s",
    "start_ceiling_s",
    "memory_needed_gib",
    "alert_after_s",
    "cpu_flat_share",
    "reboot_blame_s",
    "slow_share",
    "low_power_share",
)
#: Of a server of several nodes, whose load takes twice as long: for cooldown_s where nobody says otherwise.
COOLDOWN_OF_RANKS_S = 5400.0
NAMES = tuple(field.name for field in fields(Settings))
MOST = 10 * 365 * 86_400.0
MOST_DIGITS = 10**30


def is_number(value: Any) -> bool:
    """A number that can be reckoned with: neither NaN nor infinite, nor with more digits than a float has room for."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -MOST_DIGITS < value < MOST_DIGITS


def said(value: Any) -> str:
    """A value for a sentence. Of an integer of thousands of digits Python itself refuses to write them."""
    return "what was given" if isinstance(value, int) and abs(value) >= MOST_DIGITS else repr(value)


def _fault(name: str, value: Any) -> str | None:
    if name not in NAMES:
        return f"is not a setting; settings are {', '.join(NAMES)}"
    if name in _CHOICES:
        return None if value in _CHOICES[name] else f"{value!r} is none of {', '.join(_CHOICES[name])}"
    if value is None:
        return None if name in _MAY_BE_NULL else "must not be null"
    if not is_number(value):
        return f"{said(value)} is not a number"
    if name in _WHOLE and value != int(value):
        return f"{value!r} is not a whole number"
    least = 0 if name in _MAY_BE_ZERO else 1e-6
    if value > MOST:
        return f"{value!r} must be at most {MOST:.0f}"
    if value < least:
        return f"{value!r} must be {'at least' if name in _MAY_BE_ZERO else 'more than'} 0"
    return None


def with_values(settings: Settings, values: Mapping[str, Any], where: str) -> Settings:
    """The settings with some replaced. `where` begins every fault, such as "servers.yml: settings". Raises ConfigError."""
    faults = [f"{where}.{name}: {fault}" for name, value in values.items() if (fault := _fault(str(name), value))]
    if faults:
        raise ConfigError(faults)
    chosen: dict[str, Any] = {str(k): int(v) if k in _WHOLE else v for k, v in values.items()}
    return replace(settings, **chosen)


def given(settings: Settings) -> dict[str, Any]:
    """The values that are not the defaults, by name: what a trace's header must say for its replay to be exact."""
    usual = Settings()
    return {name: value for name in NAMES if (value := getattr(settings, name)) != getattr(usual, name)}


def from_text(assignment: str) -> tuple[str, Any]:
    """`patience_s=300` as name and value. Raises ConfigError."""
    name, equals, text = assignment.partition("=")
    if not equals:
        raise ConfigError([f"--set {assignment}: write NAME=VALUE"])
    if text in ("null", "none", ""):
        return name, None
    try:
        return name, float(text)
    except ValueError:
        return name, text
