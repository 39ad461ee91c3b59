"""``python -m benchmarks.perf`` runs every measurement in its own process; exit status 1 if a bound was exceeded.

``--only P2,P5`` runs those two, ``python -m benchmarks.perf startup`` the module of that name, and ``--write`` writes
the results beside this file or into another folder.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.table import table_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from benchmarks.table import Table

HERE: Final = Path(__file__).parent
MODULES: Final = {
    "P1": "step",
    "P2": "lanes",
    "P3": "leave_one_out",
    "P4": "incubation",
    "P5": "overhead",
    "P6": "learner",
    "P7": "startup",
    "P8": "memory",
    "P9": "default_run",
    "P10": "default_run",
    "P11": "scaling",
    "P12": "earlier_systems",
    "P13": "empty_slot",
    "P14": "choices",
}
"""Which module measures which promise."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, measure, and report which bounds were not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.perf", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"A module: {', '.join(sorted(set(MODULES.values())))}."
    )
    parser.add_argument("--only", default="", metavar="P2,P5", help="Only these.")
    parser.add_argument("--quick", action="store_true", help="So small that no figure means anything.")
    parser.add_argument(
        "--write", nargs="?", type=Path, const=HERE, metavar="FOLDER", help="Write results.json and results.md."
    )
    asked = parser.parse_args(arguments)
    named = [number for number in asked.only.split(",") if number]
    if unknown := [*(set(named) - set(MODULES)), *(set(asked.names) - set(MODULES.values()))]:
        parser.error(f"unknown: {', '.join(sorted(unknown))}. There are: {', '.join(MODULES)}")
    wanted = [number for number, module in MODULES.items() if number in named or module in asked.names]
    if asked.write is not None and asked.quick and asked.write == HERE:
        parser.error("what --quick measures is not worth keeping here: name a folder")
    if asked.write is not None and wanted and not asked.quick:
        parser.error("--write writes down all that was measured at one time: ask everything")
    return report(wanted or list(MODULES), quick=asked.quick, into=asked.write)


def report(wanted: Collection[str], *, quick: bool, into: Path | None) -> int:
    """Print results as they are measured; with ``into``, write them there at the end."""
    tables: list[Table] = []
    broken: list[str] = []
    for module in dict.fromkeys(MODULES[number] for number in wanted):
        found = tables_of(module, quick=quick)
        if found is None:
            broken.append(module)
        for table in found or ():
            if table.number in wanted:
                tables.append(table)
                sys.stdout.write(table.text() + "\n")
                sys.stdout.flush()
    if into is not None and not broken:
        from benchmarks.perf.results import write

        write(into, tables, quick=quick)
    over = [table.number for table in tables if not table.kept]
    for what, which in (("beyond their bounds", over), ("broken", broken)):
        if which:
            sys.stderr.write(f"{what}: {', '.join(which)}\n")
    return 1 if over or broken else 0


def tables_of(module: str, *, quick: bool) -> list[Table] | None:
    """Return the tables of one module; None if it failed, which it reports."""
    command = [sys.executable, "-m", f"benchmarks.perf.{module}", "--json", *(["--quick"] if quick else [])]
    done = subprocess.run(command, check=False, cwd=HERE.parents[1], stdout=subprocess.PIPE, text=True)
    return None if done.returncode else [table_of(plain) for plain in json.loads(done.stdout)]


if __name__ == "__main__":
    sys.exit(main())
