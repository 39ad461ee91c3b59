"""Attribution: which mutation a panic is attributed to, and whether its blueprint is blamed."""

import pytest

from esper_core.governor import MutationWatch
from esper_core.growth import Transition
from esper_core.leyline import Cause, Reason, Stage
from tests.support.governed import living, signals


def change(was: Stage | None, now: Stage, slot: str = "early", blueprint: str = "test/a") -> Transition:
    return Transition(slot, 0, blueprint, was, now, 10, Reason(Cause.POLICY))


GERMINATED = change(None, Stage.GERMINATED)
ADVANCED = change(Stage.TRAINING, Stage.BLENDING)
KEPT = change(Stage.HOLDING, Stage.FOSSILISED)


def test_panic_is_attributed_to_the_latest_mutation_that_reached_the_host():
    """Neither a newborn seed, nor one dropped from a nursery, nor what comes with time changes the attribution."""
    watch = MutationWatch(8)
    watch.record([ADVANCED, change(Stage.TRAINING, Stage.PRUNED, blueprint="test/c")], 3)
    watch.record([change(None, Stage.GERMINATED, "late", "test/b")], 5)
    with_time = (Stage.GERMINATED, Stage.TRAINING), (Stage.BLENDING, Stage.HOLDING), (Stage.DRAINING, Stage.PRUNED)
    watch.record([change(was, now) for was, now in with_time], 6)
    culprit = watch.culprit(["early"])
    assert str(culprit.mutation) == "advance early test/a at step 3"
    assert culprit.blamed


def test_seed_that_never_reached_the_host_is_not_named():
    watch = MutationWatch(8)
    watch.record([GERMINATED], 3)
    assert watch.culprit([]) is None
    assert watch.culprit(["early"]).blamed  # it learns in the host itself


@pytest.mark.parametrize(("done", "blamed"), [(KEPT, True), (change(Stage.HOLDING, Stage.DRAINING), False)])
def test_fossil_is_blamed_and_pruned_seed_is_not(done, blamed):
    watch = MutationWatch(8)
    watch.record([done], 3)
    assert watch.culprit([]).blamed is blamed


@pytest.mark.parametrize(("moving", "last"), [(range(0), 11), (range(4, 21), 28)])
def test_mutation_is_watched_for_the_given_number_of_steps_after_alpha_has_moved(moving, last):
    watched = []
    for step in (last, last + 1):
        watch = MutationWatch(8)
        watch.record([ADVANCED], 3)
        for number in moving:
            watch.advance(signals(number, 1.0, slot=living(Stage.BLENDING, 0.5)))
        watch.advance(signals(step, 1.0, slot=living()))
        watched.append(watch.culprit(["early"]) is not None)
    assert watched == [True, False]
