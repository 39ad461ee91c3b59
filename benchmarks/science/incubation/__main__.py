"""``python -m benchmarks.science.incubation``: run what has not been run yet, and write the results.

The folder receives ``cells.jsonl``, a line for each arm with its episodes; ``costs.json``; and for reading
``results.json``, ``results.md`` and ``figure.svg``. An interrupted command continues when it is repeated.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.science.incubation.cells import PLACES, QUICK, WHOLE, studies
from benchmarks.science.incubation.cost import Cost, costs_of
from benchmarks.science.incubation.figure import picture
from benchmarks.science.incubation.runs import append_cells, cells_of, read_cells
from benchmarks.science.incubation.summary import summary
from benchmarks.science.incubation.table import page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.science.incubation.cells import Size, Study


def main() -> int:
    """Run every study that is not in the folder yet, and write the summary of all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.science.incubation")
    parser.add_argument("--quick", action="store_true", help="Tiny episodes, to see that it runs: a minute.")
    parser.add_argument("--only", default="", metavar="TEXT", help="Only the studies with TEXT in their name.")
    parser.add_argument("--into", type=Path, default=None, metavar="FOLDER", help="Default: runs/incubation.")
    asked = parser.parse_args()
    size = QUICK if asked.quick else WHOLE
    folder = asked.into or Path("runs/incubation-quick" if asked.quick else "runs/incubation")
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    wanted = [study for study in studies() if asked.only in study.name]
    _run(wanted, size, folder / "cells.jsonl")
    _write(wanted, size, folder)
    return 0


def _run(wanted: Sequence[Study], size: Size, file: Path) -> None:
    done = {cell.study for cell in read_cells(file)}
    for study in wanted:
        if study.name not in done:
            begin = time.monotonic()
            append_cells(file, cells_of(study, size))
            sys.stderr.write(f"{study.name}: {time.monotonic() - begin:.0f} s\n")


def _write(wanted: Sequence[Study], size: Size, folder: Path) -> None:
    costs = _costs([study for study in wanted if study.part == "forced"], size, folder / "costs.json")
    found = summary(read_cells(folder / "cells.jsonl"), costs, size)
    (folder / "results.json").write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")
    date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    (folder / "results.md").write_text(page(found, date=date), encoding="utf-8")
    (folder / "figure.svg").write_text(picture(found), encoding="utf-8")
    sys.stderr.write(f"written: {folder / 'results.md'}\n")


def _costs(wanted: Sequence[Study], size: Size, file: Path) -> list[Cost]:
    """Return the costs of ``wanted``, from the file where possible. Studies on the same host cost the same."""
    known = [Cost(**one) for one in json.loads(file.read_text(encoding="utf-8"))] if file.exists() else []
    hosts = {place.name: str(place.host) for place in PLACES}
    counted = {cost.study for cost in known}
    for study in wanted:
        if study.name in counted:
            continue
        same = [
            other
            for other in wanted
            if (hosts[other.place.name], other.incubation) == (hosts[study.place.name], study.incubation)
        ]
        models = [cost for cost in known if cost.study in {other.name for other in same}]
        first = models[0].study if models else None
        if first is None:
            known += costs_of(study, size)
        else:
            known += [
                Cost(study.name, cost.blueprint, cost.germination, cost.steps) for cost in models if cost.study == first
            ]
    file.write_text(json.dumps([asdict(cost) for cost in known], separators=(",", ":")) + "\n", encoding="utf-8")
    return known


if __name__ == "__main__":
    sys.exit(main())
