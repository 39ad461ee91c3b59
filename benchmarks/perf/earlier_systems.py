"""P12: Esper on the workload on which earlier systems of this kind were measured.

Four environments with the convolutional host, 15 batches of 128 to train on and 4 to validate on: without seeds, and
with a seed that acts in each of three slots, each of which is left out in turn in the evaluation. A seed is two
convolutions of width 3, like the host's own; with width 5, that of Esper's ``conv_light``, the seeds have twelve times
the host's arithmetic, which leaves no room under that bound on any machine: it is shown without one.
The ratios are to a plain loop that trains and validates the four hosts without any seeds. Each side has a process of
its own, and they take turns; medians over the turns. The seconds depend on the machine, and have no bound: on the
machine on which the earlier systems took 0.206 s and 1.54 s, the goals are 0.12 s and 0.45 s.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from benchmarks.perf.sides import ENVIRONMENTS, Side
from benchmarks.perf.turns import medians
from benchmarks.table import Row, Table, answer

if TYPE_CHECKING:
    from collections.abc import Sequence

TURNS: Final = 6
MOST: Final = {
    "pool": ("without seeds", 0.6),
    "seeds": ("three seeds, each left out in turn", 2.3),
    "wide": ("three seeds of width 5, each left out in turn", None),
}
"""For each side what it does, and the most times that its step may take what one of the loop's takes, if any."""


def measure(*, quick: bool = False) -> Sequence[Table]:
    """Measure all three sides."""
    with ExitStack() as open_:
        sides = {name: open_.enter_context(Side(name, "conv", quick=quick)) for name in ("plain", *MOST)}
        took = medians({name: side.seconds for name, side in sides.items()}, 1 if quick else TURNS, warm=1)
    each = {name: seconds / ENVIRONMENTS for name, seconds in took.items()}
    rows = [Row("plain loop, one training's step", each["plain"], None, "s", 3)]
    for name, (what, share) in MOST.items():
        rows += [
            Row(f"{what}: an environment's step", each[name], None, "s", 3),
            Row(f"{what}: of the plain loop's", each[name] / each["plain"], share, "×"),
        ]
    return [Table("P12", "what earlier systems did, conv host, four environments", rows)]


if __name__ == "__main__":
    sys.exit(answer(measure))
