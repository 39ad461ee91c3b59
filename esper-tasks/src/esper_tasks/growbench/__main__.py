"""``python -m esper_tasks.growbench``: trains what is not trained yet, and packs all that is into a table.

A line is printed for each puzzle. Stopped at any moment, the same command goes on: each puzzle is a file of its own,
written whole or not at all.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from esper_tasks.growbench.building import file_of, written
from esper_tasks.growbench.puzzles import PARTS, puzzle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_tasks.growbench.puzzles import Puzzle


def main() -> int:
    """Build the puzzles that are missing, and pack."""
    parser = argparse.ArgumentParser(prog="python -m esper_tasks.growbench")
    parser.add_argument("--into", type=Path, default=Path("runs/growbench"), metavar="FOLDER")
    parser.add_argument("--train", type=int, default=240, metavar="N", help="Puzzles to learn on.")
    parser.add_argument("--held-out", type=int, default=150, metavar="N", help="Puzzles to judge by.")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="Processes, each of one thread.")
    parser.add_argument("--pack", type=Path, default=None, metavar="FOLDER", help="Where the table goes.")
    asked = parser.parse_args()
    asked.into.mkdir(parents=True, exist_ok=True)
    counts = {"train": asked.train, "held_out": asked.held_out}
    wanted = [puzzle(n, part) for n in range(max(counts.values())) for part in PARTS if n < counts[part]]
    _build([one for one in wanted if not file_of(one, asked.into).exists()], asked.into, asked.workers)
    if asked.pack is not None:
        from esper_tasks.growbench.table import pack

        pack([(one, file_of(one, asked.into)) for one in wanted], asked.pack)
    return 0


def _build(missing: Sequence[Puzzle], folder: Path, workers: int) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, maxtasksperchild=20) as pool:
        for done, (name, seconds) in enumerate(pool.imap_unordered(written, [(one, folder) for one in missing]), 1):
            sys.stderr.write(f"{done}/{len(missing)} {name}: {seconds:.0f} s\n")


if __name__ == "__main__":
    raise SystemExit(main())
