"""The static policy, and the registration of all policies."""

from __future__ import annotations

import doctest
import subprocess
import sys
from importlib import import_module

import pytest

from esper_core.leyline import WAIT, ActionMask, ActionSpace, Observation, Op, Policy, Signals
from esper_policies import plugin
from esper_policies.static import Static


def test_it_always_waits():
    policy = Static(ActionSpace({"early": ("blueprints/mlp",)}))
    assert isinstance(policy, Policy)
    mask = ActionMask({"early": frozenset(Op)}, {"early": ("blueprints/mlp",)})
    for step in range(3):
        signals = Signals(step, 1.0, 1.0, 0.5, parameters=10, host_parameters=10, slots=())
        assert policy.act([Observation(step, 3, signals)] * 4, [mask] * 4) == [WAIT] * 4


def test_the_plugin_registers_all_policies(esper_plugins):
    registered = {component.short: component for component in esper_plugins(plugin).registry.components("policy")}
    assert sorted(registered) == ["bandit", "heuristic", "ppo", "random", "schedule", "static"]
    for component in registered.values():
        assert callable(component.load())
        assert (component.settings_model() is None) == (component.short == "static")


@pytest.mark.parametrize("module", ["heuristic", "learning_rates", "random_policy", "schedule", "static"])
def test_the_examples_in_docstrings_are_true(module):
    found = doctest.testmod(import_module(f"esper_policies.{module}"))
    assert found.attempted > 0
    assert found.failed == 0


def test_importing_all_of_it_imports_no_torch():
    modules = ", ".join(
        f"esper_policies.{name}" for name in ("plugin", "schedule", "heuristic", "random_policy", "learning_rates")
    )
    code = f"import {modules}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
