# SPDX-License-Identifier: GPL-3.0-or-later
"""`judge`: from what was seen to what the server is doing. Pure: time, memory and limits are arguments.

Precedence: stopped, host_fault, sleeping, starting, dead, then what the readings say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from .engines import BY_NAME
from .observation import Observation
from .progress import SUSPECT_OBSERVATIONS, WHOLE, EngineTrack, Track
from .verdict import EngineVerdict, State, Verdict

# Healthy silences seen on GB10: 230, 471 and 505 s (1M- and 339k-token prompts on a stock vLLM).
DEFAULT_PATIENCE_S = 600.0
# With a counter that moves on every step only one step's length must fit; the longest autotuned step seen was 70 s.
DEFAULT_PATIENCE_TRUE_STEPS_S = 180.0
# Loading takes 4 to 30 minutes on GB10.
DEFAULT_START_CEILING_S = 1800.0
# Xids after which only a reset or a reboot helps; 13, 31 and 43 are cured by a restart.
FATAL_XIDS = ("79", "154", "119", "120")
# "Xid 79", or the kernel's own "NVRM: Xid (PCI:000f:01:00): 79, pid=…": the address is no number of a fault.
_XID = re.compile(r"\bxid\b\s*(?:\([^)]*\))?\s*:?\s*(\d+)", re.IGNORECASE)
# The page's own time has a resolution of 1 s, and a healthy step may take some.
LAST_STEP_WORTH_SAYING_S = 10.0
FATAL_WORDS = ("nv_err_no_memory", "pcie bus error", "aer", "mlx5", "fallen off the bus")


@dataclass(frozen=True)
class Limits:
    """What the judgement may assume. `patience_s`: by engine label; `default_patience_s` for the others.

    `dead_patience_s`: how long a server that was ready must have refused. `proof_readings`: readings a proof needs.
    `lifecycle`: `always` or `on_demand`. `watchdog`: False for a check, which knows no intent and no fault of the host.
    """

    patience_s: Mapping[str, float] = field(default_factory=dict)
    default_patience_s: float = DEFAULT_PATIENCE_S
    dead_patience_s: float = DEFAULT_PATIENCE_S
    start_ceiling_s: float = DEFAULT_START_CEILING_S
    proof_readings: int = 0
    lifecycle: str = "always"
    watchdog: bool = True

    def patience(self, engine: str) -> float:
        """Seconds of silence that convict this engine."""
        return self.patience_s.get(engine, self.default_patience_s)


def fatal_faults(observation: Observation) -> tuple[str, ...]:
    """The kernel's complaints of this boot that no restart cures."""
    return tuple(fault for fault in observation.host.kernel_faults or () if _fatal(fault))


def _fatal(fault: str) -> bool:
    xids = _XID.findall(fault)
    if xids:
        return any(xid in FATAL_XIDS for xid in xids)
    return any(word in fault.lower() for word in FATAL_WORDS)


def seconds(value: float) -> str:
    """A duration for a sentence: 8 s, 2.5 s, 12 min."""
    if value >= 600:
        return f"{value / 60:.0f} min"
    return f"{value:.0f} s" if value >= 10 or value == int(value) else f"{value:.1f} s"


def _count(number: float | None) -> str:
    return "?" if number is None else f"{number:.0f}"


def judge(track: Track, observation: Observation, limits: Limits) -> Verdict:
    """`track` is the memory after `advance(…, observation)`. Total: every observation has exactly one verdict."""
    numbers = _numbers(track, observation)
    for rule in (_stopped, _host_fault, _sleeping, _starting, _dead, _cannot_ask):
        verdict = rule(track, observation, limits)
        if verdict is not None:
            return _with(verdict, numbers)
    return _with(_readings(track, observation, limits), numbers)


def _with(verdict: Verdict, numbers: tuple[float | None, float | None, float | None]) -> Verdict:
    running, waiting, in_flight = numbers
    return Verdict(**{**vars(verdict), "running": running, "waiting": waiting, "in_flight": in_flight})


