"""The command line answers at once: it imports neither torch nor what it does not need."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import pytest

LIGHT = ["esper_core", *(f"esper_core.{part}" for part in ("leyline", "hooks", "plugins", "config", "cli"))]


def test_nothing_light_imports_torch_and_neither_does_listing() -> None:
    program = f"""
import importlib, sys
for name in {LIGHT}:
    importlib.import_module(name)
assert "torch" not in sys.modules, "importing"
from esper_core.cli import main
for arguments in (["--help"], ["plugins", "list"], ["plugins", "show", "tasks"], ["components", "list"]):
    try:
        main(arguments)
    except SystemExit as end:
        assert not end.code, (arguments, end.code)
    assert "torch" not in sys.modules, arguments
sys.stderr.write("done")
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.stderr == "done"


def seconds(*arguments: str, runs: int = 5) -> float:
    """Median of the time that an interpreter takes with these arguments."""
    taken = []
    for _ in range(runs):
        started = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


@pytest.mark.parametrize(
    ("arguments", "bound"), [(["--help"], 0.15), (["plugins", "list"], 0.25), (["plugins", "list", "--json"], 0.25)]
)
def test_an_answer_takes_little_more_than_starting_python(arguments: list[str], bound: float) -> None:
    """Measured up to four times: the machine may be busy with something else."""
    over = []
    for _ in range(4):
        over.append(seconds("-m", "esper_core", *arguments) - seconds("-c", "pass"))
        if over[-1] < bound:
            return
    pytest.fail(f"{arguments} takes {min(over):.3f} s more than starting Python, {bound} s are allowed")
