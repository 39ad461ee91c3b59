"""How is it kept what was measured? As data, ``results.json``, and as a page, ``results.md``, with date and machine."""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Any

from benchmarks.table import table_of
from esper_core.runs.provenance import machine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.table import Table


def write(folder: Path, tables: Sequence[Table], *, quick: bool) -> None:
    """Write what ``tables`` say, measured on this machine today, to ``folder``."""
    found = {
        "format": 1,
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "quick": quick,
        "machine": machine(),
        "tables": [table.as_json() for table in tables],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "results.md").write_text(page(found), encoding="utf-8")


def page(found: Mapping[str, Any]) -> str:
    """What was found, to be read."""
    parts = [f"# How fast it is\n\n{origin(found)}\n"]
    for plain in found["tables"]:
        table = table_of(plain)
        parts.append(f"## {table.number}: {table.title}\n")
        if table.rows:
            lines = [("", "measured", "bound", ""), ("---", "--:", "--:", "---"), *(row.cells() for row in table.rows)]
            parts.append("".join(f"| {' | '.join(cells)} |\n" for cells in lines))
        if table.note:
            parts.append(f"{table.note[0].upper()}{table.note[1:]}.\n")
    return "\n".join(parts)


def origin(found: Mapping[str, Any]) -> str:
    """When and on what it was measured, and by which command."""
    own = found["machine"]
    where = f"{own['system']} on {own['machine']}, {own['cores']} cores, Python {own['python']}, torch {own['torch']}"
    told = f"Measured on {found['date']} by `python -m benchmarks.perf --write`: {where}."
    return told + (" **In a size at which no figure means anything.**" if found["quick"] else "")
