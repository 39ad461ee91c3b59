"""Thresholds have names: no fractions in the calculations of growth, governor, rewards and policies."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from esper_core.leyline import constants
from esper_core.settings import GovernorConfig

ROOT = Path(__file__).parents[2]
STEERING = (
    "esper-core/src/esper_core/growth",
    "esper-core/src/esper_core/governor",
    "esper-core/src/esper_core/leyline",
    "esper-core/src/esper_core/trainer",
    "esper-policies/src",
    "esper-rewards/src",
)
PLAIN = {0.0, 0.5, 1.0, 2.0, 10.0, 100.0}
"""Numbers that need no name: zero, a half, one, two, and units."""


def unnamed(source: str) -> Iterator[str]:
    """Yield each calculation, comparison or call in a function that contains an unnamed number."""
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            body = function.body if isinstance(function.body, list) else [function.body]
            for part in (inner for statement in body for inner in ast.walk(statement)):
                if isinstance(part, ast.BinOp | ast.AugAssign | ast.Compare | ast.UnaryOp | ast.Call):
                    yield from (ast.unparse(part) for child in ast.iter_child_nodes(part) if _own_number(child))


def _own_number(part: ast.AST) -> bool:
    value = part.value if isinstance(part, ast.keyword) else part
    return isinstance(value, ast.Constant) and isinstance(value.value, float) and value.value not in PLAIN


@pytest.mark.parametrize("folder", STEERING)
def test_b8_drl_11_numbers_that_control_behaviour_have_names(folder: str) -> None:
    """A fraction in a calculation, a comparison or a call, such as a threshold or a weight, has a name."""
    sources = sorted((ROOT / folder).rglob("*.py"))
    assert sources
    by_file = {
        file.name: calculations
        for file in sources
        if (calculations := sorted(set(unnamed(file.read_text(encoding="utf-8")))))
    }
    assert by_file == {}


def test_b8_cr_09_history_and_surge_thresholds_of_the_governor_are_settings() -> None:
    """Windows, thresholds and shares of the governor are settings, and their defaults are the named constants."""
    defaults = {field.default for field in GovernorConfig.model_fields.values()}
    steering = ("HISTORY_STEPS", "SURGE_SIGMAS", "SURGE_RATIO", "SURGE_STEPS", "COLLAPSE_SHARE", "WATCH_STEPS")
    missing = [name for name in steering if getattr(constants, name) not in defaults]
    assert missing == []
