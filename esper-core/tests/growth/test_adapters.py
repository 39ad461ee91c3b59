"""Adapters: blocks beside a module, which get its inputs, and are merged into its weight on export."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core import BlueprintSpec, SlotPlace, graft
from esper_core.growth import Seed, Variety, slots_of
from esper_core.growth.grafting import alike
from esper_core.growth.journal import network_in
from esper_core.growth.rebuilding import rebuild
from esper_core.leyline import Action, Blend, GrowthError, Op, Site
from esper_grow import export
from tests.support.core_worlds import add_seed, make_garden

SPEC = BlueprintSpec(("vector", "tokens"), "2*(i + c)", starts_as_identity=True, adapts=True)
TOKENS = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0))


class Adapter(nn.Sequential):
    """A map of rank 2, zero at birth."""

    def __init__(self, site: Site) -> None:
        super().__init__(nn.Linear(site.inputs, 2, bias=False), nn.Linear(2, site.channels, bias=False))
        nn.init.zeros_(self[1].weight)


class Bent(Adapter):
    """An adapter that is not linear."""

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self[1](torch.tanh(self[0](inputs)))
        return outputs


class Transposed(nn.Module):
    """A linear layer as in the older models of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.addmm(self.bias, inputs.flatten(0, -2), self.weight).view_as(inputs)


class Twice(nn.Linear):
    """A linear layer whose outputs pass a ReLU."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).relu()


class Host(nn.Module):
    """A layer between two others; its inputs come by position, or by keyword."""

    def __init__(self, layer: nn.Module, *, by_name: bool = False) -> None:
        super().__init__()
        self.first, self.layer, self.by_name = nn.Linear(8, 8), layer, by_name
        self.last = nn.LazyLinear(3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        outputs: Tensor = self.last(self.layer(input=hidden) if self.by_name else self.layer(hidden))
        return outputs


def host(layer: nn.Module, **more: Any) -> Host:
    torch.manual_seed(0)
    model = Host(layer, **more)
    model(TOKENS)
    return graft(model, {"here": SlotPlace("layer", "tokens", stack=3)}, example=TOKENS)


def grow(model: nn.Module, block: Callable[[Site], nn.Module] = Adapter, blend: Blend = Blend.ADD) -> Seed:
    """Put a fossil with random weights into the slot."""
    number = len(slots_of(model).named("here").seeds)
    return add_seed(model, "here", block, fossil=True, seed=number, noise=0.3, spec=SPEC, blueprint="t/b", blend=blend)


@pytest.mark.parametrize(
    ("layer", "by_name", "inputs"),
    [
        (nn.Linear(8, 6), False, 8),
        (nn.Sequential(nn.Linear(8, 6), nn.GELU()), False, 8),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), False, 8),
        (nn.Linear(8, 6), True, 0),
        (nn.Identity(), False, 0),
        (nn.ReLU(inplace=True), False, 0),  # it overwrites its inputs
        (nn.Dropout(), False, 0),  # in evaluation it returns its inputs
        (nn.Unflatten(2, (2, 4)), False, None),
    ],
)
def test_a_site_says_how_many_features_its_module_gets(layer, by_name, inputs):
    if inputs is None:
        model = graft(nn.Sequential(nn.Linear(8, 8), layer, nn.Flatten(1)), {"here": SlotPlace("2")}, example=TOKENS)
        inputs = 0
    else:
        model = host(layer, by_name=by_name)
    site = slots_of(model).named("here").site
    assert site is not None
    assert site.inputs == inputs
    assert (SPEC.misfit(site) is None) == (inputs > 0)


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_an_adapter_adds_a_map_of_what_its_module_gets(alpha):
    model = host(nn.Linear(8, 6))
    seed = grow(model)
    seed.alpha.aim(alpha, 0)
    hidden = model.first(TOKENS)
    expected = model.last(
        nn.functional.linear(hidden, model.layer.weight, model.layer.bias) + alpha * seed.block(hidden)
    )
    torch.testing.assert_close(model(TOKENS), expected)


def test_an_adapter_that_chooses_its_first_weights_sees_what_it_will_get():
    seen = []

    class Informed(Adapter):
        def inform(self, inputs: Tensor, gradients: Tensor) -> None:
            seen.append((inputs, gradients.shape))

    spec = BlueprintSpec("tokens", "2*(i + c)", starts_as_identity=True, adapts=True, traits=("informed_birth",))
    model = host(nn.Linear(8, 6))
    garden = make_garden(model, Variety("t/b", spec, Informed), probe=lambda model: model(TOKENS).square().mean())
    garden.apply(Action(Op.GERMINATE, "here", "t/b"), 0)
    ((inputs, gradients),) = seen
    assert torch.equal(inputs, model.first(TOKENS))
    assert gradients == (4, 5, 6)


def test_an_adapter_is_refused_where_its_module_gets_no_features():
    with pytest.raises(GrowthError, match=r'"t/b" cannot grow in slot "here": it is an adapter') as caught:
        make_garden(host(nn.Identity()), Variety("t/b", SPEC, Adapter))
    assert caught.value.problems[0].code == "E303"


def test_a_grown_adapter_is_rebuilt_from_its_state_dict():
    model, other = host(nn.Linear(8, 6)), host(nn.Linear(8, 6))
    grow(model)
    state = model.state_dict()
    network = network_in(state)
    assert network is not None
    rebuild(other, network, state, lambda _: Variety("t/b", SPEC, Adapter), source="the state dict")
    assert torch.equal(other(TOKENS), model(TOKENS))
    assert slots_of(other).named("here").site == slots_of(model).named("here").site


@pytest.mark.parametrize(
    ("layer", "block", "blend", "merged"),
    [
        (lambda: nn.Linear(8, 6), Adapter, Blend.ADD, True),
        (lambda: nn.Linear(8, 6, bias=False), Adapter, Blend.RESIDUAL, True),
        (Transposed, Adapter, Blend.ADD, True),
        (lambda: nn.Linear(8, 6), Bent, Blend.ADD, False),
        (lambda: nn.Linear(8, 6), Adapter, Blend.GATE, False),
        (lambda: Twice(8, 8), Adapter, Blend.ADD, False),
        (lambda: nn.Sequential(nn.Linear(8, 8)), Adapter, Blend.ADD, False),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), Adapter, Blend.ADD, False),
    ],
)
def test_a_linear_adapter_is_merged_into_a_plain_linear_layer(layer, block, blend, merged):
    torch.manual_seed(0)
    model = host(layer())
    grow(model, block, blend)
    grow(model, block, blend)
    before = copy.deepcopy(model.state_dict())
    plain = export(model, example=TOKENS)  # compares the outputs
    assert hasattr(plain, "grown") != merged
    with torch.no_grad():
        assert alike(plain(TOKENS), model(TOKENS))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    if merged:
        assert plain.state_dict().keys() == {name for name in before if not name.startswith("_esper")}


def test_a_tied_weight_and_what_acts_behind_another_block_are_not_merged(tmp_path):
    tied = host(nn.Linear(8, 8))
    tied.first.weight = tied.layer.weight
    grow(tied)
    assert hasattr(export(tied, example=TOKENS), "grown")
    model = host(nn.Linear(8, 6))
    grow(model)
    grow(model, Bent)
    grow(model)
    plain = export(model, path=tmp_path, example=TOKENS)  # writes the source, and runs it
    names = [name for name, _ in plain.get_submodule("grown").named_parameters()]
    assert len(names) == 4
