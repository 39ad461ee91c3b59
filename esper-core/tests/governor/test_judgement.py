"""Judgement: non-finite numbers, surges and collapse are reported, ordinary courses of training are not."""

import json
import math
from dataclasses import asdict, replace
from functools import partial

import pytest
from hypothesis import given, strategies as st

from esper_core.governor import LossHistory, judge_step
from esper_core.leyline import GradientHealth, Metric, SlotSignals, SlotState
from esper_core.leyline.lifecycle import Stage
from esper_core.leyline.signals import Level
from esper_core.settings import GovernorConfig
from tests.support.governed import living, signals

SETTINGS = GovernorConfig()
LEARNT = [2.3, 2.0, 1.7, 1.5, 1.4, 1.3, 1.25, 1.2]
GUESSING = LossHistory(guessing_loss=2.4)


def judged(losses, history=GUESSING, settings=SETTINGS, *, make=signals, **more):
    """Return the levels of a series of steps and the history; losses as (validation, training) if they differ."""
    levels = []
    for step, loss in enumerate(losses):
        validation, train = loss if isinstance(loss, tuple) else (loss, loss)
        judgement = judge_step(history, make(step, validation, train=train), settings, acting=["early"], **more)
        levels.append(judgement.verdict.level)
        history = judgement.history
    return levels, history


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, (1.0, math.nan), (math.nan, 1.0)])
def test_non_finite_loss_is_a_panic_and_not_recorded(loss):
    _, before = judged(LEARNT)
    assert judged([loss], before) == ([Level.PANIC], before)
    assert judged([loss], LossHistory())[0] == [Level.PANIC]


@pytest.mark.parametrize(("finite", "level"), [(False, Level.PANIC), (True, Level.CALM), (None, Level.CALM)])
def test_non_finite_host_is_a_panic(finite, level):
    assert judged([1.0], host_finite=finite)[0] == [level]


@pytest.mark.parametrize(
    ("acting", "level", "healthy"), [(["early"], Level.PANIC, False), (["late"], Level.WARNING, True)]
)
def test_non_finite_gradients_are_a_panic_if_they_reach_the_host(acting, level, healthy):
    slot = living(Stage.BLENDING, 0.5, gradients=GradientHealth(1.0, 0.0, 0.0, non_finite=0.01))
    judgement = judge_step(GUESSING, signals(0, 2.0, slot=slot), SETTINGS, acting=acting)
    assert (judgement.verdict.level, judgement.healthy) == (level, healthy)


def test_overfitting_is_a_warning_and_no_panic():
    rising = [(1.2 + 0.1 * step, 0.9 - 0.05 * step) for step in range(17)]
    levels, _ = judged([*LEARNT, *rising])
    assert Level.PANIC not in levels
    assert levels[-1] is Level.WARNING


def test_step_with_a_warning_counts_as_stale_unless_the_metric_improves():
    overfitted, history = Metric("accuracy"), judged(LEARNT)[1]
    best, patience = history.best_loss, []
    for step, metric in enumerate([0.5, 0.5, 0.6, 0.6, 0.4]):
        seen = signals(step, 2.5, train=0.1, metric=metric)
        judgement = judge_step(history, seen, SETTINGS, acting=["early"], metric=overfitted)
        history = judgement.history
        assert judgement.verdict.level is Level.WARNING
        patience.append(history.stale_steps)
    assert patience == [0, 1, 0, 1, 2]  # the first metric is the best so far
    assert (history.best_loss, max(history.validation_losses)) == (best, max(LEARNT))


def test_surge_is_a_warning_first_and_a_panic_when_it_lasts():
    settings = replace_settings(surge_steps=3)
    calm = [1.0] * 6
    levels, history = judged([*calm, 2.1, 2.1, 1.0, 2.1, 2.1, 2.1], LossHistory(), settings)
    assert [level.value for level in levels[6:]] == ["warning", "warning", "calm", "warning", "warning", "panic"]
    assert set(history.validation_losses) == {1.0}


