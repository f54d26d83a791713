# SPDX-License-Identifier: GPL-3.0-or-later
"""One server in one run of the watchdog, under its lock: its state, how it is looked at, and who is told."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .._busy import store as busy_store
from .._core import urls
from .._core.keys import read_key
from .._core.servers import RankSpec, Server
from .._core.settings import COOLDOWN_OF_RANKS_S, Settings, given
from .._health import proc
from .._health.engines import engine_named
from .._health.observation import Lease, Observation, to_json
from .._health.observe import Target, Witnesses, ask_models, identify, observe, observe_around
from .._health.probe import probe
from .._health.verdict import State
from .._health.witness import Machine, abandon
from . import act, clock, ranks, speed, trace
from .decide import Step, Surroundings
from .store import Store

try:
    import httpx
except ImportError:  # the module or command that needs it says so
    pass

NOT_SEEN = "not_seen"  # the rule under which a server is unknown that could not be looked at
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
    manager_of: act.ManagerOf = act.manager_for
    memory_of: Callable[[], tuple[float | None, float | None]] = proc.memory_gib


def settings_of(settings: Settings, server: Server) -> Settings:
    """The policy for one server: its own description goes before the host's settings."""
    return replace(
        settings,
        patience_s=server.patience_s if server.patience_s is not None else settings.patience_s,
        cooldown_s=COOLDOWN_OF_RANKS_S
        if server.ranks and settings.cooldown_s == Settings.cooldown_s
        else settings.cooldown_s,
        start_ceiling_s=max(server.start_ceiling_s, settings.start_ceiling_s)
        if server.ranks
        else (server.start_ceiling_s if server.start_ceiling_s != Server.start_ceiling_s else settings.start_ceiling_s),
        lifecycle=server.lifecycle,
        # without a restart target it is only watched
        mode="observe" if server.mode == "observe" or server.restart is None else settings.mode,
        memory_needed_gib=server.memory_needed_gib
        if server.memory_needed_gib is not None
        else settings.memory_needed_gib,
    )


class Watched:
    """One server in one run, under its lock."""

    def __init__(self, context: Context, server: Server) -> None:
        self.context, self.server, self.store = context, server, context.store
        self.workers: tuple[RankSpec, ...] = ()
        self.settings = settings_of(context.settings, server)
        self.state = self.store.load(server.name)
        self.anchor = clock.advance(self.state.anchor, context.now_of())
        self._mono = time.monotonic()
        self.alert: str | None = None
        self.models: tuple[str, ...] = ()

    def now(self) -> float:
        """The watchdog's clock, also between two looks of one run."""
        return self.anchor.t + (time.monotonic() - self._mono)

    def save(self, **changes: Any) -> None:
        """The state with changes, on disk."""
        self.state = replace(self.state, anchor=replace(self.anchor), **changes)
        self.store.save(self.state)

    def record(self, event: str, **more: Any) -> None:
        self.store.record(event, self.server.name, t=self.now(), anchor=self.anchor, **more)

    async def head(self) -> act.Manager | None:
        """What manages the process that answers requests."""
        if self.server.restart is None:
            return None
        return await self.context.manager_of(self.server.restart, self.server.url)

    async def manager(self) -> act.Manager | None:
        """What stops and starts the whole server."""
        head = await self.head()
        if head is None or not self.workers:
            return head
        return await ranks.together(self.server, head, self.workers, self.context.manager_of)

    async def out_of_reach(self) -> str | None:
        """Why its manager could not restart it, or None: then nothing is wrong with the description."""
        try:
            manager = await self.manager()
            if manager is not None:
                await manager.preflight(self.server.url)
        except (act.Refused, act.Failed) as reason:
            return str(reason)
        return None

    # looking

    async def target(self) -> Target:
        key = read_key(self.server.api_key_file, "api_key_file") if self.server.api_key_file else None
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        name = self.state.engine if self.server.engine == "auto" else self.server.engine
        target = Target(urls.base(self.server.url), engine_named(name) if name else None, headers)
        if target.engine is None and self.server.role != "proxy":
            target = target.of(await identify(self.context.http, target))
        return target

    async def witnesses(self) -> Witnesses:
        machine, restart = self.context.machine, self.server.restart
        seen, others = await asyncio.gather(machine.look(self.server.url, restart), ranks.look(self.workers, self.now))
        service = seen.service
        try:
            manager = await self.head()
        except (act.Refused, act.Failed):
            manager = None
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
        return replace(seen, service=service, busy_leases=leases, ranks=others)

    async def quietly(self) -> act.Manager | None:
        try:
            return await self.manager()
        except (act.Refused, act.Failed):
            return None

    async def look(self, target: Target) -> tuple[Observation, Target]:
        seen, page = await observe(self.context.http, target, self.now)
        if target.engine is None and page is not None and page.engine is not None:
            target = replace(target, engine=page.engine)
        if seen.reading is not None:
            self.models = seen.reading.models
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
            model=next(iter((*models.ids, *self.models)), None),
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

    def trace(self, observation: Observation) -> None:
        header = trace.header_line(
            {"name": self.server.name, "engine": observation.engine, "url": urls.redacted(self.server.url)},
            given(self.settings),
        )
        self.store.trace(self.server.name, header, json.dumps(to_json(observation)))

    def seen(self, done: Step, observation: Observation) -> dict[str, Any]:
        verdict, decision = done.verdict, done.decision
        old = self.state
        changed = old.state != verdict.state.value
        steps, tokens = speed.rates(old.memory.track, done.memory.track, observation.reading is not None)
        slow = speed.note(
            self.settings,
            done.memory.speeds,
            speed.running(done.memory.track),
            tokens,
            observation.host.gpu_power_w,
            done.memory.power_w,
        )
        if (slow is None) != (old.slow is None):
            self.record("slow", reason=slow or "as fast as usual again")
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
            "slow": slow,
        }

    async def not_seen(self, why: str) -> Report:
        """It could not be looked at at all: unknown, said, and a person's when it lasts. What is under way stays."""
        if self.state.transaction is not None:
            return self.report("unknown", "none", why)
        since = self.state.state_since
        if self.state.rule != NOT_SEEN or since is None:
            since = self.now()
            self.record("state", state="unknown", reason=why)
        nothing = dict.fromkeys(("accused", "running", "waiting", "silence_s", "steps_per_second", "tokens_per_second"))
        self.save(state="unknown", reason=why, rule=NOT_SEEN, state_since=since, decision=why, **nothing)
        lasts = self.now() - since >= self.settings.alert_after_s
        await self.tell(f"cannot be looked at: {why}" if lasts else None, State.UNKNOWN)
        return self.report("unknown", "none", why)

    def report(self, state: str, action: str, reason: str) -> Report:
        return Report(self.server.name, state, action, reason, self.alert)

    async def tell(self, alert: str | None, state: State, event: str | None = None) -> bool:
        """notify_command with JSON on its standard input; the same thing is told once. Whether it was new."""
        self.alert = alert
        said = alert if alert is None else f"{state.value}: {alert.split(' for ')[0]}"
        if said == self.state.alerted or (alert is None and self.state.alerted is None):
            return False
        self.save(alerted=said)
        if alert is None:
            return False
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
        return True


async def notify(argv: Sequence[str], payload: Mapping[str, Any]) -> None:
    """Runs the notify command with the payload as JSON on its standard input; its failure stops nothing."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return
    try:
        await asyncio.wait_for(process.communicate(json.dumps(payload).encode()), 10.0)
    except TimeoutError:
        await abandon(process)
    except OSError:
        return
