# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes docs/settings.md from the settings' own source: name, default, reason. `make_settings.py --check` only compares."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "plugins/module_utils/_core/settings.py"
PAGE = ROOT / "docs/settings.md"
HEAD = """# Every setting, with its reason

Made from `plugins/module_utils/_core/settings.py` by `docs/make_settings.py`. Set them in the inventory
(`watchdog_settings: {patience_s: 900}` for a host) and run the site playbook, which writes `settings:` into
`/etc/gb10-serving/servers.yml`. A server's own `patience_s`, `start_ceiling_s`, `lifecycle`, `mode`
and `memory_needed_gib` go before them. Times in seconds, sizes in GiB, shares from 0 to 1.

| setting | default | why |
|---|---|---|
"""


SERVERS = ROOT / "plugins/module_utils/_core/servers.py"
SERVER_HEAD = """
## What is said of one server

An entry of `llm_servers`. Beside that list `servers.yml` has `settings` and `notify_command`, a program and its arguments as a list
(`watchdog_notify_command` in the inventory): it is run for what a person should know, with JSON on its standard input.

| key | default | what for |
|---|---|---|
"""
SHOWN = {"None": "null", "()": "[]", "START_CEILING_S": "1800", "False": "false"}


def fields(source: Path, begin: str, end: str, least: int) -> list[tuple[str, str, str]]:
    """(name, default, comment) of each field of a class; what has no default must be given."""
    text = source.read_text(encoding="utf-8")
    body = text[text.index(begin) : text.index(end)]
    rows = re.findall(r"^    (\w+): [^=#\n]+?(?: = ([^#\n]+?))?(?:\s+# (.*))?$", body, re.MULTILINE)
    if len(rows) < least:
        raise SystemExit(f"make_settings: the fields could not be found in {source}")
    return rows


def page() -> str:
    """The page's text."""
    text = HEAD
    for name, default, why in fields(SOURCE, "class Settings:", "_CHOICES", 20):
        text += f"| `{name}` | {default} | {why} |\n"
    text += SERVER_HEAD
    for name, default, why in fields(SERVERS, "class Server:", "class _Faults", 15):
        shown = SHOWN.get(default, default.strip('"')) or "must be given"
        linked = re.sub(r"([\w-]+[.]md)", r"[\1](\1)", why)
        text += f"| `{name}` | {shown} | {linked} |\n"
    return text


def main() -> int:
    if "--check" in sys.argv:
        if PAGE.read_text(encoding="utf-8") != page():
            print("docs/settings.md is not what docs/make_settings.py makes; run it", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
