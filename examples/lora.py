"""Adapt a frozen transformer with LoRA where it pays, and merge it into the weights.

    python examples/lora.py        a minute on a CPU

A small transformer learns to find the largest of a few numbers. Then it is frozen, and adapted to find the smallest. A
probe tries LoRA of rank 4 and 16 beside linear layers, and a Gardener grows the one that ranks first.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from esper_grow import Gardener, export, probe

TOKENS, CLASSES, WIDTH = 6, 10, 32
Question = Callable[[Tensor], Tensor]


class Block(nn.Module):
    """A transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_a, self.norm_b = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return tokens in the shape of the inputs."""
        query, key, value = (
            part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.mixed(self.norm_a(hidden)).chunk(3, dim=-1)
        )
        seen = nn.functional.scaled_dot_product_attention(query, key, value)
        hidden = hidden + self.out(seen.transpose(1, 2).flatten(2))
        return hidden + self.narrow(nn.functional.gelu(self.wide(self.norm_b(hidden))))


class Transformer(nn.Module):
    """Tells the class of a row of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(CLASSES, WIDTH), nn.Parameter(0.1 * torch.randn(TOKENS, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, numbers: Tensor) -> Tensor:
        """Return a score for each class."""
        hidden = self.embed(numbers) + self.places
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden.mean(1))


def per_example(question: Question, model: nn.Module, numbers: Tensor) -> Tensor:
    """Return one loss for each row."""
    return cross_entropy(model(numbers), question(numbers), reduction="none")


def largest(numbers: Tensor) -> Tensor:
    """Return what the model learns first."""
    return numbers.amax(1)


def smallest(numbers: Tensor) -> Tensor:
    """Return what it is adapted to."""
    return numbers.amin(1)


def rows(count: int) -> Tensor:
    """Return random rows of numbers."""
    return torch.randint(CLASSES, (count, TOKENS))


def accuracy(model: nn.Module, question: Question, numbers: Tensor) -> float:
    """Return the share of correct answers."""
    with torch.no_grad():
        return float((model(numbers).argmax(1) == question(numbers)).float().mean())


def main(epochs: int = 34, batches: int = 20, run_dir: str | None = None) -> tuple[float, bool]:
    """Train, freeze, grow, export; return the accuracy of the exported model, and whether all is merged into it.

    run_dir: folder in which to write a run for ``esper report``.
    """
    torch.manual_seed(0)
    model, held_out = Transformer(), rows(1000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(300):
        optimizer.zero_grad()
        per_example(largest, model, rows(128)).mean().backward()
        optimizer.step()
    model.requires_grad_(False)
    print(f"the largest number: {accuracy(model, largest, held_out):.0%}, frozen")
    print(f"the smallest, before: {accuracy(model, smallest, held_out):.0%}")

    loss, adamw, validation = partial(per_example, smallest), partial(torch.optim.AdamW, lr=3e-3), held_out.split(250)
    result = probe(
        model, loss, [rows(128) for _ in range(20)], validation,
        slots=["blocks.*.mixed", "blocks.*.narrow"], blueprints=["lora(rank=4)", "lora(rank=16)"], optimizer=adamw,
        budget="5min",
    )  # fmt: skip
    print(result)
    best = result.rows[0]
    gardener = Gardener(
        model, adamw, loss=loss, slots=[best.slot], blueprints=[best.blueprint],
        example=rows(128), validation=validation, steps=epochs, run_dir=run_dir,
    )  # fmt: skip
    for _ in range(epochs):
        for _ in range(batches):
            batch = rows(128)
            gardener.optimizer.zero_grad()
            if (mean := loss(model, batch).mean()).requires_grad:  # only after a seed was kept
                mean.backward()
            gardener.optimizer.step()
            gardener.step(batch)
        tended = gardener.tend()
        if tended.changes:
            print(tended)
    gardener.close()

    plain = export(model, example=held_out)
    reached = accuracy(plain, smallest, held_out)
    merged = plain.state_dict().keys() == Transformer().state_dict().keys()
    print(f"the smallest, after: {reached:.0%}, {'merged' if merged else 'not merged'} into the weights")
    return reached, merged


if __name__ == "__main__":
    main()
