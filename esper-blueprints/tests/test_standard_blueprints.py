"""Do the standard blueprints keep their promises, and can they learn what they are for?"""

from __future__ import annotations

import copy
import subprocess
import sys
from importlib import import_module

import pytest
import torch

from esper_blueprints import plugin
from esper_blueprints.conv_light import ConvLight
from esper_blueprints.mlp import Mlp
from esper_blueprints.pointwise import Pointwise
from esper_core import BlueprintSpec, Site


class Book:
    """A registry that only writes down."""

    def __init__(self):
        self.entries = {}

    def add(self, name, target, spec):
        assert name not in self.entries
        module, _, attribute = target.partition(":")
        self.entries[name] = (getattr(import_module(module), attribute), spec)


def registered():
    book = Book()
    plugin.esper_register_blueprints(registry=book)
    return book.entries


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def test_the_plugin_registers_these():
    entries = registered()
    assert {name: factory for name, (factory, _) in entries.items()} == {
        "conv_light": ConvLight,
        "mlp": Mlp,
        "pointwise": Pointwise,
    }
    assert all(isinstance(spec, BlueprintSpec) and spec.starts_as_identity for _, spec in entries.values())


@pytest.mark.parametrize("c", [1, 2, 7, 8, 33])
def test_parameters_are_counted_by_hand_for_several_widths(c):
    def count(block):
        return sum(parameter.numel() for parameter in block.parameters())

    assert count(ConvLight(Site("sequence", c, (9,)))) == 2 * (5 * c * c + c)
    assert count(ConvLight(Site("image", c, (9, 9)))) == 2 * (25 * c * c + c)
    assert count(Pointwise(Site("sequence", c, (9,)))) == (4 * c * c + 4 * c) + (4 * c * c + c)
    assert count(Pointwise(Site("image", c, (9, 9)))) == (4 * c * c + 4 * c) + (4 * c * c + c)
    assert count(Mlp(Site("vector", c))) == (2 * c * c + 2 * c) + (2 * c * c + c)
    assert count(Mlp(Site("tokens", c, (5,)))) == (2 * c * c + 2 * c) + (2 * c * c + c)


def neighbours(x):
    return x + 0.5 * torch.relu(x.roll(1, dims=-1))


def features(x):
    return x + 0.5 * torch.relu(x.flip(dims=(1,)))


def token_features(x):
    return x + 0.5 * torch.relu(x.flip(dims=(2,)))


@pytest.mark.parametrize(
    ("factory", "site", "teacher"),
    [
        (ConvLight, Site("sequence", 4, (16,)), neighbours),
        (ConvLight, Site("image", 4, (8, 8)), neighbours),
        (Pointwise, Site("sequence", 4, (16,)), features),
        (Pointwise, Site("image", 4, (8, 8)), features),
        (Mlp, Site("vector", 8), features),
        (Mlp, Site("tokens", 8, (5,)), token_features),
    ],
)
def test_the_loss_falls_to_a_half_within_fifty_steps(factory, site, teacher):
    block, inputs = factory(site), torch.randn(64, *site.example_shape)
    optimizer = torch.optim.Adam(block.parameters(), lr=1e-2)
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        loss = (block(inputs) - teacher(inputs)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_a_convolution_sees_four_neighbours_to_each_side_and_a_pointwise_block_none():
    site = Site("sequence", 2, (21,))

    def reached(block):
        for parameter in block.parameters():
            torch.nn.init.normal_(parameter)
        inputs = torch.randn(64, 2, 21)
        changed = inputs.clone()
        changed[:, :, 10] += 5
        return (block(inputs) != block(changed)).any(dim=0).any(dim=0).nonzero().flatten().tolist()

    assert reached(ConvLight(site)) == list(range(6, 15))
    assert reached(Pointwise(site)) == [10]


@pytest.mark.parametrize(
    ("factory", "site"),
    [
        (ConvLight, Site("sequence", 3, (8,))),
        (Pointwise, Site("image", 3, (4, 4))),
        (Mlp, Site("vector", 3)),
    ],
)
def test_a_deepcopy_shares_nothing(factory, site):
    block = factory(site)
    twin = copy.deepcopy(block)
    before = {name: value.clone() for name, value in block.state_dict().items()}
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1)
    assert all(torch.equal(value, before[name]) for name, value in block.state_dict().items())
    assert not torch.equal(twin(torch.ones(2, *site.example_shape)), block(torch.ones(2, *site.example_shape)))


@pytest.mark.parametrize(
    ("factory", "site"),
    [(ConvLight, Site("vector", 3)), (Pointwise, Site("tokens", 3, (4,))), (Mlp, Site("image", 3, (4, 4)))],
)
def test_a_site_of_another_kind_is_refused(factory, site):
    with pytest.raises(ValueError, match=f"Received: {site.kind}"):
        factory(site)


def test_importing_the_plugin_imports_no_torch():
    code = "import esper_blueprints.plugin, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