def _numbers(track: Track, observation: Observation) -> tuple[float | None, float | None, float | None]:
    reading = observation.reading
    if reading is None:
        return None, None, None
    running = [e.running for e in reading.engines.values() if e.running is not None]
    waiting = [e.waiting for e in reading.engines.values() if e.waiting is not None]
    return (sum(running) if running else None), (sum(waiting) if waiting else None), reading.in_flight


def _down(observation: Observation) -> bool:
    return observation.service.state in ("inactive", "failed")


def _gone(observation: Observation) -> bool:
    """Nothing listens: its port says so, or its manager where the port says nothing (a container's address goes with it)."""
    return observation.metrics == "refused" or (observation.metrics in (None, "connect timeout") and _down(observation))


def _stopped(track: Track, observation: Observation, limits: Limits) -> Verdict | None:
    service = observation.service
    if not limits.watchdog or service.wanted is not False or observation.reading is not None:
        return None
    if _down(observation) or (service.state == "unknown" and observation.metrics == "refused"):
        return Verdict(State.STOPPED, "it is not running and is not meant to be", "stopped")
    return None


def _host_fault(track: Track, observation: Observation, limits: Limits) -> Verdict | None:
    if track.moved or not limits.watchdog:
        return None  # what makes progress has a GPU, whatever a witness says
    present = observation.host.gpu_present
    faults = fatal_faults(observation)
    if present is False:
        more = f" ({', '.join(faults)} in the kernel log of this boot)" if faults else ""
        return Verdict(
            State.HOST_FAULT, f"the GPU does not answer{more}; no restart of the server cures that", "gpu_gone"
        )
    if faults and present is None:
        return Verdict(
            State.HOST_FAULT,
            f"the kernel log of this boot has {', '.join(faults)}, and the GPU could not be seen since; "
            "no restart of the server cures that",
            "kernel_fault",
        )
    return None


def _sleeping(track: Track, observation: Observation, limits: Limits) -> Verdict | None:
    if observation.paused:
        return Verdict(State.SLEEPING, "the engine says that it was paused or put to sleep on purpose", "paused")
    if observation.reading is not None and observation.reading.asleep:
        return Verdict(State.SLEEPING, "the engine says that it was put to sleep", "sleeping")
    if limits.lifecycle == "on_demand" and _gone(observation):
        return Verdict(State.SLEEPING, "nothing listens; it is an on-demand server that is not loaded", "on_demand")
    return None


# Within the grace these are what a loading server does. A 401 or a 404 is an answer: it serves, and we could not ask.
_START_NOISE = ("refused", "reset", "timeout")


def _starting(track: Track, observation: Observation, limits: Limits) -> Verdict | None:
    if "loading" in (observation.metrics, observation.health):
        return Verdict(State.STARTING, "its own page says that it is loading", "loading")
    metrics = observation.metrics or ""
    if track.ready or observation.reading is not None or not (metrics in _START_NOISE or metrics.startswith("http 5")):
        return None
    service = observation.service
    if service.state not in ("active", "activating"):
        return None
    stale = track.stale_since is not None and service.since == track.stale_since
    begun = track.activating_t if stale or service.since is None else service.since
    if begun is None:
        return None
    age = observation.t - begun
    if age <= limits.start_ceiling_s:
        return Verdict(
            State.STARTING,
            f"it was started {seconds(max(age, 0))} ago and does not serve yet; it may take {seconds(limits.start_ceiling_s)}",
            "grace",
        )
    return None


