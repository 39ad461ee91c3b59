"""Golden numbers: a refactoring does not change the measurements of a small run.

Another processor may round otherwise, so the numbers are compared to a thousandth. Where a change is meant to change
them, ``pytest tests/end_to_end/test_golden.py --write-golden`` writes them anew; say why in the commit.
"""

import json
from pathlib import Path

import pytest

from esper_core.leyline.events import StepFinished

GOLDEN = Path(__file__).parent / "golden" / "small-run.json"


def course(steps: list[StepFinished]) -> dict[str, list]:
    """Return the measurements of each arm and seed, step by step."""
    by_environment: dict[str, list] = {}
    for step in steps:
        row = [step.signals.train_loss, step.signals.validation_loss]
        row += [part for seed in step.signals.seeds for part in (seed.incubation_loss, seed.stage, seed.alpha)]
        by_environment.setdefault(f"{step.arm} {step.seed}", []).append(row)
    return by_environment


def test_a_small_run_gives_the_recorded_results(run, pytestconfig):
    measured = course(run().events(StepFinished))
    if pytestconfig.getoption("--write-golden"):
        GOLDEN.write_text(json.dumps(measured, indent=1) + "\n")
    golden = json.loads(GOLDEN.read_text())
    assert measured.keys() == golden.keys()
    for environment, rows in golden.items():
        for step, (now, then) in enumerate(zip(measured[environment], rows, strict=True)):
            expected = [pytest.approx(value, rel=1e-3) if isinstance(value, float) else value for value in then]
            assert now == expected, f"{environment}, step {step}"
