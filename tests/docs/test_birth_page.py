"""The page on informed births shows what its command prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "blueprints.md"
PRINTED = ROOT / "benchmarks" / "science" / "informed_birth.txt"
"""What ``python -m benchmarks.science.informed_birth`` printed."""

LINE = re.compile(r"^  (.+?) +plain +(\S+)   informed less plain (\S+) ± (\S+)$", re.MULTILINE)
PLACES = 2


def figures(told: str) -> list[tuple[str, float, float, float]]:
    """What each line tells: plain, the difference, and how sure it is."""
    return [(name, float(plain), float(less), float(sure)) for name, plain, less, sure in LINE.findall(told)]


def test_the_table_is_what_was_printed() -> None:
    printed = figures(PRINTED.read_text(encoding="utf-8"))
    each = len(printed) // PLACES
    _, _, rest = PAGE.read_text(encoding="utf-8").partition("| informed less plain |")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in rest.partition("\n\n")[0].splitlines()[2:]
    ]
    assert len(rows) == each == 4
    for number, (told, *cells) in enumerate(rows):
        for place, cell in enumerate(cells):
            name, plain, less, sure = printed[place * each + number]
            digits = 1 if name.startswith("accuracy") else 3
            shown = f"{less:+.{digits}f} ± {sure:.{digits}f} of {plain:.{digits}f}".replace("-", "−")
            assert (name, shown) == (told, cell)


@pytest.mark.slow
def test_the_command_prints_it_still() -> None:
    """To half of how sure it is: another processor may round otherwise on the way."""
    command = [sys.executable, "-m", "benchmarks.science.informed_birth"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for was, now in zip(figures(PRINTED.read_text(encoding="utf-8")), figures(run.stdout), strict=True):
        assert (now[0], now[1]) == (was[0], pytest.approx(was[1], rel=0.01))
        assert now[2] == pytest.approx(was[2], abs=0.5 * was[3] + 0.001), was[0]
