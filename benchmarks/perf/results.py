"""Write measurements as data, ``results.json``, and as a page, ``results.md``, with date and machine.

``history.jsonl`` beside them has a line for each time that everything was measured, which shows how much runs differ.
"""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Any, Final

from benchmarks.table import table_of
from esper_core.runs.directory import machine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.table import Table

HISTORY: Final = "history.jsonl"


def write(folder: Path, tables: Sequence[Table], *, quick: bool) -> None:
    """Write what ``tables`` say, measured on this machine today, to ``folder``."""
    found: dict[str, Any] = {
        "format": 1,
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "quick": quick,
        "machine": machine(),
        "tables": [table.as_json() for table in tables],
    }
    folder.mkdir(parents=True, exist_ok=True)
    if not quick:
        line = {"date": found["date"], "machine": found["machine"], "figures": figures(found)}
        with (folder / HISTORY).open("a", encoding="utf-8") as history:
            history.write(json.dumps(line, ensure_ascii=False) + "\n")
    compared(found, spans(folder))
    (folder / "results.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "results.md").write_text(page(found), encoding="utf-8")


def figures(found: Mapping[str, Any]) -> dict[str, float]:
    """Return each figure by its number and description."""
    return {f"{table['number']} {row['what']}": row["value"] for table in found["tables"] for row in table["rows"]}


def spans(folder: Path) -> dict[str, tuple[float, float, int]]:
    """Return the minimum and maximum of each figure over all reports, and how often it was measured."""
    file = folder / HISTORY
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    found: dict[str, list[float]] = {}
    for line in lines:
        for name, value in json.loads(line)["figures"].items():
            found.setdefault(name, []).append(value)
    return {name: (min(own), max(own), len(own)) for name, own in found.items()}


def compared(found: Mapping[str, Any], ever: Mapping[str, tuple[float, float, int]]) -> None:
    """Write beside each figure from where to where it went, where it was measured more than once."""
    for table in found["tables"]:
        for row in table["rows"]:
            least, most, count = ever.get(f"{table['number']} {row['what']}", (0.0, 0.0, 0))
            row["ever"] = f"{least:,.{row['digits']}f} to {most:,.{row['digits']}f} ({count})" if count > 1 else ""


def page(found: Mapping[str, Any]) -> str:
    """Return the results as a page."""
    parts = [f"# How fast it is\n\n{origin(found)}\n"]
    head = ("", "measured", "bound", "", "over several times")
    for plain in found["tables"]:
        table = table_of(plain)
        parts.append(f"## {table.number}: {table.title}\n")
        if table.rows:
            rows = [(*row.cells(), told.get("ever", "")) for row, told in zip(table.rows, plain["rows"], strict=True)]
            lines = [head, ("---", "--:", "--:", "---", "--:"), *rows]
            parts.append("".join(f"| {' | '.join(cells)} |\n" for cells in lines))
        if table.note:
            parts.append(f"{table.note[0].upper()}{table.note[1:]}.\n")
    return "\n".join(parts)


def origin(found: Mapping[str, Any]) -> str:
    """Return when, on which machine and by which command the results were measured."""
    own = found["machine"]
    where = f"{own['system']} on {own['machine']}, {own['cores']} cores, Python {own['python']}, torch {own['torch']}"
    told = f"Measured on {found['date']} by `python -m benchmarks.perf --write`: {where}."
    return told + (" **In a size at which no figure means anything.**" if found["quick"] else "")
