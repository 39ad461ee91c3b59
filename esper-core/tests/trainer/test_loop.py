"""The loop: everything that happens is told, in order; what goes wrong stops the run with its author named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core.config import ComputeConfig
from esper_core.leyline import (
    WAIT,
    Action,
    ActionMask,
    GovernorStop,
    Metric,
    Observation,
    Op,
    PluginError,
    RewardBreakdown,
    Signals,
    Stage,
    State,
)
from esper_core.leyline.events import EpisodeFinished, Event, GovernorActed, StageChanged, StepFinished
from esper_core.telemetry import Bus, Clock
from esper_core.trainer.environment import Recipe
from esper_core.trainer.loop import run_study
from esper_core.trainer.pool import Pool
from esper_core.trainer.progress import StudyProgress, _state_of_policy
from esper_core.trainer.study import Arm, RunReward, Study

Make = Callable[..., Recipe]
METRIC = Metric("accuracy", "up", "%")


class Planned:
    """Acts as written down, in every environment alike."""

    def __init__(self, plan: dict[int, Action]) -> None:
        self.plan = plan
        self.seen: list[Observation] = []

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        self.seen += observations
        return [self.plan.get(observation.step, WAIT) for observation in observations]


class Improvement:
    """Points over the twin, as a potential."""

    def score(
        self, now: Signals, before: Signals | None, twin: Signals, twin_before: Signals | None
    ) -> RewardBreakdown:
        def potential(own: Signals | None, other: Signals | None) -> float:
            return 0.0 if own is None or other is None else own.validation_metric - other.validation_metric

        return RewardBreakdown({"improvement": potential(now, twin) - potential(before, twin_before)})


class Recorder:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.settled = 0

    def hear(self, event: Event) -> None:
        self.events.append(event)

    def settle(self) -> None:
        self.settled += 1

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def study(
    recipe: Recipe, policy: Any, *, reward: Any = None, rounds: int = 1, twin: str | None = "twin"
) -> tuple[Study, Recorder]:
    recorder = Recorder()
    arms = ["grown", *([twin] if twin else [])]
    made = Study(
        pool=Pool(recipe, arms, 2),
        arms=[Arm("grown", policy, 'policy "test/planned" (test 1.0)')],
        twin=twin,
        reward=RunReward(reward or Improvement(), 'reward "test/improvement" (test 1.0)'),
        rounds=rounds,
        environments=2,
        steps=recipe.episode.steps,
        first_seed=10,
        bus=Bus([recorder]),
        clock=Clock(),
        packages={"test/local-conv": "test 1.0"},
    )
    return made, recorder


LIFE = {
    0: Action(Op.GERMINATE, "early", "test/local-conv", speed=1),
    2: Action(Op.ADVANCE, "early"),
    4: Action(Op.FOSSILISE, "early"),
}


def test_a_run_tells_every_step_of_every_environment_once_and_in_order(make_recipe):
    made, recorder = study(make_recipe(), Planned(LIFE), rounds=2)
    finished = run_study(StudyProgress(made))
    steps = recorder.of(StepFinished)
    assert len(steps) == 2 * 6 * 4 == len({(e.round, e.arm, e.seed, e.step) for e in steps})
    assert [e.step for e in steps if (e.round, e.arm, e.seed) == (0, "twin", 10)] == list(range(6))
    assert {(e.round, e.seed) for e in steps} == {(0, 10), (0, 11), (1, 12), (1, 13)}
    assert len(finished) == len(recorder.of(EpisodeFinished)) == 8
    assert recorder.settled == 2 * (6 + 1)


def test_arms_that_end_a_round_with_different_loss_scales_are_warned_of(make_recipe, caplog):
    """In float16, arms of one seed that overflowed at different steps were trained on different batches."""
    recipe = replace(make_recipe(), compute=ComputeConfig(precision="float16"))
    made, _ = study(recipe, Planned(LIFE), rounds=2)

    def pause(course: StudyProgress) -> None:
        if (course.round, course.step) == (1, 6):
            made.pool.environments[0].keeper.scaler.update(1024.0)

    run_study(StudyProgress(made), pause)
    said = [record.getMessage() for record in caplog.records if "loss scales (float16)" in record.getMessage()]
    assert len(said) == 1
    assert said[0].endswith("seed 12: grown 1024, twin 65536")


def test_a_seeds_life_is_told_and_ends_in_the_network_that_is_measured(make_recipe):
    made, recorder = study(make_recipe(), Planned(LIFE))
    finished = run_study(StudyProgress(made))
    life = [(e.step, e.now) for e in recorder.of(StageChanged) if e.seed == 10]
    assert life == [
        (0, Stage.GERMINATED),
        (1, Stage.TRAINING),
        (2, Stage.BLENDING),
        (3, Stage.HOLDING),
        (4, Stage.FOSSILISED),
    ]
    assert {e.arm for e in recorder.of(StageChanged)} == {"grown"}
    for episode in finished:
        assert (episode.fossils, len(episode.grown)) == ((1, 1) if episode.arm == "grown" else (0, 0))
        assert (episode.parameters > episode.host_parameters) is (episode.arm == "grown")


def test_a_seed_whose_fate_is_open_at_the_end_counts_for_nothing(make_recipe):
    made, recorder = study(make_recipe(), Planned({4: LIFE[0]}))
    finished = run_study(StudyProgress(made))
    (last,) = [e for e in recorder.of(StageChanged) if e.seed == 10 and e.now is Stage.PRUNED]
    assert last.reason == "the episode is over"
    by_arm = {episode.arm: episode for episode in finished if episode.seed == 10}
    assert by_arm["grown"].test_loss == by_arm["twin"].test_loss
    assert by_arm["grown"].parameters == by_arm["grown"].host_parameters


@pytest.mark.parametrize(
    "plan", [LIFE, {key: LIFE[key] for key in (0, 2)}, {4: LIFE[0]}], ids=["kept", "blended at the end", "incubating"]
)
def test_what_is_told_of_rewards_adds_up_to_what_is_left_at_the_end(plan, make_recipe):
    made, recorder = study(make_recipe(), Planned(plan))
    finished = run_study(StudyProgress(made))
    left = {(episode.arm, episode.seed): episode.validation_metric for episode in finished}
    for episode in finished:
        own = (episode.arm, episode.seed)
        told = [event.reward for event in recorder.of(StepFinished) if (event.arm, event.seed) == own]
        assert episode.reward == pytest.approx(left[own] - left["twin", episode.seed])
        assert episode.reward == pytest.approx(sum(sum(terms.values()) for terms in [*told, episode.closing]))
    closing = {episode.closing["improvement"] for episode in finished if episode.arm == "grown"}
    assert (closing == {0.0}) is (2 not in plan or 4 in plan)  # only a seed that acted leaves a difference behind


def test_without_a_twin_the_reward_is_unknown_not_zero(make_recipe):
    made, recorder = study(make_recipe(), Planned(LIFE), twin=None)
    assert {episode.reward for episode in run_study(StudyProgress(made))} == {None}
    assert {tuple(e.reward) for e in recorder.of(StepFinished)} == {()}


def test_the_policy_sees_the_step_and_what_was_measured(make_recipe):
    policy = Planned(LIFE)
    run_study(StudyProgress(study(make_recipe(), policy)[0]))
    assert [o.step for o in policy.seen] == [step for step in range(6) for _ in range(2)]
    assert all(o.steps == 6 and o.signals.step == o.step for o in policy.seen)
    assert all(seed.alpha is not None for o in policy.seen for seed in o.signals.seeds)


class Exploding(nn.Module):
    """Gives NaN once it was trained for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, 2, 1)
        self.head = nn.Linear(24, 3)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.passes += 1
        outputs: Tensor = self.head(self.stem(inputs).flatten(1))
        return outputs * torch.where(self.passes > 8, torch.nan, 1.0)


