"""Which examples are held out of data that nobody has parted yet? Lots are drawn, by a seed; equal ones stay together.

The same example on both sides of a split would be judged by what was learned by heart.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from esper_core.leyline import SplitName

    Integers = NDArray[np.int64]


def drawn_parts(inputs: NDArray[Any], *, validation: int, test: int, seed: int) -> dict[SplitName, Integers]:
    """The rows of each split, in random order: no input of one stands in another, to the last bit.

    Where equal inputs stand on a border between two splits, the one that is held out gets all of them.

    >>> parts = drawn_parts(np.arange(10)[:, None] // 2, validation=1, test=2, seed=0)
    >>> {name: len(rows) for name, rows in parts.items()}
    {'train': 6, 'validation': 2, 'test': 2}

    inputs: examples along the first dimension. validation, test: how many at least. seed: of the lots.
    """
    group = _groups(inputs)
    lot = np.random.RandomState(seed).permutation(int(group.max(initial=-1)) + 1)
    order = np.argsort(lot[group], kind="stable")
    test_until = _end_of_group(group[order], test)
    validation_until = _end_of_group(group[order], test_until + validation)
    return {
        "train": order[validation_until:],
        "validation": order[test_until:validation_until],
        "test": order[:test_until],
    }


def _groups(inputs: NDArray[Any]) -> Integers:
    """A number for each example, the same for those that are equal."""
    numbers: dict[bytes, int] = {}
    rows = (blake2b(row.tobytes(), digest_size=16).digest() for row in inputs)
    return np.array([numbers.setdefault(row, len(numbers)) for row in rows], dtype=np.int64)


def _end_of_group(group: Integers, end: int) -> int:
    """The first place from ``end`` on where another group begins."""
    while 0 < end < len(group) and group[end] == group[end - 1]:
        end += 1
    return end
