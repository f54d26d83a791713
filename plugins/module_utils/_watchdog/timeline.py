# SPDX-License-Identifier: GPL-3.0-or-later
"""What happened to one server in a window of time: states, numbers, restarts, events. Pure: records in, plain data out.

The journal says when states changed and what was done; the trace says what was seen in between. Times in and out of here
are seconds since the epoch; the trace's clock is turned into them by the anchors that the journal carries.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .._health.observation import Observation, from_json
from .clock import Anchor

# The timer looks every minute and a run lasts at most one: nothing seen for this long means that nobody looked.
GAP_S = 300.0
# A restart under way may wait for so long and record nothing: the start ceiling of a server over two nodes.
WAIT_S = 3600.0
# What the journal holds that a person asks about; readings' own noise (phases, alerts) is told with its restart.
TOLD = (
    "decided",
    "closed",
    "aborted",
    "refused",
    "failed",
    "latched",
    "cleared",
    "maintenance",
    "lock",
    "proof",
    "kill",
    "reboot",
    "alert",
)


@dataclass(frozen=True)
class Span:
    """One state from `begin` to `end`. `state` None: nobody looked."""

    begin: float
    end: float
    state: str | None
    reason: str = ""


@dataclass(frozen=True)
class Sample:
    """Numbers of one look, summed over the server's engines (`kv`: the fullest, 0 to 1). None: unknown."""

    at: float
    running: float | None = None
    waiting: float | None = None
    tokens: float | None = None
    kv: float | None = None
    power_w: float | None = None
    leases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Event:
    """One record of the journal, for a person. `what`: the record's kind, with the action where it has one."""

    at: float
    kind: str
    what: str
    text: str


@dataclass(frozen=True)
class Restart:
    """A restart or start. `ended` and `outcome` None: it is under way. `evidence`: the name of its folder, or None."""

    id: str
    action: str
    begun: float
    reason: str
    by: str
    ended: float | None = None
    outcome: str | None = None
    evidence: str | None = None


@dataclass(frozen=True)
class Timeline:
    """One server in one window. `lost`: lines of the trace that were not whole and were left out."""

    since: float
    until: float
    spans: tuple[Span, ...] = ()
    samples: tuple[Sample, ...] = ()
    events: tuple[Event, ...] = ()
    restarts: tuple[Restart, ...] = ()
    lost: int = 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _when(row: Mapping[str, Any]) -> float | None:
    try:
        return datetime.fromisoformat(_text(row.get("time"))).timestamp()
    except (ValueError, OverflowError):
        return None


