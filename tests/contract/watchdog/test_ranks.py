# SPDX-License-Identifier: GPL-3.0-or-later
"""A server of two nodes is restarted as one: the head's watchdog, a scripted ssh, and a scripted systemctl behind it."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contract.scripted import until
from tests.contract.watchdog.bed import Bed, killed_at

pytestmark = pytest.mark.slow

SSH = """#!/bin/sh
[ -e {folder}/unreachable ] && exit 255
while [ "$1" != -- ]; do shift; done
shift 2
PATH={folder}/worker:$PATH
exec sh -c "$*"
"""
SYSTEMCTL = """#!/bin/sh
state=$(cat {folder}/worker.state)
case " $* " in
  *" --value "*) ;;
  *" show "*) printf '%s\\n' LoadState=$(cat {folder}/worker.load) ActiveState=$state ControlGroup= \\
      InvocationID=$(grep -c 'worker start' {folder}/order) MainPID=1 ExecMainStartTimestampMonotonic=1000000 ;;
  *" stop "*) [ $state = inactive ] || echo worker stop >> {folder}/order; echo inactive > {folder}/worker.state ;;
  *" kill "*) echo worker kill >> {folder}/order ;;
  *" start "*) [ $state = active ] || echo worker start >> {folder}/order; echo active > {folder}/worker.state ;;
esac
"""


class Pair(Bed):
    """Its head is the scripted engine; what the other node was asked for is in `order`, in order with the head's."""

    def __init__(self, folder):
        super().__init__(folder)
        for path, text in (("bin/ssh", SSH), ("worker/systemctl", SYSTEMCTL)):
            (folder / path).parent.mkdir()
            (folder / path).write_text(text.format(folder=folder))
            (folder / path).chmod(0o755)
        for script, word in ((self.start_script, "start"), (self.stop_script, "stop")):
            lines = script.read_text().splitlines()
            script.write_text("\n".join([lines[0], f"echo head {word} >> {folder}/order", *lines[1:], ""]))
        (folder / "order").touch()
        self.worker("active")
        (folder / "worker.load").write_text("loaded\n")
        worker = {"host": "spark2", "restart": {"systemd": "vllm-worker.service"}}
        self.describe(ranks=[{"host": socket.gethostname()}, worker])

    def worker(self, state):
        (self.folder / "worker.state").write_text(f"{state}\n")

    @property
    def env(self):
        env = super().env
        return {**env, "PATH": f"{self.folder}/bin:{env['PATH']}"}

    def order(self):
        return (self.folder / "order").read_text().splitlines()[1:]  # without the test's own first start


WHOLE = ["worker stop", "head stop", "head start", "worker start"]


@pytest.fixture
def pair(tmp_path):
    made = Pair(tmp_path)
    made.start()
    yield made
    made.end()


def test_both_are_stopped_worker_first_and_started_head_first(pair):
    pair.freeze()
    pair.until_settled()
    assert pair.order() == WHOLE
    assert pair.journal("closed")[0]["outcome"] == "serving again"


def test_a_start_stops_what_is_left_of_the_other_half(pair):
    """The head asked its own person for a restart while the worker was down: the whole comes up, never half."""
    pair.worker("inactive")
    pair.watchdog("restart", "qwen", "--drain")
    assert pair.order() == ["head stop", "head start", "worker start"]


def test_killed_at_every_write_the_pair_is_never_left_half(tmp_path_factory):
    cases = [(n, "before") for n in range(1, 24)]  # what was done is not yet written: the worse of the two moments
    folders = [tmp_path_factory.mktemp(f"pair-{n}-{when}") for n, when in cases]
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda one: killed_at(one[0], *one[1], made=Pair), zip(folders, cases, strict=True)))
    assert sum(done) > len(cases) / 2, "the killer has to have killed"
    for folder in folders:
        assert (folder / "order").read_text().splitlines()[1:] == WHOLE, folder


@pytest.mark.parametrize(
    ("damage", "event", "words"),
    [
        ("unreachable", "alert", "spark2 cannot be reached: not restarted"),
        ("not-found", "refused", "there is no such unit on spark2"),
        ("masked", "refused", "is masked on spark2"),
    ],
)
def test_nothing_is_stopped_unless_every_rank_can_be_started_again(pair, damage, event, words):
    if damage == "unreachable":
        (pair.folder / "unreachable").touch()
    else:
        (pair.folder / "worker.load").write_text(f"{damage}\n")
    pair.freeze()
    until(lambda: pair.watchdog("run") and pair.journal(event), within_s=60)
    assert words in pair.journal(event)[0]["reason"]
    if event == "alert":
        assert not pair.journal("proof"), "a server that cannot be restarted is not asked for a last proof either"
    assert pair.order() == []
    assert pair.answers()
    assert pair.state()["memory"]["acts"] == [], "what was refused spends no budget"
    (pair.folder / "unreachable").unlink(missing_ok=True)
    (pair.folder / "worker.load").write_text("loaded\n")
    pair.until_settled()
    assert pair.order() == WHOLE


def test_a_rank_lost_in_the_middle_is_waited_for(pair):
    """Its host goes away after the stop was journalled: nothing is started until it is back, then all of it."""
    pair.freeze()
    n = 1
    while not [row for row in pair.journal("phase") if row["phase"] == "stopping"]:
        pair.watchdog("run", killed=(n, "after"))
        # once it is decided, one write a run: killed right after it has asked for the stop
        n = 1 if pair.journal("decided") else n + 1 if n < 12 else 4
        time.sleep(0.2)
    (pair.folder / "unreachable").touch()
    assert not pair.journal("closed") and "head start" not in pair.order(), "killed before it was through"
    for _ in range(3):
        pair.watchdog("run")
        time.sleep(0.2)
    assert "head start" not in pair.order()
    assert "cannot be reached" in pair.journal("failed")[-1]["reason"]
    (pair.folder / "unreachable").unlink()
    pair.until_settled()
    assert pair.order() == WHOLE


def test_a_workers_watchdog_keeps_its_hands_off(pair):
    """The same description on both hosts: there the first rank's name is another's."""
    pair.describe(
        ranks=[
            {"host": "spark1.example"},
            {"host": socket.gethostname(), "restart": {"systemd": "vllm-worker.service"}},
        ]
    )
    pair.freeze()
    for _ in range(5):
        said = pair.watchdog("run").stdout
        time.sleep(0.3)
    assert "its head spark1.example watches it" in said
    assert pair.order() == []
    refused = pair.watchdog("restart", "qwen", check=False)
    assert refused.returncode == 3
    assert "a restart is asked for on its head" in refused.stderr


def test_a_worker_by_a_command_is_refused_with_the_way_out(pair):
    command = {"command": {"stop": ["/bin/true"], "start": ["/bin/true"]}}
    pair.describe(ranks=[{"host": socket.gethostname()}, {"host": "spark2", "restart": command}])
    pair.freeze()
    until(lambda: pair.watchdog("run") and pair.journal("refused"), within_s=60)
    assert "give the head commands that stop and start the whole" in pair.journal("refused")[0]["reason"]
    assert pair.order() == []


def test_memory_is_judged_on_the_workers_host_too(pair):
    """/proc/meminfo is this machine's own here: more than any machine has is never there."""
    worker = {"host": "spark2", "restart": {"systemd": "vllm-worker.service"}, "memory_needed_gib": 90000}
    pair.describe(ranks=[{"host": socket.gethostname()}, worker])
    pair.freeze()
    until(lambda: pair.watchdog("run") and [r for r in pair.journal("phase") if r["phase"] == "memory"], within_s=60)
    for _ in range(3):
        said = pair.watchdog("run").stdout
        time.sleep(0.2)
    assert pair.order() == WHOLE[:2], said
    pair.describe(ranks=[{"host": socket.gethostname()}, {**worker, "memory_needed_gib": 0.001}])
    pair.until_settled()
    assert pair.order() == WHOLE


def test_what_the_other_node_shows_is_in_the_trace(pair):
    pair.watchdog("run")
    trace = (pair.folder / "state/traces/qwen.jsonl").read_text().splitlines()[-1]
    assert '"host": "spark2", "reachable": true, "state": "active"' in trace
    (pair.folder / "unreachable").touch()
    pair.watchdog("run")
    trace = (pair.folder / "state/traces/qwen.jsonl").read_text().splitlines()[-1]
    assert '"host": "spark2", "reachable": false, "state": null' in trace
