"""P9, P10: duration of the default run, and the share of checkpoints and telemetry in it.

``esper run plugins.yaml`` once, from the start of the process to its end. Its report says where the time went.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.table import Row, Table, answer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT: Final = Path(__file__).parents[2]
QUICK: Final = ("environments=1", "episode.steps=4", "episode.batches=1")
MOST_SECONDS: Final = 60.0
MOST_PERCENT: Final = 3.0


def run(*overrides: str) -> tuple[float, Mapping[str, float]]:
    """Run the default configuration; return its seconds in total and by region."""
    changes = [argument for override in overrides for argument in ("--set", override)]
    command = [sys.executable, "-m", "esper_core", "run", "plugins.yaml", "--quiet", "--json", *changes]
    with tempfile.TemporaryDirectory() as runs:
        begin = time.perf_counter()
        done = subprocess.run([*command, "--runs-dir", runs], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        seconds = time.perf_counter() - begin
    timing: dict[str, float] = json.loads(done.stdout.splitlines()[-1])["timing"]
    return seconds, timing


def measure(*, quick: bool = False) -> Sequence[Table]:
    """Run once, for both tables."""
    seconds, timing = run(*QUICK) if quick else run()
    kept = {region: 100 * timing.get(region, 0.0) / timing["total"] for region in ("checkpoint", "telemetry")}
    shares = [Row(f"{region}, share of the run's time", percent, None, "%") for region, percent in kept.items()]
    shares.append(Row("together", sum(kept.values()), MOST_PERCENT, "%"))
    whole = [
        Row("start to report", seconds, MOST_SECONDS, "s", 1),
        *(Row(f"of it {region}", spent, None, "s", 1) for region, spent in by_size(timing)),
    ]
    return [
        Table("P9", "checkpoints and telemetry in the default run", shares),
        Table("P10", "the default run, `esper run plugins.yaml`", whole),
    ]


def by_size(timing: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the regions from the longest to the shortest."""
    return sorted(((name, spent) for name, spent in timing.items() if name != "total"), key=lambda one: -one[1])


if __name__ == "__main__":
    sys.exit(answer(measure))
