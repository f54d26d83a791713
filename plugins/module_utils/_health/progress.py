# SPDX-License-Identifier: GPL-3.0-or-later
"""What is remembered of a server from one observation to the next, and how an observation changes it. Pure.

Invariants, for every engine of a `Track`:
- `progress_t` is the end of the last reading that showed progress, or of the first reading of this process;
- `work_t` is the end of the reading that first showed the work that is there now, or None where there is none;
- `sign_t` is the end of the last reading that showed progress, or when a probe was answered, or None;
- `stall_t` is the end of the reading that first showed a queue and nothing running, or None where that is not so;
- `stale_since` (of a `Track`) is the start of the process before, while the next one's is not told yet;
- `debt_t` is when the first probe was sent that nobody answered, or None; any progress or an answer pays it;
- `last` holds the last known value of every counter: one that a page leaves out is unknown, not back at nothing;
- `comparable` says that the latest reading had a counter that moves with every token, and its value of before is known;
- nothing here was ever compared across two processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .engines import BY_NAME, COUNTERS, PROGRESS_COUNTERS
from .observation import Observation
from .reading import EngineReading, Reading

# process_start_time_seconds has a resolution of 10 ms and drifts with the clock's slewing; a restart takes longer.
START_TOLERANCE_S = 1.0
# A unit's start is asked for once per observation and rebuilt from another clock.
SINCE_TOLERANCE_S = 3.0
# Preemptions free KV cache, so its maximum is counted anew; a livelock of preemptions must not look like progress.
KV_RESETS_WITHOUT_TOKEN = 2
# Stale gauges are believed to be stale in the second observation without a client.
SUSPECT_OBSERVATIONS = 2
# A start time that came back is a load balancer until one process has answered this many times in a row.
BALANCER_FORGOTTEN_AFTER = 30
# 12 W: an idle GB10; a deadlocked one draws at least 16 W. Used only where utilisation is unknown.
GPU_IDLE_POWER_W = 15.0
GPU_IDLE_UTILIZATION = 0.05
# An engine that the page leaves out for longer than this was taken away (ranks can be scaled down).
UNSEEN_READINGS = 5
# The heartbeat plug-in turns itself off when it fails; then other counters move and it does not.
HEARTBEAT_MISSES = 2
# One of these moves with every token of a healthy decode. Without any, silence is ours: no sign could have been seen.
TOKEN_COUNTERS = ("heartbeat", "steps", "generation_tokens", "flops")
# The pseudo engine that carries what cannot be laid at one rank's door (an unpinned probe, /load) where there are several.
WHOLE = "*"


@dataclass(frozen=True)
class EngineTrack:
    """One engine's memory. Times are on the observations' clock, in seconds."""

    progress_t: float
    last: EngineReading | None = None
    work_t: float | None = None
    debt_t: float | None = None
    kv_max: float | None = None
    kv_resets: int = 0
    readings: int = 1
    moved: bool = False
    first: bool = True
    signs: tuple[str, ...] = ()
    heartbeat_misses: int = 0
    work: float | None = None
    sign_t: float | None = None
    stall_t: float | None = None
    comparable: bool = False
    beating: bool = False
    unseen: int = 0

    @property
    def heartbeat_trusted(self) -> bool:
        """A true step counter is there and moves when others do."""
        return self.beating and self.heartbeat_misses < HEARTBEAT_MISSES

    @property
    def has_work(self) -> bool:
        """Requests in flight, or a probe of ours that nobody answered."""
        return bool(self.work) or self.debt_t is not None

    @property
    def silent_since(self) -> float:
        """When the silence began: the last sign of progress, or when the work was first seen, whichever is later.

        Where both requests and our probe wait, the work that came first counts: a probe makes no silence shorter.
        """
        begun = []
        if self.work:
            begun.append(max(self.progress_t, self.work_t if self.work_t is not None else self.progress_t))
        if self.debt_t is not None:
            begun.append(max(self.progress_t, self.debt_t))
        return min(begun, default=self.progress_t)


@dataclass(frozen=True)
class Track:
    """A server's memory between observations."""

    t: float
    engines: dict[str, EngineTrack] = field(default_factory=dict)
    start_time: float | None = None
    starts: tuple[float, ...] = ()
    same_start: int = 0
    balancer: bool = False
    since: float | None = None
    ready: bool = False
    refused_t: float | None = None
    activating_t: float | None = None
    stale_since: float | None = None
    down_observations: int = 0
    clientless: int = 0
    suspect_cleared: bool = False
    new_process: bool = True
    read_begin: float | None = None
    asleep: bool = False

    @property
    def moved(self) -> bool:
        """Some engine showed progress in the latest observation."""
        return any(engine.moved for engine in self.engines.values())


