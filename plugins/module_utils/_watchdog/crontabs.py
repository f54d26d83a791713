# SPDX-License-Identifier: GPL-3.0-or-later
"""What cron and anacron run by time: lines of crontabs, and scripts of the folders that these name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .commands import Files, words_of

# Debian's cron and run-parts pass over what is called otherwise
_RUN_BY_CRON = re.compile(r"^[A-Za-z0-9_-]+$")
_SCHEDULE = re.compile(r"^(?:@\w+|(?:[\d*,/~-]+\s+){2}(?:[\d*,/~A-Za-z-]+\s+){2}[\d*,/~A-Za-z-]+)\s+")
_OF_ANACRON = re.compile(r"^(?:\d+|@\w+)\s+\d+\s+\S+\s+")
_CRON_SETTING = re.compile(r"""^([A-Za-z_]\w*)\s*=\s*["']?(.*?)["']?$""")


@dataclass(frozen=True)
class Entry:
    """A line of a crontab, or a script that it runs by its folder: then `line` is its path too."""

    where: str
    line: str
    command: str
    variables: Mapping[str, str]


def _tables(files: Files) -> Iterator[tuple[Path, re.Pattern[str], str | None]]:
    """Every crontab, how its entries begin, and whose it is; None: each entry says."""
    yield files.at("etc/crontab"), _SCHEDULE, None
    yield files.at("etc/anacrontab"), _OF_ANACRON, "root"
    for path in files.entries(files.at("etc/cron.d")):
        if _RUN_BY_CRON.match(path.name):
            yield path, _SCHEDULE, None
    for folder in ("var/spool/cron", "var/spool/cron/crontabs"):
        for path in files.entries(files.at(folder)):
            yield path, _SCHEDULE, path.name


def entries_of_host(files: Files) -> Iterator[Entry]:
    folders = [f"/etc/cron.{period}" for period in ("hourly", "daily", "weekly", "monthly")]
    homes = files.homes()
    for path, schedule, owner in _tables(files):
        given: dict[str, str] = {}
        for line in map(str.strip, (files.text(path) or "").splitlines()):
            setting, begins = _CRON_SETTING.match(line), schedule.match(line)
            if setting:
                given[setting.group(1)] = setting.group(2)
            elif begins:
                user, command = owner, line[begins.end() :]
                if user is None:
                    user, command = (*command.split(None, 1), "")[:2]
                home = homes.get(user, "/root" if user == "root" else f"/home/{user}")
                yield Entry(files.name(path), line, command.strip(), {"HOME": home, **given})
                folders += [word for word in words_of(command.partition("run-parts")[2]) if word.startswith("/")]
    for folder in dict.fromkeys(folders):
        for path in files.entries(files.at(folder)):
            if _RUN_BY_CRON.match(path.name):
                yield Entry(files.name(path), files.name(path), files.name(path), {"HOME": "/root"})