def _number(value: Any) -> float | None:
    """A finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer of hundreds of digits
        return None


def _anchor(value: Any) -> Anchor | None:
    if not isinstance(value, Mapping):
        return None
    t, wall = _number(value.get("t")), _number(value.get("wall"))
    return None if t is None or wall is None else Anchor(t, _text(value.get("boot")), 0.0, wall)


class Clocks:
    """From the watchdog's clock to seconds since the epoch, by the anchors that were written down on the way.

    Within a boot the newest anchor speaks for all: the wall clock may have been set right since its first ones.
    """

    def __init__(self, anchors: Iterable[Anchor]) -> None:
        by_t = {one.t: one for one in anchors}
        newest = {one.boot: one for dummy, one in sorted(by_t.items()) if one.boot}
        self._t = sorted(by_t)
        self._anchors = [newest.get(by_t[t].boot, by_t[t]) for t in self._t]

    def wall(self, t: float) -> float:
        """By the last anchor before `t`, else the first there is; without any, `t` itself."""
        if not self._t:
            return t
        anchor = self._anchors[max(bisect_right(self._t, t) - 1, 0)]
        return anchor.wall + (t - anchor.t)


def anchors(records: Iterable[Mapping[str, Any]], now: Anchor | None) -> list[Anchor]:
    """The clock's anchors in the journal, and the state's own."""
    found = [one for row in records if (one := _anchor(row.get("anchor"))) is not None]
    return [*found, now] if now is not None else found


def observations(
    lines: Iterable[str], clocks: Clocks, since: float, until: float
) -> tuple[list[tuple[float, Observation]], int]:
    """What the trace saw within the window, with the time of each look; and how many lines were not whole."""
    found: list[tuple[float, Observation]] = []
    lost = 0
    for line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if isinstance(row, dict) and "trace" in row:
                continue
            at = clocks.wall(row["t"])
            # most of a trace of weeks lies before the window
            if since <= at <= until:
                found.append((at, from_json(row)))
            elif not math.isfinite(at):
                lost += 1
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            lost += 1
    found.sort(key=lambda pair: pair[0])
    return found, lost


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _tokens(before: tuple[float, Observation] | None, now: tuple[float, Observation]) -> float | None:
    """Generated tokens a second since the look before, where both are of one process."""
    if before is None or before[1].reading is None or now[1].reading is None:
        return None
    old, new, passed = before[1].reading, now[1].reading, now[1].t - before[1].t
    if not 0 < passed <= GAP_S or old.start_time != new.start_time or set(old.engines) != set(new.engines):
        return None
    grown = 0.0
    for label, engine in new.engines.items():
        was, has = old.engines[label].generation_tokens, engine.generation_tokens
        if was is None or has is None or has < was:
            return None
        grown += has - was
    return grown / passed if new.engines else None


def samples(looks: Sequence[tuple[float, Observation]]) -> tuple[Sample, ...]:
    """The numbers of each look."""
    made: list[Sample] = []
    before: tuple[float, Observation] | None = None
    for at, seen in looks:
        engines = list(seen.reading.engines.values()) if seen.reading is not None else []
        kv = [one.kv_usage for one in engines if one.kv_usage is not None]
        made.append(
            Sample(
                at,
                _sum(one.running for one in engines),
                _sum(one.waiting for one in engines),
                _tokens(before, (at, seen)),
                max(kv) if kv else None,
                seen.host.gpu_power_w,
                seen.lease_holders(),
            )
        )
        if seen.reading is not None:
            before = (at, seen)
    return tuple(made)


def held(found: Sequence[Sample], until: float) -> tuple[Span, ...]:
    """When a lease was held: from each look that saw one to the next look, or for a gap's length where there is none."""
    ends = [*(one.at for one in found[1:]), until]
    return tuple(
        Span(one.at, min(end, one.at + GAP_S), "held") for one, end in zip(found, ends, strict=False) if one.leases
    )


def restarts(records: Iterable[Mapping[str, Any]], since: float, until: float) -> tuple[Restart, ...]:
    """Restarts and starts that were under way at some time of the window, in order."""
    found: dict[str, dict[str, Any]] = {}
    for row in records:
        at, event, given = _when(row), row.get("event"), row.get("transaction")
        if at is None:
            continue
        if event == "decided" and isinstance(given, Mapping):
            key = _text(given.get("id"))
            found[key] = {
                "id": key,
                "action": _text(row.get("action")) or "restart",
                "begun": at,
                "reason": _text(row.get("reason")),
                "by": _text(given.get("by")) or "watchdog",
            }
        elif event == "phase" and isinstance(given, Mapping) and _text(given.get("id")) in found:
            if given.get("evidence"):
                name = _text(given["evidence"]).rsplit("/", 1)[-1]
                found[_text(given.get("id"))]["evidence"] = None if name in ("", ".", "..") else name
        elif event in ("closed", "aborted") and _text(row.get("id")) in found:
            outcome = row.get("outcome") if event == "closed" else f"called off: {_text(row.get('reason'))}"
            found[_text(row.get("id"))].update(ended=at, outcome=_text(outcome) or None)
    made = [Restart(**one) for one in found.values()]
    return tuple(one for one in made if one.begun <= until and (one.ended is None or one.ended >= since))


def events(records: Iterable[Mapping[str, Any]], since: float, until: float) -> tuple[Event, ...]:
    """What the journal says of the window, but for the states (they are the spans) and the phases."""
    made: list[Event] = []
    for row in records:
        at, kind = _when(row), _text(row.get("event"))
        if at is None or kind not in TOLD or not since <= at <= until:
            continue
        what = f"{kind} {_text(row.get('action') or row.get('phase'))}".strip()
        text = _text(row.get("reason")) or _text(row.get("outcome"))
        if kind == "alert" and text.startswith(("restart: ", "start: ")):
            continue  # the decision itself stands beside it
        if kind == "alert" and text.startswith("would "):
            kind = what = "would"  # mode observe: a decision that was not carried out
            text = text.removeprefix("would ")
        by = _text(row.get("by"))
        made.append(Event(at, kind, what, f"{text} (by {by})" if by else text))
    return tuple(made)


