"""Shared set-up for tests of the integrations: data, a policy that follows a plan, and bitwise comparison."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from esper_core.leyline import Action, ActionMask, Observation, Op


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips the tests of a library that is not installed."""
    for item in items:
        for name in [mark.args[0] for mark in item.iter_markers("library")]:
            if importlib.util.find_spec(name) is None:
                item.add_marker(pytest.mark.skip(reason=f"needs {name}: make test-slow installs it"))


class Plan:
    """Carries out a plan: an action for some steps, and WAIT otherwise."""

    def __init__(self, plan: Mapping[int, Action]) -> None:
        self.plan = dict(plan)

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        (observation,), (mask,) = observations, masks
        action = self.plan.get(observation.step, Action())
        return [action if mask.allows(action) else Action()]


@pytest.fixture
def planned() -> Callable[..., dict[str, Any]]:
    """``planned(slot, keep=4)``: arguments by which a seed germinates at once, is blended in, and is kept in a step."""

    def make(slot: str, *, blueprint: str = "conv_light", keep: int | None = None) -> dict[str, Any]:
        plan = {
            0: Action(Op.GERMINATE, slot, f"blueprints/{blueprint}"),
            1: Action(Op.ADVANCE, slot),
            **({} if keep is None else {keep: Action(Op.FOSSILISE, slot)}),
        }
        return {"blueprints": [blueprint], "policy": Plan(plan), "growth": {"gates": "off"}, "steps": 8}

    return make


def bumps(examples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Three classes of bumps on noise, told apart by the bump's shape."""
    generator = torch.Generator().manual_seed(seed)
    shapes = torch.tensor([[1.0, 2.0, 1.0], [2.0, -1.0, 2.0], [-1.0, 0.0, 1.0]])
    targets = torch.randint(0, 3, (examples,), generator=generator)
    inputs = 0.1 * torch.randn(examples, 1, 12, generator=generator)
    starts = torch.randint(0, 9, (examples,), generator=generator)
    for row, (target, start) in enumerate(zip(targets, starts, strict=True)):
        inputs[row, 0, start : start + 3] += shapes[target]
    return inputs, targets


@pytest.fixture
def data() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Examples to train on, and held-out ones."""
    return bumps(60, 1), bumps(60, 2)


@pytest.fixture
def same() -> Callable[[Any, Any], bool]:
    """``same(one, other)``: return whether two states are bitwise equal."""

    def equal(one: Any, other: Any) -> bool:
        if isinstance(one, Tensor):
            return isinstance(other, Tensor) and torch.equal(one, other)
        if isinstance(one, dict):
            return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
        if isinstance(one, list | tuple):
            return len(one) == len(other) and all(equal(mine, yours) for mine, yours in zip(one, other, strict=True))
        return bool(one == other)

    return equal
