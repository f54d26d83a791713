# SPDX-License-Identifier: GPL-3.0-or-later
"""One run of the watchdog over all servers of a host: look, decide, and advance at most one step. A run never waits.

A restart is a transaction of journalled phases, each written before it is done:

    evidence → recheck → stop → stopping → memory → start → starting → closed (or aborted)

Killed anywhere, the next run goes on from what is written; every phase may be done twice without harm.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .._busy import store as busy_store
from .._core import urls
from .._core.errors import ConfigError
from .._core.keys import read_key
from .._core.servers import Restart, Server
from .._core.settings import Settings
from .._health import proc
from .._health.engines import engine_named
from .._health.http import client as http_client
from .._health.observation import Lease, Observation, to_json
from .._health.observe import Target, Witnesses, ask_models, identify, observe, observe_around
from .._health.probe import probe
from .._health.progress import advance
from .._health.verdict import State
from .._health.witness import Machine
from . import act, clock, evidence, trace
from .decide import Action, Step, Surroundings, step
from .memory import Act, Memory
from .patience import proof_seconds
from .store import CannotRecord, Store, Transaction, in_phase

try:
    import httpx
except ImportError:  # the module or command that needs it says so
    pass

RUN_WITHIN_S = 45.0  # the timer's service is stopped at 60
PROBE_WITHIN_S = 20.0
PROOF_WITHIN_S = 35.0  # a longer last proof is sent in several runs
STOP_WITHIN_S = 90.0  # vLLM stops in 2 s, docker kills after 60
NOT_SERVING = ("dead", "hung", "starting", "unresponsive", "host_fault", "stopped")


@dataclass(frozen=True)
class Report:
    """What one run did with one server."""

    server: str
    state: str
    action: str
    reason: str
    alert: str | None = None


@dataclass(frozen=True)
class Context:
    """What all servers of a run share."""

    store: Store
    settings: Settings
    http: httpx.AsyncClient
    machine: Machine
    servers: Mapping[str, Server]
    notify: Sequence[str] = ()
    now_of: Callable[[], clock.Now] = clock.read
    manager_of: Callable[[Restart, str], Awaitable[act.Manager]] = act.manager_for
    memory_of: Callable[[], tuple[float | None, float | None]] = proc.memory_gib


def settings_of(settings: Settings, server: Server) -> Settings:
    """The policy for one server: its own description goes before the host's settings."""
    return replace(
        settings,
        patience_s=server.patience_s if server.patience_s is not None else settings.patience_s,
        start_ceiling_s=max(server.start_ceiling_s, settings.start_ceiling_s)
        if server.ranks
        else (server.start_ceiling_s if server.start_ceiling_s != Server.start_ceiling_s else settings.start_ceiling_s),
        lifecycle=server.lifecycle,
        # without a restart target it is only watched; so is one of several nodes, which must be restarted whole or not
        mode="observe" if server.mode == "observe" or server.restart is None or server.ranks else settings.mode,
        memory_needed_gib=server.memory_needed_gib
        if server.memory_needed_gib is not None
        else settings.memory_needed_gib,
    )


async def run(
    servers: Sequence[Server],
    settings: Settings,
    store: Store,
    *,
    notify: Sequence[str] = (),
    only: str | None = None,
    **parts: Any,
) -> list[Report]:
    """One run over all servers, side by side. Raises CannotRecord when the state folder cannot be used at all."""
    store.prepare()
    https = any(server.url.startswith("https") for server in servers)
    async with http_client(https=https) as http:
        context = Context(
            store, settings, http, Machine(shared_s=5.0), {server.name: server for server in servers}, notify, **parts
        )
        chosen = [server for server in servers if only in (None, server.name)]
        return list(await asyncio.gather(*(_one(context, server) for server in chosen)))


async def _one(context: Context, server: Server) -> Report:
    try:
        with context.store.lock(server.name) as got:
            if not got:
                return Report(server.name, "unknown", "none", "somebody else holds its lock; left alone")
            return await asyncio.wait_for(_Server(context, server).run(), RUN_WITHIN_S)
    except TimeoutError:
        return Report(
            server.name, "unknown", "none", f"looking at it took over {RUN_WITHIN_S:.0f} s; goes on next time"
        )
    except CannotRecord as error:
        return Report(server.name, "unknown", "none", str(error), alert=str(error))
    except ConfigError as error:
        return Report(server.name, "unknown", "none", "; ".join(error.faults), alert="; ".join(error.faults))
    except Exception as error:  # one server's fault must not stop the others' watch
        said = f"looking at it failed ({type(error).__name__}: {error}); nothing was done; please report this"
        return Report(server.name, "unknown", "none", said, alert=said)


