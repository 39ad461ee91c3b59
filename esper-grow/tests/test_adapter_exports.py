"""Adapters are merged into the weight of a linear layer when a network is exported."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from esper_blueprints.dora import Dora
from esper_blueprints.lora import Lora
from esper_core import EsperError, SlotPlace, graft
from esper_core.growth.grafting import alike
from esper_core.leyline import Blend
from esper_grow import export
from tests.support.adapters import SPEC, TOKENS, Adapter, Bent, grow, host
from tests.support.core_worlds import Net


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


@pytest.mark.parametrize(
    ("layer", "block", "blend", "merged"),
    [
        (lambda: nn.Linear(8, 6), Adapter, Blend.ADD, True),
        (lambda: nn.Linear(8, 6, bias=False), Adapter, Blend.RESIDUAL, True),
        (Transposed, Adapter, Blend.ADD, True),
        (lambda: nn.Linear(8, 6), Bent, Blend.ADD, False),
        (lambda: nn.Linear(8, 6), Adapter, Blend.GATED, False),
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
    assert ("grown" in str(plain)) != merged
    with torch.no_grad():
        assert alike(plain(TOKENS), model(TOKENS))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    if merged:
        assert plain.state_dict().keys() == {name for name in before if "_esper" not in name}


@pytest.mark.parametrize("layer", [nn.Conv2d(8, 6, 1), nn.Conv1d(8, 6, 1, bias=False)])
def test_a_lora_is_merged_into_a_1x1_convolution(layer):
    images = torch.randn(4, 8, *[5] * (layer.weight.ndim - 2))
    model = graft(nn.Sequential(nn.Identity(), layer), {"here": SlotPlace("1")}, example=images)
    grow(model.eval(), partial(Lora, dropout=0.5), spec=replace(SPEC, accepts=("image", "sequence")))
    plain = export(model, example=images)
    assert "grown" not in str(plain)
    torch.testing.assert_close(plain(images), model(images))


def test_an_adapter_that_reads_its_layer_is_merged_if_it_is_the_first():
    for before in ([], [Adapter]):
        model = host(nn.Linear(8, 6))
        for block in before:
            grow(model, block)
        grow(model, partial(Dora, rank=2), spec=replace(SPEC, reads_layer=True))
        if before:
            with pytest.raises(EsperError, match="t/b in here computes with the weight of its layer"):
                export(model)
        else:
            torch.testing.assert_close(export(model)(TOKENS), model(TOKENS))


def test_a_tied_weight_and_what_acts_behind_another_block_are_not_merged(tmp_path):
    tied = host(nn.Linear(8, 8))
    tied.first.weight = tied.layer.weight
    grow(tied)
    assert "grown" in str(export(tied, example=TOKENS))
    read = Net(lambda net, tokens: net.layer(tokens) @ net.layer.weight, layer=nn.Linear(8, 6))
    grow(graft(read, {"here": SlotPlace("layer", "tokens")}, example=TOKENS))
    with pytest.raises(EsperError, match=r"E337 .*differ(?s:.)*merge=False"):
        export(read, example=TOKENS)
    assert "grown" in str(export(read, example=TOKENS, merge=False))
    model = host(nn.Linear(8, 6))
    grow(model)
    grow(model, Bent)
    grow(model)
    plain = export(model, path=tmp_path, example=TOKENS)  # writes the source, and runs it
    names = [name for name, _ in plain.named_parameters() if "grown" in name]
    assert len(names) == 4
