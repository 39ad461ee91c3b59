"""The governor in a run: an environment that goes wrong goes back, alone; what that cost stands in the events."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from esper_core.governor import Act
from esper_core.leyline import (
    WAIT,
    Action,
    ActionMask,
    GovernorStop,
    Observation,
    Op,
    RewardBreakdown,
    Signals,
    Stage,
)
from esper_core.leyline.events import EpisodeFinished, GovernorActed, StageChanged, StepFinished
from esper_core.leyline.protocols import Rollout
from esper_core.leyline.signals import CALM, HealthSnapshot, Level, Verdict
from esper_core.telemetry import Bus, Clock
from esper_core.trainer.environment import Environment, Recipe
from esper_core.trainer.loop import run_study
from esper_core.trainer.pool import Pool
from esper_core.trainer.progress import StudyProgress
from esper_core.trainer.study import Arm, RunReward, Study

Make = Callable[..., Recipe]
STEPS = 6
GERMINATE = Action(Op.GERMINATE, "early", "test/local-conv", speed=1)
ADVANCE, FOSSILISE = Action(Op.ADVANCE, "early"), Action(Op.FOSSILISE, "early")


class Planned:
    """Carries out a plan where the mask lets it, and writes down what it was shown and what it learnt from."""

    def __init__(self, plan: Mapping[int, Action] | None = None) -> None:
        self.plan = plan or {}
        self.masks: list[ActionMask] = []
        self.rollouts: list[Rollout] = []

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        self.masks += masks
        wanted = [self.plan.get(one.step, WAIT) for one in observations]
        return [action if mask.allows(action) else WAIT for action, mask in zip(wanted, masks, strict=True)]

    def update(self, rollout: Rollout) -> dict[str, float]:
        self.rollouts.append(rollout)
        return {}


class Improvement:
    """What became better since the step before, in the metric."""

    def score(self, now: Signals, before: Signals | None, twin: Signals, twin_before: Signals | None) -> Any:
        gained = now.validation_metric - twin.validation_metric
        had = 0.0 if before is None or twin_before is None else before.validation_metric - twin_before.validation_metric
        return RewardBreakdown({"improvement": gained - had})


class Heard(list[Any]):
    """Every event of a run."""

    def hear(self, event: Any) -> None:
        self.append(event)

    def settle(self) -> None:
        """Nothing."""

    def of(self, kind: type, arm: str = "grown") -> list[Any]:
        return [event for event in self if isinstance(event, kind) and event.arm == arm]


def study(recipe: Recipe, policy: Planned, *, twin: bool = True, **more: Any) -> tuple[Study, Heard]:
    heard = Heard()
    made = Study(
        pool=Pool(recipe, ["grown", "twin"] if twin else ["grown"], 1, twin="twin" if twin else None),
        arms=[Arm("grown", policy, 'policy "test/planned" (test 1.0)')],
        twin="twin" if twin else None,
        reward=RunReward(Improvement(), 'reward "test/improvement" (test 1.0)'),
        rounds=1,
        environments=1,
        steps=recipe.episode.steps,
        first_seed=3,
        bus=Bus([heard]),
        clock=Clock(),
        packages={"test/local-conv": "test 1.0"},
        **more,
    )
    return made, heard


def host_numbers(environment: Environment) -> list[torch.Tensor]:
    state = environment.model.state_dict(keep_vars=False)
    return [value.clone() for name, value in state.items() if not name.startswith("_esper")]


class Poison:
    """Makes the training data no numbers in one step of one environment, and writes down its host after each step."""

    def __init__(self, recipe: Recipe, step: int, monkeypatch: pytest.MonkeyPatch, arm: str = "grown") -> None:
        self.after: list[list[torch.Tensor]] = []
        inputs, train = recipe.data["train"].inputs, Environment.train
        clean, done = inputs.clone(), [0]

        def poisoned(environment: Environment) -> Any:
            if environment.arm != arm:
                return train(environment)
            if done[0] == step:
                inputs.fill_(math.nan)
            done[0] += 1
            try:
                return train(environment)
            finally:
                inputs.copy_(clean)

        monkeypatch.setattr(Environment, "train", poisoned)


@pytest.mark.parametrize("step", [0, 3, STEPS - 1])
@pytest.mark.parametrize("optimizer", [{"kind": "sgd", "momentum": 0.9}, {"kind": "adam"}], ids=["sgd", "adam"])
def test_run_09_a_step_on_no_numbers_is_undone_and_costs_what_it_costs(step, optimizer, make_recipe, monkeypatch):
    """At the first, a middle and the last step: the host is finite again, the run goes on, the penalty stands there."""
    recipe = make_recipe(steps=STEPS, optimizer=optimizer)
    policy = Planned()
    Poison(recipe, step, monkeypatch)
    made, heard = study(recipe, policy)
    grown, twin = run_study(StudyProgress(made))
    (acted,) = heard.of(GovernorActed)
    assert (acted.act, acted.verdict, acted.step, acted.penalty) == ("roll-back", "panic", step, 5.0)
    assert acted.back_to < step
    assert heard.of(GovernorActed, "twin") == []
    assert all(value.isfinite().all() for value in host_numbers(made.pool.environments[0]))
    assert math.isfinite(grown.test_loss)
    steps = heard.of(StepFinished)
    assert [one.step for one in steps] == list(range(STEPS))
    assert [one.reward.get("penalty") for one in steps] == [-5.0 if one == step else None for one in range(STEPS)]
    assert all(math.isfinite(one.signals.train_loss) and math.isfinite(one.signals.validation_loss) for one in steps)
    improved = grown.validation_metric - twin.validation_metric
    assert grown.reward == pytest.approx(improved - 5.0)  # the terms still add up to what became of it


@pytest.mark.parametrize("step", [1, 3])
def test_for_who_learns_the_step_ends_an_episode_and_the_penalty_is_in_its_reward(step, make_recipe, monkeypatch):
    recipe, policy = make_recipe(steps=STEPS), Planned()
    Poison(recipe, step, monkeypatch)
    made, _ = study(recipe, policy)
    run_study(StudyProgress(made))
    (rollout,) = policy.rollouts
    first, second = rollout.episodes
    assert [len(first.turns), len(second.turns)] == [step, STEPS - 1 - step]
    assert [first.terminated, second.terminated] == [True, False]
    last = first.turns[-1].reward
    assert last is not None
    assert last.terms["penalty"] == -5.0
    assert all("penalty" not in turn.reward.terms for turn in (*first.turns[:-1], *second.turns) if turn.reward)
    assert policy.masks[step] == policy.masks[step].shut()  # nobody acts on what was just undone
    assert set(policy.masks[step].ops) == {"early"}
    assert first.final.step == step


def test_the_first_step_of_all_has_nothing_to_learn_from(make_recipe, monkeypatch):
    recipe, policy = make_recipe(steps=STEPS), Planned()
    Poison(recipe, 0, monkeypatch)
    run_study(StudyProgress(study(recipe, policy)[0]))
    (episode,) = policy.rollouts[0].episodes
    assert (len(episode.turns), episode.terminated) == (STEPS - 1, False)


def test_run_09_a_living_seed_is_dropped_with_the_state_that_it_was_in(make_recipe, monkeypatch):
    """It incubates when the batch comes: the host goes back, the seed is gone, and the event says so."""
    recipe = make_recipe(steps=STEPS, embargo=1)
    Poison(recipe, 3, monkeypatch)
    made, heard = study(recipe, Planned({1: GERMINATE}))
    run_study(StudyProgress(made))
    acted = heard.of(GovernorActed)[-1]
    assert (acted.act, acted.step) == ("roll-back", 3)
    life = [(one.step, one.now) for one in heard.of(StageChanged)]
    assert life[-1] == (3, Stage.PRUNED)
    assert heard.of(EpisodeFinished)[0].fossils == 0


@pytest.mark.parametrize("mutated", ["kept", "blended"])
def test_a_fossil_stays_and_a_blended_seed_goes(mutated, make_recipe, monkeypatch):
    plan = {0: GERMINATE, 1: ADVANCE, 4: FOSSILISE} if mutated == "kept" else {1: GERMINATE, 2: ADVANCE}
    recipe = make_recipe(steps=STEPS + 1)
    Poison(recipe, STEPS - 1, monkeypatch)
    made, heard = study(recipe, Planned(plan))
    run_study(StudyProgress(made))
    assert heard.of(EpisodeFinished)[0].fossils == (1 if mutated == "kept" else 0)
    assert made.pool.environments[0].keeper.misowned(made.pool.environments[0].model) == []


def test_a_corrupt_snapshot_is_passed_over_and_with_none_left_the_run_stops(make_recipe, monkeypatch):
    recipe = make_recipe(steps=STEPS)
    Poison(recipe, 4, monkeypatch)
    made, heard = study(recipe, Planned())

    def spoil(how_many: int) -> None:
        kept = made.pool.environments[0].governor._snapshots.kept
        for one in kept[:how_many]:
            next(iter(one.snapshot.tensors().values())).flatten()[0] += 1

    run_study(StudyProgress(made), lambda progress: spoil(1) if len(heard.of(StepFinished)) == 4 else None)
    back = heard.of(GovernorActed)[0].back_to

    monkeypatch.undo()
    Poison(recipe, 4, monkeypatch)
    made, heard = study(recipe, Planned())
    run_study(StudyProgress(made))
    assert back < heard.of(GovernorActed)[0].back_to

    monkeypatch.undo()
    Poison(recipe, 4, monkeypatch)
    made, heard = study(recipe, Planned())
    with pytest.raises(GovernorStop, match=r"no sound snapshot to go back to: .*is damaged"):
        run_study(StudyProgress(made), lambda progress: spoil(9) if len(heard.of(StepFinished)) == 4 else None)
    assert heard.of(GovernorActed)[-1].act == "stop"


def test_the_other_environments_do_not_notice(make_recipe, monkeypatch):
    calm = make_recipe(steps=STEPS)
    made, _ = study(calm, Planned())
    run_study(StudyProgress(made))
    expected = host_numbers(made.pool.environments[1])
    recipe = make_recipe(steps=STEPS)
    Poison(recipe, 2, monkeypatch)
    made, _ = study(recipe, Planned())
    run_study(StudyProgress(made))
    assert all(torch.equal(a, b) for a, b in zip(host_numbers(made.pool.environments[1]), expected, strict=True))


def test_a_run_in_which_nothing_goes_wrong_is_what_it_was_without_a_governor(make_recipe):
    """It looks on: nothing that it does moves a number."""
    loose = {"snapshot_steps": 1, "snapshots": 3}
    hosts = []
    for governor in ({}, loose):
        made, heard = study(make_recipe(steps=STEPS, governor=governor), Planned({0: GERMINATE, 2: ADVANCE}))
        run_study(StudyProgress(made))
        hosts.append(host_numbers(made.pool.environments[0]))
        assert heard.of(GovernorActed) == []
    assert all(torch.equal(a, b) for a, b in zip(*hosts, strict=True))


def test_after_so_many_rollbacks_the_run_stops(make_recipe):
    made, heard = study(make_recipe(steps=STEPS, governor={"rollbacks": 2}), Planned())
    hot = replace_opinion(made, lambda snapshot: Verdict(Level.PANIC, "too hot"))
    with pytest.raises(GovernorStop, match="too hot; it was rolled back 2 times already"):
        run_study(StudyProgress(hot))
    assert [one.act for one in heard.of(GovernorActed)] == ["roll-back", "roll-back", "stop"]


def replace_opinion(made: Study, opinion: Callable[[HealthSnapshot], Verdict]) -> Study:
    return replace(made, check_health=opinion)


def enough(arm: str, step: int, seed: int | None = None) -> Callable[[HealthSnapshot], Verdict]:
    def says(snapshot: HealthSnapshot) -> Verdict:
        told = (snapshot.arm, snapshot.signals.step) == (arm, step) and seed in (None, snapshot.seed)
        return Verdict(Level.ENOUGH, "enough") if told else CALM

    return says


def test_an_episode_that_is_over_is_trained_no_more_and_its_reward_tells_all_the_same(make_recipe):
    policy = Planned()
    made, heard = study(make_recipe(steps=STEPS), policy)
    other = Arm("other", Planned(), 'policy "test/other" (test 1.0)')
    pool = Pool(make_recipe(steps=STEPS), ["grown", "other", "twin"], 1, twin="twin")
    made = replace(made, pool=pool, arms=[*made.arms, other], check_health=enough("grown", 2))
    grown, _, twin = run_study(StudyProgress(made))
    assert [one.step for one in heard.of(StepFinished)] == [0, 1, 2]
    beside = heard.of(StepFinished, "twin")
    assert [one.step for one in beside] == list(range(STEPS))
    assert (grown.steps, twin.steps) == (3, STEPS)
    assert grown.reward == pytest.approx(grown.validation_metric - beside[2].signals.validation_metric)
    (episode,) = policy.rollouts[0].episodes
    assert (len(episode.turns), episode.terminated, episode.final.step) == (2, False, 2)
    paid = [turn.reward.total for turn in episode.turns if turn.reward is not None]
    first = heard.of(StepFinished)[0].reward
    assert sum(paid) + sum(first.values()) == pytest.approx(grown.reward)
    assert all(mask == mask.shut() for mask in policy.masks[2:])


def test_an_episode_that_ends_early_does_not_depend_on_who_runs_beside_it(make_recipe):
    ends = []
    for environments in (1, 2):
        made, heard = study(make_recipe(steps=STEPS), Planned({0: GERMINATE}))
        pool = Pool(make_recipe(steps=STEPS), ["grown", "twin"], environments, twin="twin")
        first = replace(made, pool=pool, environments=environments, check_health=enough("grown", 2, seed=3))
        run_study(StudyProgress(first))
        ends.append([one for one in heard if isinstance(one, EpisodeFinished) and one.seed == 3])
        pruned = [(one.step, one.now) for one in heard.of(StageChanged) if one.seed == 3]
        assert pruned[-1] == (2, Stage.PRUNED)  # in the step in which it was over
    assert ends[0] == ends[1]
    assert [one.steps for one in ends[0]] == [3, STEPS]


def test_without_a_twin_a_round_is_over_with_its_last_episode(make_recipe):
    made, heard = study(make_recipe(steps=STEPS), Planned(), twin=False)
    run_study(StudyProgress(replace_opinion(made, enough("grown", 1))))
    assert [one.steps for one in heard.of(EpisodeFinished)] == [2]
    assert [one.step for one in heard.of(StepFinished)] == [0, 1]


def test_a_twin_is_not_stopped_early(make_recipe):
    made, heard = study(make_recipe(steps=STEPS), Planned())
    run_study(StudyProgress(replace_opinion(made, enough("twin", 1))))
    assert [one.steps for one in heard.of(EpisodeFinished)] == [STEPS]
    assert heard.of(GovernorActed, "twin") == []


def test_without_progress_an_episode_ends_when_patience_does(make_recipe):
    still = make_recipe(steps=STEPS, governor={"patience": 2}, optimizer={"learning_rate": 1e-12})
    made, heard = study(still, Planned(), twin=False)
    run_study(StudyProgress(made))
    acted = heard.of(GovernorActed)
    assert [one.act for one in acted] == ["early-stop"]
    assert "governor.patience" in acted[0].reason
    assert heard.of(EpisodeFinished)[0].steps == acted[0].step + 1 < STEPS


def test_what_cannot_be_afforded_is_not_offered(make_recipe):
    tight, policy = make_recipe(steps=STEPS, governor={"memory_mib": 1}), Planned({1: GERMINATE})
    run_study(StudyProgress(study(tight, policy)[0]))
    assert policy.masks[1].allows(GERMINATE)
    (variety,) = tight.varieties["early"]
    large = replace(variety, spec=replace(variety.spec, params="9999999"))
    policy = Planned({1: GERMINATE})
    run_study(StudyProgress(study(replace(tight, varieties={"early": (large,)}), policy)[0]))
    assert not policy.masks[1].allows(GERMINATE)


def test_a_gradient_that_is_no_number_is_seen_though_the_losses_are(make_recipe):
    pool = Pool(make_recipe(), ["grown"], 1)
    pool.reset(0, 3)
    pool.train(0)
    next(iter(pool.environments[0].keeper.host.parameters)).grad.fill_(math.inf)  # type: ignore[union-attr]
    pool.evaluate(0)
    signals = pool.synchronise(0)
    assert signals[0].finite
    decision = pool.judge({})[0]
    assert decision.act is Act.ROLL_BACK
    assert "parameter or a gradient of the host is not finite" in decision.reason
