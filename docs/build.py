# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds the documentation into docs/_build/html: these pages, and the collection's own plugin and role pages.

`./dev docs` calls it in an environment of its own. Nothing is fetched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "docs/_build"
CONF = """
project = "gb10.serving"
extensions = ["myst_parser", "sphinx_antsibull_ext"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
html_theme = "alabaster"
exclude_patterns = []
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing", "myst.header", "toc.not_included", "ref.ref"]
"""
INDEX = """# gb10.serving

| you want to | |
|---|---|
| add a server | one more entry in `llm_servers`, then the site playbook: [getting started](getting-started.md) |
| know why the last restart happened | `llm-watchdog history NAME`, or [the report](monitoring.md) |
| stop all restarts tonight | `systemctl stop llm-watchdog.timer` on each host: [restarts](restarts.md) |
| undo everything | the site playbook with `-e site_state=absent`: [getting started](getting-started.md) |

```{toctree}
:maxdepth: 2

getting-started
two-nodes
units-and-containers
kubernetes
from-a-chat-probe
verdicts
restarts
settings
heartbeat
monitoring
runbooks
drills
litellm
usage-gate
security
limits
benchmarks
trace
house
collections/gb10/serving/index
```
"""


def main() -> int:
    source = BUILD / "source"
    shutil.rmtree(BUILD, ignore_errors=True)
    source.mkdir(parents=True)
    for page in (ROOT / "docs").glob("**/*.md"):
        if "_build" not in page.parts:
            target = source / page.relative_to(ROOT / "docs")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
    for picture in (ROOT / "docs").glob("*.png"):
        shutil.copy(picture, source / picture.name)
    (source / "conf.py").write_text(CONF, encoding="utf-8")
    (source / "index.md").write_text(INDEX, encoding="utf-8")
    tools = Path(sys.executable).parent
    env = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".collections"),
        "PATH": f"{tools}:{os.environ['PATH']}",
    }
    plugins = [
        str(tools / "antsibull-docs"),
        "collection",
        "--use-current",
        "--fail-on-error",
        "--dest-dir",
        str(source),
        "gb10.serving",
    ]
    html = [str(tools / "sphinx-build"), "-q", "-b", "html", str(source), str(BUILD / "html")]
    for command in (plugins, html):
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stdout + done.stderr, file=sys.stderr)
            return 1
    wanted = [BUILD / "html/verdicts.html", BUILD / "html/collections/gb10/serving/llm_health_module.html"]
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")}
    left_out = sorted(pages - set(INDEX.split()))
    if left_out:
        print(f"docs: {', '.join(left_out)} is not in the index", file=sys.stderr)
        return 1
    missing = [str(page.relative_to(ROOT)) for page in wanted if not page.exists()]
    if missing:
        print(f"docs: {', '.join(missing)} was not made", file=sys.stderr)
        return 1
    print(f"{BUILD.relative_to(ROOT)}/html/index.html")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
