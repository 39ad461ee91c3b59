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


class Blocks(nn.Module):
    """A transformer or a convolutional network: a stem, blocks in a list, and a head."""

    def __init__(self, entrance: nn.Module, blocks: list[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.entrance, self.blocks, self.head = entrance, nn.ModuleList(blocks), head

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.entrance(hidden)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden.flatten(1) if hidden.ndim == 4 else hidden.mean(1))


def recurrent() -> nn.Module:
    def compute(net: Any, ids: Tensor) -> Tensor:
        hidden, _ = net.mix(net.twice(net.twice(net.embed(ids))))
        return net.head(hidden[:, -1])

    parts = {"embed": nn.Embedding(9, 8), "mix": nn.GRU(8, 8, batch_first=True)}
    return Net(compute, **parts, head=nn.Linear(8, 2), twice=nn.Linear(8, 8))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    return Blocks(nn.Linear(5, 8), [layer, *(nn.Linear(8, 8) for _ in range(9))], nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("build", "inputs", "places"),
    [
        (
            lambda: nn.Sequential(nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(40, 2)),
            torch.randn(4, 1, 12),
            {"2": "sequence"},
        ),
        (
            lambda: nn.Sequential(
                nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 2)
            ),
            torch.randn(4, 6),
            {"0": "vector", "0.1": "vector"},
        ),
        (
            lambda: Blocks(nn.Conv2d(3, 4, 3), [normed(4) for _ in range(2)], nn.Linear(144, 2)),
            torch.randn(4, 3, 8, 8),
            {"entrance": "image", "blocks.0": "image", "blocks.1": "image"},
        ),
        (
            encoder,
            torch.randn(4, 7, 5),
            {"entrance": "tokens", "blocks.2": "tokens", "blocks.6": "tokens", "blocks.9": "tokens"},
        ),
        (recurrent, torch.randint(9, (4, 7)), {"embed": "tokens", "mix": "tokens"}),
    ],
    ids=["activations", "inside of one block", "functional blocks", "spread over ten blocks", "called twice"],
)
def test_automatic_places_are_found(build, inputs, places):
    model = build()
    attach_slots(model, "auto", Example.of(inputs))
    assert {slot.name: slot.site.kind for slot in slots_of(model).each() if slot.site} == places
