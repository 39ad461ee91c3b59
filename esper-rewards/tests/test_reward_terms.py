"""Each reward term follows its formula."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from esper_core.leyline import Gain, SeedSignals, Signals, SlotSignals, SlotState, Stage
from esper_rewards.terms import (
    MOST,
    Shaping,
    churn,
    closes,
    contribution,
    haste,
    kept_contribution,
    kept_share,
    lives_between,
    nats,
    progress,
)

HOST = 1000
LIVING = [Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.DRAINING]


def gain(mean):
    return Gain(n=100, mean=mean, deviation=1.0, skewness=0.0, worst=mean - 1, best=mean + 1)


def seed(stage, *, blueprint="norm", age=None, brings=None, alpha=None):
    strength = alpha if alpha is not None else float(stage is Stage.HOLDING)
    return SeedSignals(blueprint, stage, strength, 10, age, gain=None if brings is None else gain(brings))


def slot(name, *seeds, fossils=0):
    return SlotSignals(name, SlotState.OCCUPIED if seeds else SlotState.FREE, fossils, tuple(seeds))


def signals(*slots, step=9, loss=1.0, metric=0.5):
    added = sum(10 * (slot_signals.fossils + len(slot_signals.seeds)) for slot_signals in slots)
    return Signals(step, loss, loss, metric, HOST + added, HOST, tuple(slots))


seeds = st.builds(seed, st.sampled_from(LIVING), age=st.none() | st.integers(0, 9), brings=st.none() | st.floats(-2, 2))
gardens = st.builds(
    signals,
    *[st.builds(slot, st.just(name), seeds, fossils=st.integers(0, 3)) for name in ("early", "middle", "late")],
    loss=st.floats(0, 5),
)
courses = st.lists(gardens, min_size=1, max_size=12).map(
    lambda course: [replace(now, step=step) for step, now in enumerate(course)]
)


@given(gardens, st.permutations([0, 1, 2]), st.floats(0, 5))
def test_run_07_no_term_depends_on_the_slot(now, order, twin_loss):
    """All slots count equally: swapping them changes no term."""
    names = [slot_signals.name for slot_signals in now.slots]
    moved = tuple(replace(now.slots[place], name=name) for name, place in zip(names, order, strict=True))
    other, twin = replace(now, slots=moved), signals(loss=twin_loss)
    for term in (contribution, kept_contribution):
        assert term(other, twin) == pytest.approx(term(now, twin))
    for term in (kept_share, progress):
        assert term(other) == pytest.approx(term(now))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_run_07_seeds_of_all_slots_contribute_alike(place):
    """The contribution includes the gain of each seed."""
    slots = [slot(name, seed(Stage.TRAINING, brings=0.1)) for name in ("early", "middle", "late")]
    usual = contribution(signals(*slots), signals())
    slots[place] = slot(slots[place].name, seed(Stage.TRAINING, brings=0.3))
    assert usual == pytest.approx(0.3)
    assert contribution(signals(*slots), signals()) == pytest.approx(0.5)


def test_a_seed_that_acts_on_the_host_is_counted_once():
    isolated = slot("late", seed(Stage.TRAINING, brings=0.1))
    acting = signals(slot("early", seed(Stage.HOLDING, brings=0.2), fossils=1), isolated, loss=0.5)
    assert contribution(acting, signals(loss=1.0)) == pytest.approx(0.6)
    assert kept_contribution(acting, signals(loss=1.0)) == pytest.approx(0.3)


def test_unknown_and_non_finite_gains_count_as_0():
    for brings in (None, math.nan, math.inf):
        now = signals(slot("early", seed(Stage.TRAINING, brings=brings), fossils=1))
        assert contribution(now, signals()) == 0.0
        assert kept_contribution(now, signals()) == 0.0


def test_diverged_losses_are_limited():
    assert nats(signals(loss=1e30), signals()) == -MOST
    assert nats(signals(loss=math.inf), signals()) == -MOST
    assert math.isnan(nats(signals(loss=math.nan), signals()))


def test_a_seed_beside_a_fossil_reduces_its_share():
    assert kept_share(signals(slot("early", seed(Stage.BLENDING, alpha=0.5), fossils=1))) == pytest.approx(2 / 3)
    assert kept_share(signals(slot("early", seed(Stage.TRAINING), fossils=1))) == 1.0


@given(courses, st.floats(0, 1), st.floats(0, 100))
def test_discounted_shaping_adds_up_to_0(course, gamma, weight):
    """Over any episode, from before its first step to its end, so the optimal policy does not change."""
    shaping = Shaping(weight, gamma)
    previous = [None, *course]
    scores = [shaping.score(now, before) for now, before in zip([*course, course[-1]], previous, strict=True)]
    assert math.fsum(gamma**step * score for step, score in enumerate(scores)) == pytest.approx(0.0, abs=1e-6)


def test_the_end_of_an_episode_is_its_last_step_again():
    assert closes(signals(step=9), signals(step=9))
    assert not closes(signals(step=9), signals(step=8))
    assert not closes(signals(step=0), None)


def test_births_prunes_and_fossils_are_read_from_two_steps():
    before = signals(
        slot("early", seed(Stage.HOLDING, age=8)),
        slot("middle", seed(Stage.TRAINING, age=2), seed(Stage.TRAINING, blueprint="mlp", age=2)),
        slot("late"),
        step=8,
    )
    now = signals(
        slot("early", fossils=1),
        slot("middle", seed(Stage.TRAINING, age=3)),
        slot("late", seed(Stage.TRAINING, age=1)),
        step=9,
    )
    lives = lives_between(now, before)
    assert [life.age for life in lives.born] == [1]
    assert [life.stage for life in lives.kept] == [Stage.HOLDING]
    assert [life.blueprint for life in lives.pulled] == ["mlp"]
    assert (churn(lives, 0.5), haste(lives, 3, 0.5), haste(lives, 2, 0.5)) == (-1.0, -0.5, 0.0)


def test_a_younger_seed_in_a_slot_is_a_new_life():
    before = signals(slot("early", seed(Stage.TRAINING, age=5)), step=8)
    lives = lives_between(signals(slot("early", seed(Stage.TRAINING, age=1)), step=9), before)
    assert ([life.age for life in lives.born], [life.age for life in lives.pulled]) == ([1], [5])


def test_seeds_of_one_blueprint_in_a_slot_are_counted():
    before = signals(slot("early", seed(Stage.TRAINING, age=2), seed(Stage.TRAINING, age=2)), step=8)
    now = signals(slot("early", seed(Stage.TRAINING, age=3)), step=9)
    assert len(lives_between(now, before).pulled) == 1
    assert lives_between(now, before).born == ()


def test_of_several_lost_seeds_the_holding_one_was_fossilised():
    lost = [seed(Stage.TRAINING, blueprint="mlp", age=2), seed(Stage.HOLDING, age=8)]
    lives = lives_between(signals(slot("early", fossils=1), step=9), signals(slot("early", *lost), step=8))
    assert ([life.blueprint for life in lives.kept], [life.blueprint for life in lives.pulled]) == (["norm"], ["mlp"])
