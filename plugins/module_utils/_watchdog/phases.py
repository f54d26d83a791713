# SPDX-License-Identifier: GPL-3.0-or-later
"""A restart is a transaction of journalled phases, each written before it is done:

    evidence → recheck → stop → stopping → memory → start → starting → closed (or aborted)

Killed anywhere, the next run goes on from what is written; every phase may be done twice without harm.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._health import proc
from .._health.observation import Observation
from .._health.observe import Target, observe
from .._health.progress import advance
from .._health.verdict import State
from . import act, evidence
from .decide import step
from .memory import Memory
from .ranks import Together
from .store import Transaction, in_phase
from .watched import Report, Watched

STOP_WITHIN_S = 90.0  # vLLM stops in 2 s, docker kills after 60
WARM_UP_WITHIN_S = 20.0


class Phases:
    """The transaction of one server that is being watched."""

    def __init__(self, on: Watched) -> None:
        self.on = on

    def _phase(self, phase: str, **more: Any) -> Transaction:
        transaction = self.on.state.transaction
        if transaction is None:
            raise RuntimeError("no transaction is under way")
        after = in_phase(transaction, phase, self.on.now(), **more)
        self.on.record("phase", phase=phase, transaction=after)
        self.on.save(transaction=after)
        return after

    async def go_on(self, observation: Observation, target: Target) -> Report:
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
        while (transaction := self.on.state.transaction) is not None:
            if self._called_off(transaction):
                break
            manager = await self.on.quietly()
            if manager is None:
                return self.on.report(
                    "starting", "none", f"{transaction.phase}: its manager does not answer; goes on next time"
                )
            try:
                goes_on = await handlers[transaction.phase](transaction, manager, observation, target)
            except act.Failed as failure:
                self.on.record("failed", phase=transaction.phase, reason=str(failure))
                if self.on.now() - transaction.phase_t > self.on.settings.memory_wait_s:
                    self._give_up(transaction, str(failure))
                    break
                return self.on.report("starting", "none", f"{transaction.phase}: {failure}; goes on next time")
            if not goes_on:
                break
        now = self.on.state.transaction
        said = f"{now.action} under way: {now.phase}" if now else "done"
        return self.on.report(self.on.state.state or "unknown", now.action if now else "none", said)

    def _called_off(self, transaction: Transaction) -> bool:
        """Maintenance begun in the middle: what is stopped stays stopped, and nothing more is done."""
        maintenance = self.on.state.maintenance
        if maintenance is None or time.time() >= maintenance.until or transaction.by != "watchdog":
            return False
        self._abort(transaction, f"maintenance ({maintenance.reason})", counts=True)
        return True

    def _abort(self, transaction: Transaction, reason: str, counts: bool) -> None:
        acts = self.on.state.memory.acts
        if not counts and acts:
            acts = (*acts[:-1], replace(acts[-1], counts=False))
        self.on.record("aborted", reason=reason, id=transaction.id)
        self._over("aborted", None, replace(self.on.state.memory, acts=acts))

    def _over(self, event: str, outcome: str | None, memory: Memory) -> None:
        """The journal has it already: whoever is killed before this is on disk finds it there (see `Store.load`)."""
        after = self.on.state.over(event, outcome)
        self.on.save(transaction=None, ended=after.ended, memory=memory)

    def _give_up(self, transaction: Transaction, reason: str) -> None:
        """A manager that fails for this long does not come back by itself. What is not stopped yet stays up."""
        if transaction.phase in ("evidence", "recheck"):
            self._abort(transaction, reason, counts=False)
        else:
            self._latch(transaction, f"it is half way, and its manager fails: {reason}")

    async def _evidence(
        self, transaction: Transaction, manager: act.Manager, observation: Observation, target: Target
    ) -> bool:
        stamp = transaction.id.rsplit("-", 1)[-1]
        saved = await evidence.collect(self.on.server, self.on.store.folder, stamp)
        self._phase("recheck", evidence=saved)
        return True

    async def _recheck(
        self, transaction: Transaction, manager: act.Manager, observation: Observation, target: Target
    ) -> bool:
        """Immediately before the stop: is it still the process that was accused, and does it still not move?"""
        if await self._another(transaction, manager):
            return True
        if transaction.by == "watchdog":
            again, _page = await observe(self.on.context.http, target, self.on.now)
            if again.reading is not None:
                before = self.on.state.memory.track
                after = advance(before, again, self.on.settings.gap_void_s)
                accused = self.on.state.accused
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
        if (await manager.status(self.on.now)).state not in ("active", "activating"):
            return False  # on its way down its identity changes too
        now = await manager.identity()
        if transaction.accused_start is None or now is None or now == transaction.accused_start:
            return False
        if isinstance(manager, Together):
            # that head waits for workers: never half
            self._phase("start")
            return True
        self._abort(
            transaction, "it was started again by others while it stopped: a new process runs there", counts=True
        )
        return True

    async def _stop(
        self, transaction: Transaction, manager: act.Manager, observation: Observation, target: Target
    ) -> bool:
        # done again after a crash: by then it may be down already, or another process may run there
        if not await manager.is_down():
            # of several nodes some may be stopped already; then the whole has to follow, whoever runs there
            if not isinstance(manager, Together) and await self._another(transaction, manager):
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
            waited = self.on.now() - transaction.phase_t
            if waited > STOP_WITHIN_S and not transaction.killed:
                self.on.record("kill", reason=f"it did not stop within {STOP_WITHIN_S:.0f} s")
                self.on.save(transaction=replace(transaction, killed=True))
                transaction = replace(transaction, killed=True)
                await manager.kill()
            elif waited > 4 * STOP_WITHIN_S:
                self._latch(transaction, "its processes cannot be ended")
                return True
            if time.monotonic() > end:
                return False
            await asyncio.sleep(0.5)
        if self.on.server.drop_caches:
            try:
                await asyncio.to_thread(act.drop_caches)
                if isinstance(manager, Together):
                    await manager.drop_caches()
            except act.Failed as failure:  # no reason to leave it down: the memory is looked at next
                self.on.record("failed", reason=str(failure))
        self._phase("memory")
        return True

    async def _memory(
        self, transaction: Transaction, manager: act.Manager, observation: Observation, target: Target
    ) -> bool:
        """Judged only now that the server is down: is there memory enough to start it?"""
        lack = self._memory_lack()
        if lack is None and isinstance(manager, Together):
            lack = await manager.memory_lack(self.on.server.drop_caches)
        if lack is None:
            self._phase("start")
            return True
        waited = self.on.now() - transaction.phase_t
        if waited >= self.on.settings.memory_wait_s:
            holder = await asyncio.to_thread(_largest_process)
            self._latch(transaction, f"memory did not come back: {lack}; the largest process is {holder}")
            return True
        if waited >= self.on.settings.memory_alert_s and not transaction.warned:
            self.on.save(transaction=replace(transaction, warned=True))
            await self.on.tell(f"waits for memory to start again: {lack}", State.STARTING)
        return False

    def _memory_lack(self) -> str | None:
        need = self.on.settings.memory_needed_gib
        available, free = self.on.context.memory_of()
        there = available if not self.on.server.drop_caches else min(available or 0.0, free or 0.0)
        if need is None or available is None or (there or 0.0) >= need:
            return None
        return f"{need:g} GiB are needed and {there or 0.0:.1f} are there"

    async def _start(
        self, transaction: Transaction, manager: act.Manager, observation: Observation, target: Target
    ) -> bool:
        # done again after a crash, or after a reboot that started it: whoever runs there by now is the one that was wanted
        if isinstance(manager, Together) or await manager.is_down():
            await manager.start(self._receipt(transaction))
        self._phase("starting")
        return True

    async def _starting(
        self, transaction: Transaction, manager: act.Manager, observation: Observation, target: Target
    ) -> bool:
        """Waits for ready over the next runs; then one warm-up answer, and the record is closed."""
        if self.on.now() - transaction.phase_t < 2.0:
            return False
        seen, target = await self.on.look(target)
        # proof of who acts is over: this look starts a new track for the new process
        done = step(replace(self.on.settings, mode="observe"), self.on.state.memory, seen)
        self.on.trace(seen)
        self.on.save(**self.on.seen(done, seen))
        waited = self.on.now() - transaction.phase_t
        ready = seen.reading is not None and done.verdict.state in (
            State.BUSY,
            State.IDLE,
            State.SLEEPING,
            State.STALLED,
        )
        if ready:
            word = "not needed"
            if done.verdict.state is State.IDLE and self.on.server.probe != "never" and not seen.lease_holders():
                word, _dead, _begun = await self.on.probe(target, WARM_UP_WITHIN_S, None)
            outcome = "serving again" if word in ("ok", "not needed") else f"ready; warm-up: {word}"
            self._close(transaction, outcome, answered=word == "ok")
            await self.on.tell(None, done.verdict.state)
            return False
        if waited > self.on.settings.start_ceiling_s:
            self._close(transaction, "never ready")
            await self.on.tell(
                f"started, but not ready within {self.on.settings.start_ceiling_s:.0f} s", done.verdict.state
            )
        elif done.verdict.state is State.DEAD and done.verdict.rule == "given_up" and waited > 10.0:
            self._close(transaction, "did not start")
            await self.on.tell("it did not start: its manager gave up", done.verdict.state)
        return False

    def _receipt(self, transaction: Transaction) -> Path:
        return self.on.store.folder / "locks" / f"{transaction.id}.started"

    def _close(self, transaction: Transaction, outcome: str, answered: bool = False) -> None:
        """Ends the record. `answered`: a token came, so the act bore fruit, whatever the next look finds."""
        self._receipt(transaction).unlink(missing_ok=True)
        self.on.record(
            "closed",
            id=transaction.id,
            action=transaction.action,
            outcome=outcome,
            seconds=round(self.on.now() - transaction.begun_t, 1),
            evidence=transaction.evidence,
        )
        memory = self.on.state.memory
        last = memory.acts[-1] if memory.acts else None
        if answered and last and (last.action, last.reason) == (transaction.action, transaction.reason):
            memory = replace(memory, acts=(*memory.acts[:-1], replace(last, fruitful=True)))
        self._over("closed", outcome, memory)

    def _latch(self, transaction: Transaction, reason: str) -> None:
        self.on.record("latched", reason=reason)
        self.on.record("aborted", reason=reason, id=transaction.id)
        self._over("aborted", None, replace(self.on.state.memory, latched=reason))


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
