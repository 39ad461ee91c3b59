"""The tables of the page on gates show what ``python -m benchmarks.science.gates`` printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "concepts" / "gates.md"
PRINTED = ROOT / "benchmarks" / "science" / "gates.txt"
"""What ``python -m benchmarks.science.gates`` printed."""

OF_TRIALS = ("mean", "standard_error", "deviation", "skewness", "worst", "correlation with the step before")
DIGITS = (3, 3, 2, 1, 1, 2)
NUMBER = re.compile(r"-?\d+\.\d+|nan")
PLANS = {
    "each step from 3, α / looks": "each step, alpha / looks",
    "the same, by the plain bound": "the same, by the plain normal bound",
    "each step, full α each time": "each step, alpha spent anew",
}


def rows(first: str) -> list[list[str]]:
    """Return the cells of the table whose heading begins so, without Markdown marks."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(f"| {first} |")
    lines = rest.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("*`").replace("−", "-") for cell in line.strip("|").split("|")] for line in lines]


def trials(told: str) -> dict[tuple[str, str, str], list[str]]:
    """Return the printed figures, rounded as on the page, by seed, germination and step."""
    found = {}
    for name, alone, step, rest in re.findall(
        r"^  (.+?) +germinated at +(\d+)  step +(\d+)  (.*)$", told, re.MULTILINE
    ):
        numbers = [float(one) for one in NUMBER.findall(rest)]
        assert len(numbers) == len(OF_TRIALS)
        found[name, alone, step] = [f"{one:.{digits}f}" for one, digits in zip(numbers, DIGITS, strict=True)]
    return found


def gates(told: str) -> dict[tuple[str, str, str], list[float]]:
    """Return by shape, examples and plan: wrong passes in percent, the gain needed, and that of a growing gain."""
    found, shape, examples = {}, "", ""
    for line in told.splitlines():
        if head := re.match(r"  (\w+), (\d+) examples", line):
            shape, examples = head.groups()
        elif "passes at its price" in line:
            plan, _, rest = line.partition("passes at its price")
            found[shape, examples, plan.strip()] = [float(one) for one in NUMBER.findall(rest)]
    return found


def test_the_table_of_differences_was_printed():
    printed, name, alone = trials(PRINTED.read_text(encoding="utf-8")), "", ""
    shown = rows("seed")
    assert shown
    for seed, germinated, step, *numbers in shown:
        name, alone = seed.replace("`", "") or name, germinated or alone
        own = printed[name, alone, step]
        assert numbers == [*own[:-1], "" if own[-1] == "nan" else own[-1]], (name, alone, step)


def test_the_table_of_plans_was_printed():
    printed, shown = gates(PRINTED.read_text(encoding="utf-8")), rows("plan")
    assert len(shown) == len(PLANS)
    for name, *numbers in shown:
        (plan,) = [own for begin, own in PLANS.items() if name.startswith(begin)]
        passes, needs, growing = printed["skewed", "800", plan]
        assert [one.strip("*") for one in numbers] == [f"{passes:.1f} %", f"{needs:.3f}", f"{growing:.3f}"], name


@pytest.mark.parametrize(("row", "shape"), [(0, "skewed"), (1, "rare")])
def test_the_table_of_error_rates_was_printed(row, shape):
    printed = gates(PRINTED.read_text(encoding="utf-8"))
    for examples, cell in zip(("100", "200", "400", "800", "1600"), rows("examples | 100")[row][1:], strict=True):
        passes = printed[shape, examples, "each step, alpha / looks"][0]
        shown = cell.strip("*").removesuffix(" %")
        assert shown == f"{passes:.{len(shown.partition('.')[2])}f}", examples


@pytest.mark.slow
def test_the_command_still_prints_these_figures():
    """The simulation agrees to the digit; trained figures may differ on another processor."""
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.science.gates"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    before, now = PRINTED.read_text(encoding="utf-8"), run.stdout
    assert NUMBER.sub("", now) == NUMBER.sub("", before)
    for where, numbers in gates(before).items():
        assert gates(now)[where] == pytest.approx(numbers, abs=0.0011), where
    for where, told in trials(before).items():
        assert float(trials(now)[where][0]) == pytest.approx(float(told[0]), abs=0.02), where
