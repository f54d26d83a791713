# SPDX-License-Identifier: GPL-3.0-or-later
"""One run of the watchdog over all servers of a host: look, decide, and advance at most one step. A run never waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from .._core.errors import ConfigError
from .._core.servers import Server
from .._core.settings import Settings
from .._health.http import client as http_client
from .._health.observation import Observation
from .._health.observe import Target
from .._health.witness import Machine
from . import act, clock
from .decide import Action, Step, Surroundings, step
from .memory import Act, Memory
from .patience import proof_seconds
from .phases import Phases
from .ranks import workers_of
from .store import CannotRecord, Store, Transaction
from .watched import Context, Report, Watched

RUN_WITHIN_S = 45.0  # the timer's service is stopped at 60
PROBE_WITHIN_S = 20.0
PROOF_WITHIN_S = 35.0  # a longer last proof is sent in several runs


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
            try:
                return await asyncio.wait_for(_whole(context, server), RUN_WITHIN_S)
            except TimeoutError:
                why = f"looking at it took over {RUN_WITHIN_S:.0f} s; goes on next time"
            except ConfigError as error:
                why = "; ".join(error.faults)
            except CannotRecord:
                raise
            except Exception as error:  # one server's fault must not stop the others' watch
                why = _failed(error)
            # what nobody could look at must not stay as it was seen last
            return await Watched(context, server).not_seen(why)
    except CannotRecord as error:
        return Report(server.name, "unknown", "none", str(error), alert=str(error))
    except Exception as error:
        return Report(server.name, "unknown", "none", _failed(error), alert=_failed(error))


def _failed(error: Exception) -> str:
    return f"looking at it failed ({type(error).__name__}: {error}); nothing was done; please report this"


async def _whole(context: Context, server: Server) -> Report:
    workers = await asyncio.to_thread(workers_of, server)
    if workers is None:
        head = server.ranks[0].host
        return Report(server.name, "unknown", "none", f"this host runs a worker of it; its head {head} watches it")
    watched = Watched(context, server)
    watched.workers = workers
    return await _Run(watched).run()


class _Run:
    """One server's run."""

    def __init__(self, on: Watched) -> None:
        self.on = on

    async def run(self) -> Report:
        self._mind_reboot()
        target = await self.on.target()
        observation, target = await self.on.look(target)
        if self.on.state.transaction is not None:
            return await Phases(self.on).go_on(observation, target)
        before = self.on.state.memory
        around = self.on.around()
        done = step(self.on.settings, before, observation, around, sends_proof=True)
        if done.decision.probe and self.on.server.probe != "never":
            observation, done = await self._probed(target, before, observation, around, PROBE_WITHIN_S, None, True)
        elif done.decision.prove:
            # what could not be restarted is not asked: that request would only queue behind the others
            if (why := await self.on.out_of_reach()) is not None:
                self.on.trace(observation)
                return await self._refused(Action.RESTART, why, done, observation)
            observation, done = await self._proven(target, before, observation, around, done)
        self.on.trace(observation)
        if done.decision.rule == "intent_unknown" and (why := await self.on.out_of_reach()) is not None:
            decision = done.decision
            said = replace(decision, reason=f"{decision.reason}. {why}", alert=f"{decision.alert}: {why}")
            done = replace(done, decision=said)
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
        word, says_dead, begun = await self.on.probe(target, within_s, rank)
        again, _target = (
            await self.on.look(target) if word == "timeout" else (replace(observation, t=self.on.now()), target)
        )
        again = replace(again, probe=word, probe_says_dead=says_dead, probe_begin=begun, probe_engine=rank)
        memory = replace(before, probed_t=self.on.now())
        return again, step(self.on.settings, memory, again, around, sends_proof=more_proof)

    async def _proven(
        self, target: Target, before: Memory, observation: Observation, around: Surroundings, done: Step
    ) -> tuple[Observation, Step]:
        """Sends the last proof, or a part of it: it is complete when probes went unanswered for long enough in all."""
        # from when it is sent, not from the look that asked for it: that look may have taken a while
        begun = before.proof_t if before.proof_t is not None else self.on.now()
        track = done.memory.track
        whole = self.on.settings.last_proof_s
        if track is not None:
            whole = proof_seconds(self.on.settings, done.memory, track, done.verdict.accused)
        left = whole - (self.on.now() - begun)
        before = replace(before, proof_t=begun)
        within = max(min(left, PROOF_WITHIN_S), 1.0)
        complete = left <= PROOF_WITHIN_S
        rank = done.verdict.accused
        self.on.record("proof", reason=done.verdict.reason, within_s=within)
        return await self._probed(target, before, observation, around, within, rank, not complete)

    def _mind_reboot(self) -> None:
        """A reboot soon after our act is a restart that failed."""
        anchor, acts = self.on.state.anchor, self.on.state.memory.acts
        if anchor is None or anchor.boot == self.on.anchor.boot or not acts or acts[-1].fruitful is not None:
            return
        if self.on.anchor.t - self.on.anchor.uptime_s - acts[-1].t <= self.on.settings.reboot_blame_s:
            failed = (*acts[:-1], replace(acts[-1], fruitful=False))
            self.on.state = replace(self.on.state, memory=replace(self.on.state.memory, acts=failed))
            self.on.record("reboot", reason="the host was rebooted soon after our act: it counts as failed")

    async def _act_on(self, done: Step, observation: Observation, target: Target) -> Report:
        decision, verdict = done.decision, done.verdict
        acting = decision.action in (Action.RESTART, Action.START)
        if not acting:
            latched_now = done.memory.latched is not None and self.on.state.memory.latched is None
            self.on.save(**self.on.seen(done, observation))
            if latched_now:
                self.on.record("latched", reason=done.memory.latched)
            await self.on.tell(decision.alert, verdict.state)
            return self.on.report(verdict.state.value, decision.action.value, decision.reason)
        manager: act.Manager | None = None
        try:
            manager = await self.on.manager()
            if manager is None:
                raise act.Refused("no restart target is described")
            await manager.preflight(self.on.server.url)
            accused = await manager.identity()
        except (act.Refused, act.Failed) as refusal:
            return await self._refused(decision.action, str(refusal), done, observation)
        now = self.on.now()
        transaction = Transaction(
            id=f"{self.on.server.name}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S')}",
            action=decision.action.value,
            reason=decision.reason,
            # of several nodes the others may still stand: those are stopped first, also for a start
            phase="start" if decision.action is Action.START and not self.on.workers else "evidence",
            begun_t=now,
            phase_t=now,
            accused_start=accused,
            rule=decision.rule,
        )
        # the decision is on disk, in two places, before anything is touched
        self.on.record(
            "decided",
            action=transaction.action,
            reason=transaction.reason,
            rule=decision.rule,
            counts=True,
            transaction=transaction,
        )
        self.on.save(**self.on.seen(done, observation), transaction=transaction)
        await self.on.tell(f"{transaction.action}: {transaction.reason}", verdict.state, event=transaction.action)
        return await Phases(self.on).go_on(observation, target)

    async def _refused(self, action: Action, why: str, done: Step, observation: Observation) -> Report:
        """Not done, so not counted: the memory without the act that was decided."""
        state = done.verdict.state
        self.on.save(
            **{**self.on.seen(done, observation), "memory": replace(done.memory, acts=self.on.state.memory.acts)}
        )
        if await self.on.tell(f"{action.value} refused: {why}", state):
            self.on.record("refused", action=action.value, reason=why)
        return self.on.report(state.value, "none", f"{done.decision.reason}; refused: {why}")


async def cannot_restart(server: Server, settings: Settings, store: Store) -> str | None:
    """Why a restart of this server could not be done, or None; what a person hears before anything is recorded."""
    async with http_client(https=False) as http:
        watched = Watched(Context(store, settings, http, Machine(), {server.name: server}), server)
        workers = await asyncio.to_thread(workers_of, server)
        watched.workers = workers if workers is not None else ()
        return await watched.out_of_reach()


def ask_restart(server: Server, store: Store, by: str, *, counts: bool, drain: bool, now: clock.Now) -> Transaction:
    """A person's restart: the same transaction, journalled first. The caller holds the lock. Raises ConfigError."""
    state = store.load(server.name)
    if server.restart is None:
        raise ConfigError([f"{server.name}: has no `restart`, so there is nothing to restart it by"])
    if workers_of(server) is None:
        raise ConfigError(
            [
                f"{server.name}: this host runs a worker of it; a restart is asked for on its head, {server.ranks[0].host}"
            ]
        )
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
        rule="asked",
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
