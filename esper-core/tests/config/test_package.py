"""The package: sorted names, no torch, imports of leyline only, and doctests."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import esper_core.config

FOLDER = Path(esper_core.config.__file__).parent
MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("module", MODULES)
def test_examples_of_docstrings_are_correct(module):
    assert doctest.testmod(importlib.import_module(f"esper_core.config.{module}")).failed == 0
