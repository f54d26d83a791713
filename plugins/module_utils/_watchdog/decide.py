# SPDX-License-Identifier: GPL-3.0-or-later
"""What should be done about a verdict. Pure: no clock, no I/O; memory and time are arguments.

`step` is the whole way of one observation: memory → track → patience → verdict → decision → memory. The watchdog on a
host, `replay`, `backtest` and the simulation all walk it, so that what is proven of one holds for the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from .._core.settings import Settings
from .._health.judge import Limits, judge, seconds
from .._health.observation import Observation
from .._health.progress import SINCE_TOLERANCE_S, WHOLE, EngineTrack, Track, advance
from .._health.verdict import State, Verdict
from . import speed
from .memory import Act, Memory, Pause
from .patience import Patience, all_patiences

SIX_HOURS_S, A_DAY_S = 6 * 3600.0, 24 * 3600.0
# Enough to know a host's power by, and a memory file of a few kB.
POWER_KEPT, PAUSES_KEPT = 500, 200


class Action(StrEnum):
    """What to do."""

    NONE = "none"
    RESTART = "restart"
    START = "start"
    LATCHED = "latched"


@dataclass(frozen=True)
class Decision:
    """`reason`: one sentence. `rule`: what spoke. `due`: an action would be right, whether or not it may be done.

    `prove`: the action waits for its last proof, a probe. `probe`: an idle or suspect server should be probed.
    `alert`: what a person should be told, or None.
    """

    action: Action
    reason: str
    rule: str
    due: Action = Action.NONE
    prove: bool = False
    probe: bool = False
    alert: str | None = None


@dataclass(frozen=True)
class Step:
    """The outcome of one observation."""

    verdict: Verdict
    decision: Decision
    memory: Memory
    patiences: dict[str, Patience]


@dataclass(frozen=True)
class Surroundings:
    """What of other things bears on this server: a sister of its group that does not serve, and since when."""

    sister_down: str | None = None
    sister_down_since: float | None = None


ALONE = Surroundings()


def step(
    settings: Settings,
    memory: Memory,
    observation: Observation,
    around: Surroundings = ALONE,
    *,
    sends_proof: bool = False,
) -> Step:
    """One observation's way. `sends_proof`: the caller can send the last proof; else the probe seen is the last proof."""
    done = _step(settings, memory, observation, around, sends_proof)
    accused = done.verdict.accused
    if done.decision.rule == "acquitted" and accused is not None and observation.probe_engine is None:
        # a last proof is sent to the accused: where a trace does not say to whom it went, it went there
        done = _step(settings, memory, replace(observation, probe_engine=accused), around, sends_proof)
    return done


def _step(
    settings: Settings, memory: Memory, observation: Observation, around: Surroundings, sends_proof: bool
) -> Step:
    before = memory.track
    track = advance(before, observation, settings.gap_void_s)
    memory = _learn(settings, memory, before, track, observation)
    patiences = all_patiences(settings, memory, track)
    limits = Limits(
        patience_s={label: patience.seconds for label, patience in patiences.items()},
        default_patience_s=settings.patience_s,
        dead_patience_s=settings.patience_s,
        start_ceiling_s=settings.start_ceiling_s,
        proof_readings=settings.proof_readings,
        lifecycle=settings.lifecycle,
    )
    verdict = judge(track, observation, limits)
    gap = before is not None and observation.t - before.t > settings.gap_void_s
    memory = _follow(settings, replace(memory, track=track), track, verdict, observation, gap)
    decision, memory = decide(settings, memory, verdict, observation, observation.t, around, sends_proof=sends_proof)
    return Step(verdict, decision, memory, patiences)


# what is remembered


