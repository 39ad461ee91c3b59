"""Scales follow all observations, and change only between rounds."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from esper_core.leyline import CANDIDATE_COLUMNS, SLOT_COLUMNS, RewardBreakdown
from esper_policies.ppo.encoding import BEYOND, LEAST, WHOLE_COLUMNS, Columns, Scales
from esper_policies.ppo.policy import Ppo
from esper_testing.games import masked, play

NAMES = ("alpha", "gain", "gain?", "stage_training", "kind_vector", "age", "is_new")
FLAGS = [2, 3, 4, 6]
NUMBERS = [0, 1, 5]


def rows_like(seed, count):
    draw = random.Random(seed)
    spread, shift = 10 ** draw.uniform(-1, 1), draw.uniform(-9, 9)
    return [[draw.gauss(shift, spread) for _ in NAMES] for _ in range(count)]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 9)), min_size=1, max_size=6))
def test_running_scales_equal_mean_and_deviation_of_all_rows(rounds):
    own, every = Columns(NAMES), []
    for seed, count in rounds:
        rows = rows_like(seed, count)
        every += rows
        own.learn(torch.tensor(rows, dtype=torch.float64).view(count, len(NAMES)))
    assert own.count == len(every)
    if len(every) < 2:
        return
    array = np.array(every)
    assert np.allclose(own.mean.numpy(), array.mean(0), atol=1e-9)
    assert np.allclose(own.squares.numpy() / own.count, array.var(0), rtol=1e-9, atol=1e-12)
    fresh = torch.tensor(rows_like(5, 4))
    expected = (fresh.double().numpy() - array.mean(0)) / np.maximum(array.std(0), LEAST)
    found = own(fresh).double().numpy()
    assert np.allclose(found[:, NUMBERS], expected[:, NUMBERS].clip(-BEYOND, BEYOND), atol=1e-4)
    assert np.allclose(found[:, FLAGS], fresh.numpy()[:, FLAGS].clip(-BEYOND, BEYOND), atol=1e-6)


def test_flags_and_one_hot_columns_are_not_scaled():
    for names in (WHOLE_COLUMNS, SLOT_COLUMNS, CANDIDATE_COLUMNS):
        own = Columns(names)
        own.learn(torch.rand(20, len(names)))
        plain = torch.zeros(1, len(names))
        moved = {name for name, value in zip(names, own(plain)[0].tolist(), strict=True) if value != 0.0}
        assert not {name for name in moved if name.endswith("?") or name.split("_")[0] in ("may", "stage", "state")}
        assert not {name for name in moved if name.split("_")[0] in ("kind", "trait") or name == "identity"}
    assert {"progress", "validation_loss", "trend_metric"} <= set(WHOLE_COLUMNS)


def test_scales_change_between_rounds_only(monkeypatch):
    game = masked()
    policy = Ppo(game.space, width=8, together=4, passes=2)
    for number in range(2):
        count, mean = policy.scales.whole.count, policy.scales.whole.mean.clone()
        rollout = play(policy, game, 4, 4 * number, number)
        assert policy.scales.whole.count == count
        assert torch.equal(policy.scales.whole.mean, mean)
        during = []
        step = torch.optim.Adam.step

        def watched(*args, step=step, during=during):
            during.append(policy.scales.whole.count)
            return step(*args)

        monkeypatch.setattr(torch.optim.Adam, "step", watched)
        policy.update(rollout)
        monkeypatch.undo()
        assert set(during) == {count}
        assert policy.scales.whole.count == count + 4 * game.steps


@given(st.lists(st.lists(st.floats(-1e3, 1e3), max_size=5), min_size=1, max_size=5))
def test_returns_are_scaled_by_the_root_of_their_mean_square(rounds):
    own, every, scale = Scales(), [], None
    for returns in rounds:
        grown = own.learn_returns(returns)
        every += returns
        expected = math.sqrt(math.fsum(one * one for one in every) / len(every)) if every else 1.0
        assert own.returns == pytest.approx(max(expected, 1e-6))
        assert grown == pytest.approx(1.0 if scale is None else own.returns / scale)
        scale = own.returns if every else None


@pytest.mark.parametrize("unit", [1e-3, 1e3])
def test_learning_does_not_depend_on_the_scale_of_rewards(unit):
    game, found = masked(), {}
    for factor in (1.0, unit):
        policy = Ppo(game.space, width=8, together=4, passes=2, learning_rate=1e-2)
        told = []
        for number in range(2):
            rollout = play(policy, game, 4, 4 * number, number)
            episodes = [
                replace(one, turns=tuple(_paid(turn, factor) for turn in one.turns)) for one in rollout.episodes
            ]
            told.append(policy.update(replace(rollout, episodes=tuple(episodes))))
        found[factor] = told
    for own, other in zip(found[1.0], found[unit], strict=True):
        assert other["policy_loss"] == pytest.approx(own["policy_loss"], rel=1e-2, abs=1e-4)
        assert other["return"] == pytest.approx(own["return"] * unit, rel=1e-6)


def _paid(turn, factor):
    return replace(turn, reward=RewardBreakdown({"prize": turn.reward.total * factor}))
