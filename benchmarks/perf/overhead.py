"""P5: cost of a decision step besides training and evaluation, for each of eight environments.

The default configuration without the capacity control, and with 4 batches in a step, since training is not measured.
The times are those of the run's own clock. Included are what it calls ``other``, the start of the run, and the cost of
the eight twins. Checkpoints are not, since they are written when a share of the time has passed, whatever the steps.
Medians of a few runs.
"""

from __future__ import annotations

import statistics
import sys
from typing import TYPE_CHECKING, Final

from benchmarks.perf.default_run import run
from benchmarks.table import Row, Table, answer

if TYPE_CHECKING:
    from collections.abc import Sequence

RUNS: Final = 3
ENVIRONMENTS: Final = 8
STEPS: Final = 40
WORK: Final = ("train", "shadow", "evaluate", "checkpoint")
"""What a step is for; and what is paced by its share of the time, not by steps: P9 bounds that."""

OF_A_ROUND: Final = ("reset", "conclude", "learn", "total")
"""What does not belong to a step, but to a round or to the run."""

MOST_MILLISECONDS: Final = 2.0


def measure(*, quick: bool = False) -> Sequence[Table]:
    """Measure region by region, and in total."""
    environments, steps = (1, 4) if quick else (ENVIRONMENTS, STEPS)
    settings = {
        "capacity": "false",
        "environments": environments,
        "episode.steps": steps,
        "episode.batches": 1 if quick else 4,
    }
    timings = [run(*(f"{key}={value}" for key, value in settings.items()))[1] for _ in range(1 if quick else RUNS)]
    each = {
        region: 1e3 * statistics.median(timing.get(region, 0.0) for timing in timings) / (environments * steps)
        for region in timings[0]
        if region not in OF_A_ROUND
    }
    beside = {region: spent for region, spent in each.items() if region not in WORK}
    rows = [Row(region, spent, None, "ms") for region, spent in sorted(beside.items(), key=lambda one: -one[1])]
    rows.append(Row("together", sum(beside.values()), MOST_MILLISECONDS, "ms"))
    title = f"a decision step besides training and evaluation, each of {environments} environments"
    return [
        Table(
            "P5", title, rows, "not counted: " + ", ".join(f"{one} {each[one]:.2f} ms" for one in WORK if one in each)
        )
    ]


if __name__ == "__main__":
    sys.exit(answer(measure))
