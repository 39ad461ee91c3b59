"""``python -m benchmarks.perf``: run the benchmarks, and print each figure beside its baseline and its bound.

The exit status is 1 if a figure exceeds its bound. ``--write`` stores the figures as the new baseline, which the page
on performance shows, and rewrites that page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.perf.figures import figures_of, read_baseline, table, write_baseline

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).parents[2]
BASELINE: Final = ROOT / "benchmarks" / "baseline.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, run the benchmarks, and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.perf", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="Store the figures as the baseline and update the page.")
    parser.add_argument(
        "--only", metavar="TEXT", help="Only the benchmarks with TEXT in their name, such as incubation."
    )
    parsed = parser.parse_args(arguments)
    if parsed.write and parsed.only:
        parser.error(f"--write stores all figures of one session; omit --only. Received: --only {parsed.only}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pytest", "tests/performance", "--benchmark-only", "--benchmark-quiet", "-q"]
        ended = subprocess.run(
            [*command, f"--benchmark-json={file}", "-k", parsed.only or ""], cwd=ROOT, check=False
        ).returncode
        if ended or not file.exists():
            sys.stderr.write("a benchmark failed; pytest's report is above\n")
            return 2
        report = json.loads(file.read_text(encoding="utf-8"))
    figures = figures_of(report)
    sys.stdout.write(table(figures, read_baseline(BASELINE)))
    if parsed.write:
        write_baseline(BASELINE, figures)
        subprocess.run([sys.executable, "docs/generate.py"], cwd=ROOT, check=True)
    over = [figure.key for figure in figures if not figure.is_within_bound]
    if over:
        sys.stderr.write(f"over the bound: {'; '.join(over)}\n")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
