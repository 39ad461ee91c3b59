"""Grafting: slots behind modules of a model, their names and keys, and what a graft leaves unchanged.

A graft that would change the outputs of its host is refused.
"""

import copy
import random
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from esper_core.growth import graft, host_layers, is_grafted, slots_of
from esper_core.growth.grafting import alike
from esper_core.leyline import Action, GraftError, Op, Site, SlotPlace
from tests.support.core_worlds import LOCAL_CONV, Net, NoisyHost, add_seed, make_garden, same

EXAMPLE = torch.randn(4, 1, 12, generator=torch.Generator().manual_seed(0))
INPUTS = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def test_observing_leaves_parameters_buffers_modes_and_random_numbers_unchanged():
    model = NoisyHost()
    model.drop.eval()
    torch.manual_seed(3)
    state, generator = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    graft(model, ["stem"], example=EXAMPLE)
    assert torch.equal(torch.get_rng_state(), generator)
    assert same(model.state_dict(), state)
    assert model.training
    assert not model.drop.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_that_draws_from_pythons_generator_gets_the_same_numbers_in_each_pass():
    def compute(net: Any, inputs: Tensor) -> Tensor:  # as stochastic depth does
        return net.stem(inputs if random.random() < 0.5 else -inputs)

    for seed in range(12):
        random.seed(seed)
        graft(Net(compute, stem=nn.Linear(4, 2)), ["stem"], example=INPUTS)


def test_slot_has_the_site_of_its_module():
    model = graft(NoisyHost(), {"early": "stem", "late": "hidden"}, example=EXAMPLE)
    assert [(slot.name, slot.site, slot.strength) for slot in slots_of(model)] == [
        ("early", Site("sequence", 4, (12,)), 0.0),
        ("late", Site("vector", 8, ()), 0.0),
    ]


def test_layers_are_the_children_with_parameters_or_slots_and_open_up_where_slots_are_inside():
    inner = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 4), nn.Tanh()))
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), inner, nn.Linear(4, 2))
    graft(model, {"a": "0", "b": "2.1", "c": "2", "d": "1"}, example=INPUTS)
    layers = [(layer.name, layer.kind, layer.parameters, layer.slots) for layer in host_layers(model)]
    assert layers == [
        ("0", "Linear", 20, ("a",)),
        ("1", "ReLU", 0, ("d",)),
        ("2.0", "Linear", 15, ()),
        ("2.1", "ReLU", 0, ("b",)),
        ("2.2", "Linear, Tanh", 16, ("c",)),
        ("3", "Linear", 10, ()),
    ]


def test_seed_keys_have_one_prefix_and_the_host_keys_never_change():
    model = graft(NoisyHost(), ["stem"], example=EXAMPLE)
    keys = list(model.state_dict())
    garden = make_garden(model, LOCAL_CONV)
    garden.apply(Action(Op.GERMINATE, "stem", LOCAL_CONV.id), 0)
    assert [key for key in model.state_dict() if key in keys] == keys
    *numbers, journal = [key for key in model.state_dict() if key not in keys]
    assert numbers
    assert all(key.startswith("stem._esper.seeds.0.") for key in numbers)
    assert journal == "stem._esper.for_esper_grow.load"
    garden.remove("done")
    assert list(model.state_dict()) == keys


def test_pattern_makes_one_slot_per_module_with_its_name():
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4)))
    graft(model, {"deep": SlotPlace("*.0", stack=3)}, example=torch.zeros(2, 4))
    assert [(slot.name, at, slot.limit) for at, slot in slots_of(model).by_module.items()] == [
        ("deep:0.0", "0.0", 3),
        ("deep:1.0", "1.0", 3),
    ]


def test_a_name_with_pattern_characters_is_taken_literally():
    model = nn.Sequential()
    for name in ("a[0]", "a0", "b c/d-é"):
        model.add_module(name, nn.Linear(4, 4))
    graft(model, ["a[0]", "b c/d-é"])
    assert list(slots_of(model).places().values()) == ["a[0]", "b c/d-é"]


class Chain(nn.ModuleList):
    """A list of layers that iterates over itself, by slices and from the end."""

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self[:-1]:
            hidden = torch.relu(layer(hidden))
        return self[-1](hidden) * len(self)


class Longer(Chain):
    """Overrides the length of the list, and uses the original one."""

    def __len__(self) -> int:
        return super().__len__() + 0

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.stack([layer(hidden) for layer in self]).sum(0) / len(self)


class Heads(nn.ModuleDict):
    """Iterates over itself in every way that a dict has."""

    def forward(self, hidden: Tensor) -> dict[str, Tensor]:
        assert list(self) == list(self.keys()) == [name for name, _ in self.items()]
        assert "_esper" not in self
        outputs = [head(hidden) for head in self.values()]
        return {name: output / len(self) for name, output in zip(self, outputs, strict=True)}


linear = partial(nn.Linear, 4, 4)


