"""Adapters: blocks beside a module, which get its inputs."""

import pytest
import torch
from torch import Tensor, nn

from esper_core import BlueprintSpec, SlotPlace, graft
from esper_core.fused.networks import signature_of
from esper_core.fused.rows import NotFusedError
from esper_core.growth import Variety, slots_of
from esper_core.growth.journal import Network
from esper_core.growth.rebuilding import rebuild
from esper_core.growth.trials import audition
from esper_core.leyline import Action, GrowthError, Op, Site
from tests.support.adapters import SPEC, TOKENS, Adapter, grow, host
from tests.support.core_worlds import make_garden


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


def test_an_adapter_that_reads_its_layer_gets_that_and_what_it_returned():
    class Reader(Adapter):
        def forward(self, inputs: Tensor, layer: nn.Linear, outputs: Tensor) -> Tensor:
            return super().forward(inputs) + outputs @ layer.weight @ layer.weight.T

    spec = BlueprintSpec("tokens", starts_as_identity=True, adapts=True, reads_layer=True)
    model = host(nn.Linear(8, 6))
    first, reader = grow(model), grow(model, Reader, spec=spec)
    hidden = model.first(TOKENS)
    plain = model.layer.forward(hidden)  # without hooks: not what the first adapter made of it
    changed = plain + first.block(hidden) + reader.block(hidden, model.layer, plain)
    torch.testing.assert_close(model(TOKENS), model.last(changed))
    variety = Variety("t/reader", spec, Reader)
    problem = audition(variety, Site("tokens", 6, (5,), inputs=8), torch.device("cpu"))
    assert problem is not None
    assert problem.code == "E326"  # it is called with a layer, and what that returns is not zero
    with pytest.raises(NotFusedError, match=r"reads the weights of its layer"):
        signature_of(model)


def test_an_adapter_that_chooses_its_first_weights_sees_what_it_will_get():
    seen = []

    class Informed(Adapter):
        def inform(self, inputs: Tensor, gradients: Tensor) -> None:
            seen.append((inputs, gradients.shape))

    spec = BlueprintSpec("tokens", starts_as_identity=True, adapts=True)
    model = host(nn.Linear(8, 6))
    garden = make_garden(model, Variety("t/b", spec, Informed), probe=lambda model: model(TOKENS).square().mean())
    garden.apply(Action(Op.GERMINATE, "here", "t/b"), 0)
    ((inputs, gradients),) = seen
    assert torch.equal(inputs, model.first(TOKENS))
    assert gradients == (4, 5, 6)


def test_an_adapter_is_refused_where_its_module_gets_no_features():
    with pytest.raises(GrowthError, match=r'"t/b" cannot grow in slot "here": it is an adapter') as caught:
        make_garden(host(nn.Identity()), Variety("t/b", SPEC, Adapter))
    assert caught.value.problems[0].code == "E305"


def test_a_grown_adapter_is_rebuilt_from_its_state_dict():
    model, other = host(nn.Linear(8, 6)), host(nn.Linear(8, 6))
    grow(model)
    state = model.state_dict()
    network = Network.in_state(state)
    assert network is not None
    rebuild(other, network, state, lambda _: Variety("t/b", SPEC, Adapter), source="the state dict")
    assert torch.equal(other(TOKENS), model(TOKENS))
    assert slots_of(other).named("here").site == slots_of(model).named("here").site