def _learn(settings: Settings, memory: Memory, before: Track | None, track: Track, observation: Observation) -> Memory:
    """Pauses, power, speed, compilers and the two witnesses, before the verdict."""
    memory = _of_this_program(memory, observation)
    host = observation.host
    fresh = before is None or track.new_process
    compiling = bool(host.compilers) or any(rank.compilers for rank in observation.ranks)
    compiled_t = observation.t if compiling else memory.compiled_t
    thrashing = (host.memory_pressure or 0.0) > settings.thrashing_share
    excused = (
        compiling
        or bool(observation.lease_holders())
        or observation.service.wanted is False
        or thrashing
        or bool(observation.paused)
        or (observation.reading is not None and any(e.sleeping for e in observation.reading.engines.values()))
        or track.suspect_cleared
        or track.clientless > 0
        or not track.ready
    )
    pauses = memory.pauses
    # the whole too: while it loads no engine is known yet
    tainted = frozenset((*track.engines, WHOLE)) if excused else frozenset(memory.excused)
    # a gap in our own runs was no pause of the server's
    seen_through = before is not None and observation.t - before.t <= settings.gap_void_s
    if before is not None and seen_through and track.moved and not track.new_process:
        ended = {
            label: _ended_pause(before, label, engine, observation)
            for label, engine in track.engines.items()
            if label not in tainted
        }
        longest = max(ended.values(), default=0.0)
        worth = longest >= settings.learned_least_s or any(
            _long_step(settings, before.engines.get(label), before.t) for label, pause in ended.items() if pause > 0
        )
        if worth and not _ended_badly(before, track, observation):
            pauses = _kept((*pauses, Pause(observation.t, longest)))
    if not excused:
        tainted = frozenset() if fresh else frozenset(label for label in tainted if not _moved(track, label))
    shown = max((e.last.longest_step_s or 0.0 for e in track.engines.values() if e.last is not None), default=0.0)
    longest = memory.longest_step_s
    # a step that a compiler was at work in is not the engine's own length
    if shown > (0.0 if fresh else memory.longest_shown_s) and not (memory.excused or excused):
        longest = max(longest, shown)
    power = memory.power_w
    # with work: a probe's one token moves counters too, and an idle machine's power is not that of work
    if host.gpu_power_w is not None and any(engine.moved and engine.work for engine in track.engines.values()):
        power = (*power, host.gpu_power_w)[-POWER_KEPT:]
    never_ready_t = _never_ready(memory, before, observation)
    # a rank that an observation leaves out is still one of this process
    ranks = dict.fromkeys(() if fresh else memory.rank_cpu_seconds)
    ranks |= {rank.host: rank.cpu_seconds for rank in observation.ranks}
    return replace(
        memory,
        pauses=pauses,
        excused=tuple(sorted(tainted)),
        longest_shown_s=shown,
        longest_step_s=longest,
        power_w=power,
        compiled_t=None if fresh and not compiling else compiled_t,
        thrashed_t=observation.t if thrashing else None if fresh else memory.thrashed_t,
        stopped_since=_stopped_since(settings, memory, before, track, observation),
        cpu_flat=before is not None and _all_flat(settings, memory, observation, observation.t - before.t),
        cpu_seconds=host.cpu_seconds,
        rank_cpu_seconds=ranks,
        never_ready_t=never_ready_t,
        never_ready_since=_counted_start(memory, before, observation, never_ready_t),
        speeds=speed.learn(
            settings,
            memory.speeds,
            observation.t,
            speed.running(track),
            speed.rates(before, track, observation.reading is not None)[1],
        ),
    )


def _long_step(settings: Settings, engine: EngineTrack | None, seen_t: float) -> bool:
    """A step of a true step counter that lengthens the patience, by what of it was seen; what our own looks may have added
    to it is left out."""
    least = settings.patience_heartbeat_s / settings.heartbeat_step_factor
    return engine is not None and engine.heartbeat_trusted and seen_t - engine.silent_since >= least


def _kept(pauses: tuple[Pause, ...]) -> tuple[Pause, ...]:
    """No more than `PAUSES_KEPT`: the shortest goes first, since the longest are what counts."""
    if len(pauses) <= PAUSES_KEPT:
        return pauses
    shortest = min(range(len(pauses)), key=lambda n: (pauses[n].seconds, n))
    return (*pauses[:shortest], *pauses[shortest + 1 :])


def _moved(track: Track, label: str) -> bool:
    """Whether that engine moved; one that is not there any more leaves nothing to wait for, and the whole moves with any."""
    engine = track.engines.get(label)
    if engine is None:
        return label != WHOLE or track.moved
    return engine.moved