@pytest.mark.parametrize(
    ("validation", "train", "levels"),
    [
        pytest.param(3.0, 1.0, (Level.PANIC, Level.CALM, Level.CALM), id="validation alone"),
        pytest.param(1.0, 3.0, (Level.CALM, Level.CALM, Level.CALM), id="training alone"),
        pytest.param(3.0, 3.0, (Level.PANIC, Level.PANIC, Level.CALM), id="both"),
    ],
)
def test_a_surge_is_judged_while_a_seed_acts_or_the_host_has_just_changed(validation, train, levels):
    """And never in a host that only trains."""
    settings = replace_settings(surge_steps=1)
    _, history = judged([1.0] * 6, LossHistory(), settings)
    seen = signals(6, validation, train=train)
    for level, acting, changed in zip(levels, (["early"], [], []), (False, True, False), strict=True):
        verdict = judge_step(history, seen, settings, acting=acting, changed=changed).verdict
        assert verdict.level is level
        if level is Level.PANIC:
            assert verdict.reason.endswith("the validation loss is 3, and was 1 ± 0 before")


def test_each_loss_is_compared_with_its_own_kind_and_only_with_enough_history():
    """A sum over a training batch of 50 is many times one over a validation batch of 4."""
    settings = replace_settings(surge_steps=1)
    summed = [(2.8 - 0.01 * step, 35.0 - 0.1 * step) for step in range(20)]
    assert set(judged(summed, LossHistory(2.8), settings)[0]) == {Level.CALM}
    short = judged([1.0] * 4, LossHistory(), settings)[1]
    assert judged([9.0], short, settings)[0] == [Level.CALM]


@pytest.mark.parametrize(("loss", "level"), [(23.0, Level.WARNING), (25.0, Level.PANIC)])
def test_explosion_beyond_ten_times_the_loss_of_guessing_is_a_panic_at_once(loss, level):
    _, history = judged([2.3, 2.3, 2.3, 2.3, 2.3, 2.3])
    assert judged([loss], history)[0] == [level]


def test_host_that_only_trains_keeps_a_history_with_which_a_later_seed_is_compared():
    _, history = judged([1.0] * 6, LossHistory(), replace_settings(surge_steps=1))
    for step in range(20):
        history = judge_step(history, signals(step, 5.0), SETTINGS, acting=[]).history
    assert judged([5.5] * 4, history)[0] == [Level.CALM] * 4


SPREAD, NARROW, NEGATIVE = [0.2, 1.8] * 5, [0.9, 1.1] * 5, [-2.0, -2.1] * 4
LOW = replace(GUESSING, train_losses=[0.001] * 6, validation_losses=[0.001] * 6)
UNKNOWN = LossHistory()


@pytest.mark.parametrize(
    ("history", "losses", "last"),
    [
        pytest.param(UNKNOWN, [*SPREAD, 4.1], Level.CALM, id="below mean 1 and four times σ 0.8"),
        pytest.param(UNKNOWN, [*SPREAD, 4.3], Level.PANIC, id="above it"),
        pytest.param(UNKNOWN, [*NARROW, 1.9], Level.CALM, id="below twice the mean of 1, with σ 0.1"),
        pytest.param(UNKNOWN, [*NARROW, 2.1], Level.PANIC, id="above both"),
        pytest.param(GUESSING, [4.7], Level.CALM, id="first step below twice the loss of guessing"),
        pytest.param(GUESSING, [4.9], Level.PANIC, id="first step above it"),
        pytest.param(UNKNOWN, [1e9], Level.CALM, id="first step, guessing unknown"),
        pytest.param(LOW, [0.1], Level.CALM, id="many times a low loss, and a small change"),
        pytest.param(LOW, [0.2], Level.PANIC, id="a larger one"),
        pytest.param(UNKNOWN, [*NEGATIVE, -1.0], Level.CALM, id="negative losses, a small change"),
        pytest.param(UNKNOWN, [*NEGATIVE, -1.0, 0.2], Level.PANIC, id="negative losses surge"),
        pytest.param(GUESSING, [2.3, 2.31, 2.35, 2.4], Level.CALM, id="never better than guessing"),
        pytest.param(GUESSING, [2.0, 1.0, 2.2], Level.CALM, id="most of an improvement lost"),
        pytest.param(GUESSING, [*LEARNT, 2.31], Level.PANIC, id="back at guessing"),
    ],
)
def test_a_surge_exceeds_spread_and_mean_and_a_collapse_is_back_at_guessing(history, losses, last):
    settings = replace_settings(surge_steps=1, surge_sigmas=4.0, surge_ratio=2.0)
    *before, level = judged(losses, history, settings)[0]
    assert set(before) <= {Level.CALM}
    assert level is last
    if last is Level.PANIC and losses[:-1] == LEARNT:
        assert judged(losses)[0][-1] is Level.PANIC, "at once, whatever the steps of a surge"
        assert judged(losses, UNKNOWN)[0][-1] is not Level.PANIC, "guessing unknown"


