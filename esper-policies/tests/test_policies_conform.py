"""The plugin registers the policies, which pass the conformance checks."""

from esper_policies import plugin
from esper_testing import parametrize_with_checks


def a_plan(space):
    """Return a plan with one seed in each slot, of its first blueprint, over its whole life."""
    life = ("germinate", "advance", "fossilise")
    steps = [{"step": step, "op": op, "slot": slot} for slot in space.slots for step, op in enumerate(life)]
    names = {slot: {"blueprint": names[0]} for slot, names in space.blueprints.items()}
    return {"plan": [{**step, **(names[step["slot"]] if step["op"] == "germinate" else {})} for step in steps]}


HASTY = {"preview": 1, "patience": 1, "speed": 1, "first": 0.0, "last": 1.0}
"""Settings for the short episodes of the checks, so that seeds germinate in them."""

SMALL = {"width": 4, "passes": 1, "minibatch": 1000}
"""A small network, which trains faster; its checks are slow tests nevertheless."""


@parametrize_with_checks("policies", settings={"schedule": a_plan, "heuristic": HASTY, "ppo": SMALL})
def test_it_conforms(check):
    check.run()


def test_the_plugin_registers_all_policies(esper_plugins):
    registered = {component.short: component for component in esper_plugins(plugin).registry.components("policy")}
    assert sorted(registered) == ["heuristic", "ppo", "random", "schedule", "static"]
    for component in registered.values():
        assert callable(component.load())
        assert (component.settings_model() is None) == (component.short == "static")
