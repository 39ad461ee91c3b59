"""P7: how long do the commands that only list take, beyond an interpreter that does nothing?

The three programs run in turn, so that a machine that slows down slows all of them; medians over the turns.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.table import Row, show

TURNS = 15
BARE = "python -c pass"
BOUNDS = {"esper --help": 0.15, "esper plugins list": 0.25}


def seconds(command: list[str]) -> float:
    """Wall time of one run of ``command``; what it prints is thrown away."""
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main() -> int:
    """Measures and prints; 1 where a command is slower than its bound."""
    esper = shutil.which("esper", path=str(Path(sys.executable).parent))
    if esper is None:
        sys.stderr.write("there is no command esper beside this interpreter; `make bench` installs it\n")
        return 2
    commands = {BARE: [sys.executable, "-c", "pass"]}
    commands |= {name: [esper, *name.split()[1:]] for name in BOUNDS}
    times: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(TURNS + 1):
        for name, command in commands.items():
            taken = seconds(command)
            if turn:  # the first turn warms the disk
                times[name].append(taken)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    rows = [Row(BARE, medians[BARE], None, "s", 3)]
    for name, bound in BOUNDS.items():
        rows.append(Row(f"{name}, beyond that", medians[name] - medians[BARE], bound, "s", 3))
    return show(f"P7  start-up, medians of {TURNS} interleaved runs", rows)


if __name__ == "__main__":
    sys.exit(main())