def _dead(track: Track, observation: Observation, limits: Limits) -> Verdict | None:
    wanted = observation.service.wanted is True
    if track.moved:
        return None  # /health may say what it likes: work moves
    if observation.health == "dead":
        return Verdict(
            State.DEAD, "its own /health says that the engine is dead", "engine_says_dead", wanted_act(observation)
        )
    if (observation.probe or "").startswith("http 5"):
        says = observation.probe_says_dead
        if says or (says is None and observation.health != "ok" and not _proven(track, observation, limits)):
            return Verdict(
                State.DEAD,
                f"it answered the probe with {observation.probe}: its engine is dead",
                "engine_says_dead",
                wanted_act(observation),
            )
    if not _gone(observation):
        return None
    if _down(observation):
        if wanted:
            return Verdict(
                State.DEAD, "nothing listens, and its manager has given up though it is wanted", "given_up", True
            )
        meant = (
            "it was stopped or disabled on purpose"
            if observation.service.wanted is False
            else f"its service is {observation.service.state}, and whether that is meant cannot be told"
        )
        return Verdict(State.DEAD, f"nothing listens; {meant}", "down_unclear")
    if observation.service.state == "unknown":
        return Verdict(State.DEAD, "nothing listens there; it may still be loading", "refused")
    refused = observation.begun - track.refused_t if track.refused_t is not None else 0.0
    if track.ready and observation.service.since is not None:
        if refused >= limits.dead_patience_s:
            return Verdict(
                State.DEAD,
                f"it was ready and has refused connections for {seconds(refused)}",
                "refused_after_ready",
                wanted_act(observation),
            )
        return Verdict(
            State.DEAD,
            f"it was ready and refuses connections now, for {seconds(refused)}; "
            f"proven after {seconds(limits.dead_patience_s)}",
            "refused_lately",
        )
    said = (
        "whether it was ready under this start cannot be told" if track.ready else "it was never ready under this start"
    )
    return Verdict(State.DEAD, f"nothing listens, and {said}", "never_ready")


def _proven(track: Track, observation: Observation, limits: Limits) -> bool:
    """The readings alone say that it is hung; a 5xx to the last proof confirms that."""
    return observation.reading is not None and any(
        _engine_state(label, engine, observation, limits)[0] is State.HUNG for label, engine in track.engines.items()
    )


def wanted_act(observation: Observation) -> bool:
    """Justified unless the intent says otherwise; from elsewhere (no service known) the engine's own word is enough."""
    return observation.service.wanted is not False


_CANNOT_ASK = {
    None: "it was not asked",
    "ok": "its page could not be read",
    "connect timeout": "connecting to it timed out",
    "unreadable": "its page could not be read",
}


def _cannot_ask(track: Track, observation: Observation, limits: Limits) -> Verdict | None:
    metrics = observation.metrics
    if metrics == "ok" and observation.reading is not None:
        if track.balancer:
            return Verdict(
                State.UNKNOWN,
                "its start time flips back and forth: a load balancer answers for several servers; "
                "ask each of them by its own address",
                "load_balancer",
            )
        return None
    # where no counters speak, only a probe that somebody asked for can
    probe = observation.probe
    if probe == "ok":
        return Verdict(State.IDLE, "it answered the probe; its counters could not be read", "probe_answered")
    whole = track.engines.get(WHOLE)
    if probe == "timeout" or (whole is not None and whole.debt_t is not None and metrics not in ("timeout", "reset")):
        silence = observation.t - whole.silent_since if whole is not None else None
        if metrics in ("timeout", "reset"):
            return Verdict(State.UNRESPONSIVE, _silent_page(observation), "page_silent", silence_s=silence)
        return Verdict(
            State.STALLED,
            "it did not answer the probe, and its counters could not be read",
            "probe_unanswered",
            silence_s=silence,
        )
    if probe == "reset":
        return Verdict(State.UNRESPONSIVE, "it closed the probe's connection without an answer", "probe_reset")
    if metrics in ("timeout", "reset"):
        return Verdict(State.UNRESPONSIVE, _silent_page(observation), "page_silent")
    detail = observation.detail or _CANNOT_ASK.get(metrics) or f"/metrics answered {metrics}"
    if probe is not None:
        detail += f"; the probe was answered with {probe}"
    return Verdict(State.UNKNOWN, detail, "cannot_ask")


def _silent_page(observation: Observation) -> str:
    if observation.detail:
        return observation.detail
    if observation.metrics == "reset":
        return "it closes connections without an answer"
    return "it takes connections but does not answer"


