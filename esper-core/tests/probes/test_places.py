"""Where a probe tries if no slots are named."""

import pytest
import torch
from torch import Tensor, nn

from esper_core.growth import Example, slots_of
from esper_core.probes.places import attach_slots


class Normed(nn.Module):
    """A block of functional code around layers: norm last, activation as a function."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.relu(hidden + self.norm(self.conv(hidden)))


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


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(9, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 2)
        self.twice = nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> Tensor:
        hidden, _ = self.mix(self.twice(self.twice(self.embed(ids))))
        return self.head(hidden[:, -1])


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
            lambda: Blocks(nn.Conv2d(3, 4, 3), [Normed(4) for _ in range(2)], nn.Linear(144, 2)),
            torch.randn(4, 3, 8, 8),
            {"entrance": "image", "blocks.0": "image", "blocks.1": "image"},
        ),
        (
            encoder,
            torch.randn(4, 7, 5),
            {"entrance": "tokens", "blocks.2": "tokens", "blocks.6": "tokens", "blocks.9": "tokens"},
        ),
        (Recurrent, torch.randint(9, (4, 7)), {"embed": "tokens", "mix": "tokens"}),
    ],
    ids=["activations", "inside of one block", "functional blocks", "spread over ten blocks", "called twice"],
)
def test_automatic_places_are_found(build, inputs, places):
    model = build()
    attach_slots(model, "auto", Example.of(inputs))
    assert {slot.name: slot.site.kind for slot in slots_of(model).each() if slot.site} == places
