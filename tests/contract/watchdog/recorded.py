# SPDX-License-Identifier: GPL-3.0-or-later
"""A state folder as the watchdog leaves it: an example trace played through the policy, its journal, memory and evidence.

Everything that a page must not show is in it, in every place where it could come from.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

from ansible_collections.gb10.serving.plugins.module_utils._core.codec import encode
from ansible_collections.gb10.serving.plugins.module_utils._core.settings import Settings
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.clock import Anchor, read
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.decide import step
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.memory import Memory
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.store import ServerState, Store, Transaction
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.trace import parse

TRACES = Path(__file__).parents[2] / "fixtures/traces"
SECRETS = ("sk-verysecretkey123", "hunter2hunter2", "Tell me a story about my illness")
MARKUP = "<script>alert(1)</script>"


def iso(wall: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(wall))


def write(folder: Path, name: str = "qwen", trace: str = "frozen-12-days", ended_ago_s: float = 600.0) -> Path:
    """Writes the folder, whose last look was `ended_ago_s` ago. Returns the servers.yml that describes it."""
    store, now, wall = Store(folder / "state"), read(), time.time()
    store.prepare()
    text = (TRACES / f"{trace}.jsonl").read_text()
    played = parse(text, trace)
    # the trace's clock, in seconds before now
    begun = wall - ended_ago_s - played.observations[-1].t
    anchor = Anchor(0.0, now.boot, now.uptime_s - (wall - begun), begun)
    memory, state, rows, done = Memory(), None, [], None
    for seen in played.observations:
        done = step(Settings(), memory, seen)
        memory = done.memory
        row = {"time": iso(begun + seen.t), "server": name, "t": seen.t, "anchor": encode(anchor)}
        if done.verdict.state.value != state:
            state = done.verdict.state.value
            rows.append({**row, "event": "state", "state": state, "reason": done.verdict.reason})
        if done.decision.action.value == "restart":
            given = Transaction(f"{name}-20260101T000000", "restart", done.decision.reason, "evidence", seen.t, seen.t)
            more = {"action": "restart", "reason": done.decision.reason, "rule": done.decision.rule}
            rows.append({**row, "event": "decided", **more, "transaction": encode(given)})
            given = replace(given, phase="recheck", evidence=f"evidence/{name}/20260101T000000")
            rows.append({**row, "event": "phase", "phase": "recheck", "transaction": encode(given)})
            ended = {**row, "time": iso(begun + seen.t + 30), "t": seen.t + 30}
            rows.append({**ended, "event": "closed", "id": given.id, "outcome": "serving again", "seconds": 30.0})
            rows.append(
                {
                    **ended,
                    "event": "maintenance",
                    "by": f"eve{MARKUP}",
                    "reason": f"{MARKUP} key {SECRETS[0]}, see http://eve:{SECRETS[1]}@wiki/",
                }
            )
    store.journal_file.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"time": "torn')
    (folder / "state/traces" / f"{name}.jsonl").write_text(text + '{"t": 1e9, "reading"')
    assert done is not None
    seen_last = ServerState(
        name,
        memory=memory,
        anchor=replace(
            anchor, t=played.observations[-1].t, wall=wall - ended_ago_s, uptime_s=now.uptime_s - ended_ago_s
        ),
        state=state,
        reason=f"{done.verdict.reason} {MARKUP}",
        rule=done.verdict.rule,
        state_since=0.0,
        looked_wall=wall - ended_ago_s,
        engine="vllm",
        running=2.0,
        waiting=0.0,
        decision=done.decision.reason,
    )
    store.save(seen_last)
    kept = folder / "state/evidence" / name / "20260101T000000"
    kept.mkdir(parents=True)
    (kept / "unit.txt").write_text(
        f"Id=vllm-qwen.service\nActiveState=active\nEnvironment=KEY={SECRETS[0]}\nNRestarts=1\n"
    )
    (kept / "processes.txt").write_text(
        "pid\tparent\tname\n12\t1\tvllm\t3.0 s of CPU\n13\t12\tVLLM::EngineCore\t9.0 s\n"
    )
    (kept / "log.txt").write_text(f"INFO {SECRETS[2]}\nERROR api_key={SECRETS[1]}\nfine\n")
    (kept / "kernel.txt").write_text(f"kernel: NVRM: Xid 31 {MARKUP}\n")
    (kept / "surprise.txt").write_text(f"{SECRETS[2]}\n")
    described = folder / "servers.yml"
    described.write_text(
        json.dumps(
            {
                "llm_servers": [
                    {
                        "name": name,
                        "url": f"http://eve:{SECRETS[1]}@127.0.0.1:8000",
                        "restart": {"systemd": "q.service"},
                    }
                ]
            }
        )
    )
    return described
