"""Grafting compares the outputs before and after, and refuses a graft that would change them."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from esper_core.growth import graft, is_grafted
from esper_core.growth.grafting import alike
from esper_core.growth.seeds import Seed
from esper_core.leyline import GraftError

INPUTS = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Several(nn.Module):
    """Has parts, and asks ``judge`` what they make of the inputs together."""

    def __init__(self, judge: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.judge = judge

    def forward(self, inputs: Tensor) -> Any:
        return self.judge(self, inputs)


class Chain(nn.ModuleList):
    """A list of layers that goes through itself, by slice and from the end."""

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self[:-1]:
            hidden = torch.relu(layer(hidden))
        return self[-1](hidden) * len(self)


class Longer(Chain):
    """Has a length of its own, which asks for that of the list."""

    def __len__(self) -> int:
        return super().__len__() + 0

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.stack([layer(hidden) for layer in self]).sum(0) / len(self)


class Heads(nn.ModuleDict):
    """Goes through itself in every way that a dict has."""

    def forward(self, hidden: Tensor) -> dict[str, Tensor]:
        assert list(self) == list(self.keys()) == [name for name, _ in self.items()]
        assert "_esper" not in self
        made = [head(hidden) for head in self.values()]
        return {name: one / len(self) for name, one in zip(self, made, strict=True)}


def chain() -> nn.Module:
    return Chain([nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)])


def longer() -> nn.Module:
    return Longer([nn.Linear(4, 4), nn.Linear(4, 4)])


def heads() -> nn.Module:
    return Heads({"0": nn.Linear(4, 4), "b": nn.Linear(4, 4)})


@pytest.mark.parametrize("build", [chain, longer, heads])
def test_root_container_does_not_iterate_over_its_slots(build: Callable[[], nn.Module]) -> None:
    model = build()
    before, layers, keys = model(INPUTS), len(model), list(model.state_dict())
    graft(model, ["0"], example=INPUTS)
    torch.testing.assert_close(model(INPUTS), before, rtol=0.0, atol=0.0)
    assert len(model) == len(copy.deepcopy(model)) == layers
    assert list(model.state_dict()) == keys
    fresh = type(model)({"c": nn.Linear(4, 4)} if build is heads else [nn.Linear(4, 4)])
    assert not is_grafted(fresh)
    assert len(fresh) == 1


@pytest.mark.parametrize(
    ("build", "change"),
    [
        (chain, lambda model: model.append(nn.Identity())),
        (chain, lambda model: model.__setitem__(0, nn.Identity())),
        (chain, lambda model: model.extend([nn.Identity()])),
        (chain, lambda model: model.pop(0)),
        (heads, lambda model: model.__setitem__("0", nn.Identity())),
        (heads, lambda model: model.update({"0": nn.Identity()})),
        (heads, lambda model: model.pop("b")),
        (heads, lambda model: model.clear()),
        (lambda: nn.Sequential(nn.Linear(4, 4)), lambda model: model.__iadd__(nn.Sequential(nn.Identity()))),
    ],
)
def test_layers_of_a_grafted_container_cannot_be_exchanged(
    build: Callable[[], nn.Module], change: Callable[[Any], object]
) -> None:
    model = graft(build(), ["0"], example=INPUTS)
    names = [name for name, _ in model.named_modules()]
    with pytest.raises(GraftError, match="E319 the layers of a grafted"):
        change(model)
    assert [name for name, _ in model.named_modules()] == names


def mean(model: nn.Module, inputs: Tensor) -> Tensor:
    return torch.stack([child(inputs) for child in model.children()]).mean(0)


def in_training(model: nn.Module, inputs: Tensor) -> Tensor:
    return mean(model, inputs) if model.training else model.one(inputs)


def in_evaluation(model: nn.Module, inputs: Tensor) -> Tensor:
    return model.one(inputs) if model.training else mean(model, inputs)


def listed(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    return [child(inputs) for child in model.children()]


def named(model: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    return {name: child(inputs) for name, child in model.named_children()}


@pytest.mark.parametrize(
    ("judge", "mode"),
    [
        (mean, "training"),
        (in_training, "training"),
        (in_evaluation, "evaluation"),
        (listed, "training"),
        (named, "training"),
    ],
)
def test_host_whose_outputs_would_change_is_refused_unless_wrapped_in_a_module(
    judge: Callable[..., Any], mode: str
) -> None:
    model = Several(judge)
    before = model(INPUTS)
    with pytest.raises(GraftError, match=f"E318 the outputs of the model in {mode} change once it has slots") as caught:
        graft(model, ["one"], example=INPUTS)
    assert "Put the model into a module of your own, and graft that." in str(caught.value)
    assert type(model) is Several
    assert not is_grafted(model)
    torch.testing.assert_close(model(INPUTS), before, rtol=0.0, atol=0.0)
    held = graft(nn.Sequential(model), ["0.one"], example=INPUTS)
    torch.testing.assert_close(held(INPUTS), before, rtol=0.0, atol=0.0)


def test_host_with_its_own_random_numbers_is_accepted() -> None:
    drawn = random.Random(0)
    model = Several(lambda model, inputs: model.one(inputs) * drawn.random())
    assert is_grafted(graft(model, ["one"], example=INPUTS))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (torch.ones(2), torch.ones(2) + 1e-6, True),
        (torch.ones(2), torch.ones(2) + 1e-2, False),
        (torch.ones(2), torch.ones(3), False),
        (torch.ones(2), torch.ones(2).double(), False),
        (torch.ones(2, dtype=torch.bfloat16), torch.full((2,), 1.0078125, dtype=torch.bfloat16), True),
        (torch.tensor([torch.nan, torch.inf]), torch.tensor([torch.nan, torch.inf]), True),
        (torch.tensor([torch.nan, 1.0]), torch.tensor([1.0, 1.0]), False),
        (torch.zeros(0), torch.zeros(0), True),
        ((torch.ones(1), None), (torch.ones(1), None), True),
        ((torch.ones(1), None), (torch.ones(1), torch.ones(1)), False),
        ({"a": torch.ones(1)}, {"b": torch.ones(1)}, False),
    ],
)
def test_outputs_are_alike_up_to_rounding(one: Any, other: Any, same: bool) -> None:
    assert alike(one, other) is same


class Remembering(nn.Module):
    """Fills a buffer at its first pass: one that is registered without a value, or one that is not registered yet."""

    def __init__(self, *, registered: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        if registered:
            self.register_buffer("first", None)

    def forward(self, inputs: Tensor) -> Tensor:
        if not hasattr(self, "first"):
            self.register_buffer("first", inputs.mean(0))
        if self.first is None:
            self.first = inputs.mean(0)
        return self.layer(inputs) + self.first


@pytest.mark.parametrize("registered", [True, False])
def test_buffer_that_the_first_pass_fills_is_unset_after_grafting(registered: bool) -> None:
    model = graft(Remembering(registered=registered), ["layer"], example=INPUTS)
    assert list(model.state_dict()) == ["layer.weight", "layer.bias"]
    assert hasattr(model, "first") is registered
    model(INPUTS + 5.0)
    assert torch.equal(model.first, (INPUTS + 5.0).mean(0))


@pytest.mark.filterwarnings("ignore:`torch.jit", "ignore:Converting a tensor")
@pytest.mark.parametrize("wrap", [lambda model: model, nn.Sequential], ids=["itself", "within another"])
def test_grafted_model_can_be_traced_but_not_scripted(
    wrap: Callable[[nn.Module], nn.Module], add_seed: Callable[..., Seed]
) -> None:
    model = graft(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), ["0"], example=INPUTS)
    add_seed(model, "0")
    with pytest.raises(GraftError, match="E315 a grafted Sequential cannot be scripted"):
        torch.jit.script(wrap(model))
    assert torch.equal(torch.jit.trace(model, INPUTS)(INPUTS), model(INPUTS))


def test_grafted_graph_module_can_be_changed_and_recompiled(add_seed: Callable[..., Seed]) -> None:
    model = graft(fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.Tanh())), ["0"], example=INPUTS)
    add_seed(model, "0")
    before = model(INPUTS)
    model.recompile()
    assert torch.equal(model(INPUTS), before)
    (last,) = (node for node in model.graph.nodes if node.op == "output")
    with model.graph.inserting_before(last):
        last.args = (model.graph.call_function(torch.neg, last.args),)
    model.recompile()
    assert torch.equal(model(INPUTS), -before)
    assert torch.equal(copy.deepcopy(model)(INPUTS), -before)