def _of_this_program(memory: Memory, observation: Observation) -> Memory:
    """What was learned of the engine's pauses, steps and speed is forgotten when its version or arguments change."""
    if observation.program is None or observation.program == memory.identity:
        return memory
    if memory.identity is None:
        return replace(memory, identity=observation.program)
    return replace(
        memory,
        identity=observation.program,
        pauses=(),
        longest_step_s=0.0,
        speeds=speed.Speeds(),
    )


def _never_ready(memory: Memory, before: Track | None, observation: Observation) -> tuple[float, ...]:
    """When starts ended that had never become ready, whoever made them: another one followed, or its manager gave up."""
    service = observation.service
    if before is None or before.ready or before.since is None or memory.never_ready_since == before.since:
        return memory.never_ready_t
    another = service.since is not None and abs(service.since - before.since) > SINCE_TOLERANCE_S
    gave_up = service.state in ("inactive", "failed") and service.wanted is True and observation.reading is None
    return (*memory.never_ready_t, observation.t)[-10:] if another or gave_up else memory.never_ready_t


def _counted_start(
    memory: Memory, before: Track | None, observation: Observation, never_ready_t: tuple[float, ...]
) -> float | None:
    """The start that is counted already. One that was over when we first looked may have been ready: it never counts."""
    if before is None:
        down = observation.service.state in ("inactive", "failed")
        return observation.service.since if down else memory.never_ready_since
    return before.since if never_ready_t != memory.never_ready_t else memory.never_ready_since


def _ended_pause(before: Track, label: str, engine: EngineTrack, observation: Observation) -> float:
    old = before.engines.get(label)
    if label == WHOLE or old is None or not engine.moved or not old.has_work or old.readings < 2:
        return 0.0
    # from when it was known to have work: a request that came just before a look made no pause of the idling before
    return observation.begun - old.silent_since


def _ended_badly(before: Track, track: Track, observation: Observation) -> bool:
    """Ended by a client's abort or beside a refused probe: that proves no innocence."""
    if (observation.probe or "").startswith("http 4"):
        return True
    for label, engine in track.engines.items():
        old = before.engines.get(label)
        if old is None or old.last is None or engine.last is None:
            continue
        if (engine.last.aborted or 0.0) > (old.last.aborted or 0.0):
            return True
    return False


