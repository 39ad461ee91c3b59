"""Is the study of gardeners told as it was found, and is nothing chosen by what it is judged on?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.science.gardeners.page import page
from benchmarks.science.gardeners.steps import SIDES, SIZES, compared

STUDY = Path(__file__).parents[2] / "benchmarks" / "science" / "gardeners"


def line(size: float, *, to_tune: bool, **scores: float) -> dict[str, Any]:
    """What came of one size, of three seeds that differ by a hundredth; scores: by side, the same on both splits."""
    sides = {
        side: [{"seed": seed, "validation": scores[name] + seed / 100, "test": scores[name]} for seed in range(3)]
        for side, name in zip(SIDES.values(), ("grown", "whole", "twin"), strict=True)
    }
    return {"key": ["a cell", size, to_tune], "sides": sides}


def test_the_pages_tables_are_those_of_the_results() -> None:
    found = json.loads((STUDY / "results.json").read_text(encoding="utf-8"))
    assert (STUDY / "results.md").read_text(encoding="utf-8") == page(found)


def test_the_sizes_that_are_shown_are_those_of_the_walks() -> None:
    walked = [json.loads(one) for one in (STUDY / "steps.jsonl").read_text(encoding="utf-8").splitlines()]
    found = json.loads((STUDY / "results.json").read_text(encoding="utf-8"))["steps"]
    order = [cell["cell"] for cell in found]
    walked.sort(key=lambda one: (order.index(one["key"][0]), SIZES.index(one["key"][1]), not one["key"][2]))
    assert compared(walked) == found


def test_each_side_takes_the_size_that_was_best_on_other_seeds() -> None:
    small, usual, large, huge = SIZES
    walks = [
        line(small, to_tune=True, grown=0.5, whole=0.6, twin=0.3),
        line(small, to_tune=False, grown=0.5, whole=0.6, twin=0.3),
        line(usual, to_tune=True, grown=0.6, whole=0.5, twin=0.3),
        line(usual, to_tune=False, grown=0.1, whole=0.5, twin=0.3),  # what it is judged on does not choose
        line(large, to_tune=True, grown=0.5, whole=0.5, twin=0.4),
        line(large, to_tune=False, grown=0.9, whole=0.9, twin=0.4),
        line(huge, to_tune=True, grown=0.1, whole=0.1, twin=0.1),
        line(huge, to_tune=False, grown=1.0, whole=1.0, twin=1.0),
    ]
    (cell,) = compared(walks)
    assert cell["sizes"] == dict(zip(SIDES.values(), (usual, small, large), strict=True))
    assert cell["tuned"]["trained from the start"]["mean"] == pytest.approx(100 * (0.1 - 0.6))
    assert cell["tuned"]["never grown"]["mean"] == pytest.approx(100 * (0.1 - 0.4))
    assert cell["untuned"]["trained from the start"]["mean"] == pytest.approx(100 * (0.1 - 0.5))
