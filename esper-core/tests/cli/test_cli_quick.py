"""The command line answers at once: it imports neither torch nor what it does not need."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

LIGHT = ["esper_core", *(f"esper_core.{part}" for part in ("leyline", "hooks", "plugins", "config", "cli"))]


@pytest.mark.members
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
    """The least processor time of several runs of an interpreter: what it takes when nothing else is in its way.

    ``make bench`` measures the time on the wall; here the machine may be busy with other tests.
    """
    taken = []
    for _ in range(runs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(taken)


@pytest.mark.parametrize(
    ("arguments", "bound"), [(["--help"], 0.15), (["plugins", "list"], 0.25), (["plugins", "list", "--json"], 0.25)]
)
def test_an_answer_takes_little_more_than_starting_python(arguments: list[str], bound: float) -> None:
    assert seconds("-m", "esper_core", *arguments) - seconds("-c", "pass") < bound
