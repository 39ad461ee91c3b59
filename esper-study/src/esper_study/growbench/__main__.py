"""``python -m esper_study.growbench``: train the puzzles that are missing, and pack a table of them.

Every trained puzzle is a file of its own, so that an interrupted command continues where it was stopped.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from pathlib import Path

from esper_study.growbench.engine import puzzle_file, train_to_file
from esper_study.growbench.puzzles import PARTS, puzzle
from esper_study.growbench.table import pack_table


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m esper_study.growbench")
    parser.add_argument("--into", type=Path, default=Path("runs/growbench"), metavar="FOLDER", help="Trained puzzles.")
    parser.add_argument("--train", type=int, default=240, metavar="N", help="Number of training puzzles.")
    parser.add_argument("--held-out", type=int, default=150, metavar="N", help="Number of held-out puzzles.")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="Processes, each with one thread.")
    parser.add_argument("--pack", type=Path, default=None, metavar="FOLDER", help="Folder to write the table to.")
    arguments = parser.parse_args()
    arguments.into.mkdir(parents=True, exist_ok=True)
    counts = {"train": arguments.train, "held_out": arguments.held_out}
    problems = [
        puzzle(number, part) for number in range(max(counts.values())) for part in PARTS if number < counts[part]
    ]
    jobs = [(problem, arguments.into) for problem in problems if not puzzle_file(problem, arguments.into).exists()]
    with multiprocessing.get_context("spawn").Pool(arguments.workers, maxtasksperchild=20) as pool:
        for done, (name, seconds) in enumerate(pool.imap_unordered(train_to_file, jobs), 1):
            sys.stderr.write(f"{done}/{len(jobs)} {name}: {seconds:.0f} s\n")
    if arguments.pack is not None:
        pack_table([(problem, puzzle_file(problem, arguments.into)) for problem in problems], arguments.pack)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