def gpu_idle(observation: Observation) -> bool:
    """Known to be idle. High utilisation says nothing on a GB10 (a deadlock reads 95 %), but a low one does."""
    host = observation.host
    if host.gpu_utilization is not None:
        return host.gpu_utilization <= GPU_IDLE_UTILIZATION
    return host.gpu_power_w is not None and host.gpu_power_w <= GPU_IDLE_POWER_W


def _same(a: float, b: float, tolerance: float) -> bool:
    return abs(a - b) <= tolerance


def _counters_fell(before: EngineReading, now: EngineReading) -> bool:
    for name in COUNTERS:
        old, new = getattr(before, name), getattr(now, name)
        if old is not None and new is not None and new < old:
            return True
    return False


def _restarted(track: Track, observation: Observation, reading: Reading) -> bool:
    """Another process answered than last time."""
    old, new = track.start_time, reading.start_time
    if old is not None and new is not None and not _same(old, new, START_TOLERANCE_S):
        return True
    if _since_changed(track, observation):
        return True  # several API servers publish no start time, and their counters can survive a restart
    return any(
        track.engines[label].last is not None and _counters_fell(track.engines[label].last or now, now)
        for label, now in reading.engines.items()
        if label in track.engines
    )


def _since_changed(track: Track, observation: Observation) -> bool:
    since = observation.service.since
    return since is not None and track.since is not None and not _same(since, track.since, SINCE_TOLERANCE_S)


def _stale_since(track: Track, before: Track | None, observation: Observation) -> float | None:
    """A start that a manager still shows while it starts the server anew: the one before's."""
    service = observation.service
    if service.state != "activating" or service.since is None or before is None:
        return None
    if track.activating_t is not None:
        return track.stale_since
    return service.since if track.since is not None and not _since_changed(track, observation) else None


def _work(label: str, reading: Reading, observation: Observation) -> float | None:
    """Requests in flight in one engine. /load counts the front end's, so it is a lone engine's or nobody's in particular;
    it counts our own unanswered probe too, which is debt already. /load at 0 says nothing: vLLM says 0 untracked."""
    work = reading.engines[label].work
    if len(reading.engines) == 1 and (extra := _front_end(reading, observation)):
        return max(work or 0.0, extra)
    return work


def _front_end(reading: Reading, observation: Observation) -> float:
    own = 1.0 if observation.probe == "timeout" else 0.0
    return max((reading.in_flight or 0.0) - own, 0.0)


def _signs(track: EngineTrack, now: EngineReading) -> tuple[tuple[str, ...], bool]:
    """What moved since the last reading, and whether only the KV maximum did."""
    before = track.last
    if before is None:
        return (), False
    signs = [
        name
        for name in PROGRESS_COUNTERS
        if (old := getattr(before, name)) is not None and (new := getattr(now, name)) is not None and new > old
    ]
    if signs:
        return tuple(signs), False
    if now.kv_usage is not None and track.kv_max is not None and now.kv_usage > track.kv_max:
        return ("kv_usage",), True
    return (), False


def _work_since(track: EngineTrack, observation: Observation, work: float | None) -> float | None:
    if work is None:
        return track.work_t  # one reading that does not say ends no work
    if not work:
        return None
    return track.work_t if track.work_t is not None else observation.t


def _comparable(before: EngineReading | None, now: EngineReading) -> bool:
    """A silence can be told from one that we merely cannot hear."""
    return any(
        getattr(now, name) is not None and (before is None or getattr(before, name) is not None)
        for name in TOKEN_COUNTERS
    )


