"""A task on tokens whose answer is the sum of two marked symbols, which needs interaction between tokens."""

from __future__ import annotations

import numpy as np

from esper_tasks.settings import MarkedSumSettings
from esper_tasks.supervised import Classification, parted


def marked_sum(*, samples: int = 4500, length: int = 12, symbols: int = 4, seed: int = 0) -> Classification:
    """Add the two marked symbols, modulo ``symbols``. Tokens (N, length, symbols + 1).

    A token is a one-hot symbol and its mark, 1 or 0. Two tokens of an example are marked, at random positions. Either
    of them alone says nothing about the sum, so a network that processes tokens separately and adds up the results
    can only guess: tokens have to interact.

    >>> task = marked_sum(samples=600)
    >>> task.shape, [len(task.split(name)) for name in ("train", "validation", "test")]
    (DataShape(kind='tokens', example=(12, 5), outputs=4), [400, 100, 100])
    >>> tokens = task.split("train").inputs[0]
    >>> sums = (tokens[:, :4] * tokens[:, 4:]).sum(dim=0) @ tokens.new_tensor([0, 1, 2, 3])
    >>> int(sums) % 4 == int(task.split("train").targets[0])
    True

    samples: examples in all, a sixth each for validation and test. length: tokens of an example. symbols: also the
    number of classes. seed: of the data.
    """
    settings = MarkedSumSettings(samples=samples, length=length, symbols=symbols, seed=seed)
    generator = np.random.RandomState(settings.seed)
    shape = (settings.samples, settings.length)
    symbol_NT = generator.randint(settings.symbols, size=shape)
    marked_N2 = np.argsort(generator.random_sample(shape), axis=1)[:, :2]
    mark_NT = np.zeros(shape)
    np.put_along_axis(mark_NT, marked_N2, 1.0, axis=1)
    total = np.take_along_axis(symbol_NT, marked_N2, axis=1).sum(axis=1).astype(np.int64) % settings.symbols
    tokens = np.concatenate([np.eye(settings.symbols)[symbol_NT], mark_NT[:, :, None]], axis=2)
    return Classification(parted(tokens, total), "tokens", classes=settings.symbols)
