"""The page on tasks shows what its command prints.

A slow test beside that command compares the page with a new run.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "tasks.md"
PRINTED = ROOT / "esper-tasks" / "tests" / "figures.txt"
"""The output of ``pytest esper-tasks/tests/test_figures.py -s``."""


def rows() -> list[list[str]]:
    """Return the cells of the table: task, network, figures."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition("| task | network | |\n")
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in rest.partition("\n\n")[0].splitlines()[1:]
    ]


def told(cell: str) -> list[tuple[float, float]]:
    """Return the figures of a cell, with half a unit of their last digit."""
    found = re.findall(r"(\d+(?:\.(\d+))?)", cell)
    scale = 100 if "%" in cell else 1
    return [(float(number) / scale, 0.5 / scale / 10 ** len(digits)) for number, digits in found]


def test_the_figures_are_some_of_those_printed_for_the_task_in_their_order():
    parts = [re.findall(r" (\d\.\d{3})$", part, re.MULTILINE) for part in PRINTED.read_text("utf-8").split("\n\n")]
    left = iter(parts)
    for task, network, cell in rows():
        if task:
            printed = iter(map(float, next(left)))
        wrong = [one for one, half in told(cell) if not any(abs(one - is_) <= half + 0.0005 for is_ in printed)]
        assert wrong == [], network
    assert next(left, None) is None


def test_each_network_has_as_many_figures_as_it_has_forms():
    assert [network for _, network, cell in rows() if network.count("·") != cell.count("·")] == []


def test_the_lengths_of_the_trainings_are_those_that_were_run():
    printed = PRINTED.read_text(encoding="utf-8")
    epochs = [f"{one} epochs" for one in re.findall(r"'epochs': (\d+), 'batch_size': \d+}", printed)]
    ((several, size, batches),) = re.findall(r"'epochs': (\d+), 'batch_size': (\d+), 'batches': (\d+)}", printed)
    headings = [task.partition(", ")[2] for task, _, _ in rows() if task]
    assert headings == [*epochs, f"{int(several) * int(batches)} batches of {size}"]
