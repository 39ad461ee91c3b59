"""The plan: walk through both phases without training, and estimate their cost from a few measured trainings."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.headline.arms import CellStudy, rates_allowed, settings_for
from benchmarks.headline.cells import CELLS, HOST, QUICK, Setting, compose
from benchmarks.headline.store import Store
from benchmarks.headline.trainings import GROWING, RUNGS, Job, batches_of, cost_of, operations_of, train

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.headline.cells import Cell, Part, Size


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of each batch and of each operation, and of growing, as multiples of training the largest network."""

    batch: float
    operation: float
    grow: float

    def of(self, job: Job, batches: float, flops: float) -> float:
        """Return the seconds of a job."""
        seconds = batches * self.batch + flops * self.operation
        return seconds * self.grow if job.arm in GROWING else seconds


def measure(cell: Cell, part: Part) -> Cost:
    """Measure what trainings of a part cost, on one short training each of the host, the largest network and growth."""
    job = Job(cell.name, part.name, "static", HOST, Setting(0.01, "cosine"), QUICK.tuning[0], 1 / 8)
    recipe = compose(cell, part, job.seed, {}).recipe
    largest = max(part.architectures(), key=partial(operations_of, recipe))
    with tempfile.TemporaryDirectory() as folder:
        small, large, grown = (
            train(variant, settings_for(part, cell), Path(folder))
            for variant in (job, replace(job, architecture=largest), replace(job, arm="esper", architecture=""))
        )
    batches = cell.steps * cell.batches / 8
    operation = max(0.0, (large["seconds"] - small["seconds"]) / (large["flops"] - small["flops"]))
    batch = max(1e-5, (small["seconds"] - operation * small["flops"]) / batches)
    return Cost(batch, operation, grown["seconds"] / max(0.01, large["seconds"]))


@dataclass(slots=True)
class Planner:
    """Answers each job with an invented record, and adds up what it would cost.

    Of held-out cells nothing is measured: their batches are expected to cost as the dearest of others, and their
    operations as the mean.
    """

    store: Store
    costs: dict[str, Cost]
    seconds: dict[str, float] = field(default_factory=dict)
    trainings: int = 0

    @property
    def held_out(self) -> Cost:
        """The cost of parts that were not measured."""
        costs = self.costs.values()
        return Cost(
            max(cost.batch for cost in costs), fmean(cost.operation for cost in costs), max(cost.grow for cost in costs)
        )

    def run(self, jobs: Iterable[Job]) -> None:
        """Record jobs as if they had been trained: the middle of a grid is best, and a block better than none."""
        for job in dict.fromkeys(jobs):
            if self.store.get(job) is not None:
                continue
            cell = CELLS[job.cell]
            part = next(part for part in cell.parts if part.name == job.part)
            batches = batches_of(job, cell, part)
            flops = batches * cost_of(job, cell, part)
            cost = self.costs.get(job.part) or self.held_out
            self.seconds[job.cell] = self.seconds.get(job.cell, 0.0) + cost.of(job, batches, flops)
            self.trainings += 1
            accuracy = 0.9 - abs(job.setting.rate - 0.01) - (0.5 if job.architecture == HOST else 0)
            looks = [(1, int(share * flops) + 1, accuracy) for share in RUNGS]
            record = asdict(job) | {"looks": looks, "flops": int(flops) + 1, "kept": [], "classes": [0.5] * 10}
            record |= {"validation_accuracy": accuracy, "test_accuracy": accuracy, "test_loss": 1.0, "seconds": 0.0}
            self.store.remember(record)


def plan(size: Size) -> str:
    """Return what both phases train, and their estimated cost, by cell."""
    costs = {
        part.name: measure(cell, part)
        for cell in CELLS.values()
        if not cell.held_out and cell.name in size.cells
        for part in cell.parts
    }
    lines = []
    extended = replace(size, rates=tuple(sorted(rates_allowed(size))), extensions=0)
    for words, variant in (("without extensions of grids", size), ("with every extension", extended)):
        with tempfile.TemporaryDirectory() as folder:
            planner = Planner(Store(Path(folder)), costs)
            for name in variant.cells:
                study = CellStudy(CELLS[name], variant, planner.store)
                study.tune(planner.run)
                study.fresh(planner.run)
        lines += [f"{name:20} {seconds / 3600:6.2f} core-hours" for name, seconds in planner.seconds.items()]
        total = sum(planner.seconds.values()) / 3600
        lines.append(f"{words}: {planner.trainings} trainings, {total:.1f} core-hours\n")
    return "\n".join(lines)