@given(scale=st.integers(-30, 30), last=st.sampled_from([1.3, 2.05, 2.31, 2.6, 3.5, 9.0]))
def test_scale_of_the_losses_does_not_matter(scale, last):
    losses, factor = [*LEARNT, last, last, last], 2.0**scale
    scaled = judged([factor * loss for loss in losses], LossHistory(guessing_loss=2.4 * factor))[0]
    assert scaled == judged(losses)[0]


def test_history_restarts_when_an_acting_seed_is_removed():
    settings = replace_settings(surge_steps=1)

    def after(slot, loss, history, acting=("early",)):
        judgement = judge_step(history, signals(13, loss, slot=slot), settings, acting=acting)
        return judgement.verdict.level, judgement.history

    history, incubated = GUESSING, GUESSING
    for loss in [2.0, 1.5, 1.0, *[0.5] * 10]:
        _, history = after(living(), loss, history)
        _, incubated = after(living(), loss, incubated, ())
    assert after(living(), 2.35, history)[0] is Level.PANIC
    assert after(living(Stage.DRAINING, 0.5), 2.35, history)[0] is Level.CALM
    level, restarted = after(None, 2.35, history, ())
    assert (level, restarted.validation_losses, restarted.best_loss) == (Level.CALM, [2.35], 2.35)
    fossil = SlotSignals("early", SlotState.CLOSED, fossils=1)
    for slot, previous in [(fossil, history), (None, incubated)]:
        assert len(after(slot, 0.6, previous, ())[1].validation_losses) == 14


@given(
    losses=st.lists(st.floats(width=32), max_size=30),
    metric=st.floats(),
    cut=st.integers(0, 30),
    guessing=st.none() | st.floats(-5, 5),
)
def test_history_survives_json_and_continues(losses, metric, cut, guessing):
    settings = replace_settings(history_steps=4)
    more = {"metric": Metric("accuracy"), "make": partial(signals, metric=metric)}
    levels, history = judged(losses, LossHistory(guessing), settings, **more)
    first, half = judged(losses[:cut], LossHistory(guessing), settings, **more)
    again = LossHistory(**json.loads(json.dumps(asdict(half), allow_nan=False)))
    second, end = judged(losses[cut:], again, settings, **more)
    assert ([*first, *second], end) == (levels, history)
    assert len(history.train_losses) <= 4


def test_better_loss_or_metric_is_progress():
    steps = [(1.0, 0.5), (1.0, 0.5), (1.1, 0.6), (1.1, 0.6), (0.9, 0.1), (0.9, math.nan)]

    def stale(metric):
        history, seen = LossHistory(), []
        for step, (loss, value) in enumerate(steps):
            history = judge_step(history, signals(step, loss, metric=value), SETTINGS, acting=(), metric=metric).history
            seen.append(history.stale_steps)
        return seen

    assert stale(None) == [0, 1, 2, 3, 0, 1]
    assert stale(Metric("accuracy", "up")) == [0, 1, 0, 1, 0, 1]
    assert stale(Metric("error", "down")) == [0, 1, 2, 3, 0, 1]


def replace_settings(**changes):
    return SETTINGS.model_copy(update=changes)
