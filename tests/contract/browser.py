# SPDX-License-Identifier: GPL-3.0-or-later
"""A real browser looks at a page: Debian's chromium, without a window, without the network, with a profile of its own."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]
# The page lies in a frame of a phone's width: a window of its own is never narrower than some 500 px.
_LOOK = """<!DOCTYPE html><meta charset="utf-8"><body style="margin:0;background:#888">
<iframe id="phone" width="WIDTH" height="HEIGHT" style="border:0;background:#fff" srcdoc="PAGE"></iframe>
<script>
onload = () => {
  const page = document.getElementById("phone").contentDocument, root = page.documentElement;
  const shown = [...page.body.querySelectorAll("*")].filter(e => e.getClientRects().length);
  const words = shown.filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()));
  const said = {
    width: root.clientWidth, scroll_width: root.scrollWidth, height: root.scrollHeight,
    too_wide: shown.filter(e => e.getBoundingClientRect().right > root.clientWidth + 1).map(e => e.outerHTML.slice(0, 200)),
    smallest_px: Math.min(...words.filter(e => !e.closest("svg")).map(e => parseFloat(getComputedStyle(e).fontSize))),
    drawn: [...page.querySelectorAll("svg")].map(e => [e.getBoundingClientRect().width, e.getBoundingClientRect().height]),
    text: page.body.innerText,
  };
  const found = document.createElement("pre");
  found.id = "said";
  found.textContent = JSON.stringify(said);
  document.body.append(found);
};
</script>"""


def _run(folder: Path, page: str, width: int, height: int, *args: str) -> str:
    frame = _LOOK.replace("WIDTH", str(width)).replace("HEIGHT", str(height)).replace("PAGE", html.escape(page))
    file = folder / "look.html"
    file.write_text(frame, encoding="utf-8")
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / 'profile'}", *args, file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def look(folder: Path, page: str, width: int = 390) -> dict[str, Any]:
    """What the browser makes of the page at that width."""
    found = re.search(r'<pre id="said">(.*?)</pre>', _run(folder, page, width, 844, "--dump-dom"), re.S)
    assert found is not None, "the browser did not get to look"
    said: dict[str, Any] = json.loads(html.unescape(found[1]))
    return said


def picture(folder: Path, page: str, file: Path, width: int, height: int) -> None:
    """What it looks like, as a PNG."""
    _run(folder, page, width, height, f"--screenshot={file}", f"--window-size={width},{height}")
