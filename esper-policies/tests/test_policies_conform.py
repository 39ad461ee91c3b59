"""The policies pass the conformance checks."""

from __future__ import annotations

from esper_testing import parametrize_with_checks


def a_plan(space):
    """One seed in each slot, of the first blueprint that may grow there, through its whole life."""
    return {
        "plan": [
            {
                "step": step,
                "op": op,
                "slot": slot,
                "blueprint": space.blueprints[slot][0] if op == "germinate" else None,
            }
            for slot in space.slots
            for step, op in enumerate(("germinate", "advance", "fossilise"))
        ]
    }


HASTY = {"preview": 1, "patience": 1, "speed": 1, "first": 0.0, "last": 1.0}
"""An episode of the kit is short: so that something happens in it."""


SMALL = {"width": 4, "memory": False, "passes": 1, "minibatch": 1000}
"""A small network learns as a large one does, and sooner; its checks are among the slow tests all the same."""


@parametrize_with_checks("policies", settings={"schedule": a_plan, "heuristic": HASTY, "ppo": SMALL})
def test_it_conforms(check):
    check.run()
