"""Every example is in one split, and equal examples are in the same."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from esper_tasks.supervised import drawn_parts


@given(
    values=st.lists(st.integers(0, 6), min_size=1, max_size=40),
    validation=st.integers(0, 12),
    test=st.integers(0, 12),
    seed=st.integers(0, 5),
)
def test_every_example_is_in_one_split_and_equal_ones_are_in_the_same(values, validation, test, seed):
    inputs = np.array(values)[:, None]
    parts = drawn_parts(inputs, validation=validation, test=test, seed=seed)
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(len(values)))
    seen = [set(inputs[rows, 0].tolist()) for rows in parts.values()]
    assert sum(map(len, seen)) == len(set(values))


def test_as_many_are_held_out_as_are_asked_for():
    parts = drawn_parts(np.arange(100)[:, None], validation=15, test=20, seed=3)
    assert {name: len(rows) for name, rows in parts.items()} == {"train": 65, "validation": 15, "test": 20}
    assert parts["train"].tolist() != sorted(parts["train"].tolist())
