"""Informed birth: good initial weights, still the identity, and robust to any batch."""

import copy
from functools import partial

import pytest
import torch
from torch.nn import functional

from esper_blueprints.conv_light import ConvLight
from esper_blueprints.lora import Lora
from esper_core import Site

LINEAR = [
    (partial(Lora, rank=4), Site("vector", 16, inputs=16)),
    (partial(Lora, rank=3), Site("tokens", 12, (5,), inputs=12)),
    (partial(Lora, rank=4), Site("tokens", 32, (5,), inputs=32)),
    (partial(Lora, rank=16), Site("tokens", 64, (5,), inputs=64)),
    (partial(Lora, rank=4), Site("image", 32, (3, 2), inputs=32)),
]
CONVOLUTIONS = [(ConvLight, Site("sequence", 6, (20,))), (ConvLight, Site("image", 4, (7, 6)))]
ALL = [LINEAR[1], LINEAR[2], *CONVOLUTIONS]


def probe(site, count=32):
    """Return activations behind a ReLU, and gradients that correlate with them."""
    inputs = torch.randn(count, *site.example_shape).relu()
    return inputs, 1e-4 * (torch.randn_like(inputs) + inputs.roll(1, dims=-1) - inputs.mean())


def inform(block, inputs, gradients):
    with torch.no_grad():
        block.inform(inputs, gradients)
    return block


def first_and_last(block):
    return (block.conv_a, block.conv_b) if isinstance(block, ConvLight) else (block.down, block.up)


def slow_birth_gradient(block, inputs, gradients):
    """Return the squared gradient norm of the zero layer's weights, by autograd.

    Filters are centred at the ReLU and have the same deviation.
    """
    first, last = block.conv_a, block.conv_b
    convolve = functional.conv1d if inputs.dim() == 3 else functional.conv2d
    response = convolve(inputs, first.weight.detach(), padding=2)
    over = (0, *range(2, response.dim()))
    response = response - response.mean(dim=over, keepdim=True)
    response = response / response.square().mean(dim=over, keepdim=True).sqrt()
    weight = torch.zeros_like(last.weight, requires_grad=True)
    (gradient,) = torch.autograd.grad((convolve(response.relu(), weight, padding=2) * gradients).sum(), [weight])
    return float(gradient.square().sum())


@pytest.mark.parametrize(("factory", "site"), CONVOLUTIONS)
def test_no_random_convolution_starts_with_a_larger_gradient(factory, site):
    inputs, gradients = probe(site)
    random_births = [slow_birth_gradient(factory(site), inputs, gradients) for _ in range(20)]
    assert slow_birth_gradient(inform(factory(site), inputs, gradients), inputs, gradients) > 1.5 * max(random_births)


@pytest.mark.parametrize(("factory", "site"), CONVOLUTIONS)
def test_filters_are_the_leading_directions_of_all_patches(factory, site):
    inputs, gradients = probe(site)
    flat = inputs.unflatten(2, (1, -1)) if inputs.dim() == 3 else inputs
    flat_gradients = gradients.unflatten(2, (1, -1)) if inputs.dim() == 3 else gradients
    kernel, padding = ((1, 5), (0, 2)) if inputs.dim() == 3 else ((5, 5), (2, 2))
    patches = functional.unfold(flat, kernel, padding=padding).transpose(1, 2).flatten(0, 1)
    around = functional.unfold(flat_gradients, kernel, padding=padding).transpose(1, 2).flatten(0, 1)
    stretched = torch.linalg.svdvals(around.T @ (patches - patches.mean(dim=0)))[: site.channels]
    rows = inform(factory(site), inputs, gradients).conv_a.weight.detach().flatten(1)
    rows = rows / rows.norm(dim=1, keepdim=True)
    torch.testing.assert_close(rows @ rows.T, torch.eye(len(rows)), rtol=0, atol=1e-4)
    reached = (around.T @ (patches - patches.mean(dim=0)) @ rows.T).norm()
    assert 0.98 * stretched.norm() < reached <= 1.0001 * stretched.norm()


