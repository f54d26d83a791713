# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the LiteLLM hook does, without LiteLLM: resolve, check, refuse or let pass; never stop the proxy.

The hook file hands in what only LiteLLM knows (``Live``) and turns a ``Refusal`` into LiteLLM's exception.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from .config import DEFAULT_CONFIG_FILE, GateConfig, load_config
from .errors import ConfigError
from .gate import Gate
from .groups import Capped, Kind, Routing, asked_about, capped_among, find_bypasses, make_routing, read_fallbacks
from .journal import Journal, Unchecked
from .metrics import Bypass, GateMetrics, NoMetrics
from .outcome import Checked, Outcome
from .shown import one_line
from .verdict import Blame, Cause, Fault, Question

LOG = logging.getLogger("gb10.usage_gate")

#: Seconds between two looks at the configuration file, the router and the journal.
TICK_S = 2.0
#: Seconds a description of the router is used while its size has not changed: models may be edited in a database.
ROUTING_S = 2.0
#: Seconds a client is told to wait when the gate itself is the reason.
CLOSED_RETRY_S = 5
#: What refuses one report for what it says. Everything else, a redirect to a login for one, is about all of them: they wait.
REFUSED_FOR_GOOD = frozenset({400, 409, 413, 422})
#: Seconds for telling the API of one unchecked request.
REPORT_S = 2.0
#: Seconds a denied client waits where the API named no reset.
DEFAULT_RETRY_S = 60
STATE_FOLDER = "/var/lib/gb10-serving/usage-gate"

_HASH = re.compile(r"[0-9a-f]{64}")
_FALLBACK_KEYS = ("fallbacks", "context_window_fallbacks", "content_policy_fallbacks")


@dataclass(frozen=True)
class Caller:
    """Who asks, as LiteLLM's authentication found out. ``key`` may be a key or its hash; it is hashed here."""

    key: str | None
    user: str | None = None
    team: str | None = None
    aliases: tuple[Mapping[str, Any], ...] = ()  # the key's and the team's


@dataclass(frozen=True)
class Live:
    """What the running proxy holds. Both may be None while it starts."""

    router: Any = None
    alias_map: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Refusal:
    """The request must not be served."""

    status: int
    kind: str
    sentence: str
    retry_after_s: int


@dataclass
class _Plan:
    """What must be asked about one request. Group names, in order."""

    direct: list[str] = field(default_factory=list)  # may serve it at once, or the client named them as fallbacks
    fallback: list[str] = field(default_factory=list)  # may serve it after a failure, without any hook being asked
    bypass: Refusal | None = None


def find_config(beside: Path) -> Path:
    """The configuration: where USAGE_GATE_CONFIG says, else beside the hook file, else the role's place."""
    named = os.environ.get("USAGE_GATE_CONFIG")
    if named:
        return Path(named)
    local = beside / "usage-gate.yml"
    return local if local.exists() else Path(DEFAULT_CONFIG_FILE)


def hashed(key: str | None) -> str:
    """A key as it may leave this process: LiteLLM's hash as it is, anything else hashed in LiteLLM's way."""
    text = key or ""
    return text if _HASH.fullmatch(text) else sha256(text.encode()).hexdigest()


