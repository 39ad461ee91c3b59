"""The same numbers before and after a refactoring: the course of a small run, step by step.

Another processor may round otherwise, so the numbers are compared to a thousandth. Where a change is meant to change
them, ``pytest tests/end_to_end/test_golden.py --write-golden`` writes them anew; say why in the commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from esper_core.leyline.events import StepFinished
from esper_core.telemetry import read_events

GOLDEN = Path(__file__).parent / "golden" / "small-run.json"


def course(run: Path) -> dict[str, list[Any]]:
    """For each arm and seed what was measured, step by step."""
    found: dict[str, list[Any]] = {}
    for event in read_events(run / "events.jsonl"):
        if isinstance(event, StepFinished):
            measured = event.signals
            row = [measured.train_loss, measured.validation_loss]
            row += [part for seed in measured.seeds for part in (seed.incubation_loss, seed.stage, seed.alpha)]
            found.setdefault(f"{event.arm} {event.seed}", []).append(row)
    return found


def test_a_small_run_takes_the_course_that_it_always_took(
    esper: Callable[..., Any], small: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    esper("run", small, "--runs-dir", tmp_path / "runs", "--quiet")
    (run,) = (tmp_path / "runs").iterdir()
    found = course(run)
    if pytestconfig.getoption("--write-golden"):
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    golden = json.loads(GOLDEN.read_text())
    assert found.keys() == golden.keys()
    for environment, rows in golden.items():
        for step, (now, then) in enumerate(zip(found[environment], rows, strict=True)):
            expected = [pytest.approx(value, rel=1e-3) if isinstance(value, float) else value for value in then]
            assert now == expected, f"{environment}, step {step}"
