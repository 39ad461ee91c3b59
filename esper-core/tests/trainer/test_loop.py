"""The training loop: events in order, rewards that add up, errors with their package, and the governor in a run."""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain, count
from typing import Any

import pytest
import torch

from esper_core.leyline import WAIT, ActionMask, Observation, PluginError, Stage, State
from esper_core.leyline.events import EpisodeFinished, GovernorActed, StageChanged, StepFinished
from esper_core.leyline.signals import CALM, HealthSnapshot, Level, Verdict
from esper_core.settings import ComputeConfig
from esper_core.telemetry.event_log import decode, encode
from esper_core.trainer.environment import Environment, Recipe
from esper_core.trainer.loop import run_study
from esper_core.trainer.pool import Pool
from esper_core.trainer.study import Arm
from esper_core.trainer.study_position import StudyPosition, _state_of_policy
from tests.support.core_worlds import ADVANCE, FOSSILISE, GERMINATE, PlannedPolicy, make_recipe
from tests.support.governed import poisoned as on_nan
from tests.support.studies import make_study

LIFE = {0: GERMINATE, 2: ADVANCE, 4: FOSSILISE}


def test_every_step_of_every_environment_is_reported_once_and_in_order():
    policy = PlannedPolicy(LIFE)
    study, recorder = make_study(make_recipe(), policy, environments=2, rounds=2)
    finished = run_study(StudyPosition(study))
    steps = recorder.of(StepFinished, None)
    assert len(steps) == 2 * 6 * 4 == len({(e.round, e.arm, e.seed, e.step) for e in steps})
    assert [e.step for e in steps if (e.round, e.arm, e.seed) == (0, "twin", 3)] == list(range(6))
    assert {(e.round, e.seed) for e in steps} == {(0, 3), (0, 4), (1, 5), (1, 6)}
    assert len(finished) == len(recorder.of(EpisodeFinished, None)) == 8
    assert recorder.settled == 2 * (6 + 2), "after each step, each round and each update of the policy"
    assert [o.step for o in policy.seen] == [step for step in range(6) for _ in range(2)] * 2
    assert all(o.steps == 6 and o.signals.step == o.step for o in policy.seen)
    assert all(seed.alpha is not None for o in policy.seen for seed in o.signals.seeds)


def test_b8_drl_05_arms_that_end_a_round_with_different_loss_scales_are_warned_of(caplog):
    """In float16, arms of one seed that overflowed at different steps were trained on different batches."""
    recipe = replace(make_recipe(steps=2, batches=1), compute=ComputeConfig(precision="float16"))
    study, recorder = make_study(recipe, PlannedPolicy(), rounds=2)

    def pause(progress: StudyPosition) -> None:
        if (progress.round, progress.step) == (1, 2):
            study.pool.environments[0].keeper.scaler.update(1024.0)

    run_study(StudyPosition(study), pause)
    assert {decode(encode(event)).signals.loss_scale for event in recorder.of(StepFinished, "twin")} == {65536.0}
    warnings = [record.getMessage() for record in caplog.records if "loss scales (float16)" in record.getMessage()]
    assert len(warnings) == 1
    assert warnings[0].endswith("seed 4: grown 1024, twin 65536")


@pytest.mark.parametrize(
    "plan", [LIFE, {key: LIFE[key] for key in (0, 2)}, {4: LIFE[0]}], ids=["kept", "blended at the end", "incubating"]
)
def test_the_rewards_of_an_episode_add_up_to_the_lead_at_its_end(plan):
    study, recorder = make_study(make_recipe(), PlannedPolicy(plan))
    grown, twin = run_study(StudyPosition(study))
    rewards = [event.reward for event in recorder.of(StepFinished)]
    assert grown.reward == pytest.approx(grown.validation_metric - twin.validation_metric)
    assert grown.reward == pytest.approx(sum(sum(terms.values()) for terms in [*rewards, grown.closing]))
    # only a seed that acted makes a difference
    assert (grown.closing["improvement"] == 0.0) is (2 not in plan or 4 in plan)


class ScriptedPolicy:
    """Returns the same for every observation."""

    def __init__(self, *answers: Any) -> None:
        self.answers = answers

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Any]:
        return list(self.answers)


def test_without_a_twin_the_reward_is_unknown_also_for_a_policy_that_does_not_learn():
    study, recorder = make_study(make_recipe(steps=3), ScriptedPolicy(WAIT), twin=None)
    assert {episode.reward for episode in run_study(StudyPosition(study))} == {None}
    assert {tuple(e.reward) for e in recorder.of(StepFinished)} == {()}