def test_a_loss_that_is_not_finite_stops_the_run_and_says_where(make_recipe):
    made, recorder = study(make_recipe(host=Exploding, governor={"rollback": False}), Planned({}))
    with pytest.raises(GovernorStop) as caught:
        run_study(StudyProgress(made))
    assert str(caught.value).startswith('E402 arm "grown", seed 10, step 2: a loss is not finite: train nan')
    assert caught.value.exit_code == 4
    assert {event.step for event in recorder.of(StepFinished)} == {0, 1, 2}  # the step that went wrong is told, too
    acted = recorder.of(GovernorActed)[0]
    assert (acted.arm, acted.seed, acted.step, acted.act, acted.verdict) == ("grown", 10, 2, "stop", "panic")


class Forbidden:
    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        return [Action(Op.FOSSILISE, "early") for _ in observations]


class Short:
    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        return [WAIT]


class Wordy:
    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[object]:
        return ["wait" for _ in observations]


class Broken:
    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        msg = "I cannot decide"
        raise KeyError(msg)

    def score(self, *args: Any) -> RewardBreakdown:
        msg = "I cannot judge"
        raise ZeroDivisionError(msg)


@pytest.mark.parametrize(
    ("policy", "reward", "said"),
    [
        (
            Forbidden(),
            None,
            'E233 policy "test/planned" (test 1.0) chose what its mask forbids: fossilise early\n'
            "  Allowed: wait, germinate early",
        ),
        (Wordy(), None, 'E232 policy "test/planned" (test 1.0) gave a str for an action'),
        (Short(), None, 'E232 policy "test/planned" (test 1.0) gave 1 actions for 2 environments'),
        (
            Broken(),
            None,
            "E231 policy \"test/planned\" (test 1.0) raised KeyError when it was asked to act: 'I cannot decide'",
        ),
        (
            Planned({}),
            Broken(),
            'E231 reward "test/improvement" (test 1.0) raised ZeroDivisionError on a step of environment 0: '
            "I cannot judge",
        ),
    ],
)
def test_a_component_that_misbehaves_stops_the_run_with_its_package_named(policy, reward, said, make_recipe):
    made, _ = study(make_recipe(), policy, reward=reward)
    with pytest.raises(PluginError) as caught:
        run_study(StudyProgress(made))
    assert str(caught.value).startswith(said)
    assert caught.value.exit_code == 3