def _engine_state(
    label: str, engine: EngineTrack, observation: Observation, limits: Limits
) -> tuple[State, float | None]:
    """One engine's state by its own series, and its silence in seconds where work is in flight."""
    if engine.last is not None and engine.last.sleeping:
        return State.SLEEPING, None  # its sisters are awake, and they are judged
    if engine.work is None and engine.debt_t is None and label != WHOLE:
        return (State.BUSY, None) if engine.moved else (State.UNKNOWN, None)
    if not engine.has_work:
        return State.IDLE, None
    if engine.moved:
        return State.BUSY, 0.0
    if engine.first and (engine.debt_t is None or engine.work):
        return State.BUSY, 0.0
    silence = max(observation.begun - engine.silent_since, 0.0)
    row = BY_NAME.get(observation.engine or "")
    provable = (row is None or row.provable) and engine.comparable
    # a sleep may end a clock tick early; that must not cost a proof
    if silence + 0.001 >= limits.patience(label) and engine.readings >= limits.proof_readings and provable:
        return State.HUNG, silence
    return State.STALLED, silence


# The worst engine speaks for the server. A rank that cannot be read may be stuck, however busy its sisters are.
_WORST = (State.HUNG, State.STALLED, State.UNKNOWN, State.BUSY, State.IDLE, State.SLEEPING)


def _readings(track: Track, observation: Observation, limits: Limits) -> Verdict:
    states = {label: _engine_state(label, engine, observation, limits) for label, engine in track.engines.items()}
    several = len([label for label in states if label != WHOLE]) > 1
    engines = tuple(
        EngineVerdict(
            engine=label,
            state=state,
            running=_gauge(track, label, "running"),
            waiting=_gauge(track, label, "waiting"),
            silence_s=silence,
            patience_s=limits.patience(label),
        )
        for label, (state, silence) in sorted(states.items())
        if label != WHOLE or state not in (State.IDLE, State.BUSY)
    )
    rank = {state: n for n, state in enumerate(_WORST)}
    label = min(states, key=lambda name: (rank[states[name][0]], -(states[name][1] or 0.0), name), default=None)
    if label is None or (observation.reading is not None and not observation.reading.engines):
        return Verdict(State.UNKNOWN, "the page has no engine's series", "cannot_ask")
    state, silence = states[label]
    engine = track.engines[label]
    who = f"engine {label}" if several and label != WHOLE else "it"
    if state in (State.HUNG, State.STALLED):
        unpaid = any(e.debt_t is not None for e in track.engines.values())
        if track.suspect_cleared and not unpaid:
            return Verdict(
                State.IDLE, "stale gauges: it answered a probe though they say work", "stale_gauges", engines=engines
            )
        if track.clientless >= SUSPECT_OBSERVATIONS and not unpaid:
            return Verdict(
                State.SUSPECT,
                f"the gauges say {_work_words(engine)}, but no client is connected and the GPU is idle",
                "stale_gauges",
                silence_s=silence,
                engines=engines,
            )
        patience = limits.patience(label)
        verb = "is hung" if state is State.HUNG else "has stalled"
        tail = f"patience {seconds(patience)}" if state is State.HUNG else f"not proven before {seconds(patience)}"
        row = BY_NAME.get(observation.engine or "")
        if state is State.STALLED and row is not None and not row.provable:
            tail = "on this engine silence alone is no proof"
        elif state is State.STALLED and not engine.comparable:
            tail = "no counter that would show progress can be read, so this is no proof"
        return Verdict(
            state,
            f"{who} {verb}: {_work_words(engine)}, and no sign of progress for {seconds(silence or 0.0)} ({tail})"
            f"{_last_step_words(label, observation, silence or 0.0)}",
            "silence",
            restart_justified=state is State.HUNG,
            silence_s=silence,
            patience_s=patience,
            accused=label if label != WHOLE else None,
            engines=engines,
        )
    if state is State.BUSY:
        if track.suspect_cleared:
            return Verdict(
                State.IDLE, "stale gauges: it answered a probe though they say work", "stale_gauges", engines=engines
            )
        if engine.first and not any(e.moved and e.signs != ("probe",) for e in track.engines.values()):
            answered = "; it answered the probe" if observation.probe == "ok" else ""
            return Verdict(
                State.BUSY,
                f"first reading: {_work_words(engine)}, nothing to compare with yet{answered}"
                f"{_last_step_words(label, observation, 0.0)}",
                "first_reading",
                silence_s=0.0,
                engines=engines,
            )
        return Verdict(
            State.BUSY,
            f"{_all_work(track)}, and progress was seen ({_sign_words(track)})",
            "progress",
            silence_s=0.0,
            engines=engines,
        )
    probe = observation.probe
    if state is State.UNKNOWN:
        return Verdict(
            State.UNKNOWN,
            f"its page does not say whether work is in flight{f' in engine {label}' if several else ''}",
            "gauges_unreadable",
            engines=engines,
        )
    if probe == "ok":
        return Verdict(State.IDLE, "nothing is in flight, and it answered the probe", "probe_answered", engines=engines)
    if track.moved:
        return Verdict(
            State.IDLE,
            f"nothing is in flight, and its counters moved ({_sign_words(track)})",
            "counters_moved",
            engines=engines,
        )
    if probe == "reset":
        return Verdict(
            State.UNRESPONSIVE, "it closed the probe's connection without an answer", "probe_reset", engines=engines
        )
    if probe is not None:
        hint = "; give it the key with --api-key-file" if probe in ("http 401", "http 403") else ""
        said = observation.detail or f"the probe was answered with {probe}{hint}"
        return Verdict(
            State.UNKNOWN,
            f"nothing is in flight, and {said}: that neither acquits nor convicts",
            "probe_refused",
            engines=engines,
        )
    return Verdict(State.IDLE, "nothing is in flight; no probe was due", "not_probed", engines=engines)