def _percentile(values: tuple[float, ...], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _cpu_flat(settings: Settings, before: float | None, now: float | None, span_s: float) -> bool:
    if before is None or now is None or span_s < 0:
        return False
    return 0 <= now - before <= settings.cpu_flat_share * span_s


def _all_flat(settings: Settings, memory: Memory, observation: Observation, span_s: float) -> bool:
    """The server's processes burned no CPU since the last look, nor did those of its ranks as far as they are known."""
    pairs = [(memory.cpu_seconds, observation.host.cpu_seconds)]
    pairs += [
        (old, rank.cpu_seconds)
        for rank in observation.ranks
        if (old := memory.rank_cpu_seconds.get(rank.host)) is not None and rank.cpu_seconds is not None
    ]
    return all(_cpu_flat(settings, old, new, span_s) for old, new in pairs)


def _stopped_since(
    settings: Settings, memory: Memory, before: Track | None, track: Track, observation: Observation
) -> float | None:
    """Since when power (by this host's own measure) and CPU time both say "stopped", without a break."""
    if before is None or track.moved or track.new_process:
        return None
    power, host = memory.power_w, observation.host
    if len(power) < settings.power_samples:
        return None
    limit = _percentile(power, settings.power_percentile)
    span = observation.t - before.t
    seen = [(host.gpu_power_w, memory.cpu_seconds, host.cpu_seconds)]
    seen += [(r.gpu_power_w, memory.rank_cpu_seconds.get(r.host), r.cpu_seconds) for r in observation.ranks]
    if any(rank.reachable is False for rank in observation.ranks):
        return None
    if not memory.rank_cpu_seconds.keys() <= {rank.host for rank in observation.ranks}:
        return None  # nothing is known of that rank now
    for watts, old_cpu, cpu in seen:
        if watts is None or watts >= limit or not _cpu_flat(settings, old_cpu, cpu, span):
            return None
    return memory.stopped_since if memory.stopped_since is not None else before.t


_DOUBT = (State.UNKNOWN, State.UNRESPONSIVE, State.SUSPECT)


def _follow(
    settings: Settings, memory: Memory, track: Track, verdict: Verdict, observation: Observation, gap: bool
) -> Memory:
    """What follows from the verdict alone: confirmations, doubts, never-ready starts, whether our last act bore fruit."""
    t, before = observation.t, memory
    dead_rule = verdict.rule if verdict.state is State.DEAD and verdict.restart_justified else None
    dead_seen = (before.dead_seen + 1 if before.dead_rule == dead_rule and not gap else 1) if dead_rule else 0
    host = observation.host
    calm = host.memory_pressure is not None and host.memory_pressure <= settings.thrashing_share
    # a look that shows CPU time or a compiler, or cannot show CPU time, begins the stillness anew
    still = verdict.state is State.UNRESPONSIVE and calm and host.cpu_seconds is not None and before.compiled_t != t
    went_on = still and before.unresponsive_since is not None and before.cpu_flat and not gap
    acts = before.acts
    if acts and acts[-1].fruitful is None and t > acts[-1].t and _bore_fruit(track, acts[-1]):
        acts = (*acts[:-1], replace(acts[-1], fruitful=True))
    doubt = verdict.state.value if verdict.state in _DOUBT else None
    return replace(
        before,
        acts=tuple(act for act in acts if t - act.t <= 30 * A_DAY_S),
        dead_rule=dead_rule,
        dead_seen=dead_seen,
        unresponsive_since=(before.unresponsive_since if went_on else t) if still else None,
        unresponsive_seen=(before.unresponsive_seen + 1 if went_on else 1) if still else 0,
        doubt_since=(before.doubt_since if before.doubt_state == doubt else t) if doubt else None,
        doubt_state=doubt,
    )


def _bore_fruit(track: Track, act: Act) -> bool:
    """Progress of the engine that was accused, where it is known and still there; a sister's is none."""
    if act.engine is not None and act.engine in track.engines:
        return track.engines[act.engine].moved
    return track.moved


# what is decided


def _none(reason: str, rule: str, **more: object) -> Decision:
    return Decision(Action.NONE, reason, rule, **more)  # type: ignore[arg-type]


def decide(
    settings: Settings,
    memory: Memory,
    verdict: Verdict,
    observation: Observation,
    now: float,
    around: Surroundings = ALONE,
    *,
    sends_proof: bool = False,
) -> tuple[Decision, Memory]:
    """What to do, and the memory after it. An action that is decided counts as done at `now`."""
    due, rule, why = _due(settings, memory, verdict, observation)
    if due is Action.NONE:
        latched = memory.latched or _never_ready_latch(settings, memory, now)
        # it is up again: what is short next time is another time
        short_since = memory.short_since if verdict.state is State.DEAD else None
        memory = replace(memory, proof_t=None, latched=latched, short_since=short_since)
        probe = _probe_due(settings, memory, verdict, observation)
        return _none(why, rule, probe=probe, alert=_alert(settings, memory, now)), memory
    for refuse in (_intent, _lease, _thrashing, _half, _cooldown):
        refusal = refuse(settings, memory, verdict, observation, now)
        if refusal is not None:
            return replace(refusal, due=due), replace(memory, proof_t=None)
    latch = memory.latched or _latch(settings, memory, now)
    if latch is not None:
        decision = Decision(
            Action.LATCHED,
            f"{why}, but {latch}: a person has to look and clear it",
            "latched",
            due,
            alert=f"latched: {latch}",
        )
        return decision, replace(memory, latched=latch, proof_t=None)
    short = _memory_lack(settings, observation) if due is Action.START else None
    if short is not None:
        since = memory.short_since if memory.short_since is not None else now
        memory = replace(memory, short_since=since)
        if now - since >= settings.memory_wait_s:
            lack = f"memory did not come back within {seconds(settings.memory_wait_s)}: {short}"
            return (
                Decision(Action.LATCHED, f"{why}, but {lack}", "latched", due, alert=f"latched: {lack}"),
                replace(memory, latched=lack),
            )
        alert = f"waits for memory to start it: {short}" if now - since >= settings.memory_alert_s else None
        return _none(f"{why}; it is started when memory is there: {short}", "memory", due=due, alert=alert), memory
    memory = replace(memory, short_since=None)
    if around.sister_down is not None and due is Action.RESTART:
        put_off = now - (around.sister_down_since if around.sister_down_since is not None else now)
        if put_off < settings.patience_s:
            return _none(f"{why}, put off: its sister {around.sister_down} does not serve", "sister", due=due), memory
    proof = _proof(verdict, observation, due, sends_proof)
    # who only observes asks nothing of a server that hangs: its proofs would pile up for as long as it does
    if proof is not None and not (proof.prove and settings.mode == "observe"):
        started = memory.proof_t if memory.proof_t is not None else now
        return replace(proof, due=due), replace(memory, proof_t=started if proof.prove else None)
    if settings.mode == "observe":
        decision = _none(
            f"{why}; mode observe: it would {due.value} now", "observe", due=due, alert=f"would {due.value}: {why}"
        )
        return decision, memory
    act = Act(now, due.value, why, engine=verdict.accused)
    acts = memory.acts
    if acts and acts[-1].fruitful is None:
        acts = (*acts[:-1], replace(acts[-1], fruitful=False))
    return Decision(due, why, rule, due), replace(memory, acts=(*acts, act), proof_t=None)


def _due(settings: Settings, memory: Memory, verdict: Verdict, observation: Observation) -> tuple[Action, str, str]:
    state = verdict.state
    if state is State.HUNG:
        return Action.RESTART, "hung", verdict.reason
    if state is State.DEAD and verdict.restart_justified:
        # one that has refused for the whole patience was seen often enough
        if memory.dead_seen < settings.confirmations and verdict.rule != "refused_after_ready":
            return Action.NONE, "seen_once", f"{verdict.reason}; believed when it is seen again"
        if verdict.rule == "given_up":
            return Action.START, "given_up", verdict.reason
        return Action.RESTART, verdict.rule, verdict.reason
    if state is State.UNRESPONSIVE:
        still = _still(settings, memory, observation)
        if still is not None:
            return Action.RESTART, "unresponsive", f"{verdict.reason}, and {still}"
        return Action.NONE, "doubt", f"{verdict.reason}: that is doubt, not proof"
    if state in _DOUBT:
        return Action.NONE, "doubt", f"{verdict.reason}: that is doubt, not proof"
    return Action.NONE, state.value, verdict.reason


def _still(settings: Settings, memory: Memory, observation: Observation) -> str | None:
    """Its process tree has burned no CPU for the whole patience, seen in every look, and the host is not short of memory.

    Of one that was put to sleep that says nothing: it burns none, and a restart would load what was to be out of the way.
    """
    since = memory.unresponsive_since
    asleep = memory.track is not None and memory.track.asleep
    if since is None or memory.unresponsive_seen < settings.proof_readings or asleep:
        return None
    span = observation.begun - since
    if span < settings.patience_s:
        return None
    return f"its processes have burned no CPU for {seconds(span)}"


def _intent(
    settings: Settings, memory: Memory, verdict: Verdict, observation: Observation, now: float
) -> Decision | None:
    wanted = observation.service.wanted
    if wanted is True:
        return None
    if wanted is False:
        return _none(f"{verdict.reason}, but it is not meant to be up: hands off", "not_wanted")
    return _none(
        f"{verdict.reason}, but whether it is meant to be up cannot be told: hands off",
        "intent_unknown",
        alert=f"{verdict.reason}; its intent cannot be told",
    )


def _lease(
    settings: Settings, memory: Memory, verdict: Verdict, observation: Observation, now: float
) -> Decision | None:
    holders = observation.lease_holders()
    if not holders or verdict.rule == "given_up":
        return None  # nothing runs that a start could disturb
    if settings.busy_policy == "proof" and verdict.state is State.HUNG:
        return None
    return _none(f"{verdict.reason}, but {', '.join(holders)} holds a busy lease", "lease")


def _thrashing(
    settings: Settings, memory: Memory, verdict: Verdict, observation: Observation, now: float
) -> Decision | None:
    pressure = observation.host.memory_pressure
    if verdict.rule == "given_up" or pressure is None or pressure <= settings.thrashing_share:
        return None
    return _none(
        f"{verdict.reason}, but the host is short of memory ({pressure:.0%} of a minute stood still): no proof",
        "thrashing",
        alert="the host is short of memory",
    )


def _half(
    settings: Settings, memory: Memory, verdict: Verdict, observation: Observation, now: float
) -> Decision | None:
    """A server of several nodes is stopped and started as a whole or not at all."""
    gone = [rank.host for rank in observation.ranks if rank.reachable is False]
    if not gone:
        return None
    return _none(
        f"{verdict.reason}, but {', '.join(gone)} cannot be reached, and half of it is never restarted",
        "rank_unreachable",
        alert=f"{', '.join(gone)} cannot be reached: not restarted",
    )


def _memory_lack(settings: Settings, observation: Observation) -> str | None:
    """Judged only where the server is down: what it holds while it runs is not there yet."""
    need, there = settings.memory_needed_gib, observation.host.memory_available_gib
    if need is None or there is None or there >= need:
        return None
    return f"{need:g} GiB are needed and {there:.1f} are there"


def _cooldown(
    settings: Settings, memory: Memory, verdict: Verdict, observation: Observation, now: float
) -> Decision | None:
    acts = [act for act in memory.acts if act.counts]
    if acts and now - acts[-1].t < settings.cooldown_s:
        left = settings.cooldown_s - (now - acts[-1].t)
        return _none(f"{verdict.reason}; cool-down after the last {acts[-1].action}, {seconds(left)} left", "cooldown")
    return None


def _latch(settings: Settings, memory: Memory, now: float) -> str | None:
    acts = [act for act in memory.acts if act.counts]
    for window, budget in ((SIX_HOURS_S, settings.budget_6h), (A_DAY_S, settings.budget_24h)):
        done = sum(1 for act in acts if now - act.t < window)
        if done >= budget:
            return f"the budget of {budget} in {window / 3600:.0f} h is spent"
    last = acts[-settings.fruitless_restarts :]
    if len(last) >= settings.fruitless_restarts and all(act.fruitful is not True for act in last):
        return f"the last {len(last)} restarts brought no progress"
    return _never_ready_latch(settings, memory, now)


def _never_ready_latch(settings: Settings, memory: Memory, now: float) -> str | None:
    recent = [t for t in memory.never_ready_t if now - t <= settings.never_ready_window_s]
    if len(recent) < settings.never_ready_starts:
        return None
    return f"it was started {len(recent)} times in {seconds(settings.never_ready_window_s)} and was never ready"


def _proof(verdict: Verdict, observation: Observation, due: Action, sends_proof: bool) -> Decision | None:
    """None: the proof is there, or none is needed. A start and a dead server need none: nobody is there to answer."""
    if due is not Action.RESTART or verdict.state is State.DEAD:
        return None
    probe = observation.probe or ""
    if probe == "ok":
        return _none("it answered the last proof: no restart", "acquitted")
    if probe.startswith("http 4"):
        return _none(
            f"{verdict.reason}; the last proof was refused ({probe}), which neither acquits nor convicts",
            "proof_refused",
        )
    if sends_proof:
        return _none(f"{verdict.reason}; the last proof is due", "prove", prove=True)
    return None


def _probe_due(settings: Settings, memory: Memory, verdict: Verdict, observation: Observation) -> bool:
    """An idle server is asked now and then, a suspect one at once; one that did not answer is asked at every look."""
    if observation.lease_holders() or observation.probe is not None or observation.service.wanted is False:
        return False
    track = memory.track
    if track is None or verdict.state not in (State.IDLE, State.SUSPECT, State.STALLED):
        return False
    if any(engine.last is not None and engine.last.sleeping for engine in track.engines.values()):
        return False  # it might reach the rank that sleeps
    debt = any(engine.debt_t is not None for engine in track.engines.values())
    work = any(engine.work for engine in track.engines.values())
    if verdict.state is State.SUSPECT:
        return not debt
    if work:
        return False
    if debt:
        return True
    last_sign = max((e.sign_t for e in track.engines.values() if e.sign_t is not None), default=None)
    known = [t for t in (memory.probed_t, last_sign) if t is not None]
    return verdict.rule == "not_probed" and (not known or observation.t - max(known) >= settings.probe_every_s)


def _alert(settings: Settings, memory: Memory, now: float) -> str | None:
    if memory.latched:
        return f"latched: {memory.latched}"
    if memory.doubt_since is not None and now - memory.doubt_since >= settings.alert_after_s:
        return f"{memory.doubt_state} for {seconds(now - memory.doubt_since)}"
    return None
