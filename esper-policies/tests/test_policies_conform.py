"""The policies pass the conformance checks."""

from __future__ import annotations

from esper_testing import parametrize_with_checks


def a_plan(space):
    """One seed in each slot, of the first blueprint that may grow there, through its whole life."""
    life = ("germinate", "advance", "fossilise")
    steps = [{"step": step, "op": op, "slot": slot} for slot in space.slots for step, op in enumerate(life)]
    names = {slot: {"blueprint": names[0]} for slot, names in space.blueprints.items()}
    return {"plan": [{**one, **(names[one["slot"]] if one["op"] == "germinate" else {})} for one in steps]}


HASTY = {"preview": 1, "patience": 1, "speed": 1, "first": 0.0, "last": 1.0}
"""An episode of the kit is short: so that something happens in it."""

EAGER = {"seeds": 3, "preview": 1, "first": 0.0, "speed": 1}


SMALL = {"width": 4, "memory": False, "passes": 1, "minibatch": 1000}
"""A small network learns as a large one does, and sooner; its checks are among the slow tests all the same."""


@parametrize_with_checks("policies", settings={"schedule": a_plan, "heuristic": HASTY, "bandit": EAGER, "ppo": SMALL})
def test_it_conforms(check):
    check.run()