def _known(before: EngineReading | None, now: EngineReading) -> EngineReading:
    """`now`, with what it does not say filled in from before: counters only rise, so an unseen one is compared later."""
    if before is None:
        return now
    missing = {
        name: old for name in COUNTERS if getattr(now, name) is None and (old := getattr(before, name)) is not None
    }
    return replace(now, **missing) if missing else now


def _stall_since(before: float | None, now: EngineReading | None, observation: Observation) -> float | None:
    if now is None or now.running != 0 or not now.waiting:
        return None
    return before if before is not None else observation.t


def _advance_engine(
    track: EngineTrack, now: EngineReading, observation: Observation, work: float | None
) -> EngineTrack:
    signs, only_kv = _signs(track, now)
    moved = bool(signs)
    taken_up = bool(work) and track.work_t is None and track.debt_t is None  # a silence can begin here at the earliest
    kv_max, resets = track.kv_max, track.kv_resets
    idle = work == 0
    if moved or (idle and track.debt_t is None):
        # what comes after an idle spell is another request: it is not measured against the maximum of the one before
        kv_max = now.kv_usage
        resets = resets if only_kv else 0
    else:
        before = track.last
        preempted = (
            before is not None
            and before.preemptions is not None
            and now.preemptions is not None
            and now.preemptions > before.preemptions
        )
        if preempted and resets < KV_RESETS_WITHOUT_TOKEN:
            kv_max, resets = now.kv_usage, resets + 1
        elif kv_max is None:
            kv_max = now.kv_usage
    misses = track.heartbeat_misses
    if "heartbeat" in signs:
        misses = 0
    elif now.heartbeat is not None and moved and not only_kv:
        misses += 1
    return replace(
        track,
        last=_known(track.last, now),
        comparable=_comparable(track.last, now),
        beating=now.heartbeat is not None,
        unseen=0,
        progress_t=observation.t if moved else track.progress_t,
        sign_t=observation.t if moved else track.sign_t,
        work_t=_work_since(track, observation, work),
        debt_t=None if moved else track.debt_t,
        kv_max=kv_max,
        kv_resets=resets,
        readings=1 if moved or taken_up or (idle and track.debt_t is None) else track.readings + 1,
        moved=moved,
        first=False,
        signs=signs,
        heartbeat_misses=misses,
        work=work,
        stall_t=_stall_since(track.stall_t, now, observation),
    )


def _fresh(now: EngineReading | None, observation: Observation, work: float | None) -> EngineTrack:
    return EngineTrack(
        progress_t=observation.t,
        last=now,
        work_t=observation.t if work else None,
        kv_max=None if now is None else now.kv_usage,
        work=work,
        stall_t=_stall_since(None, now, observation),
        comparable=now is None or _comparable(None, now),
        beating=now is not None and now.heartbeat is not None,
    )


def _whole(track: Track | None, engines: dict[str, EngineTrack], observation: Observation) -> EngineTrack:
    """The pseudo engine: any engine's progress is its own."""
    old = track.engines.get(WHOLE) if track is not None else None
    work = _front_end(observation.reading, observation) if observation.reading is not None else 0.0
    # requests that some engine's own gauges explain are judged there
    explained = sum(engine.work or 0.0 for engine in engines.values())
    work = max(work - explained, 0.0)
    if old is None:
        return _fresh(None, observation, work)
    moved = any(engine.moved or engine.first for engine in engines.values())
    idle = work == 0
    taken_up = bool(work) and old.work_t is None and old.debt_t is None
    return replace(
        old,
        progress_t=observation.t if moved else old.progress_t,
        work_t=_work_since(old, observation, work),
        debt_t=None if moved else old.debt_t,
        readings=1 if moved or taken_up or (idle and old.debt_t is None) else old.readings + 1,
        moved=moved,
        first=False,
        work=work,
        comparable=any(engine.comparable for engine in engines.values()),
    )


def _apply_probe(engines: dict[str, EngineTrack], observation: Observation) -> dict[str, EngineTrack]:
    """An answered probe is a sign of life of the engine it reached; an unanswered one is work from when it was sent."""
    if observation.probe not in ("ok", "timeout"):
        return engines  # not sent, or a status: neither acquits nor convicts
    own = [label for label in engines if label != WHOLE]
    target = observation.probe_engine or (own[0] if len(own) == 1 else WHOLE)
    engine = engines.get(target) or EngineTrack(progress_t=observation.t)
    if observation.probe == "ok":
        engine = replace(
            engine,
            progress_t=observation.t,
            sign_t=observation.t,
            debt_t=None,
            moved=True,
            readings=1,
            signs=(*engine.signs, "probe"),
        )
    elif not engine.moved and engine.debt_t is None:
        sent = observation.begun if observation.probe_begin is None else observation.probe_begin
        engine = replace(engine, debt_t=sent)
    return {**engines, target: engine}


