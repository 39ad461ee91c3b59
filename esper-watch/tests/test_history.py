"""The history of a run: records of steps, seeds and episodes, whatever its events are."""

import dataclasses
import math
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from esper_core.leyline import WAIT, Action, Cause, Finding, Op, Opinion, Reason, Stage
from esper_core.leyline.events import EpisodeFinished, Event, GovernorActed, StageChanged, StepFinished
from esper_watch import History
from esper_watch.history import SeedGain
from tests.support.run_folders import stage_changed, step_finished

PLACE = {"round": 0, "arm": "grown", "seed": 7}

stage = partial(stage_changed, **PLACE, blueprint="b/conv", parameters=120)


def step(number: int, *, price: float | None = None, **more: Any) -> StepFinished:
    opinion = None if price is None else Opinion(Finding.SHOWN, "it is shown", price=price)
    return step_finished(number, opinion=opinion, blueprint="b/conv", seed=7, **more)


def history_of(*events: Event) -> History:
    history = History("r")
    for event in events:
        history.add(event)
    return history


def test_a_step_has_its_figures_and_its_reward():
    rewards = [{"improvement": 1.5, "rent": -0.5}, {}, {"improvement": 1e308, "bonus": 1e308}]
    first, second, third = history_of(*(step(n, reward=reward) for n, reward in enumerate(rewards))).steps
    assert dataclasses.asdict(first) == {
        **PLACE, "step": 0, "train_loss": 2.0, "validation_loss": 2.1, "validation_metric": 0.4, "parameters": 1120,
        "host_parameters": 1000, "fossils": 0, "living": 1, "reward": 1.0, "action": "wait",
    }  # fmt: skip
    assert second.reward is None
    assert math.isnan(third.reward or 0.0), "a sum that is too large"


def test_a_seed_has_one_row_with_the_step_of_each_stage_and_its_latest_gain():
    (life,) = history_of(
        stage(1, None, Stage.GERMINATED),
        stage(2, Stage.GERMINATED, Stage.TRAINING),
        step(2, gain=0.1, price=0.02),
        stage(3, Stage.TRAINING, Stage.BLENDING),
        stage(4, Stage.BLENDING, Stage.HOLDING),
        stage(5, Stage.HOLDING, Stage.BLENDING),
        stage(6, Stage.BLENDING, Stage.HOLDING),
        stage(7, Stage.HOLDING, Stage.FOSSILISED, reason=Reason(Cause.POLICY)),
        step(7, gain=0.3, price=0.02),
    ).seeds
    assert life.as_row() == {
        **PLACE, "seed_id": 0, "slot": "early", "blueprint": "b/conv", "parameters": 120, "germinated": 1,
        "training": 2, "blending": 3, "holding": 4, "draining": None, "fossilised": 7, "pruned": None,
        "stage": "fossilised", "reason": "by the policy", "gain": 0.3, "gain_error": 0.05, "gain_examples": 100,
        "gain_step": 7, "gain_stage": "training", "price": 0.02,
    }  # fmt: skip
    assert (life.kept, life.ended) == (True, True)


def test_a_gain_belongs_to_the_seed_that_lived_when_it_was_measured():
    """With two seeds of one blueprint in a slot, in turn: stage changes of a step precede its event."""
    first, second = history_of(
        stage(0, None, Stage.GERMINATED),
        stage(3, Stage.GERMINATED, Stage.PRUNED),
        stage(3, None, Stage.GERMINATED, seed_id=1),
        step(3, gain=-0.2),
        stage(4, Stage.GERMINATED, Stage.TRAINING, seed_id=1),
        step(4, gain=0.6),
        step(5, gain=math.inf),
    ).seeds
    assert first.gain == SeedGain(3, Stage.TRAINING, -0.2, 0.05, None, 100)
    assert second.gain == SeedGain(4, Stage.TRAINING, 0.6, 0.05, None, 100), "one that is not finite is none"
    assert (first.stage, second.ended) == (Stage.PRUNED, False)


def test_a_history_without_steps_has_everything_else():
    acted = GovernorActed(**PLACE, step=3, act="roll-back", verdict="sick", reason="the loss rose", back_to=1)
    ended = EpisodeFinished(
        **PLACE, test_loss=1.0, test_metric=0.6, validation_metric=0.6, parameters=1120, host_parameters=1000,
        fossils=1, steps=4, reward=1.5,
    )  # fmt: skip
    history = History("r", keep_steps=False)
    for event in (stage(0, None, Stage.GERMINATED), step(1, gain=0.1), acted, ended):
        history.add(event)
    assert len(history.steps) == 0
    assert (history.governor, history.episodes, len(history.seeds)) == ([acted], [ended], 1)
    assert history.steps_of((0, "grown", 7)) == 4


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_every_event_has_its_record(any_event, data):
    events = data.draw(st.lists(any_event, max_size=12))
    history = history_of(*events)
    counted = {StepFinished: history.steps, EpisodeFinished: history.episodes, GovernorActed: history.governor}
    for kind, records in counted.items():
        assert len(records) == sum(isinstance(event, kind) for event in events)
    changes = [event for event in events if isinstance(event, StageChanged)]
    kept = [change for life in history.seeds for change in life.changes]
    assert sorted(map(repr, kept)) == sorted(map(repr, changes))
    assert all(list(life.as_row()) == list(history.seeds[0].as_row()) for life in history.seeds)
    assert 0.0 <= history.share_done <= 1.0


def test_a_history_is_fed_while_the_run_goes_on_and_keeps_decisions_and_looks():
    history = history_of(stage(0, None, Stage.GERMINATED))
    for number in (1, 2):
        action = Action(Op.PRUNE, "early") if number == 2 else WAIT
        history.add(step(number, gain=0.1 * number, price=0.02, action=action))
        assert (history.events, len(history.steps)) == (number + 1, number)
    assert [(decision.step, decision.action, decision.environment) for decision in history.decisions] == [
        (2, "prune early", (0, "grown", 7))
    ]
    (life,) = history.seeds
    looks = list(life.looks)
    assert [look.step for look in looks] == [1, 2]
    assert looks[1].mean == pytest.approx(0.2)
    assert looks[1].price == pytest.approx(0.02)
    assert looks[1].opens, "as its gate found, whatever the bound is"
    assert not looks[1].judged
    assert history.metric_by_step(0, "grown") == {1: pytest.approx([0.4]), 2: pytest.approx([0.4])}
