"""Slots on a part of a structured output: seeds act on it, and everything else passes through."""

import pytest
import torch
from torch import Tensor, nn

from esper_core import graft
from esper_core.growth import slots_of
from esper_core.leyline import SlotPlace
from tests.support.structured_outputs import EXAMPLE, KINDS, grown, namespace


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_act_on_the_part_and_the_rest_passes_through(kind):
    model = grown(kind)
    mixed, changed = model.part.mix(EXAMPLE), model.part(EXAMPLE)
    slot, plain = slots_of(model).named("here"), namespace["PACK"][kind](mixed)
    assert type(changed) is type(plain)
    assert torch.equal(model(EXAMPLE), model.head(namespace["TAKE"][kind](changed)))
    assert torch.equal(slot.part.of(changed), slot.seeds[0].block(mixed))
    assert str(slot.part.replaced(changed, mixed)) == str(plain)


class Encoder(nn.Module):
    """A layer of a transformer, a recurrent and a convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 8)
        self.drop = nn.Dropout(0.0)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.gru = nn.GRU(8, 5, batch_first=True, bidirectional=True)
        self.norm = nn.LayerNorm(10)
        self.conv = nn.Sequential(nn.Conv1d(10, 7, 1), nn.ReLU())
        self.pool = nn.AdaptiveAvgPool1d(8)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.drop(self.words(ids))
        hidden = hidden + self.attention(hidden, hidden, hidden)[0]
        hidden = self.norm(self.gru(hidden)[0])
        return self.pool(self.conv(hidden.transpose(1, 2)))


KNOWN = {
    "words": "tokens", "drop": "tokens", "attention": "tokens", "gru": "tokens", "norm": "tokens",
    "conv": "sequence", "pool": "sequence",
}  # fmt: skip


@pytest.mark.parametrize("length", [6, 8], ids=["tokens", "as many tokens as features"])
def test_tokens_and_sequences_are_distinguished_by_the_layer_that_computes_them(length):
    places = {name: SlotPlace(name, output=0 if name == "attention" else None) for name in KNOWN}
    model = graft(Encoder(), places, example=torch.randint(9, (4, length)))
    assert {slot.name: slot.site.kind for slot in slots_of(model).each()} == KNOWN
