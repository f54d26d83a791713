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


def server_rows() -> str:
    """The rows for the keys of a server."""
    text = SERVERS.read_text(encoding="utf-8")
    body = text[text.index("class Server:") : text.index("class _Faults")]
    rows = re.findall(r"^    (\w+): ([^=#\n]+?)(?: = ([^#\n]+?))?  # (.*)$", body, re.MULTILINE)
    if len(rows) < 15:
        raise SystemExit("make_settings: the keys of a server could not be found in their source")
    out = ""
    for name, dummy, default, why in rows:
        shown = SHOWN.get(default, default.strip('"')) or "must be given"
        why = re.sub(r"([\w-]+\.md)", r"[\1](\1)", why)
        out += f"| `{name}` | {shown} | {why} |\n"
    return out


def page() -> str:
    """The page's text."""
    text = SOURCE.read_text(encoding="utf-8")
    body = text[text.index("class Settings:") : text.index("_CHOICES")]
    rows = re.findall(r"^    (\w+): [^=]+ = ([^#\n]+?)(?:\s+# (.*))?$", body, re.MULTILINE)
    if len(rows) < 20:
        raise SystemExit("make_settings: the settings could not be found in their source")
    return (
        HEAD
        + "".join(f"| `{name}` | {default.strip()} | {why or ''} |\n" for name, default, why in rows)
        + SERVER_HEAD
        + server_rows()
    )


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
