"""P2: speed of four environments on two cores, against four trainings one after the other.

On one side a loop that one would write by hand, with torch's own number of threads and glibc's own allocator; on the
other the environments of a run, on two lanes with a tuned allocator: threads, as by default, and processes. The same
hosts, data, batches and validation. Each side has a process of its own, and they take turns; medians over the turns.
Two processes with one lane each, which share nothing but the machine, show what its second core is worth: lanes are not
expected to do better. The loop on one thread shows how much of the second core torch uses already.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.perf.sides import Side
from benchmarks.perf.turns import medians
from benchmarks.table import Row, Table, answer

if TYPE_CHECKING:
    from collections.abc import Sequence

TURNS: Final = {"conv": 10, "1-d": 15}
LEAST_TIMES: Final = {"conv": 2.0, "1-d": 1.4}


def measure(*, quick: bool = False) -> Sequence[Table]:
    """Measure both hosts."""
    rows: list[Row] = []
    for work, bound in LEAST_TIMES.items():
        with ExitStack() as open_:
            plain, single, spread, pool, *two = [
                open_.enter_context(Side(name, work, quick=quick))
                for name in ("plain", "single", "spread", "pool", "alone", "alone")
            ]
            turns = 1 if quick else TURNS[work]
            sides = {name: side.seconds for name, side in (("plain", plain), ("single", single))}
            sides |= {"spread": spread.seconds, "pool": pool.seconds}
            took = medians({**sides, "pair": partial(at_once, two)}, turns, warm=1)
        lanes, processes = took["plain"] / took["pool"], took["plain"] / took["spread"]
        pair = 2 * took["plain"] / took["pair"]
        rows += [
            Row(f"{work}: plain loop, a step of four trainings", took["plain"], None, "s", 3),
            Row(f"{work}: plain loop, times as fast as on one thread", took["single"] / took["plain"], None, "×"),
            Row(f"{work}: four environments, as much work", took["pool"], None, "s", 3),
            Row(f"{work}: where lanes are processes", took["spread"], None, "s", 3),
            Row(f"{work}: two processes with one lane each, as much work", took["pair"] / 2, None, "s", 3),
            Row(f"{work}: two processes with one lane each, times as fast", pair, None, "×"),
            Row(f"{work}: times as fast", lanes, bound, "×", at_least=True),
            Row(f"{work}: times as fast where lanes are processes", processes, bound, "×", at_least=True),
        ]
    return [Table("P2", "four environments on two lanes against a plain loop", rows)]


def at_once(sides: Sequence[Side]) -> float:
    """Return the slowest side's time for a step when all sides take one at the same time."""
    with ThreadPoolExecutor(len(sides)) as asking:
        return max(asking.map(Side.seconds, sides))


if __name__ == "__main__":
    sys.exit(answer(measure))
