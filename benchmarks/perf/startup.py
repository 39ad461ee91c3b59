"""P7: duration of the commands that only list, beyond an interpreter that does nothing.

The three programs run in turn, so that a machine that slows down slows all of them; medians over the turns.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.perf.turns import medians, timed
from benchmarks.table import Row, Table, answer

if TYPE_CHECKING:
    from collections.abc import Sequence

TURNS: Final = 15
BARE: Final = "python -c pass"
BOUNDS: Final = {"esper --help": 0.15, "esper plugins list": 0.25}


def measure(*, quick: bool = False) -> Sequence[Table]:
    """Measure each command, beyond the bare interpreter."""
    turns = 1 if quick else TURNS
    esper = shutil.which("esper", path=str(Path(sys.executable).parent))
    if esper is None:
        msg = f"there is no command esper beside this interpreter; `make bench` installs it. Received: {sys.executable}"
        raise FileNotFoundError(msg)
    commands = {BARE: [sys.executable, "-c", "pass"]}
    commands |= {name: [esper, *name.split()[1:]] for name in BOUNDS}
    sides = {
        name: timed(partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL))
        for name, command in commands.items()
    }
    took = medians(sides, turns, warm=1)  # the first turn warms the disk
    rows = [Row(BARE, took[BARE], None, "s", 3)]
    rows += [Row(f"{name}, beyond that", took[name] - took[BARE], bound, "s", 3) for name, bound in BOUNDS.items()]
    return [Table("P7", f"start-up, medians of {turns} interleaved runs", rows)]


if __name__ == "__main__":
    sys.exit(answer(measure))
