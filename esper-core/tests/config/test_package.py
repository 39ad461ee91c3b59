"""The package: sorted names, no torch, imports of leyline only, and doctests."""

from __future__ import annotations

import ast
import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import esper_core.config

FOLDER = Path(esper_core.config.__file__).parent
MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")
ALLOWED = ("esper_core.leyline", "esper_core.config", "pydantic", "pydantic_core", "yaml", *sys.stdlib_module_names)


def test_public_names_are_sorted_and_importable():
    names = esper_core.config.__all__
    assert names == sorted(names)
    assert all(hasattr(esper_core.config, name) for name in names)


def test_importing_the_package_does_not_import_torch():
    program = "import sys, esper_core.config; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_only_leyline_pydantic_and_yaml(module):
    tree = ast.parse((FOLDER / f"{module}.py").read_text())
    imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    imported += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert [name for name in imported if not f"{name}.".startswith(tuple(f"{one}." for one in ALLOWED))] == []


@pytest.mark.parametrize("module", MODULES)
def test_examples_of_docstrings_are_correct(module):
    assert doctest.testmod(importlib.import_module(f"esper_core.config.{module}")).failed == 0
