"""Grafting: slots behind modules of a model, their names and keys, and what a graft leaves unchanged."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from esper_core.growth import Garden, Variety, graft, slots_of
from esper_core.leyline import Action, Op, Site, SlotPlace

EXAMPLE = torch.randn(4, 1, 12, generator=torch.Generator().manual_seed(0))


def build(host: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return host()


def test_observing_leaves_parameters_buffers_modes_and_random_numbers_unchanged(
    noisy_host: Callable[[], nn.Module],
) -> None:
    model = build(noisy_host)
    model.drop.eval()
    torch.manual_seed(3)
    state, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    graft(model, ["stem"], example=EXAMPLE)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert model.training
    assert not model.drop.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_slot_has_the_site_of_its_module(noisy_host: Callable[[], nn.Module]) -> None:
    model = graft(build(noisy_host), {"early": "stem", "late": "hidden"}, example=EXAMPLE)
    assert [(slot.name, slot.site) for slot in slots_of(model).each()] == [
        ("early", Site("sequence", 4, (12,))),
        ("late", Site("vector", 8, ())),
    ]


def test_seed_keys_have_one_prefix_and_the_host_keys_never_change(
    noisy_host: Callable[[], nn.Module], local_conv: Variety, make_garden: Callable[..., Garden]
) -> None:
    model = graft(build(noisy_host), ["stem"], example=EXAMPLE)
    keys = list(model.state_dict())
    garden = make_garden(model, local_conv)
    garden.apply(Action(Op.GERMINATE, "stem", local_conv.id), 0)
    assert [key for key in model.state_dict() if key in keys] == keys
    *numbers, journal = [key for key in model.state_dict() if key not in keys]
    assert numbers
    assert all(key.startswith("_esper.stem.seeds.0.") for key in numbers)
    assert journal == "_esper.for_esper_core.load"
    garden.remove("done")
    assert list(model.state_dict()) == keys


def test_pattern_makes_one_slot_per_module_with_its_name() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4)))
    graft(model, {"deep": SlotPlace("*.0", stack=3)}, example=torch.zeros(2, 4))
    assert [(slot.name, slot.at, slot.limit) for slot in slots_of(model).each()] == [
        ("deep:0.0", "0.0", 3),
        ("deep:1.0", "1.0", 3),
    ]


def test_observing_restores_a_buffer_that_the_pass_replaced() -> None:
    class Replacing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, inputs: Tensor) -> Tensor:
            self.mean = 0.5 * self.mean + inputs.mean(0)
            return self.layer(inputs - self.mean)

    model = Replacing()
    buffer = model.mean
    graft(model, ["layer"], example=torch.ones(3, 4))
    assert model.mean is buffer
    assert not buffer.any()


@pytest.mark.parametrize("name", ["type", "values", "keys", "half", "forward", "training", "each"])
def test_slot_may_be_named_like_an_attribute_of_modules(name: str) -> None:
    model = graft(nn.Sequential(nn.Linear(2, 2)), {name: "0"}, example=torch.zeros(2, 2))
    assert slots_of(model).named(name).name == name


def test_a_grafted_sequential_is_indexed_as_before() -> None:
    first, last = nn.Linear(2, 2), nn.Linear(2, 3)
    model = graft(nn.Sequential(first, nn.ReLU(), last), ["0"], example=torch.zeros(2, 2))
    assert len(model) == len(copy.deepcopy(model)) == 3
    assert (next(iter(model)), model[-1]) == (first, last)
    assert [type(layer).__name__ for layer in model[:2]] == ["Linear", "ReLU"]


def test_a_name_with_pattern_characters_is_taken_literally() -> None:
    model = nn.Sequential()
    for name in ("a[0]", "a0", "b c/d-é"):
        model.add_module(name, nn.Linear(4, 4))
    graft(model, ["a[0]", "b c/d-é"])
    assert [slot.at for slot in slots_of(model).each()] == ["a[0]", "b c/d-é"]
