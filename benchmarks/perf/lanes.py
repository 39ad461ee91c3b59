"""P2: how much faster are four environments on two cores than four trainings one after the other?

On one side a loop that one would write by hand, with torch's own number of threads and glibc's own allocator; on the
other the environments of a run, on two lanes, with a tuned allocator. The same hosts, data, batches and validation.
Each side has a process of its own, and they take turns; medians over the turns. The same environments on one lane tell
what two could reach at most: how much a second core is worth to the loop, and the layout to the environments, hangs on
the machine.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from benchmarks.perf.sides import Side
from benchmarks.perf.turns import medians
from benchmarks.table import Row, Table, answer

if TYPE_CHECKING:
    from collections.abc import Sequence

TURNS: Final = {"conv": 10, "1-d": 15}
LEAST_TIMES: Final = {"conv": 2.0, "1-d": 1.4}


def measure(*, quick: bool = False) -> Sequence[Table]:
    """Both hosts."""
    rows: list[Row] = []
    for work, bound in LEAST_TIMES.items():
        with ExitStack() as open_:
            sides = {name: open_.enter_context(Side(name, work, quick=quick)) for name in ("plain", "pool", "alone")}
            turns = 1 if quick else TURNS[work]
            took = medians({name: side.seconds for name, side in sides.items()}, turns, warm=1)
        rows += [
            Row(f"{work}: plain loop, a step of four trainings", took["plain"], None, "s", 3),
            Row(f"{work}: four environments, as much work", took["pool"], None, "s", 3),
            Row(f"{work}: as much on one lane", took["alone"], None, "s", 3),
            Row(f"{work}: at most, were both lanes as quick as one", 2 * took["plain"] / took["alone"], None, "×"),
            Row(f"{work}: times as fast", took["plain"] / took["pool"], bound, "×", at_least=True),
        ]
    return [Table("P2", "four environments on two lanes against a plain loop", rows)]


if __name__ == "__main__":
    sys.exit(answer(measure))
