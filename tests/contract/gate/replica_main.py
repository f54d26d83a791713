"""One replica in a process of its own, told by lines on its standard input: ``mode 500``, ``delay 0.3``, ``count``.

replica_main HOST PORT [alone]: with ``alone``, as a unit has it, nobody tells it anything.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from tests.contract.gate.servers import NO, YES, Replica


async def main(host: str, port: int) -> None:
    replica = Replica(host=host, port=port, delay_s=0.02)
    replica.decide = lambda question: NO if "denied" in (question.get("user") or "") else YES
    await replica.open()
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)

    def told() -> None:
        line = sys.stdin.readline()
        if not line:
            ended.set()
            loop.remove_reader(sys.stdin)
            return
        word, _, value = line.strip().partition(" ")
        if word == "mode":
            replica.mode = value
        elif word == "delay":
            replica.delay_s = float(value)
        print(len(replica.seen), flush=True)

    if "alone" not in sys.argv[3:]:
        loop.add_reader(sys.stdin, told)
    print("ready", replica.port, flush=True) if port == 0 else print("ready", flush=True)
    await ended.wait()
    # As a well-behaved server does: no new connections, what is under way is answered.
    await replica.drain()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
