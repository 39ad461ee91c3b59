"""States of several parts are combined into one, and separated again."""

from __future__ import annotations

import torch

from esper_core.leyline import State


def test_parts_of_a_state_are_returned_unchanged() -> None:
    inner = State.of({"b": State({"n": 1}, {"w": torch.ones(2)}), "a": State({}, {"w": torch.zeros(1)})}, depth=2)
    outer = State.of({"one": inner, "two": State()})

    assert outer.part("one").plain == inner.plain
    assert set(outer.tensors) == {"one/b/w", "one/a/w"}
    assert outer.part("one").part("b").tensors["w"].tolist() == [1.0, 1.0]
    assert outer.part("two") == State()
