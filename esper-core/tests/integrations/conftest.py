"""Shared set-up for tests of the integrations: data, and a policy that follows a plan."""

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
from core_worlds import PlannedPolicy, toy_split
from torch import Tensor

from esper_core.leyline import Action, Op


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips the tests of a library that is not installed."""
    for item in items:
        for name in [mark.args[0] for mark in item.iter_markers("library")]:
            if importlib.util.find_spec(name) is None:
                item.add_marker(pytest.mark.skip(reason=f"needs {name}: make test-slow installs it"))


@pytest.fixture
def planned() -> Callable[..., dict[str, Any]]:
    """``planned(slot, keep=4)``: arguments by which a seed germinates at once, is blended in, and is kept in a step."""

    def make(slot: str, *, blueprint: str = "conv_light", keep: int | None = None) -> dict[str, Any]:
        plan = {
            0: Action(Op.GERMINATE, slot, f"blueprints/{blueprint}"),
            1: Action(Op.ADVANCE, slot),
            **({} if keep is None else {keep: Action(Op.FOSSILISE, slot)}),
        }
        return {"blueprints": [blueprint], "policy": PlannedPolicy(plan), "growth": {"gates": "off"}, "steps": 8}

    return make


@pytest.fixture
def data() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Examples to train on, and held-out ones."""
    train, held_out = toy_split(60, 1), toy_split(60, 2)
    return (train.inputs, train.targets), (held_out.inputs, held_out.targets)
