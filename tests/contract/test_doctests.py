"""The examples in the docstrings of all members are correct."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = [
    ".".join(path.relative_to(source).with_suffix("").parts)
    for source in sorted(ROOT.glob("esper-*/src"))
    for path in sorted(source.rglob("*.py"))
    if ">>>" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", MODULES)
def test_examples_of_docstrings_are_correct(module: str) -> None:
    assert doctest.testmod(importlib.import_module(module)).failed == 0
