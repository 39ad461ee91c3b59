"""Five riddles: seeded, balanced, and as their formulas say."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from esper_core.leyline import DataShape, Metric, Task
from esper_tasks.riddles import riddles
from esper_tasks.settings import RiddleKind

KINDS = get_args(RiddleKind)
SPLITS = ("train", "validation", "test")


def signals_of(task):
    splits = [task.split(name) for name in SPLITS]
    signals = torch.cat([split.inputs[:, 0] for split in splits])
    return signals, torch.cat([split.targets for split in splits])


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_can_be_told_by_its_form(kind):
    task = riddles(kind=kind)
    assert isinstance(task, Task)
    assert task.shape == DataShape("sequence", (1, 40), 3)
    assert task.metric == Metric("accuracy", "up", "%")
    for name, count in zip(SPLITS, (1000, 300, 500), strict=True):
        split = task.split(name)
        assert split.inputs.shape == (count, 1, 40)
        assert split.inputs.dtype == torch.float32
        assert split.inputs.isfinite().all()
        assert split.targets.shape == (count,)
        assert split.targets.dtype == torch.int64


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(1000, 300, 500), (31, 4, 5)])
def test_the_classes_of_each_split_come_equally_often(kind, sizes):
    task = riddles(kind=kind, samples=sizes[0], validation=sizes[1], test=sizes[2])
    for name, count in zip(SPLITS, sizes, strict=True):
        each = task.split(name).targets.bincount(minlength=3)
        assert each.sum() == count
        assert each.max() - each.min() <= 1


@pytest.mark.parametrize("noise", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("kind", KINDS)
def test_the_splits_share_no_example(kind, noise):
    signals, _ = signals_of(riddles(kind=kind, noise=noise))
    assert len(torch.unique(signals, dim=0)) == 1800


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("easy", "void"), [(0.3, 0.0), (0.0, 0.4), (0.3, 0.4), (1.0, 0.0), (0.0, 1.0)])
def test_shares_of_the_examples_are_easy_or_say_nothing_and_the_rest_is_as_it_was(kind, easy, void):
    plain, classes = signals_of(riddles(kind=kind))
    mixed, same = signals_of(riddles(kind=kind, easy=easy, void=void))
    assert torch.equal(classes, same)
    changed = (plain != mixed).any(1)
    assert changed.float().mean().item() == pytest.approx(easy + void, abs=0.04)
    told = torch.stack([mixed[:, 14 * n : 13 + 13 * n].mean(1) for n in range(3)], 1).argmax(1) == classes
    if void == 1.0:
        assert told.float().mean().item() == pytest.approx(1 / 3, abs=0.04)
    if easy == 1.0:
        assert told.float().mean().item() > 0.9


def test_shares_that_are_more_than_all_are_refused():
    with pytest.raises(ValidationError, match="together 1 at most"):
        riddles(easy=0.6, void=0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_data_and_another_seed_gives_other_data(kind):
    np.random.seed(3)
    state = np.random.get_state()[1].copy()
    one, again, other = (riddles(kind=kind, samples=60, seed=seed).split("test") for seed in (3, 3, 4))
    assert torch.equal(one.inputs, again.inputs)
    assert torch.equal(one.targets, again.targets)
    assert not torch.equal(one.inputs, other.inputs)
    np.testing.assert_array_equal(np.random.get_state()[1], state)


def test_near_differs_in_how_neighbours_go_together():
    signals, targets = signals_of(riddles(kind="near"))
    together = (signals[:, 1:] * signals[:, :-1]).mean(dim=1)
    found = [together[targets == y].mean().item() for y in range(3)]
    assert found == pytest.approx([2 / 3, -2 / 3, 0], abs=0.05)


def test_far_has_its_pattern_in_either_sign_three_places_apart():
    signals, targets = signals_of(riddles(kind="far", noise=0.1))
    patterns = torch.tensor([[1, 1, -1, -1, 1], [1, -1, 1, 1, -1], [-1, 1, 1, 1, -1]])
    drawn = (signals.abs() > 0.75).nonzero()[:, 1].reshape(-1, 5)
    assert (drawn.diff(dim=1) == 3).all()
    assert sorted(set(drawn[:, 0].tolist())) == list(range(28))
    signs = signals.gather(1, drawn).sign() * patterns[targets]
    assert (signs == signs[:, :1]).all()
    assert abs(signs[:, 0].mean()) < 0.1


def test_value_has_each_value_in_a_band_of_its_class_unless_its_pair_says_nothing():
    signals, targets = signals_of(riddles(kind="value"))
    owner = torch.tensor([0, 1, 2, 2, 1, 0, 2, 0, 1])
    band = ((signals + 2) * 9 / 4).floor().long()
    fits = (signals.abs() < 2) & (owner[band.clamp(0, 8)] == targets[:, None])
    pairs = fits.reshape(len(signals), 20, 2).all(dim=2)
    assert pairs.float().mean().item() == pytest.approx(0.7 + 0.3 * 0.13**2, abs=0.02)


def test_joint_has_its_class_in_how_far_an_example_is_from_nothing():
    signals, targets = signals_of(riddles(kind="joint", noise=0.1))
    ring = (signals.norm(dim=1) / 40**0.5).floor().long()
    assert set(ring.tolist()) == set(range(6))
    assert torch.equal(ring % 3, targets)


def test_easy_has_its_class_in_the_third_that_is_highest():
    signals, targets = signals_of(riddles(kind="easy", noise=0.1))
    thirds = torch.stack([signals[:, :14].mean(dim=1), signals[:, 14:27].mean(dim=1), signals[:, 27:].mean(dim=1)])
    assert torch.equal(thirds.argmax(dim=0), targets)


@pytest.mark.parametrize(
    ("settings", "place", "said"),
    [
        ({"kind": "hard"}, "kind", "'near', 'far', 'value', 'joint' or 'easy'"),
        ({"samples": 29}, "samples", "greater than or equal to 30"),
        ({"validation": 2}, "validation", "greater than or equal to 3"),
        ({"test": 0}, "test", "greater than or equal to 3"),
        ({"noise": 0.0}, "noise", r"greater than or equal to 0\.1"),
        ({"noise": 4.0}, "noise", "less than or equal to 3"),
        ({"seed": -1}, "seed", "greater than or equal to 0"),
    ],
)
def test_a_setting_out_of_bounds_is_refused(settings, place, said):
    with pytest.raises(ValidationError, match=said) as caught:
        riddles(**settings)
    assert caught.value.errors()[0]["loc"] == (place,)
