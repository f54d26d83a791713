# SPDX-License-Identifier: GPL-3.0-or-later
"""One host's page as HTML: no script, nothing from elsewhere, readable on a phone. Pure: plain data in, text out.

Every text goes through `_t`, which takes secrets out and escapes. Plots are SVG that is stretched to the page's width, so
their words stand beside them in HTML and keep their size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from html import escape
from typing import Any

from .._health.verdict import State
from .scrub import without_secrets
from .timeline import GAP_S, Event, Restart, Sample, Span, Timeline, held, shares

COLUMNS = 720  # of a plot; a window of any length makes a page of the same size
MOST_EVENTS = 100
MOST_TEXT = 400
# What a state looks like, the worst first: where several meet in one column of the plot, the worst is shown.
COLOURS: dict[str | None, str] = {
    State.HOST_FAULT: "#111111",
    State.DEAD: "#7b1fa2",
    State.HUNG: "#c62828",
    State.UNRESPONSIVE: "#ef6c00",
    State.STALLED: "#f9a825",
    State.SUSPECT: "#fff176",
    State.UNKNOWN: "#b0a99f",
    State.STARTING: "#64b5f6",
    State.STOPPED: "#757575",
    State.SLEEPING: "#90a4ae",
    State.BUSY: "#2e7d32",
    State.REACHABLE: "#80cbc4",
    State.IDLE: "#a5d6a7",
    None: "none",
}
# These are marked on the plots; the rest is in the list below them.
MARKED = {
    "decided": "#c62828",
    "would": "#f06292",
    "refused": "#ef6c00",
    "latched": "#7b1fa2",
    "cleared": "#1565c0",
    "maintenance": "#1565c0",
    "reboot": "#111111",
}
_STYLE = """
:root{--ink:#1c1c1c;--soft:#5f6368;--paper:#fff;--card:#f6f7f8;--line:#d7dadd}
@media(prefers-color-scheme:dark){:root{--ink:#e8eaed;--soft:#9aa0a6;--paper:#17181a;--card:#222427;--line:#3c4043}}
*{box-sizing:border-box;overflow-wrap:anywhere}
body{margin:0 auto;padding:12px;max-width:1000px;background:var(--paper);color:var(--ink);
font:16px/1.45 system-ui,sans-serif}
h1{font-size:1.35rem;margin:.2em 0}h2{font-size:1.2rem;margin:.2em 0}h3{font-size:1rem;margin:1.1em 0 .3em}
p{margin:.4em 0}.soft{color:var(--soft);font-size:.875rem}
section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px;margin:14px 0}
.pill{display:inline-block;border-radius:1em;padding:0 .6em;border:1px solid var(--line);font-size:.95rem}
.dot{display:inline-block;width:.8em;height:.8em;border-radius:2px;border:1px solid var(--soft);margin-right:.3em}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:8px;margin:.6em 0}
dl div{background:var(--paper);border:1px solid var(--line);border-radius:6px;padding:6px 8px}
dt{color:var(--soft);font-size:.8rem}dd{margin:0;font-weight:600}
.alarm{border-left:4px solid #c62828;padding-left:8px}
.plots{position:relative;margin-top:.4em}
.plots svg{display:block;width:100%;background:var(--paper);border:1px solid var(--line)}
.lane{display:flex;justify-content:space-between;gap:8px;font-size:.8rem;color:var(--soft);margin-top:6px}
.ticks{display:flex;justify-content:space-between;font-size:.75rem;color:var(--soft)}
.mark{position:absolute;top:0;bottom:0;width:0;border-left:2px dashed;opacity:.8}
.key{display:flex;flex-wrap:wrap;gap:4px 14px;font-size:.85rem;margin:.5em 0;padding:0;list-style:none}
details{border-top:1px solid var(--line);padding:6px 0}summary{cursor:pointer}
pre{white-space:pre-wrap;font-size:.78rem;margin:.3em 0;background:var(--paper);padding:6px;border-radius:4px}
ol.events{list-style:none;padding:0;margin:0;font-size:.875rem}ol.events li{border-top:1px solid var(--line);padding:4px 0}
a{color:inherit}
"""


@dataclass(frozen=True)
class Piece:
    """One file of a restart's evidence: a sentence on it, and the rows of it that may leave the host."""

    name: str
    says: str
    rows: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServerPage:
    """One server. `status`: what `llm-watchdog status` says; `words`: what `explain` says; `evidence`: by restart,
    all of it in `folder`."""

    name: str
    url: str
    engine: str | None
    mode: str
    budget: str
    status: Mapping[str, Any]
    words: Sequence[str]
    timeline: Timeline
    folder: str = "evidence"
    evidence: Mapping[str, Sequence[Piece]] = field(default_factory=dict)


@dataclass(frozen=True)
class HostPage:
    """The page of a host. `leases`: a sentence for each that holds now; `notes`: what could not be read."""

    host: str
    since: float
    until: float
    zone: tzinfo
    servers: Sequence[ServerPage]
    leases: Sequence[str] = ()
    notes: Sequence[str] = ()


def _t(text: object) -> str:
    """Any text for the page: without secrets, of bounded length, escaped."""
    plain = without_secrets(str(text))
    return escape(plain if len(plain) <= MOST_TEXT else plain[:MOST_TEXT] + " …")


def lasted(seconds: float) -> str:
    """A duration for a reader: 40 s, 12 min, 3 h 05 min, 2 d 4 h."""
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def _when(at: float, zone: tzinfo, form: str = "%a %d %b %H:%M") -> str:
    return datetime.fromtimestamp(at, zone).strftime(form)


def _word(state: str | None) -> str:
    return "not looked at" if state is None else state.replace("_", " ")


def _colour(state: str | None) -> str:
    return COLOURS.get(state, COLOURS[State.UNKNOWN])


# plots


def columns(spans: Iterable[Span], since: float, until: float) -> list[tuple[int, int, str | None]]:
    """Runs of columns with one state, [first, last). Where states meet in a column, the worst is kept."""
    rank = {state: n for n, state in enumerate(COLOURS)}
    cells: list[str | None] = [None] * COLUMNS
    width = (until - since) / COLUMNS
    for one in spans:
        first = min(int((one.begin - since) / width), COLUMNS - 1)
        last = min(max(int((one.end - since) / width), first + 1), COLUMNS)
        for n in range(first, last):
            if rank.get(one.state, 0) < rank.get(cells[n], len(rank)):
                cells[n] = one.state
    runs: list[tuple[int, int, str | None]] = []
    for n, state in enumerate(cells):
        if runs and runs[-1][2] == state:
            runs[-1] = (runs[-1][0], n + 1, state)
        else:
            runs.append((n, n + 1, state))
    return runs


def _svg(height: int, inside: str, says: str) -> str:
    return (
        f'<svg viewBox="0 0 {COLUMNS} {height}" height="{height}" preserveAspectRatio="none" role="img" '
        f'aria-label="{_t(says)}">{inside}</svg>'
    )


def _ribbon(found: Timeline) -> str:
    rects = [
        f'<rect x="{first}" y="0" width="{last - first}" height="26" fill="{_colour(state)}">'
        f"<title>{_t(_word(state))}</title></rect>"
        for first, last, state in columns(found.spans, found.since, found.until)
    ]
    said = ", ".join(f"{_word(state)} {lasted(length)}" for state, length in shares(found).items())
    return _svg(26, "".join(rects), f"states: {said}")


def _buckets(
    samples: Sequence[Sample], value: Callable[[Sample], float | None], since: float, until: float
) -> list[tuple[int, float]]:
    """The highest value in each column that has one."""
    found: dict[int, float] = {}
    for one in samples:
        number = value(one)
        if number is not None:
            n = min(max(int((one.at - since) / (until - since) * COLUMNS), 0), COLUMNS - 1)
            found[n] = max(found.get(n, number), number)
    return sorted(found.items())


def _path(points: Sequence[tuple[int, float]], top: float, height: int, broken_at: float, filled: bool) -> str:
    """Through the points; broken where there are none for longer than a look may take."""
    parts: list[str] = []
    run: list[tuple[int, float]] = []

    def close() -> None:
        if not run:
            return
        line = [f"{n + 0.5:g},{height - 1 - (height - 2) * value / top:.1f}" for n, value in run]
        if len(line) == 1:
            line.append(f"{run[0][0] + 1.5:g},{line[0].split(',')[1]}")
        if filled:
            line = [f"{run[0][0] + 0.5:g},{height}", *line, f"{run[-1][0] + 0.5:g},{height}"]
        parts.append("M" + "L".join(line))

    for n, value in points:
        if run and n - run[-1][0] > broken_at:
            close()
            run = []
        run.append((n, value))
    close()
    return "".join(parts)


@dataclass(frozen=True)
class _Line:
    name: str
    value: Callable[[Sample], float | None]
    colour: str
    filled: bool = False


_LANES: tuple[tuple[str, str, float, tuple[_Line, ...]], ...] = (
    # title, unit, the scale's top at least, lines
    (
        "requests",
        "",
        1.0,
        (_Line("running", lambda s: s.running, "#2e7d32", True), _Line("waiting", lambda s: s.waiting, "#e65100")),
    ),
    ("generated tokens", "/s", 1.0, (_Line("tokens", lambda s: s.tokens, "#1565c0", True),)),
    ("KV cache", " %", 100.0, (_Line("used", lambda s: None if s.kv is None else 100 * s.kv, "#6a1b9a"),)),
    ("GPU power", " W", 10.0, (_Line("power", lambda s: s.power_w, "#ad1457"),)),
)


def _lanes(found: Timeline) -> tuple[list[str], list[str]]:
    """The plots that have something to show, and the names of those that have not."""
    made: list[str] = []
    empty: list[str] = []
    broken_at = max(GAP_S / (found.until - found.since) * COLUMNS, 1.5)
    height = 54
    for title, unit, least, lines in _LANES:
        drawn: list[str] = []
        said: list[str] = []
        points = [(line, _buckets(found.samples, line.value, found.since, found.until)) for line in lines]
        top = max([least, *(value for dummy, row in points for dummy_n, value in row)])
        for line, row in points:
            if not row:
                continue
            path = _path(row, top, height, broken_at, line.filled)
            paint = f'fill="{line.colour}" fill-opacity=".35"' if line.filled else 'fill="none"'
            drawn.append(
                f'<path d="{path}" {paint} stroke="{line.colour}" stroke-width="1.5" '
                'vector-effect="non-scaling-stroke"/>'
            )
            name = "" if len(lines) == 1 else f"{line.name} "
            said.append(f"{name}at most {max(value for dummy, value in row):.4g}{unit}")
        if not drawn:
            empty.append(title)
            continue
        key = "".join(
            f'<span><i class="dot" style="background:{line.colour}"></i>{line.name}</span> '
            for line in lines
            if len(lines) > 1
        )
        made.append(f'<div class="lane"><span>{_t(title)} {key}</span><span>{_t(", ".join(said))}</span></div>')
        made.append(_svg(height, "".join(drawn), f"{title}: {', '.join(said)}"))
    return made, empty


def _lease_lane(found: Timeline) -> list[str]:
    owners = sorted({owner for one in found.samples for owner in one.leases})
    if not owners:
        return []
    rects = "".join(
        f'<rect x="{first}" y="0" width="{last - first}" height="10" fill="#1565c0"/>'
        for first, last, state in columns(held(found.samples, found.until), found.since, found.until)
        if state is not None
    )
    return [
        f'<div class="lane"><span>busy leases</span><span>{_t(", ".join(owners))}</span></div>',
        _svg(10, rects, f"busy leases: {', '.join(owners)}"),
    ]


def _ticks(found: Timeline, zone: tzinfo) -> str:
    form = "%H:%M" if found.until - found.since <= 36 * 3600 else "%d %b"
    at = [found.since + (found.until - found.since) * n / 4 for n in range(5)]
    return f'<div class="ticks">{"".join(f"<span>{_when(one, zone, form)}</span>" for one in at)}</div>'


def _marks(found: Timeline, zone: tzinfo) -> str:
    made = []
    for one in found.events:
        if one.kind in MARKED:
            left = 100 * (one.at - found.since) / (found.until - found.since)
            made.append(
                f'<span class="mark" style="left:{left:.2f}%;border-color:{MARKED[one.kind]}" '
                f'title="{_t(_when(one.at, zone))}: {_t(one.what)}"></span>'
            )
    return "".join(made[-MOST_EVENTS:])


def _plots(found: Timeline, zone: tzinfo) -> str:
    lanes, empty = _lanes(found)
    key = "".join(
        f'<li><i class="dot" style="background:{_colour(state)}"></i>{_t(_word(state))} {lasted(length)}</li>'
        for state, length in shares(found).items()
    )
    marked = sorted({one.kind for one in found.events if one.kind in MARKED})
    key += "".join(f'<li><b style="color:{MARKED[kind]}">┆</b> {_t(kind)}</li>' for kind in marked)
    missing = f'<p class="soft">No figures for: {_t(", ".join(empty))}.</p>' if empty else ""
    torn = "a line of the trace is" if found.lost == 1 else f"{found.lost} lines of the trace are"
    lost = f'<p class="soft">Left out: {torn} not whole.</p>' if found.lost else ""
    return (
        f'<div class="plots">{_marks(found, zone)}<div class="lane"><span>state</span></div>{_ribbon(found)}'
        f"{''.join(_lease_lane(found))}{''.join(lanes)}{_ticks(found, zone)}</div>"
        f'<ul class="key">{key}</ul>{missing}{lost}'
    )


# words


def _restart(one: Restart, server: ServerPage, zone: tzinfo, opened: bool) -> str:
    pieces = server.evidence.get(one.id, ())
    ended = "under way" if one.ended is None else f"{one.outcome or 'ended'} after {lasted(one.ended - one.begun)}"
    shown = "".join(
        f"<p><b>{_t(piece.name)}</b> {_t(piece.says)}</p>"
        + (f"<pre>{chr(10).join(_t(row) for row in piece.rows)}</pre>" if piece.rows else "")
        for piece in pieces
    )
    where = f'<p class="soft">Evidence: {_t(server.folder)}/{_t(one.evidence)}</p>' if one.evidence else ""
    none = "" if pieces else '<p class="soft">No evidence was kept of it, or none that can be read here.</p>'
    return (
        f"<details{' open' if opened else ''}><summary><b>{_t(_when(one.begun, zone))} {_t(one.action)}</b>: "
        f"{_t(one.reason)}</summary><p>By {_t(one.by)}; {_t(ended)}.</p>{where}{shown}{none}</details>"
    )


def _events(found: Sequence[Event], zone: tzinfo) -> str:
    newest = list(found)[-MOST_EVENTS:][::-1]
    rows = "".join(
        f"<li>{_t(_when(one.at, zone, '%d %b %H:%M:%S'))} <b>{_t(one.what)}</b> {_t(one.text)}</li>" for one in newest
    )
    older = len(found) - len(newest)
    left = f'<p class="soft">{older} older ones are left out; `llm-watchdog history` has them.</p>' if older else ""
    return f'<ol class="events">{rows}</ol>{left}'


def _facts(server: ServerPage) -> str:
    said, found = server.status, server.timeline
    last, under_way, kept = said.get("last_act"), said.get("under_way"), said.get("maintenance")
    rows = {
        "looked at": "never" if said.get("looked_seconds_ago") is None else lasted(said["looked_seconds_ago"]) + " ago",
        "running, waiting": " and ".join(
            "?" if said.get(key) is None else f"{said[key]:g}" for key in ("running", "waiting")
        ),
        "restarts and starts here": str(len(found.restarts)),
        "last one": "none in 30 days" if not last else f"{last['action']} {lasted(last['seconds_ago'])} ago",
        "budget": f"{said.get('budget_left')} left ({server.budget})",
        "latch": "LATCHED" if said.get("latched") else "open",
        "mode": server.mode,
    }
    if under_way:
        rows["under way"] = f"{under_way['action']}: {under_way['phase']}"
    if kept:
        rows["maintenance"] = f"{lasted(kept['seconds_left'])} more, by {kept['by']}: {kept['reason']}"
    return "".join(f"<div><dt>{_t(name)}</dt><dd>{_t(value)}</dd></div>" for name, value in rows.items())


def _server(server: ServerPage, zone: tzinfo) -> str:
    state, said, found = server.status.get("state"), server.status, server.timeline
    for_s = said.get("since_seconds")
    head = _word(state) if state else "not looked at yet"
    latched = f'<p class="alarm"><b>Latched:</b> {_t(said["latched"])}. Nothing more is done to it.</p>'
    acts = list(found.restarts)[::-1]
    restarts = "".join(_restart(one, server, zone, opened=n == 0) for n, one in enumerate(acts))
    words = "".join(f"<p>{_t(line)}</p>" for line in server.words)
    return (
        f'<section id="{_t(server.name)}"><h2>{_t(server.name)} <span class="pill"><i class="dot" '
        f'style="background:{_colour(state)}"></i>{_t(head)}</span></h2>'
        f'<p class="soft">{_t(server.url)}{_t(f", {server.engine}" if server.engine else "")}</p>'
        f"<p>{_t(said.get('reason') or 'Nothing is known of it yet')}"
        f"{_t(f' (for {lasted(for_s)})' if for_s is not None else '')}.</p>{latched if said.get('latched') else ''}"
        f"<dl>{_facts(server)}</dl>{_plots(found, zone)}"
        f"<h3>Restarts and starts, the newest first</h3>{restarts or '<p>None in this time.</p>'}"
        f"<h3>What was recorded</h3>{_events(found.events, zone) if found.events else '<p>Nothing.</p>'}"
        f"<details><summary>In words, as of now</summary>{words}</details></section>"
    )


def page(host: HostPage) -> str:
    """The whole page."""
    zone = host.zone
    offset = datetime.fromtimestamp(host.until, zone).strftime("%z")
    rows = "".join(
        f'<li><i class="dot" style="background:{_colour(one.status.get("state"))}"></i>'
        f'<a href="#{_t(one.name)}">{_t(one.name)}</a> {_t(_word(one.status.get("state")))}'
        f"{' <b>LATCHED</b>' if one.status.get('latched') else ''}</li>"
        for one in host.servers
    )
    leases = "".join(f"<p>{_t(line)}</p>" for line in host.leases) or "<p>No busy lease is held.</p>"
    notes = "".join(f'<p class="alarm">{_t(line)}</p>' for line in host.notes)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{_t(host.host)}: model servers</title><style>{_STYLE}</style></head><body>"
        f"<h1>Model servers on {_t(host.host)}</h1>"
        f'<p class="soft">{_t(_when(host.since, zone))} to {_t(_when(host.until, zone))} (UTC{_t(offset)}), '
        f"{lasted(host.until - host.since)}</p>"
        f'{notes}<ul class="key">{rows or "<li>No server is described.</li>"}</ul>{leases}'
        f"{''.join(_server(one, zone) for one in host.servers)}</body></html>\n"
    )
