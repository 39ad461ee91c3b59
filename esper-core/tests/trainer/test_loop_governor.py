"""The governor in a run: rollbacks, early ends of episodes, and their costs in events and rewards."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from esper_core.leyline import Stage
from esper_core.leyline.events import EpisodeFinished, GovernorActed, StageChanged, StepFinished
from esper_core.leyline.signals import CALM, HealthSnapshot, Level, Verdict
from esper_core.trainer.environment import Environment, Recipe
from esper_core.trainer.loop import run_study
from esper_core.trainer.pool import Pool
from esper_core.trainer.study import Arm
from esper_core.trainer.study_position import StudyPosition
from tests.support.core_worlds import ADVANCE, FOSSILISE, GERMINATE, PlannedPolicy, make_recipe
from tests.support.governed import poisoned as on_nan
from tests.support.studies import make_study

STEPS = 6


@pytest.fixture
def poisoned(monkeypatch) -> Callable[..., Recipe]:
    """``poisoned(step, **recipe)``: a recipe whose training data is NaN in one step of the grown environment."""

    def make(step: int, **more: Any) -> Any:
        recipe = make_recipe(**{"steps": STEPS, **more})
        train, steps = Environment.train, count()

        def poison(environment: Environment) -> Any:
            is_sick = environment.arm == "grown" and next(steps) == step
            with on_nan(recipe) if is_sick else nullcontext():
                return train(environment)

        monkeypatch.undo()
        monkeypatch.setattr(Environment, "train", poison)
        return recipe

    return make


@pytest.mark.parametrize(("step", "kind"), [(0, "adam"), (3, "sgd"), (5, "sgd")])
def test_run_09_a_step_on_nan_is_rolled_back_and_costs_a_penalty(step, kind, poisoned):
    recipe = poisoned(step, optimizer={"kind": kind, **({"momentum": 0.9} if kind == "sgd" else {})})
    study, events = make_study(recipe, PlannedPolicy())
    grown, twin = run_study(StudyPosition(study))
    (acted,) = events.of(GovernorActed)
    assert (acted.act, acted.verdict, acted.step, acted.penalty) == ("roll-back", "panic", step, 5.0)
    assert acted.back_to < step
    assert events.of(GovernorActed, "twin") == []
    assert all(value.isfinite().all() for value in study.pool.environments[0].model.parameters())
    assert math.isfinite(grown.test_loss)
    steps = events.of(StepFinished)
    assert [event.step for event in steps] == list(range(STEPS))
    assert [event.reward.get("penalty") for event in steps] == [
        -5.0 if number == step else None for number in range(STEPS)
    ]
    assert all(
        math.isfinite(event.signals.train_loss) and math.isfinite(event.signals.validation_loss) for event in steps
    )
    assert grown.reward == pytest.approx(grown.validation_metric - twin.validation_metric - 5.0)


@pytest.mark.parametrize("step", [0, 3])
def test_a_rollback_ends_an_episode_for_the_learner_with_the_penalty_in_its_last_reward(step, poisoned):
    policy = PlannedPolicy()
    run_study(StudyPosition(make_study(poisoned(step), policy)[0]))
    *first, second = policy.rollouts[0].trajectories
    assert [len(episode.turns) for episode in first] == [step][: len(first)]
    assert len(first) == (step > 0), "nothing is learnt from a first step that was rolled back"
    assert len(second.turns) == STEPS - 1 - step
    assert all("penalty" not in turn.reward.terms for turn in second.turns if turn.reward)
    assert policy.masks[step] == policy.masks[step].shut()  # no action directly after a rollback
    assert set(policy.masks[step].ops) == {"early"}
    for episode in first:
        assert episode.turns[-1].reward.terms["penalty"] == -5.0
        assert all("penalty" not in turn.reward.terms for turn in episode.turns[:-1] if turn.reward)


@pytest.mark.parametrize(
    ("plan", "acted", "last"),
    [
        ({1: GERMINATE}, ["roll-back"], (4, Stage.PRUNED)),
        ({1: GERMINATE, 2: ADVANCE}, [], (4, Stage.PRUNED)),  # the seed is blamed, and the host restored without it
        ({0: GERMINATE, 1: ADVANCE, 3: FOSSILISE}, ["roll-back"], (3, Stage.FOSSILISED)),
    ],
    ids=["incubating", "blended", "kept"],
)
def test_run_09_a_step_on_nan_loses_a_living_seed_and_keeps_a_fossil(plan, acted, last, poisoned):
    study, events = make_study(poisoned(4, embargo=1), PlannedPolicy(plan))
    run_study(StudyPosition(study))
    assert [event.act for event in events.of(GovernorActed)] == acted
    assert [(event.step, event.now) for event in events.of(StageChanged)][-1] == last
    assert events.of(EpisodeFinished)[0].fossils == (last[1] is Stage.FOSSILISED)
    (grown, _) = study.pool.environments
    assert grown.keeper.misowned(grown.model) == []


def test_b1_pt_05_neither_a_rollback_beside_it_nor_the_governor_itself_changes_an_environment(poisoned):
    def states(recipe: Recipe) -> list[Any]:
        study, _ = make_study(recipe, PlannedPolicy({0: GERMINATE, 2: ADVANCE, 4: FOSSILISE}), environments=2)
        episodes = run_study(StudyPosition(study))
        networks = [environment.network for environment in study.pool.environments]
        drawn = [network.training_stream.state_dict()[0].tolist() for network in networks]
        return list(zip(episodes, drawn, strict=True))

    plain = states(make_recipe(steps=STEPS))
    assert states(make_recipe(steps=STEPS, governor={"snapshot_steps": 1, "snapshots": 3})) == plain
    sick = states(poisoned(4))  # of two environments that grow, the third step of the second
    assert [expected == actual for expected, actual in zip(plain, sick, strict=True)] == [True, True, False, True]


def enough(arm: str, step: int) -> Callable[[HealthSnapshot], Verdict]:
    """A health check that ends an episode after a step."""

    def check(snapshot: HealthSnapshot) -> Verdict:
        place = (snapshot.arm, snapshot.signals.step, snapshot.seed)
        return Verdict(Level.ENOUGH, "enough") if place == (arm, step, 3) else CALM

    return check


def test_an_episode_that_is_over_is_not_trained_and_its_reward_is_against_the_twin_at_its_end():
    policy = PlannedPolicy()
    study, events = make_study(make_recipe(steps=STEPS), policy, check_health=enough("grown", 2))
    other = Arm("other", PlannedPolicy(), 'policy "test/other" (test 1.0)')
    pool = Pool(make_recipe(steps=STEPS), ["grown", "other", "twin"], 1, twin="twin")
    grown, _, twin = run_study(StudyPosition(replace(study, pool=pool, arms=[*study.arms, other])))
    assert [event.step for event in events.of(StepFinished)] == [0, 1, 2]
    beside = events.of(StepFinished, "twin")
    assert [event.step for event in beside] == list(range(STEPS))
    assert (grown.steps, twin.steps) == (3, STEPS)
    assert grown.reward == pytest.approx(grown.validation_metric - beside[2].signals.validation_metric)
    (episode,) = policy.rollouts[0].trajectories
    assert len(episode.turns) == 2
    paid = [turn.reward.total for turn in episode.turns if turn.reward is not None]
    first = events.of(StepFinished)[0].reward
    assert sum(paid) + sum(first.values()) == pytest.approx(grown.reward)
    assert all(mask == mask.shut() for mask in policy.masks[2:])


@pytest.mark.parametrize(("twin", "ended", "steps"), [(None, "grown", 2), ("twin", "twin", STEPS)])
def test_without_a_twin_a_round_ends_with_its_last_episode_and_a_twin_is_not_ended_early(twin, ended, steps):
    recipe = make_recipe(steps=STEPS, batches=1)
    study, events = make_study(recipe, PlannedPolicy(), twin=twin, check_health=enough(ended, 1))
    run_study(StudyPosition(study))
    assert [event.steps for event in events.of(EpisodeFinished)] == [steps]
    assert [event.step for event in events.of(StepFinished)] == list(range(steps))
    assert events.of(GovernorActed, "twin") == []
