# SPDX-License-Identifier: GPL-3.0-or-later
"""How long a silence must be before it convicts an engine, and why. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .._core.settings import Settings
from .._health.progress import WHOLE, EngineTrack, Track
from .memory import Memory, Pause


@dataclass(frozen=True)
class Patience:
    """Seconds of silence, and the rule that set them."""

    seconds: float
    rule: str


def _remembered(settings: Settings, memory: Memory, now: float) -> list[Pause]:
    return [pause for pause in memory.pauses if now - pause.t <= settings.learned_days * 86_400]


def innocent_pause(settings: Settings, memory: Memory, now: float) -> float:
    """The second-longest innocent pause remembered; one alone may have been a freak."""
    recent = sorted((pause.seconds for pause in _remembered(settings, memory, now)), reverse=True)
    return recent[1] if len(recent) > 1 else 0.0


def _begun(memory: Memory, engine: EngineTrack) -> float:
    """When the silence that counts began: time with a compiler at work, or on a host that thrashes, does not; it starts anew
    at the last sighting. A thrashing host stands still and is well, and its server takes up its work only after that."""
    return max(t for t in (engine.silent_since, memory.compiled_t, memory.thrashed_t) if t is not None)


def witnessed(settings: Settings, memory: Memory, engine: EngineTrack) -> float | None:
    """The silence, since it counts, after which power and CPU time, independent of each other, have said "stopped" in every observation
    of `patience_witness_s`; None while one of them does not. A hang between two looks leaves CPU time in the first."""
    if memory.stopped_since is None:
        return None
    return max(memory.stopped_since - _begun(memory, engine), 0.0) + settings.patience_witness_s


def patience(settings: Settings, memory: Memory, track: Track, label: str) -> Patience:
    """The patience for one engine now."""
    engine = track.engines[label]
    found = Patience(settings.patience_s, "patience_s")
    if engine.heartbeat_trusted:
        shown = max([memory.longest_step_s, *(p.seconds for p in _remembered(settings, memory, track.t))])
        least = settings.patience_heartbeat_s
        if least == Settings.patience_heartbeat_s:
            least = min(least, settings.patience_s)  # whoever gives a shorter patience means it with a heartbeat too
        found = Patience(max(least, settings.heartbeat_step_factor * shown), "patience_heartbeat_s")
    elif (silence := witnessed(settings, memory, engine)) is not None and silence < found.seconds:
        found = Patience(silence, "patience_witness_s")
    if engine.stall_t is not None and label != WHOLE:
        # only the time in which nothing ran is a stall: a queue seen for a moment shortens no long prefill
        stalled = max(engine.stall_t - _begun(memory, engine), 0.0) + settings.patience_waiting_s
        if stalled < found.seconds:
            found = Patience(stalled, "patience_waiting_s")
    learned = settings.learned_factor * innocent_pause(settings, memory, track.t)
    if learned > found.seconds:
        found = Patience(learned, "learned")
    if found.seconds > settings.patience_extended_s:
        found = Patience(max(settings.patience_extended_s, settings.patience_s), "patience_extended_s")
    if settings.step_limit_s is not None and settings.step_limit_factor * settings.step_limit_s > found.seconds:
        found = Patience(settings.step_limit_factor * settings.step_limit_s, "step_limit_s")
    excused_s = _begun(memory, engine) - engine.silent_since
    if excused_s > 0:
        thrashed_s = max((memory.thrashed_t or 0.0) - engine.silent_since, 0.0)
        anew = excused_s + found.seconds
        # compilers excuse up to a limit; thrashing has none, it is the host's and no silence of the server's
        cap = max(settings.patience_extended_s, thrashed_s + found.seconds)
        found = Patience(min(anew, cap), "memory_pressure" if thrashed_s == excused_s else "compiler")
    return found


def all_patiences(settings: Settings, memory: Memory, track: Track) -> dict[str, Patience]:
    """By engine label."""
    return {label: patience(settings, memory, track, label) for label in track.engines}


def proof_seconds(settings: Settings, memory: Memory, track: Track, accused: str | None) -> float:
    """How long the last proof must go unanswered. Any sign of the accused engine ends it, so with a true step counter
    the longest step that it has shown is enough; without one a token must have had the time to come."""
    engine = track.engines.get(accused or "")
    if engine is None or not engine.heartbeat_trusted:
        return settings.last_proof_s
    return min(settings.last_proof_s, max(settings.proof_least_s, memory.longest_step_s))
