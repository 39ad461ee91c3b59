"""Commands and packages that must start fast import neither torch nor other heavy packages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LIGHT = ["esper_scale.stores.plugin", *(f"esper_core.{part}" for part in ("leyline", "settings", "hooks", "plugins"))]
LIGHT += [f"esper_run.{part}" for part in ("config", "cli", "runs.records", "options", "stores")]
LISTING = ["plugins list", "plugins list --json", "plugins show tasks", "components list"]
OF_MEMBERS = [f"esper_{name}.plugin" for name in ("blueprints", "policies", "rewards", "tasks", "watch")]
OF_MEMBERS += [f"esper_policies.{name}" for name in ("settings", "heuristic", "schedule", "learning_rates")]
OF_MEMBERS += ["esper_tasks.settings", "esper_rewards.potentials", "esper_watch.command", "esper_watch.comparison"]
HEAVY = ["torch", "torch._dynamo", "scipy", "numpy", "pydantic", "yaml", "packaging", "pluggy", "esper_run.cli.run"]
HEAVY += ["esper_core.fused"]


PROBE = f"""
import importlib, pkgutil, sys

def load(*packages):
    for name in packages:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(getattr(package, "__path__", ()), name + "."):
            importlib.import_module(module.name)

def call(*arguments):
    from esper_run.cli import main
    try:
        main(list(arguments))
    except SystemExit as end:
        assert not end.code, (arguments, end.code)

%s
sys.stderr.write(" ".join(name for name in {HEAVY} if name in sys.modules))
"""


def heavy_after(program: str) -> set[str]:
    """Return what is heavy and was imported by ``program``, in a new interpreter."""
    env = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run([sys.executable, "-c", PROBE % program], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def without_torch(*steps: str) -> str:
    """Return a program of these steps, which names the first that imports torch."""
    return "\n".join(f"{step}; assert 'torch' not in sys.modules, {step!r}" for step in steps)


LISTS = without_torch(*(f"load({name!r})" for name in LIGHT), *(f"call(*{line.split()})" for line in LISTING))


@pytest.mark.parametrize(
    ("program", "spared"),
    [
        ("import esper_core; call('--help')", set(HEAVY)),
        ("load('esper_run.runs.statistics')", {"torch", "scipy"}),
        ("call('check', 'plugins.yaml')", {"torch._dynamo"}),
        ("from esper_grow import Gardener", {"esper_core.fused"}),
        (LISTS, {"torch"}),
        (without_torch(*(f"__import__({name!r})" for name in OF_MEMBERS)), {"scipy", "torch"}),
    ],
    ids=["core and help", "statistics", "check", "gardener", "light packages and lists", "plugins and settings"],
)
def test_what_must_start_fast_spares_what_is_heavy(program: str, spared: set[str]) -> None:
    assert heavy_after(program) & spared == set()


def test_writing_a_new_package_imports_neither_torch_nor_pydantic(tmp_path: Path) -> None:
    words = ["blueprint", "x", "--into", str(tmp_path)]
    program = f"from esper_testing.commands import new; new({words}, standalone_mode=False)"
    assert heavy_after(program).isdisjoint({"torch", "numpy", "pydantic"})