def took_up(before: Track | None, track: Track, observation: Observation) -> Track:
    """`track`, where other work was taken up while our probe went unanswered: those engines are not to blame for it.

    A queue acquits nobody, it grows before a hung engine too. Most engines count a request at once, so one request where
    our probe may be is our probe; where only a step's end sets the gauge, any that runs shows a step.
    """
    reading = observation.reading
    if before is None or reading is None or observation.probe != "timeout":
        return track
    row = BY_NAME.get(observation.engine or "")
    engines = dict(track.engines)
    for label, now in reading.engines.items():
        old, engine = before.engines.get(label), engines.get(label)
        if (
            old is None
            or engine is None
            or engine.first
            or engine.moved
            or old.work != 0
            or old.debt_t is not None
            or not now.running
        ):
            continue
        ours = 1.0 if observation.probe_engine in (None, label) else 0.0
        if (row is not None and row.running_by_step) or (now.work or 0.0) > ours:
            engines[label] = _acquitted(engine, observation.t)
            if WHOLE in engines:  # where the probe went cannot be told, so any engine's progress answers for it
                engines[WHOLE] = _acquitted(engines[WHOLE], observation.t)
    return replace(track, engines=engines)


def _acquitted(engine: EngineTrack, t: float) -> EngineTrack:
    return replace(
        engine, progress_t=t, sign_t=t, debt_t=None, moved=True, readings=1, signs=(*engine.signs, "taken_up")
    )


def _drowsy(track: Track, reading: Reading | None) -> set[str]:
    """The engines that sleep, or slept when last seen; with them what cannot be laid at one engine's door."""
    now = reading.engines if reading is not None else {}
    labels = {label for label, engine in now.items() if engine.sleeping}
    labels |= {label for label, old in track.engines.items() if old.last is not None and old.last.sleeping}
    return labels | {WHOLE} if labels else labels


def _moves_by_itself(before: Track, engines: dict[str, EngineTrack], observation: Observation) -> bool:
    """Progress that is not our own probe's, neither this one's nor that of one observation ago."""
    if observation.probe is not None or any("probe" in engine.signs for engine in before.engines.values()):
        return False
    return any(engine.moved for engine in engines.values())


def _void(engine: EngineTrack, t: float, read: bool) -> EngineTrack:
    """After a gap in our own runs, or a sleep on purpose, nothing that came before is proof; a look that did not read the
    page is no reading, and the next one that does begins the silence."""
    return replace(engine, progress_t=t, debt_t=None if engine.debt_t is None else t, readings=1 if read else 0)


def _after_doubt(before: EngineTrack | None, engine: EngineTrack, t: float) -> EngineTrack:
    """Where the gauges are stale a silence begins now; with a probe that nobody answered, when that was sent."""
    if engine.debt_t is None:
        return replace(engine, work_t=t, readings=1)
    if before is None or before.debt_t is None:
        return replace(engine, work_t=max(engine.work_t or engine.debt_t, engine.debt_t))
    return engine