PLACE = f"{__file__}:{ScriptedPolicy.act.__code__.co_firstlineno}"
FORBIDDEN = f"chose an action that its mask forbids: fossilise early\n  {PLACE}\n  Allowed: wait, germinate early"


@pytest.mark.parametrize(
    ("answers", "code", "message"),
    [
        ([FOSSILISE] * 2, "E233", FORBIDDEN),
        (["wait", "wait"], "E231", "returned ['wait', 'wait'] in place of Actions"),
        ([WAIT], "E231", "returned 1 actions for 2 environments"),
    ],
    ids=["forbidden action", "no action", "too few actions"],
)
def test_a_policy_that_misbehaves_stops_the_run_with_its_package_named(answers, code, message):
    study, _ = make_study(make_recipe(), ScriptedPolicy(*answers), environments=2)
    with pytest.raises(PluginError) as caught:
        run_study(StudyPosition(study))
    assert str(caught.value).startswith(f'{code} policy "test/planned" (test 1.0) {message}')
    assert caught.value.exit_code == 3


class StatefulPolicy(ScriptedPolicy):
    """Returns a given value as its state."""

    def state_dict(self) -> Any:
        return self.answers[0]

    def load_state_dict(self, state: State) -> None:
        """Do nothing: no state is needed."""


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"n": 1}, "'dict' object has no attribute 'plain'"),
        (State({"n": float("nan")}), "Out of range float values are not JSON compliant"),
        (State({"n": {1: 2}}), "JSON changes its plain data"),
        (State({"n": {1, 2}}), "Object of type set is not JSON serializable"),
        (State({}, {"w": [1.0]}), "'list' object has no attribute 'is_meta'"),
        (State({}, {"w": torch.eye(2).to_sparse()}), "float32, sparse_coo"),
    ],
)
def test_a_policy_whose_state_cannot_be_saved_is_named(state, message):
    study, _ = make_study(make_recipe(), StatefulPolicy(state))
    with pytest.raises(PluginError) as caught:
        StudyPosition(study).state_dict()
    what = "returned a state that cannot be saved in a checkpoint: "
    assert str(caught.value).startswith(f'E231 policy "test/planned" (test 1.0) {what}')
    assert message in str(caught.value)


def test_tensors_of_a_policy_that_share_memory_are_saved_separately():
    weights = torch.arange(6.0).reshape(2, 3)
    state = State({}, {"w": weights, "again": weights, "turned": weights.t()})
    study, _ = make_study(make_recipe(), StatefulPolicy(state))
    policy_state = _state_of_policy(study.arms[0])
    assert policy_state is not None
    assert all(tensor.is_contiguous() for tensor in policy_state.tensors.values())
    assert len({tensor.data_ptr() for tensor in (weights, *policy_state.tensors.values())}) == 4
    assert torch.equal(policy_state.tensors["turned"], weights.t())


def test_a_study_resumes_between_two_rounds_with_its_episodes_and_without_withdrawn_blueprints():
    recipe = make_recipe(steps=3)
    study, _ = make_study(recipe, PlannedPolicy(LIFE), rounds=2)
    states: list[State] = []

    def pause(progress: StudyPosition) -> None:
        if (progress.round, progress.step) == (0, 3):
            while not study.pool.faults.is_withdrawn("test/faulty"):
                study.pool.faults.record("test/faulty")
        if (progress.round, progress.step) == (1, 0):
            states.append(progress.state_dict())

    finished, (state,) = run_study(StudyPosition(study), pause), states
    study, _ = make_study(recipe, PlannedPolicy(LIFE), rounds=2)
    progress = StudyPosition(study)
    with pytest.raises(ValueError, match=r"2 episodes were over\. Received: 1"):
        progress.load_state_dict(state, finished[:1])
    progress.load_state_dict(state, finished[:2])
    assert study.pool.latest == [], "the environments of the round that is over are not restored"
    assert study.pool.faults.is_withdrawn("test/faulty")
    assert run_study(progress) == finished


def test_the_clock_accounts_for_all_of_the_time():
    study, _ = make_study(make_recipe(steps=3), PlannedPolicy(LIFE))
    run_study(StudyPosition(study))
    seconds = study.clock.summary()
    regions = {"reset", "train", "evaluate", "govern", "policy", "grow", "telemetry", "conclude", "learn"}
    assert set(seconds) == {*regions, "other", "total"}
    assert seconds["train"] > 0.0
    assert sum(value for key, value in seconds.items() if key != "total") == pytest.approx(seconds["total"], rel=1e-6)


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
    assert {event.step: event.reward["penalty"] for event in steps if "penalty" in event.reward} == {step: -5.0}
    losses = [(event.signals.train_loss, event.signals.validation_loss) for event in steps]
    assert all(map(math.isfinite, chain(*losses)))
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
