# SPDX-License-Identifier: GPL-3.0-or-later
"""The archive for a bug report: what was decided, seen and done, scrubbed once more of prompts and keys."""

from __future__ import annotations

import io
import json
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from .._core.settings import Settings
from . import clock, explain
from .scrub import scrubbed, scrubbed_rows, without_secrets
from .store import Store

TRACE_LINES = 2000


def archive(names: Sequence[str], settings: Settings, store: Store) -> tuple[bytes, int]:
    """The archive (tar, gzip) of these servers, and how many files are in it. Raises OSError where one cannot be read."""
    made, count = io.BytesIO(), 0
    with tarfile.open(fileobj=made, mode="w:gz") as file:
        for name in names:
            for path, text in _files(name, settings, store):
                data = text.encode("utf-8", "replace")
                info = tarfile.TarInfo(f"bundle/{name}/{path}")
                info.size, info.mtime, info.mode = len(data), int(time.time()), 0o600
                file.addfile(info, io.BytesIO(data))
                count += 1
    return made.getvalue(), count


def _files(name: str, settings: Settings, store: Store) -> Iterator[tuple[str, str]]:
    state = store.load(name, mend=False)
    t = clock.advance(state.anchor, clock.read()).t
    yield "explain.txt", without_secrets("\n".join(explain.sentences(settings, state, t, time.time())) + "\n")
    yield "journal.jsonl", scrubbed_rows("".join(json.dumps(row) + "\n" for row in store.journal(name)))
    for path in sorted((store.folder / "evidence" / name).glob("*/*")):
        if path.is_file():
            yield f"evidence/{path.parent.name}/{path.name}", _scrubbed(path)
    trace = store.folder / "traces" / f"{name}.jsonl"
    if trace.exists():
        lines = trace.read_text(encoding="utf-8", errors="replace").splitlines()
        yield "trace.jsonl", scrubbed_rows("\n".join([*lines[:1], *lines[1:][-TRACE_LINES:]]) + "\n")


def _scrubbed(path: Path) -> str:
    text = path.read_text(encoding="utf-8", errors="replace")
    return scrubbed_rows(text) if path.suffix == ".jsonl" else scrubbed(text)
