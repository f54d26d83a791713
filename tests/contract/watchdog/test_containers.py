# SPDX-License-Identifier: GPL-3.0-or-later
"""Restarts of containers, by a real docker and a real podman: only what is proven hung, and what is meant to be up."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from tests.contract.scripted import until
from tests.contract.watchdog.container_engines import Cannot, ContainerBed, Docker, Podman

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="container engines of the test's own need root"),
]


@pytest.fixture(scope="module", params=[Docker, Podman], ids=lambda kind: kind.kind)
def engine(request, tmp_path_factory):
    try:
        made = request.param(tmp_path_factory.mktemp(request.param.kind))
    except Cannot as reason:
        pytest.skip(str(reason))
    yield made
    made.close()


@pytest.fixture
def bed(engine, tmp_path):
    made = ContainerBed(tmp_path, engine)
    yield made
    made.end()


# what podman does no other way than docker
docker_alone = pytest.mark.parametrize("engine", [Docker], indirect=True, ids=["docker"])


def runs(bed, count=6, until_said=None):
    """What the last of several runs said; no more of them than it takes until something is said."""
    said = ""
    for _ in range(count):
        said = bed.watchdog("run").stdout
        if until_said is not None and until_said in said:
            break
        time.sleep(0.2)
    return said


def test_hung_is_restarted_once_with_evidence_and_serves_again(bed):
    bed.start()
    first = bed.inspected()["State"]["StartedAt"]
    runs(bed, 2)
    bed.freeze()
    bed.until_settled()
    assert len(bed.starts) == 2 and bed.inspected()["State"]["StartedAt"] != first
    (closed,) = bed.journal("closed")
    assert closed["outcome"] == "serving again"
    evidence = bed.folder / "state" / closed["evidence"]
    assert '"Pid"' in (evidence / "container.txt").read_text()
    log = (evidence / "log.txt").read_text()
    assert "said on its output" in log and "said on its error output" in log
    assert "python3" in (evidence / "processes.txt").read_text()
    (bed.folder / "frozen").unlink()
    assert "busy" in runs(bed, 4)
    assert len(bed.starts) == 2


def test_stopped_by_a_person_it_is_left_alone(bed):
    bed.start()
    runs(bed, 3)
    bed.engine("stop", "--time", "20", "qwen")
    said = runs(bed)
    # of one and the same stop podman tells "stop" or only "died" [both seen]: either way it is a person's
    sentences = ["is not meant to be", "cannot be told"][: 1 if bed.engine.kind == "docker" else 2]
    assert any(sentence in said for sentence in sentences), said
    assert len(bed.starts) == 1 and bed.journal("decided") == []


def test_ended_by_itself_it_is_started_also_when_it_had_been_stopped_before(bed):
    bed.start()
    bed.engine("stop", "--time", "20", "qwen")
    bed.engine("start", "qwen")
    until(bed.answers)
    runs(bed, 3)
    os.kill(int(bed.starts[-1]), signal.SIGKILL)  # not by the container's engine, which would be a person's word
    if bed.engine.kind == "podman":
        assert "cannot be told" in runs(bed)
        assert len(bed.starts) == 2
        return
    bed.until_settled()
    assert len(bed.starts) == 3
    assert len(bed.journal("decided")) == 1


def test_how_long_it_runs_is_told_in_any_time_zone(bed, monkeypatch):
    monkeypatch.setitem(bed.engine.env, "TZ", "Asia/Tokyo")
    bed.start()
    bed.describe(settings={"start_ceiling_s": 1800.0})
    said = subprocess.run(
        [*bed.engine.client, "inspect", "--format", "{{json .State.StartedAt}}", "qwen"],
        env=bed.engine.env, capture_output=True, text=True,
    ).stdout  # fmt: skip
    runs(bed, 2)
    seen = bed.last_observation()
    assert -60.0 < seen["service"]["since"] - seen["t"] <= 0.0, said


@docker_alone
@pytest.mark.parametrize(
    ("options", "argv", "said"),
    [
        (["--rm"], None, "was started with --rm"),
        ([], ["/usr/bin/sleep", "600"], "a sleeper is PID 1 there"),
    ],
    ids=["--rm", "sleeper"],
)
def test_what_a_restart_would_destroy_or_not_reach_is_refused(bed, options, argv, said):
    bed.run(*options, argv=argv)
    if argv:
        bed.engine("exec", "--detach", "qwen", *bed.argv)
    until(bed.answers)
    runs(bed, 2)
    bed.freeze()
    assert said in runs(bed, 20, until_said=said)
    assert len(bed.starts) == 1 and bed.journal("phase") == []
    assert bed.journal("proof") == [], "what may not be restarted is asked for no proof"
    assert bed.inspected()["State"]["Status"] == "running"


@docker_alone
def test_a_container_that_is_not_there_is_said(bed):
    bed.start()
    bed.describe(restart=bed.engine.target("qwem"))
    bed.freeze()
    said = "qwem: there is no such container"
    assert said in runs(bed, 20, until_said=said)
    assert len(bed.starts) == 1


@docker_alone
def test_a_service_of_compose_is_found_by_its_labels(bed):
    labels = ("--label=com.docker.compose.project=llm", "--label=com.docker.compose.service=vllm")
    bed.describe(restart={"compose": {"project": "llm", "service": "vllm"}})
    bed.run(*labels, name="llm-vllm-1")
    until(bed.answers)
    runs(bed, 2)
    bed.freeze()
    bed.until_settled()
    assert len(bed.starts) == 2 and bed.journal("closed")[0]["outcome"] == "serving again"
    bed.run(*labels, name="llm-vllm-2", argv=["/usr/bin/sleep", "600"])
    bed.freeze()
    bed.describe(settings={"cooldown_s": 0}, restart={"compose": {"project": "llm", "service": "vllm"}})
    said = "has 2 containers, exactly one is needed"
    assert said in runs(bed, 20, until_said=said)
    assert len(bed.starts) == 2