class HookCore:
    """One per worker. Everything is caught: the worst that can happen to a request is to be served unchecked."""

    def __init__(self, config_path: Path, live: Callable[[], Live], state_folder: Path | None = None) -> None:
        self._path = config_path
        self._live = live
        self._folder = state_folder or Path(os.environ.get("USAGE_GATE_STATE_DIR", STATE_FOLDER))
        self._gate: Gate | None = None
        self._config: GateConfig | None = None
        self._capped = Capped(())
        self._journal: Journal | None = None
        self._stamp: tuple[tuple[int, ...] | None, ...] = (None, None)
        self._complaint: str | None = None
        self._routing = Routing()
        self._routing_key: tuple[Any, ...] = ()
        self._routing_at_s = -math.inf
        self._looked_at: Routing | None = None
        self._said: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = False
        self._said_active = False
        self._metrics: GateMetrics | None = None
        self._load()

    @property
    def metrics(self) -> GateMetrics:
        """The counters; under the default prefix while no configuration says another."""
        if self._metrics is None:
            self._metrics = _counters("usage_gate")
        return self._metrics

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin the background work; without a running loop this waits for the first request."""
        if self._started:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._started = True
        if self._gate is not None:
            self._gate.start()
        self._keep(loop.create_task(self._run()))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for work in (self._reload, self._look_at_router, self._say_active, self._report):
                try:
                    result = work()
                    if result is not None:
                        await result
                except Exception:
                    LOG.exception("usage gate: background work failed; it is tried again")

    def _say_active(self) -> None:
        gate = self._gate
        if gate is None or self._said_active or not gate.pool.members:
            return
        self._said_active = True
        LOG.warning(  # a warning, so that it is seen at LiteLLM's default level
            "usage gate active: %d capped models, %d endpoints, on failure %s",
            len(gate.config.capped_models),
            len(gate.pool.members),
            gate.config.on_failure.value,
        )

    # -- configuration -------------------------------------------------------------------------------------------

    def _stat(self, config: GateConfig | None) -> tuple[tuple[int, ...] | None, ...]:
        """What tells another file from this one, and another certificate authority: that is read once, and rotated too."""
        return tuple(map(_stamp, (self._path, config.request.ca_file if config is not None else None)))

    def _load(self) -> Gate | None:
        """Takes over the file if it is good; the gate it replaces."""
        read = _stamp(self._path)
        try:
            config = load_config(self._path)
            stamp = (read, self._stat(config)[1])
            metrics = self._metrics if config == self._config else _counters(config.metrics_prefix)
            # Made here: it reads the token and the authorities once more, and those may have gone meanwhile.
            same = config == self._config and stamp[1] == self._stamp[1]
            gate = None if same else Gate(config, metrics)
            if gate is not None and self._gate is not None:
                gate.inherit(self._gate)
        except ConfigError as error:
            self._complain("; ".join(error.problems))
            return None
        except Exception as error:  # a fault of ours must not take the gate away
            self._complain(f"{self._path}: {type(error).__name__} while reading it")
            return None
        self._stamp, self._complaint, self._metrics = stamp, None, metrics
        self.metrics.config(True)
        if gate is None:
            return None
        replaced = self._gate
        self._gate, self._config = gate, config
        self._capped = Capped(config.capped_models)
        self._journal = Journal(self._folder, keep_newest=config.request.unchecked_path is None)
        self._looked_at = None
        self._said.clear()
        self._said_active = False
        return replaced

    def _complain(self, sentence: str) -> None:
        self.metrics.config(False)
        if sentence != self._complaint:
            what = (
                "the last good configuration stays in use"
                if self._config
                else "NOTHING IS CHECKED until this is put right"
            )
            LOG.error("usage gate: %s; %s", sentence, what)
            self._complaint = sentence

    async def _reload(self) -> None:
        # What is wrong may lie beside the file, such as a token that is not there yet: then the file itself never changes.
        if self._stat(self._config) == self._stamp and self._complaint is None:
            return
        before = self._gate
        replaced = self._load()
        if self._gate is not None and self._gate is not before:
            self._gate.start()
            LOG.warning("usage gate: took over a changed %s", self._path)
        if replaced is not None:
            await replaced.stop()

    # -- the router ----------------------------------------------------------------------------------------------

    def routing(self) -> Routing:
        """What the live router would do with a name, at most two seconds old."""
        live = self._live()
        router = live.router
        models = getattr(router, "model_list", None) or []
        alias_table = getattr(router, "model_group_alias", None) or {}
        alias_map = live.alias_map or {}
        key = (id(router), len(models), tuple(map(str, alias_table)), tuple(map(str, alias_map)))
        now_s = asyncio.get_running_loop().time()
        if key != self._routing_key or now_s - self._routing_at_s > ROUTING_S:
            self._routing = make_routing(
                models,
                [alias_table, alias_map],
                [getattr(router, name, None) for name in _FALLBACK_KEYS],
                routing_groups=getattr(router, "routing_groups", None),
            )
            self._routing_key, self._routing_at_s = key, now_s
        return self._routing

    def _look_at_router(self) -> None:
        """Says once what would slip past the gate."""
        if self._live().router is None or self._config is None:
            return
        routing = self.routing()
        if routing == self._looked_at:  # looking takes 0.1 s of the loop with 2,000 groups [measured]
            return
        self._looked_at = routing
        for finding in find_bypasses(routing, self._capped):
            if finding.sentence in self._said:
                continue
            self._said.add(finding.sentence)
            if finding.refused:
                LOG.error("usage gate: %s%s", finding.sentence, _consequence(finding.kind))
            else:
                LOG.warning("usage gate: %s", finding.sentence)
            if finding.kind is Kind.UNSERVED:
                self.metrics.bypass(Bypass.UNSERVED)

    def _plan(self, caller: Caller, data: Mapping[str, Any]) -> _Plan:
        requested = data.get("model")
        if not isinstance(requested, str) or not requested:
            return _Plan()
        routing = self.routing()
        override = data.get("router_settings_override")
        override = override if isinstance(override, Mapping) else {}
        tables = [*caller.aliases]
        if isinstance(override.get("model_group_alias"), Mapping):
            tables.append(override["model_group_alias"])
        names = routing.names_for(requested, tables, caller.team)
        plan = _Plan(direct=asked_about(names, self._capped))
        asked_for = [data.get(key) for key in _FALLBACK_KEYS] + [override.get(key) for key in _FALLBACK_KEYS]
        for dummy, targets in read_fallbacks(asked_for):
            for target in targets:
                # The client, its key or its team chose these: they count as asked for.
                reached = capped_among(routing.names_for(target, tables, caller.team), self._capped)
                fresh = [name for name in reached if name not in plan.direct]
                if fresh:
                    self.metrics.bypass(Bypass.CLIENT_FALLBACK)
                plan.direct += fresh
        if data.get("disable_fallbacks") is not True:
            reached = capped_among(routing.fallbacks_of(names), self._capped)
            plan.fallback = [name for name in reached if name not in plan.direct]
        if plan.fallback and not capped_among(names, self._capped):
            plan.bypass = Refusal(
                503,
                "usage_gate_configuration",
                f"{one_line(requested)} is refused: the proxy's configuration lets it fall back to {plan.fallback[0]}, whose spending "
                "cap would go unchecked. The operator must remove that fallback.",
                CLOSED_RETRY_S,
            )
        return plan

    # -- requests ------------------------------------------------------------------------------------------------

    async def before(self, caller: Caller, data: MutableMapping[str, Any]) -> Refusal | None:
        """What is to be done with a request: None lets it pass. Nothing of the prompt is looked at."""
        try:
            self.start()
            return await self._before(caller, data)
        except Exception as error:
            LOG.exception("usage gate: a fault of its own; the request is served unchecked")
            self.metrics.checked(Checked(Outcome.FAILED_OPEN, None, Cause.INTERNAL, type(error).__name__))
            return None

    async def _before(self, caller: Caller, data: MutableMapping[str, Any]) -> Refusal | None:
        gate, metrics = self._gate, self.metrics
        if gate is None:
            # Without a configuration nobody knows what is capped: any request may be.
            if isinstance(data.get("model"), str):
                metrics.checked(Checked(Outcome.FAILED_OPEN, None, Cause.INTERNAL, "no configuration"))
            return None
        plan = self._plan(caller, data)
        if plan.bypass is not None:
            metrics.bypass(Bypass.FALLBACK)
            # Once for each group that is fallen back to: clients think of any number of names.
            said = f"a request fell back to {plan.fallback[0]}"
            if said not in self._said:
                self._said.add(said)
                LOG.error("usage gate: %s", plan.bypass.sentence)
            return plan.bypass
        if not plan.direct:
            if isinstance(data.get("model"), str):
                metrics.checked(Checked(Outcome.NOT_CAPPED))
            return None
        key = hashed(caller.key)
        questions = [Question(key, name, caller.user, caller.team) for name in plan.direct + plan.fallback]
        checks = (
            [await gate.check(questions[0])]
            if len(questions) == 1
            else await asyncio.gather(*(gate.check(question) for question in questions))
        )
        for question, check in zip(questions, checks, strict=True):
            if check.outcome is Outcome.FAILED_OPEN:
                self._remember(question, check, data)
        count = len(plan.direct)
        for question, check in zip(questions[:count], checks[:count], strict=True):
            if not check.served:
                return _refusal(question, check)
        if any(not check.served for check in checks[count:]):
            data["disable_fallbacks"] = True  # it may be served by its own group, not by one it may not spend on
        return None

    # -- unchecked requests --------------------------------------------------------------------------------------

    def _remember(self, question: Question, check: Checked, data: Mapping[str, Any]) -> None:
        call_id = data.get("litellm_call_id")
        entry = Unchecked.of(question, check.cause or Cause.INTERNAL, call_id if isinstance(call_id, str) else None)
        LOG.warning(
            "usage gate: served unchecked: %s for key %s… (%s: %s), entry %s",
            one_line(question.model),
            question.key[:8],
            entry.cause,
            check.detail,
            entry.id,
        )
        lost = self._journal.add(entry) if self._journal is not None else 1
        if lost:
            self.metrics.journal(self._journal.pending() if self._journal else 0, lost=lost)

    async def _report(self) -> None:
        """Tells the API of unchecked requests, once it answers again."""
        journal, gate, metrics = self._journal, self._gate, self.metrics
        if journal is None or gate is None:
            return
        path = gate.config.request.unchecked_path
        if path is None or not journal.pending():
            metrics.journal(journal.pending())
            return
        with journal.taken() as entries:
            if not entries:
                metrics.journal(journal.pending())  # it is one file for all workers: what another one told is told
                return
            done = reported = 0
            for entry in entries:
                told = entry.id == "" or await self._tell(gate, path, entry)
                if told is None:
                    break  # still out of reach; the rest waits
                done += 1
                reported += bool(told and entry.id)
            journal.settle(done)
            metrics.journal(journal.pending(), lost=done - reported, reported=reported)

    async def _tell(self, gate: Gate, path: str, entry: Unchecked) -> bool | None:
        """Whether the API took it; False: it never will; None: not now."""
        endpoint = gate.pool.choose((), asyncio.get_running_loop().time())
        if endpoint is None:
            return None
        try:
            async with asyncio.timeout(REPORT_S):
                status = await gate.channels.post(endpoint, path, entry.body(), REPORT_S, {"Idempotency-Key": entry.id})
        except TimeoutError:
            status = Fault(Cause.TIMEOUT, Blame.CONNECTION, "did not answer in time")
        if isinstance(status, Fault) or not (200 <= status < 300 or status in REFUSED_FOR_GOOD):
            why = status.detail if isinstance(status, Fault) else f"answered {status}"
            sentence = f"cannot report unchecked requests to {path}: {why}; they stay in {self._folder}"
            if sentence not in self._said:
                self._said.add(sentence)
                LOG.warning("usage gate: %s", sentence)
            return None
        if not 200 <= status < 300:
            LOG.error("usage gate: the API refused (%d) to take unchecked request %s; it is dropped", status, entry.id)
            return False
        return True


def _stamp(path: Path | str | None) -> tuple[int, ...] | None:
    try:
        found = Path(path).stat() if path is not None else None
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)


def _counters(prefix: str) -> GateMetrics:
    """The counters, or none where they cannot be made: no prometheus_client, no folder for several workers' files."""
    try:
        return GateMetrics.of(prefix)
    except Exception as error:  # uncounted is better than unchecked, and than a proxy that does not start
        missing = isinstance(error, NameError)
        reason = "this Python has no prometheus_client" if missing else f"{type(error).__name__}: {error}"
        LOG.error("usage gate: it checks, but COUNTS NOTHING: %s", reason)
        return NoMetrics()


def _consequence(kind: Kind) -> str:
    return "; requests to it are refused until then" if kind is Kind.FALLBACK else ""


def _refusal(question: Question, check: Checked) -> Refusal:
    if check.outcome is Outcome.FAILED_CLOSED:
        sentence = f"Whether this key may spend on {one_line(question.model)} cannot be checked at the moment."
        return Refusal(503, "usage_gate_unavailable", sentence, CLOSED_RETRY_S)
    verdict = check.verdict
    reason = verdict.reason if verdict is not None and verdict.reason else "its spending cap is reached"
    wait_s = verdict.retry_after_s if verdict is not None else None
    return Refusal(
        429,
        "usage_cap_reached",
        f"This key may not spend on {one_line(question.model)}: {reason}",
        max(1, math.ceil(wait_s)) if wait_s is not None else DEFAULT_RETRY_S,
    )
