"""Runs every script of this folder in turn, each in a process of its own; 1 where a bound was not kept.

``python -m benchmarks.perf startup`` runs those that are named.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = {path.stem: path for path in sorted(HERE.glob("*.py")) if not path.name.startswith("_")}


def kept_its_bounds(name: str) -> bool:
    """Runs one script; whether it came to a good end."""
    command = [sys.executable, "-m", f"benchmarks.perf.{name}"]
    return subprocess.run(command, check=False, cwd=HERE.parents[1]).returncode == 0


def main(names: list[str]) -> int:
    """Runs the scripts ``names``, all where none is named, and says which of them kept no bound."""
    if unknown := sorted(set(names) - set(SCRIPTS)):
        sys.stderr.write(f"unknown: {', '.join(unknown)}. There are: {', '.join(SCRIPTS)}\n")
        return 2
    failed = [name for name in names or SCRIPTS if not kept_its_bounds(name)]
    if failed:
        sys.stderr.write(f"over their bound, or broken: {', '.join(failed)}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
