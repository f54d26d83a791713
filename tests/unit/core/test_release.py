# SPDX-License-Identifier: GPL-3.0-or-later
"""The core arrives on a host whole or not at all."""

from __future__ import annotations

import gzip
import io
import multiprocessing
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from ansible_collections.gb10.serving.plugins.lookup.core_archive import packed
from ansible_collections.gb10.serving.plugins.module_utils._core import release
from ansible_collections.gb10.serving.plugins.module_utils._core.errors import ConfigError

CORE = Path(__file__).parents[3] / "plugins/module_utils"


def archive_of(**files: str) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name.replace("__", "/"))
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return gzip.compress(raw.getvalue(), mtime=0)


def test_the_same_files_make_the_same_archive_and_it_runs_on_the_host(tmp_path):
    archive = packed(CORE)
    assert archive == packed(CORE)
    assert release.compared(tmp_path, archive).needed
    release.install(tmp_path, archive)
    assert not release.compared(tmp_path, archive).needed
    code = "from ansible_collections.gb10.serving.plugins.module_utils._busy import store; print(store.__file__)"
    where = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path / "lib")}, capture_output=True, text=True
    )
    assert where.stdout.startswith(str(tmp_path / "lib")), where.stderr


def test_only_some_packages_can_be_packed(tmp_path):
    release.install(tmp_path, packed(CORE, ["_gate"]))
    there = {path.name for path in (tmp_path / "lib/ansible_collections/gb10/serving/plugins/module_utils").iterdir()}
    assert there - {"__pycache__"} == {"_gate"}
    code = "from ansible_collections.gb10.serving.plugins.module_utils._gate import hook, releases, retry_after"
    env = {"PYTHONPATH": str(tmp_path / "lib")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_upgrade_replaces_the_link_and_takes_the_old_release_away(tmp_path):
    release.install(tmp_path, archive_of(a="1", gone="x"))
    before = (tmp_path / "lib").readlink()
    release.install(tmp_path, archive_of(a="2"))
    assert (tmp_path / "lib/a").read_text() == "2"
    assert not (tmp_path / "lib/gone").exists()
    assert not (tmp_path / before).exists()
    assert [one.name for one in (tmp_path / "releases").iterdir()] == [(tmp_path / "lib").readlink().name]


def test_an_edited_file_is_seen_and_mended(tmp_path):
    archive = archive_of(a="1")
    release.install(tmp_path, archive)
    (tmp_path / "lib/a").write_text("edited")
    change = release.compared(tmp_path, archive)
    assert change.needed and set(change.before) == {"a"}
    release.install(tmp_path, archive)
    assert (tmp_path / "lib/a").read_text() == "1"


@pytest.mark.parametrize(
    "archive",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x1f\x8bnot really", id="no archive"),
        pytest.param(packed(CORE)[:-200], id="cut off"),
        pytest.param(archive_of(**{"..__etc__passwd": "x"}), id="climbs out"),
    ],
)
def test_what_is_no_release_is_refused_and_what_was_there_stays(tmp_path, archive):
    release.install(tmp_path, archive_of(a="1"))
    with pytest.raises(ConfigError):
        release.install(tmp_path, archive)
    assert (tmp_path / "lib/a").read_text() == "1"


def test_a_folder_of_somebody_elses_is_not_touched(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/theirs").touch()
    with pytest.raises(ConfigError, match="no link of ours"):
        release.install(tmp_path, archive_of(a="1"))
    assert (tmp_path / "lib/theirs").exists()


def test_taken_away_nothing_is_left(tmp_path):
    release.install(tmp_path, archive_of(a="1"))
    release.remove(tmp_path)
    assert list(tmp_path.iterdir()) == []


def _play(folder: Path, archive: bytes, gate, told) -> None:
    gate.wait()
    try:
        told.put(release.install(folder, archive).needed)
    except BaseException as error:
        told.put(repr(error))


def at_once(folder: Path, archives: list[bytes]) -> list[object]:
    """What each of the plays that install at the same moment says: whether it changed anything, or how it failed."""
    processes = multiprocessing.get_context("fork")
    gate, told = processes.Barrier(len(archives)), processes.Queue()
    plays = [processes.Process(target=_play, args=(folder, archive, gate, told)) for archive in archives]
    for play in plays:
        play.start()
    said = [told.get(timeout=60) for play in plays]
    for play in plays:
        play.join()
    return said


# large enough for the plays to be at it at the same time
SEVERAL = {f"pkg__m{n}.py": f"x = {n}\n" * 200 for n in range(30)}


@pytest.mark.parametrize("round_", range(5))
def test_plays_at_once_with_the_same_core_leave_it_whole_and_one_says_changed(tmp_path, round_):
    archive = archive_of(**SEVERAL)
    assert sorted(at_once(tmp_path, [archive] * 4), key=str) == [False, False, False, True]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["lib", "releases"]
    assert not release.compared(tmp_path, archive).needed
    assert [one.name for one in (tmp_path / "releases").iterdir()] == [(tmp_path / "lib").readlink().name]


@pytest.mark.parametrize("round_", range(5))
def test_plays_at_once_with_different_cores_leave_one_of_them_whole(tmp_path, round_):
    archives = [archive_of(**SEVERAL, which=str(n)) for n in range(2)]
    assert set(at_once(tmp_path, archives * 2)) <= {True, False}
    assert sorted(release.compared(tmp_path, archive).needed for archive in archives) == [False, True]
    assert [one.name for one in (tmp_path / "releases").iterdir()] == [(tmp_path / "lib").readlink().name]


def test_what_another_play_makes_is_left_and_what_a_killed_one_left_is_taken_away(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid in (os.getppid(), gone.pid):
        (tmp_path / "releases" / f".abc.{pid}.part").mkdir(parents=True)
    release.install(tmp_path, archive_of(a="1"))
    assert [one.name for one in (tmp_path / "releases").glob(".*")] == [f".abc.{os.getppid()}.part"]


def test_a_play_that_holds_its_turn_for_ever_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(release, "TURN_S", 0.0)
    with release._turn(tmp_path), pytest.raises(ConfigError, match=r"another play has held it .* fuser"):
        release.install(tmp_path, archive_of(a="1"))


def test_a_folder_that_is_not_there_is_taken_away_without_making_it(tmp_path):
    release.remove(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []
