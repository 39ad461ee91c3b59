"""The static policy, and the registration of all policies."""

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
    assert sorted(registered) == ["forecaster", "heuristic", "ppo", "random", "schedule", "static"]
    for component in registered.values():
        assert callable(component.load())
        assert (component.settings_model() is None) == (component.short == "static")