def _gauge(track: Track, label: str, name: str) -> float | None:
    last = track.engines[label].last
    return None if last is None else getattr(last, name)


def _work_words(engine: EngineTrack) -> str:
    last = engine.last
    parts = []
    if last is not None and last.work:
        parts.append(f"{_count(last.running)} running and {_count(last.waiting)} waiting")
    elif engine.work:
        parts.append(f"{_count(engine.work)} requests that the front end holds")
    if engine.debt_t is not None:
        parts.append("our probe unanswered")
    return ", ".join(parts) or "work in flight"


def _last_step_words(label: str, observation: Observation, silence: float) -> str:
    """What the heartbeat knows of the time before we looked. Said, and no proof: a request that came a second ago to an
    idle engine finds the same old time stamp as one that waits for a hung one."""
    age = observation.reading.last_step_age_s(label) if observation.reading is not None else None
    if age is None or age < silence + LAST_STEP_WORTH_SAYING_S:
        return ""
    return f"; the heartbeat saw its last step {seconds(age)} ago"


def _all_work(track: Track) -> str:
    running = sum(e.last.running or 0.0 for e in track.engines.values() if e.last is not None)
    waiting = sum(e.last.waiting or 0.0 for e in track.engines.values() if e.last is not None)
    if not running + waiting and (held := max((e.work or 0.0 for e in track.engines.values()), default=0.0)):
        return f"{held:.0f} requests that the front end holds"
    return f"{running:.0f} running and {waiting:.0f} waiting"


_SIGN_WORDS = {
    "heartbeat": "engine steps",
    "steps": "steps",
    "generation_tokens": "generated tokens",
    "prompt_tokens": "prompt tokens",
    "finished": "finished requests",
    "flops": "flops",
    "kv_usage": "a new maximum of KV-cache use",
    "probe": "the probe was answered",
    "taken_up": "work was taken up while our probe waited",
}


def _sign_words(track: Track) -> str:
    signs = {sign for engine in track.engines.values() for sign in engine.signs}
    return ", ".join(words for sign, words in _SIGN_WORDS.items() if sign in signs) or "counters"
