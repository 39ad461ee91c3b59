"""Does each check of a policy find the one fault that it is there for, and no fault in what is right?"""

from __future__ import annotations

import random

import pytest

from esper_core.leyline import WAIT, Action, Op
from esper_testing import check_policy

CASES = ("1 slot", "2 slots", "3 slots", "7 slots")


class Right:
    """Takes the first thing that is possible, at every third step nothing."""

    def __init__(self, space):
        self.space = space

    def act(self, observations, masks):
        return [self.one(seen, mask) for seen, mask in zip(observations, masks, strict=True)]

    def one(self, seen, mask):
        if seen.step % 3 == 2:
            return WAIT
        return next(iter(self.possible(mask)), WAIT)

    def possible(self, mask):
        for slot in self.space.slots:
            for op in sorted(mask.ops.get(slot, ())):
                blueprints = mask.blueprints.get(slot, ()) if op is Op.GERMINATE else [None]
                yield from (Action(op, slot, blueprint) for blueprint in blueprints)


class IgnoresItsMask(Right):
    def one(self, seen, mask):
        slot = self.space.slots[0]
        return Action(Op.GERMINATE, slot, self.space.blueprints[slot][0])


class ActsOnceTooOften(Right):
    def act(self, observations, masks):
        return [*super().act(observations, masks), WAIT]


class GivesNames(Right):
    def act(self, observations, masks):
        return [WAIT if len(observations) < 5 else "wait" for _ in observations]


class LooksAfterTheFirstOnly(Right):
    def act(self, observations, masks):
        first, *others = super().act(observations, masks)
        return [first, *(WAIT for _ in others)]


class GoesByTheMean(Right):
    """Waits where the environments are well on average."""

    def act(self, observations, masks):
        mean = sum(seen.signals.validation_metric for seen in observations) / len(observations)
        return super().act(observations, masks) if mean > 0.5 else [WAIT for _ in observations]


class DrawsFromTheSystem(Right):
    def one(self, seen, mask):
        return random.SystemRandom().choice([WAIT, *self.possible(mask)])


class Samples(Right):
    """No fault: it draws from Python's generator, which a run seeds."""

    def one(self, seen, mask):
        return random.choice([WAIT, *self.possible(mask)])


class KnowsItsBlueprints(Right):
    def one(self, seen, mask):
        known = {id_: place for place, ids in enumerate(self.space.blueprints.values()) for id_ in ids}
        for seed in seen.signals.seeds:
            known[seed.blueprint]
        return super().one(seen, mask)


def results(factory, **settings):
    return check_policy(factory, **settings)


def failed(factory):
    return {one.check.partition("[")[0]: one.message for one in results(factory) if not one.ok}


def test_a_policy_without_a_fault_passes_every_check_with_every_number_of_slots():
    found = results(Right)
    assert {one.status for one in found} == {"passed"}
    assert [one.check for one in found][:4] == [
        f"acts_within_its_mask[{n}]" for n in ("1 slot", "2 slots", "3 slots", "7 slots")
    ]


@pytest.mark.parametrize(
    ("factory", "check", "says"),
    [
        (ActsOnceTooOften, "acts_once_for_each_environment", "one Action for each of 1 environments"),
        (GivesNames, "acts_once_for_each_environment", "Received: ['wait'"),
        (LooksAfterTheFirstOnly, "batch_equals_single", "as number 1 of three environments that are alike"),
        (GoesByTheMean, "environments_do_not_mix", "beside two different environments, as number 0"),
        (DrawsFromTheSystem, "repeats_itself", "by two fresh policies"),
        (
            KnowsItsBlueprints,
            "survives_a_blueprint_that_it_never_saw",
            "raised KeyError where a blueprint is new",
        ),
    ],
)
def test_a_fault_fails_its_own_check(factory, check, says):
    found = failed(factory)
    assert says in found.pop(check)
    # Whoever is deaf to all but the first is deaf to it wherever it stands.
    assert set(found) <= ({"environments_do_not_mix"} if factory is LooksAfterTheFirstOnly else set())


def test_a_policy_that_ignores_its_mask_is_found_wherever_masks_are():
    found = failed(IgnoresItsMask)
    assert "is not among what is possible" in found["acts_within_its_mask"]
    assert set(found) == {"acts_within_its_mask", "survives_a_blueprint_that_it_never_saw"}


def test_a_policy_that_samples_is_not_asked_whether_two_of_its_decisions_agree():
    status = {one.check: one.status for one in results(Samples)}
    assert {name: found for name, found in status.items() if found != "passed"} == {
        f"{name}[{case}]": "skipped" for name in ("batch_equals_single", "environments_do_not_mix") for case in CASES
    }


def test_settings_may_depend_on_the_action_space():
    class Picky(Right):
        def __init__(self, space, *, favourite):
            super().__init__(space)
            assert favourite in space.slots

    assert all(one.ok for one in results(Picky, settings=lambda space: {"favourite": space.slots[-1]}))