@pytest.mark.parametrize(
    ("build", "children"),
    [
        (lambda: Chain([linear(), linear(), nn.Linear(4, 2)]), [linear()]),
        (lambda: Longer([linear(), linear()]), [linear()]),
        (lambda: Heads({"0": linear(), "b": linear()}), {"c": linear()}),
        (lambda: nn.Sequential(linear(), nn.ReLU()), linear()),
    ],
)
def test_a_container_with_a_slot_behind_it_has_the_items_that_it_had_and_keeps_them(build, children):
    container = build()
    model = nn.Sequential(container, nn.Identity())
    before, layers, keys, first = model(INPUTS), len(container), list(model.state_dict()), next(container.children())
    graft(model, {"slot": SlotPlace("0", output="b" if isinstance(container, Heads) else None)}, example=INPUTS)
    torch.testing.assert_close(model(INPUTS), before, rtol=0.0, atol=0.0)
    assert len(container) == len(copy.deepcopy(container)) == len(list(container)) == layers
    assert list(model.state_dict()) == keys
    place = "0" if isinstance(container, Heads) else 0
    assert container[place] is first
    for change in (lambda: container.__setitem__(place, linear()), lambda: container.pop(place)):
        with pytest.raises(GraftError, match=r"E319 the layers of a .* with a slot"):
            change()
    fresh = type(container)(children)
    assert not is_grafted(fresh)
    assert len(fresh) == 1
    assert len(graft(type(container)(children), [next(iter(dict(fresh.named_children())))])) == 1
    fresh[place if len(fresh) and place != "0" else "c"] = linear()
    assert len(fresh) == 1
    if not isinstance(container, Heads):
        assert list(container[:1]) == [first]
        assert container[-1] is list(container)[-1]


def mean(model: nn.Module, inputs: Tensor) -> Tensor:
    return torch.stack([child(inputs) for child in model.children()]).mean(0)


@pytest.mark.parametrize(
    ("compute", "mode", "output"),
    [
        (mean, "training", None),
        (lambda net, inputs: mean(net, inputs) if net.training else net.one(inputs), "training", None),
        (lambda net, inputs: net.one(inputs) if net.training else mean(net, inputs), "evaluation", None),
        (lambda net, inputs: [child(inputs) for child in net.children()], "training", 0),
        (lambda net, inputs: {name: child(inputs) for name, child in net.named_children()}, "training", "one"),
    ],
)
def test_host_whose_outputs_would_change_is_refused_unless_wrapped_in_a_module(compute, mode, output):
    model = Net(compute, one=linear(), other=linear())
    before = model(INPUTS)
    with pytest.raises(GraftError, match=f"E318 the outputs of the model in {mode} change once it has slots") as caught:
        graft(nn.Sequential(model), {"slot": SlotPlace("0", output=output)}, example=INPUTS)
    assert "Put that module into one of your own" in str(caught.value)
    assert type(model) is Net
    assert not is_grafted(model)
    torch.testing.assert_close(model(INPUTS), before, rtol=0.0, atol=0.0)
    held = graft(nn.Sequential(nn.Sequential(model)), {"slot": SlotPlace("0", output=output)}, example=INPUTS)
    torch.testing.assert_close(held(INPUTS), before, rtol=0.0, atol=0.0)


@pytest.mark.parametrize(
    ("first", "second", "same"),
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
def test_outputs_are_alike_up_to_rounding(first, second, same):
    assert alike(first, second) is same


def test_buffers_that_a_pass_fills_replaces_or_registers_are_as_before_after_grafting():
    def compute(net: Any, inputs: Tensor) -> Tensor:
        if not hasattr(net, "late"):
            net.register_buffer("late", inputs.mean(0))
        if net.first is None:
            net.first = inputs.mean(0)
        net.mean = 0.5 * net.mean + 0.5 * inputs.mean(0)
        return net.layer(inputs) + net.first + net.late - net.mean

    model = Net(compute, layer=linear(), mean=torch.zeros(4))
    model.register_buffer("first", None)
    mean = model.mean
    graft(model, ["layer"], example=INPUTS)
    assert list(model.state_dict()) == ["mean", "layer.weight", "layer.bias"]
    assert model.mean is mean
    assert not mean.any()
    assert not hasattr(model, "late")
    model(INPUTS + 5.0)
    assert torch.equal(model.first, (INPUTS + 5.0).mean(0))
    assert torch.equal(model.late, model.first)


@pytest.mark.filterwarnings("ignore:`torch.jit", "ignore:Converting a tensor")
@pytest.mark.parametrize("wrap", [lambda model: model, nn.Sequential], ids=["itself", "within another"])
def test_grafted_model_can_be_traced_but_not_scripted(wrap):
    model = graft(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), ["0"], example=INPUTS)
    add_seed(model, "0")
    with pytest.raises(GraftError, match="E315 a grafted Sequential cannot be scripted"):
        torch.jit.script(wrap(model))
    assert torch.equal(torch.jit.trace(model, INPUTS)(INPUTS), model(INPUTS))


def test_grafted_graph_module_can_be_changed_and_recompiled():
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


def test_slots_and_grafted_models_have_a_short_repr() -> None:
    model = graft(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), {"early": "0", "late": "1"}, example=torch.randn(2, 4))
    slots = slots_of(model)
    assert repr(slots.named("early")) == "<Slot early: free>"
    for fossil in (True, False):
        add_seed(model, "early", fossil=fossil)
    assert repr(slots.named("early")) == "<Slot early: test/bend fossilised, test/bend holding>"
    assert len(str(model).splitlines()) == 9
    assert "    (_esper): <Slot early: " in str(model)