@pytest.mark.parametrize(("factory", "site"), CONVOLUTIONS)
def test_filters_bend_in_the_middle_and_are_no_louder_than_plain_ones(factory, site):
    inputs, gradients = probe(site)
    plain = factory(site)
    informed = inform(copy.deepcopy(plain), 50 * inputs, gradients)
    over = (0, *range(2, inputs.dim()))
    before, after = plain.conv_a(50 * inputs).detach(), informed.conv_a(50 * inputs).detach()
    torch.testing.assert_close(after.mean(dim=over), torch.zeros(site.channels), rtol=0, atol=1e-3)
    assert (after.std(dim=over) <= 1.001 * before.std(dim=over).mean()).all()
    sizes = [block.conv_a.weight.detach().flatten(1).norm(dim=1) for block in (informed, plain)]
    assert (sizes[0] <= 1.001 * sizes[1]).all()


@pytest.mark.parametrize(("factory", "site"), LINEAR)
def test_rows_keep_their_sizes_and_are_the_leading_directions(factory, site):
    inputs, gradients = probe(site)
    plain = factory(site)
    informed = inform(copy.deepcopy(plain), inputs, gradients)
    after, before = (block.down.weight.detach().flatten(1) for block in (informed, plain))
    torch.testing.assert_close(after.norm(dim=1), before.norm(dim=1))
    if site.kind == "image":
        inputs, gradients = inputs.movedim(1, -1), gradients.movedim(1, -1)
    product = gradients.flatten(0, -2).T @ inputs.flatten(0, -2)
    rows = functional.normalize(after, dim=1)
    stretched = torch.linalg.svdvals(product)[: len(rows)]
    assert 0.98 * stretched.norm() < (product @ rows.T).norm() <= 1.0001 * stretched.norm()


@pytest.mark.parametrize(("factory", "site"), ALL)
def test_an_informed_block_is_the_identity_and_learns_with_every_parameter(factory, site):
    """Informing changes the first layer only. An adapter is zero at birth, and is added to its layer."""
    inputs, gradients = probe(site)
    plain = factory(site)
    block = inform(copy.deepcopy(plain), inputs, gradients)
    first, last = first_and_last(block)
    assert not torch.equal(first.weight, first_and_last(plain)[0].weight)
    assert not any(parameter.any() for parameter in last.parameters())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in block.parameters())
    assert torch.equal(block(inputs), torch.zeros_like(inputs) if isinstance(block, Lora) else inputs)
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (block(inputs) - torch.randn_like(inputs)).square().mean().backward()
        optimizer.step()
    assert all(parameter.grad.any() for parameter in block.parameters())


@pytest.mark.parametrize(("factory", "site"), ALL)
def test_a_block_is_informed_alike_where_torch_defaults_to_float64(factory, site):
    probed = probe(site)
    plain = factory(site)
    expected = inform(copy.deepcopy(plain), *probed).state_dict()
    try:
        torch.set_default_dtype(torch.float64)
        informed = inform(copy.deepcopy(plain), *probed)
        double = inform(copy.deepcopy(plain).double(), *(values.double() for values in probed))
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(value, expected[name]) for name, value in informed.state_dict().items())
    torch.testing.assert_close(dict(double.float().state_dict()), dict(expected))


@pytest.mark.parametrize("spoilt", ["gradients of zero", "inputs of zero", "inputs not finite", "gradients not finite"])
@pytest.mark.parametrize(("factory", "site"), ALL)
def test_an_invalid_probe_leaves_the_block_unchanged(factory, site, spoilt):
    inputs, gradients = probe(site)
    plain = factory(site)
    tensor = inputs if spoilt.startswith("inputs") else gradients
    if spoilt.endswith("zero"):
        tensor.zero_()
    else:
        tensor.view(-1)[3] = float("nan" if tensor is inputs else "inf")
    informed = inform(copy.deepcopy(plain), inputs, gradients)
    before, after = plain.state_dict(), informed.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize("scene", ["one example", "constant inputs", "one example of one feature that counts"])
@pytest.mark.parametrize(("factory", "site"), ALL)
def test_a_poor_probe_gives_finite_weights_that_are_no_larger(factory, site, scene):
    inputs, gradients = probe(site, count=1 if "one example" in scene else 32)
    if scene == "constant inputs":
        inputs.fill_(3.0)
    if "counts" in scene:
        gradients.view(-1)[1:] = 0
    plain = factory(site)
    informed = inform(copy.deepcopy(plain), inputs, gradients)
    weight, before = (first_and_last(block)[0].weight.detach().flatten(1) for block in (informed, plain))
    assert all(value.isfinite().all() for value in informed.state_dict().values())
    assert (weight.norm(dim=1) <= 1.001 * before.norm(dim=1)).all()
    assert torch.linalg.matrix_rank(weight, rtol=1e-4) == len(weight), "a row that is named no direction stays its own"
