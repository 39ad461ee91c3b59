"""The training loop: events in order, rewards that add up, and errors with the package that caused them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from esper_core.leyline import WAIT, ActionMask, Observation, PluginError, State
from esper_core.leyline.events import EpisodeFinished, StepFinished
from esper_core.settings import ComputeConfig
from esper_core.telemetry.event_log import decode, encode
from esper_core.trainer.loop import run_study
from esper_core.trainer.study_position import StudyPosition, _state_of_policy
from tests.support.core_worlds import ADVANCE, FOSSILISE, GERMINATE, PlannedPolicy, make_recipe
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


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (
            ScriptedPolicy(*[FOSSILISE] * 2),
            'E233 policy "test/planned" (test 1.0) chose an action that its mask forbids: fossilise early\n'
            f"  {__file__}:LINE\n  Allowed: wait, germinate early",
        ),
        (
            ScriptedPolicy("wait", "wait"),
            "E231 policy \"test/planned\" (test 1.0) returned ['wait', 'wait'] in place of Actions",
        ),
        (ScriptedPolicy(WAIT), 'E231 policy "test/planned" (test 1.0) returned 1 actions for 2 environments'),
    ],
    ids=["forbidden action", "no action", "too few actions"],
)
def test_a_policy_that_misbehaves_stops_the_run_with_its_package_named(policy, message):
    study, _ = make_study(make_recipe(), policy, environments=2)
    with pytest.raises(PluginError) as caught:
        run_study(StudyPosition(study))
    line = ScriptedPolicy.act.__code__.co_firstlineno
    assert str(caught.value).startswith(message.replace("LINE", str(line)))
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
    assert str(caught.value).startswith(
        'E231 policy "test/planned" (test 1.0) returned a state that cannot be saved in a checkpoint: '
    )
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