class _Server:
    """One server in one run, under its lock."""

    def __init__(self, context: Context, server: Server) -> None:
        self.context, self.server, self.store = context, server, context.store
        self.settings = settings_of(context.settings, server)
        self.state = self.store.load(server.name)
        self.anchor = clock.advance(self.state.anchor, context.now_of())
        self._mono = time.monotonic()
        self.alert: str | None = None

    def now(self) -> float:
        """The watchdog's clock, also between two looks of one run."""
        return self.anchor.t + (time.monotonic() - self._mono)

    def save(self, **changes: Any) -> None:
        """The state with changes, on disk."""
        self.state = replace(self.state, anchor=replace(self.anchor), **changes)
        self.store.save(self.state)

    def record(self, event: str, **more: Any) -> None:
        self.store.record(event, self.server.name, t=self.now(), anchor=self.anchor, **more)

    async def manager(self) -> act.Manager | None:
        if self.server.restart is None:
            return None
        return await self.context.manager_of(self.server.restart, self.server.url)

    # looking

    async def target(self) -> Target:
        key = read_key(self.server.api_key_file, "api_key_file") if self.server.api_key_file else None
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        name = self.state.engine if self.server.engine == "auto" else self.server.engine
        target = Target(urls.base(self.server.url), engine_named(name) if name else None, headers)
        if target.engine is None and self.server.role != "proxy":
            who = await identify(self.context.http, target)
            target = replace(target, engine=who.engine)
        return target

    async def witnesses(self) -> Witnesses:
        machine, restart = self.context.machine, self.server.restart
        seen = await machine.look(self.server.url, restart)
        service = seen.service
        manager = await self._quietly()
        if manager is not None:
            service = await manager.status(self.now)
        elif service.since is not None:
            service = replace(service, since=service.since + self.now() - time.monotonic())
        maintenance = self.state.maintenance
        if maintenance is not None and time.time() < maintenance.until:
            service = replace(service, wanted=False)
        leases = tuple(
            Lease(owner=f"{one.name} ({one.owner})", alive=True, expires=self.now() + one.expires - time.time())
            for one in busy_store.held()
        )
        return replace(seen, service=service, busy_leases=leases)

    async def _quietly(self) -> act.Manager | None:
        try:
            return await self.manager()
        except (act.Refused, act.Failed):
            return None

    async def look(self, target: Target) -> tuple[Observation, Target]:
        seen, page = await observe(self.context.http, target, self.now)
        if target.engine is None and page is not None and page.engine is not None:
            target = replace(target, engine=page.engine)
        return await observe_around(self.context.http, target, self.witnesses, seen), target

    async def probe(self, target: Target, within_s: float, rank: str | None) -> tuple[str, bool | None, float]:
        begun = self.now()
        models = await ask_models(self.context.http, target, ("/v1/models",), 3.0)
        headers = dict(target.headers)
        if rank is not None and rank.isdigit() and target.engine is not None and target.engine.rank_header:
            headers[target.engine.rank_header] = rank
        result = await probe(
            self.context.http,
            target.base,
            model=next(iter(models.ids), None),
            asked=self.server.probe if self.server.probe != "never" else "auto",
            headers=headers,
            connect_s=target.connect_s,
            probe_s=within_s,
        )
        return result.word, result.says_dead, begun

    def around(self) -> Surroundings:
        """A sister of the same group that does not serve, by what her own last run found."""
        if self.server.group is None:
            return Surroundings()
        for other in self.context.servers.values():
            if other.group == self.server.group and other.name != self.server.name:
                sister = self.store.load(other.name)
                if sister.transaction is not None or sister.state in NOT_SERVING:
                    since = self.state.sister_since if self.state.sister_since is not None else self.now()
                    self.state = replace(self.state, sister_since=since)
                    return Surroundings(other.name, since)
        self.state = replace(self.state, sister_since=None)
        return Surroundings()

    # one run

    async def run(self) -> Report:
        self._mind_reboot()
        target = await self.target()
        observation, target = await self.look(target)
        if self.state.transaction is not None:
            return await self._advance(observation, target)
        before = self.state.memory
        around = self.around()
        done = step(self.settings, before, observation, around, sends_proof=True)
        if done.decision.probe and self.server.probe != "never":
            observation, done = await self._probed(target, before, observation, around, PROBE_WITHIN_S, None, True)
        elif done.decision.prove:
            observation, done = await self._proven(target, before, observation, around, done)
        self._trace(observation)
        return await self._act_on(done, observation, target)

    async def _probed(
        self,
        target: Target,
        before: Memory,
        observation: Observation,
        around: Surroundings,
        within_s: float,
        rank: str | None,
        more_proof: bool,
    ) -> tuple[Observation, Step]:
        word, says_dead, begun = await self.probe(target, within_s, rank)
        again, _target = await self.look(target) if word == "timeout" else (replace(observation, t=self.now()), target)
        again = replace(again, probe=word, probe_says_dead=says_dead, probe_begin=begun, probe_engine=rank)
        memory = replace(before, probed_t=self.now())
        return again, step(self.settings, memory, again, around, sends_proof=more_proof)

    async def _proven(
        self, target: Target, before: Memory, observation: Observation, around: Surroundings, done: Step
    ) -> tuple[Observation, Step]:
        """Sends the last proof, or a part of it: it is complete when probes went unanswered for long enough in all."""
        begun = done.memory.proof_t if done.memory.proof_t is not None else self.now()
        track = done.memory.track
        whole = self.settings.last_proof_s
        if track is not None:
            whole = proof_seconds(self.settings, done.memory, track, done.verdict.accused)
        left = whole - (self.now() - begun)
        before = replace(before, proof_t=begun)
        within = max(min(left, PROOF_WITHIN_S), 1.0)
        complete = left <= PROOF_WITHIN_S
        rank = done.verdict.accused
        self.record("proof", reason=done.verdict.reason, within_s=within)
        return await self._probed(target, before, observation, around, within, rank, not complete)

    def _mind_reboot(self) -> None:
        """A reboot soon after our act is a restart that failed."""
        anchor, acts = self.state.anchor, self.state.memory.acts
        if anchor is None or anchor.boot == self.anchor.boot or not acts or acts[-1].fruitful is not None:
            return
        if self.anchor.t - self.anchor.uptime_s - acts[-1].t <= self.settings.reboot_blame_s:
            failed = (*acts[:-1], replace(acts[-1], fruitful=False))
            self.state = replace(self.state, memory=replace(self.state.memory, acts=failed))
            self.record("reboot", reason="the host was rebooted soon after our act: it counts as failed")

    def _trace(self, observation: Observation) -> None:
        header = trace.header_line(
            {"name": self.server.name, "engine": observation.engine, "url": urls.redacted(self.server.url)}, {}
        )
        self.store.trace(self.server.name, header, json.dumps(to_json(observation)))

    def _seen(self, done: Step, observation: Observation) -> dict[str, Any]:
        verdict, decision = done.verdict, done.decision
        old = self.state
        changed = old.state != verdict.state.value
        steps, tokens = _rates(old.memory, done.memory, observation)
        patience = done.patiences.get(verdict.accused or next(iter(done.patiences), ""))
        if changed:
            self.record("state", state=verdict.state.value, reason=verdict.reason)
        return {
            "memory": done.memory,
            "state": verdict.state.value,
            "reason": verdict.reason,
            "rule": verdict.rule,
            "accused": verdict.accused,
            "state_since": observation.t if changed else old.state_since,
            "looked_wall": time.time(),
            "engine": observation.engine or old.engine,
            "running": verdict.running,
            "waiting": verdict.waiting,
            "silence_s": verdict.silence_s,
            "patience_s": patience.seconds if patience else None,
            "patience_rule": patience.rule if patience else None,
            "decision": decision.reason,
            "steps_per_second": steps,
            "tokens_per_second": tokens,
            "power_w": observation.host.gpu_power_w,
        }

    async def _act_on(self, done: Step, observation: Observation, target: Target) -> Report:
        decision, verdict = done.decision, done.verdict
        acting = decision.action in (Action.RESTART, Action.START)
        if not acting:
            latched_now = done.memory.latched is not None and self.state.memory.latched is None
            self.save(**self._seen(done, observation))
            if latched_now:
                self.record("latched", reason=done.memory.latched)
            await self._tell(decision.alert, verdict.state)
            return self._report(verdict.state.value, decision.action.value, decision.reason)
        manager: act.Manager | None = None
        try:
            manager = await self.manager()
            if manager is None:
                raise act.Refused("no restart target is described")
            await manager.preflight(self.server.url)
            accused = await manager.identity()
        except (act.Refused, act.Failed) as refusal:
            # not done, so not counted: the memory without the act that was decided
            self.save(**{**self._seen(done, observation), "memory": replace(done.memory, acts=self.state.memory.acts)})
            self.record("refused", action=decision.action.value, reason=str(refusal))
            await self._tell(f"{decision.action.value} refused: {refusal}", verdict.state)
            return self._report(verdict.state.value, "none", f"{decision.reason}; refused: {refusal}")
        now = self.now()
        transaction = Transaction(
            id=f"{self.server.name}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S')}",
            action=decision.action.value,
            reason=decision.reason,
            phase="evidence" if decision.action is Action.RESTART else "start",
            begun_t=now,
            phase_t=now,
            accused_start=accused,
        )
        # the decision is on disk, in two places, before anything is touched
        self.record(
            "decided",
            action=transaction.action,
            reason=transaction.reason,
            rule=decision.rule,
            counts=True,
            transaction=transaction,
        )
        self.save(**self._seen(done, observation), transaction=transaction)
        await self._tell(f"{transaction.action}: {transaction.reason}", verdict.state, event=transaction.action)
        return await self._advance(observation, target)

    def _report(self, state: str, action: str, reason: str) -> Report:
        return Report(self.server.name, state, action, reason, self.alert)

    async def _tell(self, alert: str | None, state: State, event: str | None = None) -> None:
        """notify_command with JSON on its standard input; the same thing is told once."""
        self.alert = alert
        said = alert if alert is None else f"{state.value}: {alert.split(' for ')[0]}"
        if said == self.state.alerted or (alert is None and self.state.alerted is None):
            return
        self.save(alerted=said)
        if alert is None:
            return
        self.record("alert", reason=alert)
        if self.context.notify:
            payload = {
                "server": self.server.name,
                "event": event or "alert",
                "state": state.value,
                "message": alert,
                "url": urls.redacted(self.server.url),
            }
            await notify(self.context.notify, payload)

    # the transaction

    def _phase(self, phase: str, **more: Any) -> Transaction:
        transaction = self.state.transaction
        if transaction is None:
            raise RuntimeError("no transaction is under way")
        after = in_phase(transaction, phase, self.now(), **more)
        self.record("phase", phase=phase, transaction=after)
        self.save(transaction=after)
        return after

    async def _advance(self, observation: Observation, target: Target) -> Report:
        """As many phases as are over by themselves; stops at the first that has to be waited for."""
        handlers = {
            "evidence": self._evidence,
            "recheck": self._recheck,
            "stop": self._stop,
            "stopping": self._stopping,
            "memory": self._memory,
            "start": self._start,
            "starting": self._starting,
        }
        while (transaction := self.state.transaction) is not None:
            if self._called_off(transaction):
                break
            manager = await self._quietly()
            if manager is None:
                return self._report(
                    "starting", "none", f"{transaction.phase}: its manager does not answer; goes on next time"
                )
            try:
                goes_on = await handlers[transaction.phase](transaction, manager, observation, target)
            except act.Failed as failure:
                self.record("failed", phase=transaction.phase, reason=str(failure))
                return self._report("starting", "none", f"{transaction.phase}: {failure}; goes on next time")
            if not goes_on:
                break
        now = self.state.transaction
        said = f"{now.action} under way: {now.phase}" if now else "done"
        return self._report(self.state.state or "unknown", now.action if now else "none", said)

    def _called_off(self, transaction: Transaction) -> bool:
        """Maintenance begun in the middle: what is stopped stays stopped, and nothing more is done."""
        maintenance = self.state.maintenance
        if maintenance is None or time.time() >= maintenance.until or transaction.by != "watchdog":
            return False
        self._abort(transaction, f"maintenance ({maintenance.reason})", counts=True)
        return True

    def _abort(self, transaction: Transaction, reason: str, counts: bool) -> None:
        acts = self.state.memory.acts
        if not counts and acts:
            acts = (*acts[:-1], replace(acts[-1], counts=False))
        self.record("aborted", reason=reason, id=transaction.id)
        self.save(transaction=None, memory=replace(self.state.memory, acts=acts))

    async def _evidence(
        self, transaction: Transaction, manager: act.Manager, observation: Observation, target: Target
    ) -> bool:
        stamp = transaction.id.rsplit("-", 1)[-1]
        saved = await evidence.collect(self.server, self.store.folder, stamp)
        self._phase("recheck", evidence=saved)
        return True

    async def _recheck(
        self, transaction: Transaction, manager: act.Manager, observation: Observation, target: Target
    ) -> bool:
        """Immediately before the stop: is it still the process that was accused, and does it still not move?"""
        if await self._another(transaction, manager):
            return True
        if transaction.by == "watchdog":
            again, _page = await observe(self.context.http, target, self.now)
            if again.reading is not None:
                before = self.state.memory.track
                after = advance(before, again, self.settings.gap_void_s)
                accused = self.state.accused
                moved = [label for label, engine in after.engines.items() if engine.moved and accused in (None, label)]
                if before is not None and (after.new_process or moved):
                    self._abort(transaction, "it moved just before the stop", counts=False)
                    return True
        self._phase("stop")
        return True

    async def _another(self, transaction: Transaction, manager: act.Manager) -> bool:
        now = await manager.identity()
        if transaction.accused_start is not None and now is not None and now != transaction.accused_start:
            self._abort(transaction, "its manager restarted it first: another process runs there now", counts=False)
            return True
        return False

    async def _started_again(self, transaction: Transaction, manager: act.Manager) -> bool:
        """The accused is gone, and a reboot or another manager has started the server anew: that one is innocent."""
        if (await manager.status(self.now)).state not in ("active", "activating"):
            return False  # on its way down its identity changes too
        now = await manager.identity()
        if transaction.accused_start is None or now is None or now == transaction.accused_start:
            return False
        self._abort(
            transaction, "it was started again by others while it stopped: a new process runs there", counts=True
        )
        return True

    async def _stop(
        self, transaction: Transaction, manager: act.Manager, observation: Observation, target: Target
    ) -> bool:
        # done again after a crash: by then it may be down already, or another process may run there
        if not await manager.is_down():
            if await self._another(transaction, manager):
                return True
            await manager.stop()
        self._phase("stopping")
        return True

    async def _stopping(
        self, transaction: Transaction, manager: act.Manager, observation: Observation, target: Target
    ) -> bool:
        end = time.monotonic() + 15.0
        while not await manager.is_down():
            if await self._started_again(transaction, manager):
                return True
            waited = self.now() - transaction.phase_t
            if waited > STOP_WITHIN_S and not transaction.killed:
                self.record("kill", reason=f"it did not stop within {STOP_WITHIN_S:.0f} s")
                self.save(transaction=replace(transaction, killed=True))
                transaction = replace(transaction, killed=True)
                await manager.kill()
            elif waited > 4 * STOP_WITHIN_S:
                self._latch(transaction, "its processes cannot be ended")
                return True
            if time.monotonic() > end:
                return False
            await asyncio.sleep(0.5)
        if self.server.drop_caches:
            await asyncio.to_thread(act.drop_caches)
        self._phase("memory")
        return True

    async def _memory(
        self, transaction: Transaction, manager: act.Manager, observation: Observation, target: Target
    ) -> bool:
        """Judged only now that the server is down: is there memory enough to start it?"""
        need = self.settings.memory_needed_gib
        available, free = self.context.memory_of()
        there = available if not self.server.drop_caches else min(available or 0.0, free or 0.0)
        if need is None or available is None or (there or 0.0) >= need:
            self._phase("start")
            return True
        waited = self.now() - transaction.phase_t
        lack = f"{need:g} GiB are needed and {there or 0.0:.1f} are there"
        if waited >= self.settings.memory_wait_s:
            holder = await asyncio.to_thread(_largest_process)
            self._latch(transaction, f"memory did not come back: {lack}; the largest process is {holder}")
            return True
        if waited >= self.settings.memory_alert_s and not transaction.warned:
            self.save(transaction=replace(transaction, warned=True))
            await self._tell(f"waits for memory to start again: {lack}", State.STARTING)
        return False

    async def _start(
        self, transaction: Transaction, manager: act.Manager, observation: Observation, target: Target
    ) -> bool:
        # done again after a crash, or after a reboot that started it: whoever runs there by now is the one that was wanted
        if await manager.is_down():
            await manager.start(self._receipt(transaction))
        self._phase("starting")
        return True

    async def _starting(
        self, transaction: Transaction, manager: act.Manager, observation: Observation, target: Target
    ) -> bool:
        """Waits for ready over the next runs; then one warm-up answer, and the record is closed."""
        if self.now() - transaction.phase_t < 2.0:
            return False
        seen, target = await self.look(target)
        # proof of who acts is over: this look starts a new track for the new process
        done = step(replace(self.settings, mode="observe"), self.state.memory, seen)
        self._trace(seen)
        self.save(**self._seen(done, seen))
        waited = self.now() - transaction.phase_t
        ready = seen.reading is not None and done.verdict.state in (
            State.BUSY,
            State.IDLE,
            State.SLEEPING,
            State.STALLED,
        )
        if ready:
            word = "not needed"
            if done.verdict.state is State.IDLE and self.server.probe != "never" and not seen.lease_holders():
                word, _dead, _begun = await self.probe(target, PROBE_WITHIN_S, None)
            self._close(transaction, "serving again" if word in ("ok", "not needed") else f"ready; warm-up: {word}")
            await self._tell(None, done.verdict.state)
            return False
        if waited > self.settings.start_ceiling_s:
            self._close(transaction, "never ready")
            await self._tell(f"started, but not ready within {self.settings.start_ceiling_s:.0f} s", done.verdict.state)
        elif done.verdict.state is State.DEAD and done.verdict.rule == "given_up" and waited > 10.0:
            self._close(transaction, "did not start")
            await self._tell("it did not start: its manager gave up", done.verdict.state)
        return False

    def _receipt(self, transaction: Transaction) -> Path:
        return self.store.folder / "locks" / f"{transaction.id}.started"

    def _close(self, transaction: Transaction, outcome: str) -> None:
        self._receipt(transaction).unlink(missing_ok=True)
        self.record(
            "closed",
            id=transaction.id,
            action=transaction.action,
            outcome=outcome,
            seconds=round(self.now() - transaction.begun_t, 1),
            evidence=transaction.evidence,
        )
        self.save(transaction=None)

    def _latch(self, transaction: Transaction, reason: str) -> None:
        self.record("latched", reason=reason)
        self.record("aborted", reason=reason, id=transaction.id)
        self.save(transaction=None, memory=replace(self.state.memory, latched=reason))


