"""Where a probe tries if no slots are named."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core.growth import Example, slots_of
from esper_grow.probes.places import attach_slots
from tests.support.core_worlds import Net


def normed(channels: int) -> nn.Module:
    """Return a block of functional code around layers: norm last, activation as a function."""

    def compute(net: Any, hidden: Tensor) -> Tensor:
        return torch.relu(hidden + net.norm(net.conv(hidden)))

    return Net(compute, conv=nn.Conv2d(channels, channels, 3, padding=1), norm=nn.BatchNorm2d(channels))


def in_blocks(entrance: nn.Module, blocks: list[nn.Module], head: nn.Module) -> nn.Module:
    """Return a transformer or a convolutional network: a stem, blocks in a list, and a head."""

    def compute(net: Any, inputs: Tensor) -> Tensor:
        hidden = net.entrance(inputs)
        for block in net.blocks:
            hidden = block(hidden)
        return net.head(hidden.flatten(1) if hidden.ndim == 4 else hidden.mean(1))

    return Net(compute, entrance=entrance, blocks=nn.ModuleList(blocks), head=head)


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(40, 2))


def one_block() -> nn.Module:
    return nn.Sequential(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 2))


def functional_blocks() -> nn.Module:
    return in_blocks(nn.Conv2d(3, 4, 3), [normed(4) for _ in range(2)], nn.Linear(144, 2))


def called_twice() -> nn.Module:
    def compute(net: Any, ids: Tensor) -> Tensor:
        hidden, _ = net.mix(net.twice(net.twice(net.embed(ids))))
        return net.head(hidden[:, -1])

    parts = {"embed": nn.Embedding(9, 8), "mix": nn.GRU(8, 8, batch_first=True)}
    return Net(compute, **parts, head=nn.Linear(8, 2), twice=nn.Linear(8, 8))


def ten_blocks() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    return in_blocks(nn.Linear(5, 8), [layer, *(nn.Linear(8, 8) for _ in range(9))], nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("build", "inputs", "kind", "places"),
    [
        (convolutional, torch.randn(4, 1, 12), "sequence", ["2"]),
        (one_block, torch.randn(4, 6), "vector", ["0", "0.1"]),
        (functional_blocks, torch.randn(4, 3, 8, 8), "image", ["entrance", "blocks.0", "blocks.1"]),
        (ten_blocks, torch.randn(4, 7, 5), "tokens", ["entrance", "blocks.2", "blocks.6", "blocks.9"]),
        (called_twice, torch.randint(9, (4, 7)), "tokens", ["embed", "mix"]),
    ],
    ids=["activations", "inside of one block", "functional blocks", "spread over ten blocks", "called twice"],
)
def test_automatic_places_are_found(build, inputs, kind, places):
    model = build()
    attach_slots(model, "auto", Example.of(inputs))
    assert {slot.name: slot.site.kind for slot in slots_of(model) if slot.site} == dict.fromkeys(places, kind)
