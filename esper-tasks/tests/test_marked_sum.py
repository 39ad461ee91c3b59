"""The target is the sum of the marked symbols, and is independent of either one."""

import pytest
import torch

from esper_tasks.marked_sum import marked_sum


def all_tokens(task):
    splits = [task.split(name) for name in ("train", "validation", "test")]
    return torch.cat([split.inputs for split in splits]), torch.cat([split.targets for split in splits])


def test_no_example_occurs_twice():
    inputs, _ = all_tokens(marked_sum())
    assert len(torch.unique(inputs.flatten(1), dim=0)) == len(inputs) == 4500


@pytest.mark.parametrize(("length", "symbols"), [(12, 4), (16, 3), (40, 2)])
def test_the_target_is_the_sum_of_the_two_marked_symbols(length, symbols):
    inputs, targets = all_tokens(marked_sum(samples=300, length=length, symbols=symbols))
    assert torch.equal(inputs[:, :, :-1].sum(dim=2), torch.ones(300, length))
    assert inputs[:, :, -1].sum(dim=1).tolist() == [2.0] * 300
    for tokens, target in zip(inputs, targets, strict=True):
        marked = tokens[tokens[:, -1] == 1, :-1].argmax(dim=1)
        assert int(marked.sum()) % symbols == int(target)


def test_one_marked_symbol_says_nothing_of_the_sum():
    inputs, targets = all_tokens(marked_sum(samples=4500))
    first = torch.stack([tokens[tokens[:, -1] == 1, :-1].argmax(dim=1)[0] for tokens in inputs])
    share = torch.stack(
        [targets[first == symbol].bincount(minlength=4) / (first == symbol).sum() for symbol in range(4)]
    )
    assert (share - 0.25).abs().max() < 0.06