def _changes(records: Iterable[Mapping[str, Any]], clocks: Clocks) -> list[tuple[float, str, str]]:
    rows = []
    for row in records:
        t = _number(row.get("t"))
        at = clocks.wall(t) if t is not None and "anchor" in row else _when(row)
        if row.get("event") == "state" and at is not None:
            rows.append((at, _text(row.get("state")), _text(row.get("reason"))))
    return sorted(rows, key=lambda one: one[0])


def _unseen(
    looks: Sequence[float], acts: Sequence[Restart], wrote: float, since: float, until: float
) -> list[tuple[float, float]]:
    """The stretches of the window in which nobody looked. A restart under way is a look, as it is being worked on; one
    that did not end is so for as long as it may wait since `wrote`, when the state was last written."""
    busy = [(one.begun, one.ended if one.ended is not None else max(wrote, one.begun) + WAIT_S) for one in acts]
    points = sorted(
        [(since, since), (until, until), *((at, at) for at in looks if since <= at <= until)]
        + [(max(begin, since), min(end, until)) for begin, end in busy if end >= since and begin <= until]
    )
    gaps: list[tuple[float, float]] = []
    seen_to = since
    for begin, end in points:
        if begin - seen_to > GAP_S:
            gaps.append((seen_to, begin))
        seen_to = max(seen_to, end)
    return gaps


def spans(
    records: Iterable[Mapping[str, Any]],
    looks: Sequence[float],
    acts: Sequence[Restart],
    since: float,
    until: float,
    now: Anchor | None = None,
    kept: tuple[float, str, str] | None = None,
) -> tuple[Span, ...]:
    """The states over the window, without a hole: where nobody looked, that is what is said. `kept`: since when (on the
    watchdog's clock) the state's own file has which state and why, for when the journal has forgotten its beginning."""
    rows = list(records)
    clocks = Clocks(anchors(rows, now))
    changes = _changes(rows, clocks)
    if not changes and kept is not None:
        changes = [(clocks.wall(kept[0]), *kept[1:])]
    wrote = now.wall if now is not None else since
    known: list[Span] = []
    for n, (at, state, reason) in enumerate(changes):
        end = changes[n + 1][0] if n + 1 < len(changes) else until
        begin, end = max(at, since), min(end, until)
        if begin < end:
            known.append(Span(begin, end, state, reason))
    first = known[0].begin if known else until
    # without a trace nothing can be said of gaps: then the journal alone speaks
    gaps = _unseen(looks, acts, wrote, since, until) if looks else []
    if first > since:
        gaps = [(since, first), *((max(a, first), b) for a, b in gaps if b > first)]
    cut: list[Span] = []
    for one in known:
        begin = one.begin
        for a, b in gaps:
            if b <= begin or a >= one.end:
                continue
            if a > begin:
                cut.append(Span(begin, a, one.state, one.reason))
            begin = max(begin, b)
        if begin < one.end:
            cut.append(Span(begin, one.end, one.state, one.reason))
    return tuple(sorted([*cut, *(Span(a, b, None) for a, b in gaps)], key=lambda one: one.begin))


def timeline(
    records: Sequence[Mapping[str, Any]],
    lines: Iterable[str],
    now: Anchor | None,
    since: float,
    until: float,
    kept: tuple[float, str, str] | None = None,
) -> Timeline:
    """One server's window. `records`: its journal; `lines`: its trace; `now`: its state's own anchor; `kept`: see `spans`."""
    looks, lost = observations(lines, Clocks(anchors(records, now)), since, until)
    acts = restarts(records, since, until)
    return Timeline(
        since,
        until,
        spans(records, [at for at, dummy in looks], acts, since, until, now, kept),
        samples(looks),
        events(records, since, until),
        acts,
        lost,
    )


def shares(found: Timeline) -> dict[str | None, float]:
    """Seconds in each state, the longest first."""
    totals: dict[str | None, float] = {}
    for one in found.spans:
        totals[one.state] = totals.get(one.state, 0.0) + one.end - one.begin
    return dict(sorted(totals.items(), key=lambda pair: -pair[1]))