class Remembering(Planned):
    """Gives whatever it is to give as its state."""

    def __init__(self, given: Any) -> None:
        super().__init__({})
        self.given = given

    def state_dict(self) -> Any:
        return self.given

    def load_state_dict(self, state: State) -> None:
        """Nothing of it is needed."""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"n": 1}, "'dict' object has no attribute 'plain'"),
        (State({"n": float("nan")}), "Out of range float values are not JSON compliant"),
        (State({"n": {1: 2}}), "JSON changes its plain data"),
        (State({"n": (1, 2)}), "JSON changes its plain data"),
        (State({"n": {1, 2}}), "Object of type set is not JSON serializable"),
        (State({}, {"w": [1.0]}), "'list' object has no attribute 'is_meta'"),
        (State({}, {"w": torch.eye(2).to_sparse()}), "float32, sparse_coo"),
    ],
)
def test_a_policy_whose_state_no_checkpoint_takes_is_named_as_its_author(given, said, make_recipe):
    made, _ = study(make_recipe(), Remembering(given))
    with pytest.raises(PluginError) as caught:
        StudyProgress(made).state_dict()
    assert str(caught.value).startswith(
        'E231 policy "test/planned" (test 1.0) returned a state that cannot be saved in a checkpoint: '
    )
    assert said in str(caught.value)


def test_tensors_of_a_policy_that_share_memory_are_kept_each_by_itself(make_recipe):
    weights = torch.arange(6.0).reshape(2, 3)
    made, _ = study(make_recipe(), Remembering(State({}, {"w": weights, "again": weights, "turned": weights.t()})))
    known = _state_of_policy(made.arms[0])
    assert known is not None
    assert all(tensor.is_contiguous() for tensor in known.tensors.values())
    assert len({tensor.data_ptr() for tensor in (weights, *known.tensors.values())}) == 4
    assert torch.equal(known.tensors["turned"], weights.t())


def test_a_pause_ends_the_run_after_a_whole_step(make_recipe):
    made, recorder = study(make_recipe(), Planned(LIFE))

    def pause(course: StudyProgress) -> None:
        if len(recorder.of(StepFinished)) == 3 * 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(StudyProgress(made), pause)
    assert {e.step for e in recorder.of(StepFinished)} == {0, 1, 2}
    assert recorder.settled == 3


def between_rounds(recipe: Recipe) -> tuple[list[EpisodeFinished], State]:
    """The episodes of two rounds, and the state after the first, in which a blueprint was withdrawn."""
    made, _ = study(recipe, Planned(LIFE), rounds=2)
    states: list[State] = []

    def pause(course: StudyProgress) -> None:
        if (course.round, course.step) == (0, 6):
            while not made.pool.faults.is_withdrawn("test/faulty"):
                made.pool.faults.record("test/faulty")
        if (course.round, course.step) == (1, 0):
            states.append(course.state_dict())

    return run_study(StudyProgress(made), pause), states[0]


def test_a_study_goes_on_between_two_rounds_with_the_same_episodes_and_without_withdrawn_blueprints(make_recipe):
    finished, state = between_rounds(make_recipe())
    made, _ = study(make_recipe(), Planned(LIFE), rounds=2)
    progress = StudyProgress(made)
    progress.load_state_dict(state, finished[:4])
    assert made.pool.latest == [], "the environments of the round that is over are not restored"
    assert made.pool.faults.is_withdrawn("test/faulty")
    assert run_study(progress) == finished


def test_a_study_does_not_go_on_with_fewer_episodes_than_were_over(make_recipe):
    finished, state = between_rounds(make_recipe())
    made, _ = study(make_recipe(), Planned(LIFE), rounds=2)
    with pytest.raises(ValueError, match=r"4 episodes were over\. Received: 3"):
        StudyProgress(made).load_state_dict(state, finished[:3])


def test_where_the_time_went_is_always_known(make_recipe):
    made, _ = study(make_recipe(), Planned(LIFE))
    run_study(StudyProgress(made))
    seconds = made.clock.summary()
    regions = {"reset", "train", "shadow", "evaluate", "govern", "policy", "grow", "telemetry", "conclude", "learn"}
    assert set(seconds) == {*regions, "other", "total"}
    assert 0.0 < seconds["shadow"] < 10 * seconds["train"]
    assert seconds["train"] > 0.0
    assert sum(value for key, value in seconds.items() if key != "total") == pytest.approx(seconds["total"], rel=1e-6)
