"""The page on tasks shows what its command prints, and the command still prints it."""

import re
import sys
from pathlib import Path

import pytest

from benchmarks.science.tasks import STUDIES, WITH, study

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "tasks.md"
PRINTED = ROOT / "benchmarks" / "science" / "tasks.txt"
"""The output of ``python -m benchmarks.science.tasks``."""

NEEDED = [
    ("images", "mlp", 0.2, "cnn2d"),
    ("images", "kernel 1", 0.3, "kernel 1, convolutions"),
    ("images", "cnn2d", 0.02, "cnn2d, convolutions"),
    ("mnist1d", "kernel 1", 0.2, "kernel 1, convolutions"),
    ("marked-sum", "token-mlp, two layers", 0.5, "token-mlp, attention"),
    ("marked-sum", "token-mlp", 0.5, "token-mlp, gru"),
    ("bytes", "transformer, gru", 0.1, "transformer"),
    ("bytes", "transformer, looks ahead", 0.5, "transformer, gru"),
]
"""By task: a network, and by how much the metric of another one is larger."""


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


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_the_command_still_prints_these_figures(name):
    """Within five points of accuracy or 0.15 bits, since another processor rounds otherwise."""
    heading, found = study(name)
    assert [(one, other) for task, one, by, other in NEEDED if task == name and found[one] + by >= found[other]] == []
    if name != "bytes" or sys.version_info[:2] == WITH:
        _, _, behind = PRINTED.read_text(encoding="utf-8").partition(f"{heading}\n")
        lines = re.findall(r"^  (\S.*?) +(\d\.\d{3})$", behind.partition("\n\n")[0], re.MULTILINE)
        kept = {network: float(figure) for network, figure in lines}
        assert found == pytest.approx(kept, abs=0.15 if name == "bytes" else 0.05)
