"""To which mutation a panic is attributed, and for which of them a blueprint has to answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from esper_core.governor import MutationWatch
from esper_core.governor.attribution import op_of
from esper_core.growth import Transition
from esper_core.leyline import Op, Stage
from esper_core.trainer.environment import Environment, Recipe


def change(was: Stage | None, now: Stage, slot: str = "early", blueprint: str = "test/a") -> Transition:
    return Transition(slot, 0, blueprint, was, now, 10, "asked for")


GERMINATED = change(None, Stage.GERMINATED)
ADVANCED = change(Stage.TRAINING, Stage.BLENDING)
KEPT = change(Stage.HOLDING, Stage.FOSSILISED)


@pytest.mark.parametrize(
    ("was", "now", "op"),
    [
        (None, Stage.GERMINATED, Op.GERMINATE),
        (Stage.GERMINATED, Stage.TRAINING, None),
        (Stage.TRAINING, Stage.BLENDING, Op.ADVANCE),
        (Stage.BLENDING, Stage.HOLDING, None),
        (Stage.HOLDING, Stage.BLENDING, Op.RETARGET),
        (Stage.BLENDING, Stage.BLENDING, Op.RETARGET),
        (Stage.HOLDING, Stage.FOSSILISED, Op.FOSSILISE),
        (Stage.HOLDING, Stage.DRAINING, Op.PRUNE),
        (Stage.TRAINING, Stage.PRUNED, Op.PRUNE),
        (Stage.DRAINING, Stage.PRUNED, None),
    ],
)
def test_a_transition_tells_what_was_done(was, now, op) -> None:
    assert op_of(change(was, now)) is op


def test_a_panic_is_laid_at_the_door_of_the_latest_mutation_that_reached_the_host() -> None:
    watch = MutationWatch(8)
    watch.record([ADVANCED], 3)
    watch.record([change(None, Stage.GERMINATED, "late", "test/b")], 5)
    culprit = watch.culprit(["early"])
    assert str(culprit.mutation) == "advance early test/a at step 3"
    assert culprit.blamed


def test_a_seed_that_never_reached_the_host_is_named_and_not_blamed() -> None:
    watch = MutationWatch(8)
    watch.record([GERMINATED], 3)
    culprit = watch.culprit([])
    assert (culprit.mutation.op, culprit.blamed) == (Op.GERMINATE, False)
    assert watch.culprit(["early"]).blamed  # it learns in the host itself


@pytest.mark.parametrize(("done", "blamed"), [(KEPT, True), (change(Stage.HOLDING, Stage.DRAINING), False)])
def test_a_fossil_answers_for_itself_and_a_pruned_seed_for_nothing(done, blamed) -> None:
    watch = MutationWatch(8)
    watch.record([done], 3)
    assert watch.culprit([]).blamed is blamed


@pytest.mark.parametrize(("step", "watched"), [(11, True), (12, False)])
def test_a_mutation_is_watched_for_so_many_steps(signals, step, watched) -> None:
    watch = MutationWatch(8)
    watch.record([KEPT], 3)
    watch.advance(signals(step, 1.0))
    assert (watch.culprit([]) is not None) is watched


@pytest.mark.parametrize(("step", "watched"), [(28, True), (29, False)])
def test_the_window_begins_anew_while_the_strength_moves(signals, living, step, watched) -> None:
    watch = MutationWatch(8)
    watch.record([ADVANCED], 3)
    for moving in range(4, 21):
        watch.advance(signals(moving, 1.0, slot=living(Stage.BLENDING, 0.5)))
    watch.advance(signals(step, 1.0, slot=living()))
    assert (watch.culprit(["early"]) is not None) is watched


def test_what_a_garden_tells_is_understood(make_recipe: Callable[..., Recipe], grow_and_keep) -> None:
    environment = Environment(make_recipe(), arm="grown", index=0)
    environment.reset(0, 3)
    done = []
    for step in range(6):
        done += [op_of(one) for one in environment.train()]
        if step in grow_and_keep:
            done += [op_of(one) for one in environment.network.apply(grow_and_keep[step], step)]
    assert [op for op in done if op] == [Op.GERMINATE, Op.ADVANCE, Op.FOSSILISE]
