"""Tables in pages other than docs/benchmarks.md stand between markers too, written by the script that measured them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; all columns but the first are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def write_between(path: Path, name: str, text: str, title: str) -> None:
    """Replace what stands between ``<!-- NAME begin -->`` and ``<!-- NAME end -->``, or add both at the end."""
    begin, end = f"<!-- {name} begin -->", f"<!-- {name} end -->"
    block = f"{begin}\n{text.strip()}\n{end}"
    page = path.read_text() if path.exists() else f"# {title}\n"
    if begin in page:
        before, _old, rest = page.partition(begin)
        page = before + block + rest.partition(end)[2]
    else:
        page = f"{page.rstrip()}\n\n{block}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page)
