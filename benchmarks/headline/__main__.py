"""Train, resume and report the study: ``python -m benchmarks.headline --help``."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.headline.arms import CellStudy, settings_for
from benchmarks.headline.cells import CELLS, QUICK, Size
from benchmarks.headline.plan import plan
from benchmarks.headline.report import write_report
from benchmarks.headline.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.headline.trainings import EsperSettings, Job

RESULTS: Final = Path(__file__).parent / "results"


def esper_for(job: Job) -> EsperSettings:
    """Return how Esper grows in the part of a job."""
    cell = CELLS[job.cell]
    return settings_for(next(part for part in cell.parts if part.name == job.part), cell)


def run_phase(phase: str, size: Size, store: Store, processes: int) -> None:
    """Train what a phase still lacks. Held-out cells are tuned in the fresh phase.

    Fresh seeds are trained in all cells before the next ones, so that an unfinished study has whole seeds.
    """
    begin = time.monotonic()

    def tell(record: Mapping[str, Any]) -> None:
        label = f"{record['arm']} {record['architecture']}".strip()
        accuracy = f"{100 * record['validation_accuracy']:.1f} % on validation"
        minutes = (time.monotonic() - begin) / 60
        sys.stderr.write(f"{minutes:6.1f} min  {record['part']}: {label}, RNG seed {record['seed']}: {accuracy}\n")

    def run(jobs: Any) -> None:
        store.train(jobs, esper_for, processes, tell)

    studies = [CellStudy(CELLS[name], size, store) for name in size.cells]
    for study in studies:
        if phase == "fresh" or not study.cell.held_out:
            study.tune(run)
    for seed in size.fresh if phase == "fresh" else ():
        for study in studies:
            study.fresh(run, [seed])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.headline", description=__doc__)
    parser.add_argument("--phase", choices=("tune", "fresh", "report"), help="What to do; without it: report.")
    parser.add_argument("--quick", action="store_true", help="All phases in a small form: under ten minutes.")
    parser.add_argument("--plan", action="store_true", help="Only print what would be trained, and what it costs.")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="Processes, with one thread each.")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="Folder of the records.")
    parsed = parser.parse_args(arguments)
    size = QUICK if parsed.quick else Size()
    store = Store(parsed.into or (Path("runs/headline-quick") if parsed.quick else RESULTS))
    if parsed.plan:
        print(plan(size))
        return 0
    phases = ("tune", "fresh", "report") if parsed.quick else (parsed.phase or "report",)
    for phase in phases:
        if phase != "report":
            run_phase(phase, size, store, parsed.jobs)
        else:
            print(write_report(size, store, quick=parsed.quick))
    return 0


if __name__ == "__main__":
    sys.exit(main())
