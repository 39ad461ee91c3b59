"""``python -m benchmarks.science.shown``: run what is missing, and write the results.

The folder receives ``runs.jsonl``, a line for each run, and ``results.json``. An interrupted command continues when it
is repeated. With ``--write`` the results also go where the pages read them; ``make docs`` then writes their tables.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from benchmarks.science.shown.execution import carried_out
from benchmarks.science.shown.runs import RUNS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PAGES: Final = Path(__file__).with_name("results.json")


def main(arguments: Sequence[str] | None = None, pages: Path = PAGES) -> int:
    """Run what is not in the folder yet, and write all results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.science.shown")
    parser.add_argument("--quick", action="store_true", help="Tiny episodes, to see that it runs: a minute.")
    parser.add_argument("--only", default="", metavar="TEXT", help="Only the runs with TEXT in their name.")
    parser.add_argument("--into", type=Path, default=None, metavar="FOLDER", help="Default: runs/shown.")
    parser.add_argument("--write", action="store_true", help="Also update the results that the pages show.")
    asked = parser.parse_args(arguments)
    if asked.write and (asked.quick or asked.only):
        parser.error("--write stores all runs in full size, so it excludes --quick and --only")
    folder = asked.into or Path("runs/shown-quick" if asked.quick else "runs/shown")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "runs.jsonl"
    for (name, command), act in every_run(quick=asked.quick).items():
        if asked.only in name and (name, command) not in noted(file, quick=asked.quick):
            line = act() | {"quick": asked.quick}
            with file.open("a", encoding="utf-8") as log:
                log.write(json.dumps(line) + "\n")
            sys.stderr.write(f"{name}: {line['seconds']:.0f} s\n")
    text = json.dumps(found(noted(file, quick=asked.quick), quick=asked.quick), indent=1) + "\n"
    for one in [folder / "results.json", *([pages] if asked.write else [])]:
        one.write_text(text, encoding="utf-8")
        sys.stderr.write(f"written: {one}\n")
    return 0


def every_run(*, quick: bool) -> dict[tuple[str, str], Callable[[], dict[str, Any]]]:
    """Return the function of each run, by name and command, in the order of the report."""
    return {(one.name, one.command): partial(carried_out, one, quick=quick) for one in RUNS}


def noted(file: Path, *, quick: bool) -> dict[tuple[str, str], dict[str, Any]]:
    """Read the finished runs of this size, by name and command; a line that a kill cut short is removed."""
    if not file.exists():
        return {}
    text = file.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        file.write_text(whole, encoding="utf-8")
    lines = map(json.loads, whole.splitlines())
    return {(line["name"], line["command"]): line for line in lines if line["quick"] == quick}


def found(done: Mapping[tuple[str, str], Mapping[str, Any]], *, quick: bool) -> dict[str, Any]:
    """Return all results, in order, with date and machine."""
    return {
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "machine": {"system": platform.system(), "machine": platform.machine(), "torch": torch.__version__},
        "runs": {key[0]: done[key] for key in every_run(quick=quick) if key in done},
    }


if __name__ == "__main__":
    sys.exit(main())