def advance(track: Track | None, observation: Observation, gap_s: float | None = None) -> Track:
    """The memory after one more observation. `gap_s`: a longer pause between observations voids the silence so far."""
    before = track
    reading = observation.reading if observation.metrics == "ok" else None
    service = observation.service
    if track is None:
        track = Track(t=observation.t)
    gap = before is not None and gap_s is not None and observation.t - track.t > gap_s
    new_service = _since_changed(track, observation) or (
        # its manager starts it anew: until its main process is there, nothing is told of it or the start of the one before
        before is not None and service.state == "activating" and track.activating_t is None
    )
    engines = dict(track.engines)
    new_process = before is None
    starts, same_start, balancer, start_time = track.starts, track.same_start, track.balancer, track.start_time
    if reading is not None:
        known = [engine for label, engine in engines.items() if label != WHOLE]
        new_process = not known or _restarted(track, observation, reading)
        if new_process:
            own = {
                label: _fresh(now, observation, _work(label, reading, observation))
                for label, now in reading.engines.items()
            }
            whole_before = None
        else:
            # an engine that this page leaves out is still there, and nothing is known of it now
            own = {
                label: replace(engine, moved=False, first=False, signs=(), comparable=False, unseen=engine.unseen + 1)
                for label, engine in engines.items()
                if label != WHOLE and label not in reading.engines and engine.unseen < UNSEEN_READINGS
            }
            for label, now in reading.engines.items():
                work = _work(label, reading, observation)
                old = engines.get(label)
                own[label] = (
                    _fresh(now, observation, work) if old is None else _advance_engine(old, now, observation, work)
                )
            whole_before = track
        engines = own
        if len(own) != 1 or (whole_before is not None and WHOLE in whole_before.engines):
            engines = {**own, WHOLE: _whole(whole_before, own, observation)}
        if reading.start_time is not None:
            if start_time is not None and _same(start_time, reading.start_time, START_TOLERANCE_S):
                same_start += 1
            else:
                came_back = any(_same(s, reading.start_time, START_TOLERANCE_S) for s in starts)
                starts = (*starts, reading.start_time)[-8:]
                balancer, same_start = came_back or balancer, 0
            start_time = reading.start_time
            if same_start >= BALANCER_FORGOTTEN_AFTER:
                balancer, starts = False, (reading.start_time,)
    elif new_service:
        engines = {}  # whatever answers next is another process, also where it publishes no start time
    else:
        engines = {label: replace(engine, moved=False, first=False, signs=()) for label, engine in engines.items()}
    # of those that a look without a page voided, this is the first reading
    unread = {label for label, old in track.engines.items() if old.readings == 0 and reading is not None}
    engines = {
        label: _void(engine, observation.t, reading is not None)
        if (gap or label in unread) and not (engine.moved or engine.first)
        else engine
        for label, engine in engines.items()
    }
    asleep = bool(observation.paused) or (reading is not None and reading.asleep)
    # it stands still on purpose: a silence can only begin when it is awake again
    drowsy = _drowsy(track, reading)
    engines = {
        label: _void(engine, observation.t, reading is not None)
        if asleep or track.asleep or label in drowsy
        else engine
        for label, engine in engines.items()
    }
    engines = _apply_probe(engines, observation)
    moved = any(engine.moved for engine in engines.values())
    refused = observation.metrics == "refused"
    up = reading is not None or observation.health == "ok"
    down = service.state in ("inactive", "failed") and service.wanted is True and reading is None
    host = observation.host
    work = any(engine.work for engine in engines.values())
    clientless = reading is not None and not moved and work and host.clients == 0 and gpu_idle(observation)
    cleared = track.suspect_cleared or (track.clientless >= SUSPECT_OBSERVATIONS - 1 and observation.probe == "ok")
    cleared = cleared and not new_process and host.clients == 0 and not _moves_by_itself(track, engines, observation)
    silent_clients = track.clientless + 1 if clientless else 0
    if cleared or silent_clients >= SUSPECT_OBSERVATIONS:
        # stale gauges are no work: a silence can only begin after them
        engines = {
            label: _after_doubt(track.engines.get(label), engine, observation.t) for label, engine in engines.items()
        }
    return Track(
        t=observation.t,
        engines=engines,
        start_time=start_time,
        starts=starts,
        same_start=same_start,
        balancer=balancer,
        since=service.since if service.since is not None else track.since,
        ready=(up or (track.ready and not new_service)) if before is not None else up,
        refused_t=(track.refused_t if track.refused_t is not None and not new_service and not gap else observation.t)
        if refused
        else None,
        activating_t=(track.activating_t if track.activating_t is not None else observation.t)
        if service.state == "activating"
        else None,
        stale_since=_stale_since(track, before, observation),
        down_observations=track.down_observations + 1 if down else 0,
        clientless=silent_clients,
        suspect_cleared=cleared,
        new_process=new_process,
        read_begin=observation.begun,
        asleep=asleep if reading is not None else track.asleep and not new_service,
    )
