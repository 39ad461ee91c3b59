"""Tables of what benchmarks, studies and examples measured, from the results that are committed.

``generate`` takes ``PARTS``, by the names that the pages mark them with.
"""

from __future__ import annotations

import json
from functools import partial
from operator import itemgetter
from pathlib import Path
from runpy import run_path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

DOCS = Path(__file__).parent
BENCHMARKS = DOCS.parent / "benchmarks"
MEASURED = BENCHMARKS / "baseline.json"
LEARNED = BENCHMARKS / "science" / "learned_policies" / "report.py"
SHOWN = BENCHMARKS / "science" / "shown" / "page.py"
SIMULATED = BENCHMARKS / "science" / "verdicts.md"
PROBED = BENCHMARKS / "science" / "probes.json"

_learned, _shown = run_path(str(LEARNED)), run_path(str(SHOWN))
table: Callable[..., str] = _shown["table"]


def measurements() -> str:
    """Return the figures of the baseline with their bounds: the largest of those with the same number and bound."""
    found = json.loads(MEASURED.read_text(encoding="utf-8"))
    own = found["machine"]
    where = f"{own['system']} on {own['machine']}, {own['cores']} cores, Python {own['python']}, torch {own['torch']}"
    largest: dict[Any, dict[str, Any]] = {}
    for one in sorted(found["figures"], key=itemgetter("value")):
        largest[one["number"], one["unit"], one["bound"]] = one
    rows = []
    for one in (one for one in found["figures"] if one in largest.values()):
        value, bound = (number_with_unit(one[key], one["digits"], one["unit"]) for key in ("value", "bound"))
        missed = bound and one["value"] > one["bound"]
        rows.append((one["number"], one["label"], value, f"{bound} (missed)" if missed else bound))
    return f"Measured on {found['date']}: {where}.\n\n{table(('', 'figure', 'measured', 'at most'), rows)}"


def number_with_unit(value: float | None, digits: int, unit: str) -> str:
    """Return a number with its unit; empty for None."""
    return "" if value is None else f"{value:,.{digits}f} {unit}".strip().replace("-", "−")


def factors() -> str:
    """Return how layout, allocator and workers change the speed of four trainings."""
    found = json.loads(MEASURED.read_text(encoding="utf-8"))["factors"]
    if not found:
        return "Not measured yet: `python -m benchmarks.perf --write`.\n"
    rows = [
        (work, row["layout"], row["allocator"], *(f"{times:.2f}" for times in row["times as fast"].values()))
        for work, own in found.items()
        for row in own
    ]
    sides = next(iter(found.values()))[0]["times as fast"]
    return table(("host", "layout", "allocator", *sides), rows)


def learned(part: str) -> str:
    """Return a table of the study of learned policies."""
    found = json.loads(LEARNED.with_name("results.json").read_text(encoding="utf-8"))
    return str(_learned["PARTS"][part](found))


def ran(part: str) -> str:
    """Return a part of the results of ``benchmarks.science.shown``."""
    found = json.loads(SHOWN.with_name("results.json").read_text(encoding="utf-8"))
    return str(_shown["PARTS"][part](found["runs"]))


def simulated(table_of: str) -> str:
    """Return a table of the simulations, found by its heading."""
    return SIMULATED.read_text(encoding="utf-8").split(f"## {table_of}\n\n")[1].partition("\n## ")[0]


def probes() -> str:
    """Return what probes of known hosts found: a row for each host and task."""
    if not PROBED.exists():
        return "Not measured yet: `python -m benchmarks.science.probes --write`.\n"
    found = json.loads(PROBED.read_text(encoding="utf-8"))["probes"]
    cases: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in found:
        cases.setdefault((one["host"], one["task"]), []).append(one)
    rows = []
    for (host, task), own in cases.items():
        largest = [max(one["rows"], key=lambda row: row["gain"]) for one in own]
        paying = [one["rows"][0] for one in own if one["rows"][0]["pays"]]
        first = ", ".join(sorted({f"`{row['blueprint'].rpartition('/')[2]}` in {row['slot']}" for row in paying}))
        pays = f"{len(paying)} of {len(own)}" + (f": {first}" if first else "")
        figures = [
            spread([row[key] for row in rows_of], digits)
            for rows_of, key, digits in ((largest, "gain", 2), (largest, "at_least", 2), (largest, "price", 2))
        ]
        rows.append((f"`{host}`", f"`{task}`", pays, *figures, spread([one["seconds"] for one in own], 0)))
    return table(("host", "task", "pays", "largest gain", "at least", "price", "seconds"), rows)


def spread(numbers: list[float], digits: int) -> str:
    """Return the range of some numbers; one number if its ends are written alike."""
    ends = [f"{end:.{digits}f}".replace("-", "−") for end in (min(numbers), max(numbers))]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def gallery() -> str:
    """Return the examples of the gallery with their figures and results."""
    page: Callable[[], str] = run_path(str(DOCS / "gallery.py"))["page"]
    return page()


PARTS: dict[str, Callable[[], str]] = {
    "factors": factors,
    "gallery": gallery,
    "measurements": measurements,
    "needed-seeds": partial(simulated, "RNG seeds needed for a verdict"),
    "probes": probes,
    "wrong-verdicts": partial(simulated, "Wrong verdicts"),
    **{part: partial(ran, part) for part in _shown["PARTS"]},
    **{part: partial(learned, part) for part in _learned["PARTS"]},
}
