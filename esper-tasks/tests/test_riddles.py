"""Five riddles: seeded, balanced, and as their formulas say."""

from typing import get_args

import pytest
import torch

from esper_tasks.riddles import riddles
from esper_tasks.settings import RiddleKind

KINDS = get_args(RiddleKind)
SPLITS = ("train", "validation", "test")


def signals_of(task):
    splits = [task.split(name) for name in SPLITS]
    signals = torch.cat([split.inputs[:, 0] for split in splits])
    return signals, torch.cat([split.targets for split in splits])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("easy", "void"), [(0.3, 0.4), (1.0, 0.0), (0.0, 1.0)])
def test_shares_of_the_examples_are_easy_or_void_and_the_others_unchanged(kind, easy, void):
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


def test_near_differs_in_the_correlation_of_neighbours():
    signals, targets = signals_of(riddles(kind="near"))
    together = (signals[:, 1:] * signals[:, :-1]).mean(dim=1)
    found = [together[targets == y].mean().item() for y in range(3)]
    assert found == pytest.approx([2 / 3, -2 / 3, 0], abs=0.05)


def test_far_has_its_pattern_with_either_sign_at_every_third_place():
    signals, targets = signals_of(riddles(kind="far", noise=0.1))
    patterns = torch.tensor([[1, 1, -1, -1, 1], [1, -1, 1, 1, -1], [-1, 1, 1, 1, -1]])
    drawn = (signals.abs() > 0.75).nonzero()[:, 1].reshape(-1, 5)
    assert (drawn.diff(dim=1) == 3).all()
    assert sorted(set(drawn[:, 0].tolist())) == list(range(28))
    signs = signals.gather(1, drawn).sign() * patterns[targets]
    assert (signs == signs[:, :1]).all()
    assert abs(signs[:, 0].mean()) < 0.1


def test_value_has_its_values_in_bands_of_the_class():
    signals, targets = signals_of(riddles(kind="value"))
    owner = torch.tensor([0, 1, 2, 2, 1, 0, 2, 0, 1])
    band = ((signals + 2) * 9 / 4).floor().long()
    fits = (signals.abs() < 2) & (owner[band.clamp(0, 8)] == targets[:, None])
    pairs = fits.reshape(len(signals), 20, 2).all(dim=2)
    assert pairs.float().mean().item() == pytest.approx(0.7 + 0.3 * 0.13**2, abs=0.02)


def test_joint_has_its_class_in_the_norm_of_an_example():
    signals, targets = signals_of(riddles(kind="joint", noise=0.1))
    ring = (signals.norm(dim=1) / 40**0.5).floor().long()
    assert set(ring.tolist()) == set(range(6))
    assert torch.equal(ring % 3, targets)


def test_easy_has_its_class_in_the_highest_third():
    signals, targets = signals_of(riddles(kind="easy", noise=0.1))
    thirds = torch.stack([signals[:, :14].mean(dim=1), signals[:, 14:27].mean(dim=1), signals[:, 27:].mean(dim=1)])
    assert torch.equal(thirds.argmax(dim=0), targets)