def _rates(before: Memory, after: Memory, observation: Observation) -> tuple[float | None, float | None]:
    if before.track is None or after.track is None or observation.reading is None or after.track.new_process:
        return None, None
    span = observation.t - before.track.t
    if span <= 0:
        return None, None

    def rate(*names: str) -> float | None:
        for name in names:
            pairs = [
                (getattr(old.last, name), getattr(new.last, name))
                for label, new in (after.track.engines.items() if after.track else ())
                if (old := (before.track.engines if before.track else {}).get(label)) is not None
                and old.last is not None
                and new.last is not None
            ]
            if pairs and all(a is not None and b is not None for a, b in pairs):
                return round(float(sum(b - a for a, b in pairs)) / span, 3)
        return None

    return rate("heartbeat", "steps"), rate("generation_tokens")


def _largest_process() -> str:
    """Name and pid of the process that holds most memory, for a sentence."""
    best, found = 0, "unknown"
    for pid in proc.pids():
        try:
            pages = int((proc.PROC / str(pid) / "statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            continue
        one = proc.process(pid)
        if pages > best and one is not None:
            best, found = pages, f"{one.name} (process {pid}, {pages * 4 / 1024 / 1024:.1f} GiB)"
    return found


async def notify(argv: Sequence[str], payload: Mapping[str, Any]) -> None:
    """Runs the notify command with the payload as JSON on its standard input; its failure stops nothing."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        await asyncio.wait_for(process.communicate(json.dumps(payload).encode()), 10.0)
    except (OSError, TimeoutError):
        return


def ask_restart(server: Server, store: Store, by: str, *, counts: bool, drain: bool, now: clock.Now) -> Transaction:
    """A person's restart: the same transaction, journalled first. The caller holds the lock. Raises ConfigError."""
    state = store.load(server.name)
    if server.restart is None:
        raise ConfigError([f"{server.name}: has no `restart`, so there is nothing to restart it by"])
    if state.transaction is not None:
        raise ConfigError([f"{server.name}: a {state.transaction.action} is under way ({state.transaction.phase})"])
    anchor = clock.advance(state.anchor, now)
    transaction = Transaction(
        id=f"{server.name}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S')}",
        action="restart",
        reason=f"asked for by {by}",
        phase="evidence",
        begun_t=anchor.t,
        phase_t=anchor.t,
        counts=counts,
        by=by,
        drain=drain,
    )
    acts = (*state.memory.acts, Act(anchor.t, "restart", transaction.reason, None, counts))
    store.record(
        "decided",
        server.name,
        t=anchor.t,
        anchor=anchor,
        action="restart",
        reason=transaction.reason,
        rule="asked",
        counts=counts,
        transaction=transaction,
    )
    store.save(replace(state, anchor=anchor, transaction=transaction, memory=replace(state.memory, acts=acts)))
    return transaction
