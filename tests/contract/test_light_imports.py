"""Commands and packages that must start fast import neither torch nor other heavy packages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LIGHT = ["esper_scale.stores.plugin", *(f"esper_core.{part}" for part in ("leyline", "settings", "hooks", "plugins"))]
LIGHT += [f"esper_run.{part}" for part in ("config", "cli", "runs.records", "options", "stores")]
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


def heavy_after(program: str, path: str | Path = "") -> set[str]:
    """Return what is heavy and was imported by ``program``, in a new interpreter that finds modules in ``path`` too."""
    env = {**os.environ, "PYTHONPATH": str(path)}
    done = subprocess.run([sys.executable, "-c", PROBE % program], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize(
    ("program", "spared"),
    [
        ("import esper_core; call('--help')", set(HEAVY)),
        ("load('esper_run.runs.statistics')", {"torch", "scipy"}),
        ("call('check', 'plugins.yaml')", {"torch._dynamo"}),
        ("from esper_grow import Gardener", {"esper_core.fused"}),
    ],
    ids=["the core and its help", "statistics", "a check of a configuration", "a gardener"],
)
def test_what_must_start_fast_spares_what_is_heavy(program: str, spared: set[str]) -> None:
    assert heavy_after(program) & spared == set()


def test_light_packages_and_commands_that_list_import_no_torch() -> None:
    commands = ["plugins list", "plugins list --json", "plugins show tasks", "components list"]
    calls = [f"call(*{line.split()})" for line in commands]
    steps = [f"load({name!r})" for name in LIGHT] + calls
    program = "\n".join(f"{step}; assert 'torch' not in sys.modules, {step!r}" for step in steps)
    assert "torch" not in heavy_after(program)


def test_plugins_and_settings_of_the_members_import_no_torch() -> None:
    plugins = [f"esper_{name}.plugin" for name in ("blueprints", "policies", "rewards", "tasks", "watch")]
    policies = [f"esper_policies.{name}" for name in ("settings", "heuristic", "schedule", "learning_rates")]
    other_modules = [
        "esper_tasks.settings",
        "esper_rewards.potentials",
        "esper_watch.command",
        "esper_watch.comparison",
    ]
    steps = [f"__import__({name!r})" for name in (*plugins, *policies, *other_modules)]
    program = "\n".join(f"{step}; assert 'torch' not in sys.modules, {step!r}" for step in steps)
    assert heavy_after(program).isdisjoint({"scipy", "torch"})


def test_writing_a_new_package_imports_neither_torch_nor_pydantic(tmp_path: Path) -> None:
    words = ["blueprint", "x", "--into", str(tmp_path)]
    program = f"from esper_testing.commands import new; new({words}, standalone_mode=False)"
    assert heavy_after(program).isdisjoint({"torch", "numpy", "pydantic"})
