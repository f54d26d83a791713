"""The real asker on a simulated clock: an event loop that jumps to the next timer instead of sleeping."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from ansible_collections.gb10.serving.plugins.module_utils._gate.ask import Asker
from ansible_collections.gb10.serving.plugins.module_utils._gate.config import Ejection, Limits
from ansible_collections.gb10.serving.plugins.module_utils._gate.endpoint import Endpoint
from ansible_collections.gb10.serving.plugins.module_utils._gate.pool import Pool
from ansible_collections.gb10.serving.plugins.module_utils._gate.verdict import (
    Blame,
    Cause,
    Fault,
    Question,
    Verdict,
)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Time passes only when nobody has anything to do, and then at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        while self._scheduled and self._scheduled[0]._cancelled:
            handle = heapq.heappop(self._scheduled)
            handle._scheduled = False
            self._timer_cancelled_count -= 1
        if not self._ready and self._scheduled:
            self.now_s = max(self.now_s, self._scheduled[0]._when)
        super()._run_once()


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on a clock of its own."""
    loop = SimulatedLoop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


@dataclass
class Behaviour:
    """What an endpoint does to a question that reaches it: an outcome after a while (None: never)."""

    name: str
    after_s: float | None
    result: Verdict | Fault | None

    @property
    def healthy(self) -> bool:
        return isinstance(self.result, Verdict) and self.after_s is not None


YES = Verdict(True)
GOOD = Behaviour("good", 0.02, YES)
SLOW = Behaviour("slow", 0.3, YES)
REFUSED = Behaviour("refused", 0.001, Fault(Cause.UNREACHABLE, Blame.CONNECTION, "refused"))
RESET_LATE = Behaviour("reset late", 0.12, Fault(Cause.UNREACHABLE, Blame.CONNECTION, "reset"))
ERROR = Behaviour("error", 0.005, Fault(Cause.SERVER_ERROR, Blame.ANSWER, "answered 500"))
LATE_ERROR = Behaviour("late error", 0.02, Fault(Cause.SERVER_ERROR, Blame.ANSWER, "answered 500"))
GARBAGE = Behaviour("garbage", 0.005, Fault(Cause.BAD_ANSWER, Blame.ANSWER, "no JSON"))
SILENT = Behaviour("silent", None, None)
NO_ROUTE = Behaviour("connect time-out", 0.25, Fault(Cause.TIMEOUT, Blame.CONNECTION, "did not connect in time"))
FORBIDS = Behaviour("4xx", 0.005, Fault(Cause.BAD_ANSWER, Blame.NOBODY, "answered 404"))
FAULTY = [REFUSED, RESET_LATE, ERROR, GARBAGE, SILENT, NO_ROUTE]


class World:
    """Endpoints that behave as told, and the asker that meets them."""

    def __init__(
        self, count: int, limits: Limits | None = None, ejection: Ejection | None = None, seed: int = 1
    ) -> None:
        self.limits = limits or Limits()
        self.endpoints = [Endpoint(f"http://10.0.0.{i + 1}:8080") for i in range(count)]
        self.behaviour = {endpoint.url: GOOD for endpoint in self.endpoints}
        self.pool = Pool(ejection or Ejection(), self.limits.hedge_after_s, random.Random(seed))
        self.pool.replace(self.endpoints)
        self.sent: list[tuple[float, str, Question]] = []
        self.on_send: Callable[[str, Question], None] = lambda url, question: None
        self.asker = Asker(self.pool, self.limits, self.send)

    def set(self, *behaviours: Behaviour) -> None:
        for endpoint, behaviour in zip(self.endpoints, behaviours, strict=True):
            self.behaviour[endpoint.url] = behaviour

    async def send(self, endpoint: Endpoint, question: Question, limit_s: float) -> Verdict | Fault:
        self.sent.append((asyncio.get_running_loop().time(), endpoint.url, question))
        self.on_send(endpoint.url, question)
        behaviour = self.behaviour[endpoint.url]
        await asyncio.sleep(1e6 if behaviour.after_s is None else behaviour.after_s)
        assert behaviour.result is not None
        return behaviour.result

    async def ask(self, name: str = "k") -> tuple[Any, float]:
        """One question: how it went, and how long it took."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        asked = await self.asker.ask(Question(name, "m"))
        return asked, loop.time() - began_s

    async def stream(self, per_second: float, for_s: float) -> list[tuple[Any, float]]:
        """Questions at a steady rate, whether answered or not."""
        tasks = []
        for number in range(int(per_second * for_s)):
            tasks.append(asyncio.ensure_future(self.ask(f"k{number}")))
            await asyncio.sleep(1 / per_second)
        return await asyncio.gather(*tasks)

    def hits(self) -> Counter[str]:
        return Counter(url for _, url, _ in self.sent)
