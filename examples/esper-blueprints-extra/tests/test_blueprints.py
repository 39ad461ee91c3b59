"""Each blueprint computes what its formula says."""

import pytest
import torch
from torch import nn

from esper_blueprints_extra.haar import Haar, bands
from esper_blueprints_extra.poly import Poly
from esper_blueprints_extra.shift_mix import ShiftMix, shift
from esper_core import Site


def filled(block: nn.Module) -> nn.Module:
    """Fill the block's parameters at random, as after training."""
    for parameter in block.parameters():
        nn.init.normal_(parameter)
    return block


@pytest.mark.parametrize("shape", [(2, 7, 5), (2, 3, 1), (2, 10, 4, 6), (1, 2, 3, 3)])
def test_a_shift_loses_nothing(shape):
    inputs = torch.randn(shape)
    assert sorted(shift(inputs).flatten().tolist()) == sorted(inputs.flatten().tolist())


def test_a_shift_reaches_every_neighbour_of_an_image():
    inputs = torch.zeros(1, 5, 5, 5)
    inputs[:, :, 2, 2] = 1
    places = {tuple(place) for _, _, *place in shift(inputs).nonzero().tolist()}
    assert places == {(2, 2), (1, 2), (3, 2), (2, 1), (2, 3)}


@pytest.mark.parametrize("shape", [(2, 3, 8), (2, 3, 7), (2, 3, 1), (2, 3, 4, 5), (2, 3, 1, 6)])
def test_the_bands_add_up_and_are_orthogonal(shape):
    inputs = torch.randn(shape, dtype=torch.float64)
    parts = bands(inputs)
    assert len(parts) == 2 ** (len(shape) - 2)
    torch.testing.assert_close(sum(parts), inputs)
    for i, band in enumerate(parts):
        for other in parts[:i]:
            torch.testing.assert_close((band * other).sum(), torch.zeros((), dtype=torch.float64))


def test_haar_weighs_each_band_by_its_own_gain():
    block = filled(Haar(Site("sequence", 3, (8,)))).double()
    inputs = torch.randn(2, 3, 8, dtype=torch.float64)
    coarse, fine = bands(inputs)
    weighted = block.gains[0] * coarse + block.gains[1] * fine
    torch.testing.assert_close(block(inputs), inputs + block.mix(weighted.relu()))


def test_poly_is_of_the_second_degree():
    block = filled(Poly(Site("vector", 4))).double()
    base = torch.randn(3, 4, dtype=torch.float64)
    values = [block(scale * base) - scale * base for scale in (0.0, 1.0, 2.0, 3.0)]
    third = values[3] - 3 * values[2] + 3 * values[1] - values[0]
    second = values[2] - 2 * values[1] + values[0]
    torch.testing.assert_close(third, torch.zeros_like(third), atol=1e-9, rtol=0)
    assert second.abs().min() > 1e-6


@pytest.mark.parametrize(("factory", "kind"), [(ShiftMix, "vector"), (Haar, "tokens"), (Poly, "image")])
def test_a_site_that_a_blueprint_cannot_grow_in_is_refused(factory, kind):
    with pytest.raises(ValueError, match=f"Received: {kind}"):
        factory(Site(kind, 4, (3, 3) if kind == "image" else ()))
