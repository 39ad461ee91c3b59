"""Packages that must start fast do not import torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LIGHT = ["esper_core", *(f"esper_core.{part}" for part in ("leyline", "hooks", "plugins", "config", "cli"))]

PROBE = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
if sys.argv[1] != "esper_core":
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
print("torch" in sys.modules)
"""


def answer(program: str, *arguments: str, path: str | Path = "") -> str:
    """Return what ``program`` prints in a new interpreter that finds modules in ``path``, too."""
    env = {**os.environ, "PYTHONPATH": str(path)}
    command = [sys.executable, "-c", program, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@pytest.mark.parametrize("package", LIGHT)
def test_importing_it_whole_does_not_import_torch(package: str) -> None:
    assert answer(PROBE, package) == "False"


def test_the_probe_finds_an_import_in_a_submodule(tmp_path: Path) -> None:
    for name, source in (("torch", ""), ("heavy", ""), ("heavy/inner", "import torch\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(source)
    assert answer(PROBE, "heavy", path=tmp_path) == "True"


@pytest.mark.parametrize("arguments", [["--help"], ["plugins", "list"], ["plugins", "list", "--json"]])
def test_a_command_that_only_lists_does_not_import_torch(arguments: list[str]) -> None:
    program = """
import sys
from esper_core.cli import main
sys.argv = ["esper", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
sys.stderr.write(str("torch" in sys.modules))
"""
    run = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "False")
