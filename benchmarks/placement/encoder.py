"""The network and the data: a frozen sentence encoder with a head, and reviews that are great or not."""

from __future__ import annotations

from functools import cache
from typing import Final, Literal

import torch
from torch import Tensor, nn

from benchmarks.placement.worlds import Batch, World
from esper_tasks.text import encoder_folder, reviews

WIDTH: Final = 384
TRAINED: Final = 3_000
BATCH: Final = 16
VALIDATION_BATCH: Final = 50


class Classifier(nn.Module):
    """A linear head on the mean of the last layer's tokens."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import AutoModel

        self.base: nn.Module = AutoModel.from_pretrained(encoder_folder())
        self.base.requires_grad_(requires_grad=False)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return a score for each class."""
        hidden = self.base(input_ids=tokens, attention_mask=mask).last_hidden_state
        return self.head((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))  # type: ignore[no-any-return]


@cache
def _reviews(split: Literal["train", "test"], tokens: int) -> Batch:
    from transformers import AutoTokenizer

    texts, classes = reviews(split)
    tokenizer = AutoTokenizer.from_pretrained(encoder_folder())
    encoded = tokenizer(texts, truncation=True, max_length=tokens, padding="max_length", return_tensors="pt")
    return encoded["input_ids"], encoded["attention_mask"], torch.tensor(classes)


def _batches(columns: Batch, rows: Tensor, size: int) -> list[Batch]:
    batches: list[Batch] = []
    for chosen in rows.split(size):
        tokens, mask, targets = (column[chosen] for column in columns)
        longest = int(mask.sum(1).max())
        batches.append((tokens[:, :longest], mask[:, :longest], targets))
    return batches


def world_of(seed: int, tokens: int = 32, epochs: int = 1) -> World:
    """Return the world of an RNG seed: the head's first weights, the split, and the order of the batches."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    labelled, unseen = _reviews("train", tokens), _reviews("test", tokens)
    rows = torch.randperm(len(labelled[-1]), generator=generator)
    orders = [rows[:TRAINED]]
    orders += [rows[:TRAINED][torch.randperm(TRAINED, generator=generator)] for _ in range(epochs - 1)]
    train = [batch for order in orders for batch in _batches(labelled, order, BATCH)]
    complete = [batch for batch in train if len(batch[-1]) == BATCH]
    validation = _batches(labelled, rows[TRAINED:], VALIDATION_BATCH)
    return World(Classifier(), complete, validation, _batches(unseen, torch.arange(len(unseen[-1])), VALIDATION_BATCH))
