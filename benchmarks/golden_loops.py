"""Print the numbers of one small own loop or probe as JSON: what ``benchmarks.golden`` compares for these.

    python benchmarks/golden_loops.py gardener | gardener-resumed | gardener-tokens | probe

It is run with the interpreter of each revision, so it names both places of the functions that have moved.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from esper_core.leyline.events import StageChanged

try:
    from esper_grow import Gardener, probe
except ImportError:
    from esper_core import Gardener, probe  # type: ignore[attr-defined, no-redef]  # of older revisions

if TYPE_CHECKING:
    from collections.abc import Callable

EPOCHS = 25

Batch = tuple[torch.Tensor, torch.Tensor]
Numbers = dict[str, Any]
Parts = tuple[nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, Numbers]


def signals() -> tuple[list[Batch], list[Batch]]:
    """Return batches to train and to validate on: signals, and whether their neighbours agree."""
    torch.manual_seed(0)
    inputs = torch.randn(1200, 1, 16)
    labels = (inputs[..., 1:] * inputs[..., :-1]).mean((1, 2)).gt(0).long()
    train = list(zip(inputs[:800].split(50), labels[:800].split(50), strict=True))
    return train, [(inputs[800:], labels[800:])]


def small_network() -> nn.Module:
    """Return a network that processes each reading by itself."""
    torch.manual_seed(1)
    stem = nn.Sequential(nn.Conv1d(1, 8, 1), nn.BatchNorm1d(8), nn.ReLU())
    return nn.Sequential(stem, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(8, 2))


def per_example(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return one loss for each example."""
    return cross_entropy(model(batch[0]), batch[1], reduction="none")


def digest(tensors: dict[str, torch.Tensor]) -> str:
    """Return a digest of names, types and bytes of tensors."""
    state = sha256()
    for name, tensor in sorted(tensors.items()):
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        state.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return state.hexdigest()


def conv_network() -> Parts:
    """Return a network of signals, AdamW, a schedule, and settings: two seeds side by side, and clipping."""
    model = small_network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    blueprints = ["conv_light", "pointwise"]
    return model, optimizer, schedule, {"blueprints": blueprints, "growth": {"nursery": 2}, "clip_norm": 1.0}


def token_network() -> Parts:
    """Return a network of tokens, SGD, and gates that are off."""
    torch.manual_seed(3)
    embedding = nn.Sequential(nn.Embedding(12, 16), nn.Linear(16, 16), nn.GELU())
    model = nn.Sequential(embedding, nn.Flatten(), nn.Linear(160, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    return model, optimizer, schedule, {"blueprints": ["mlp"], "growth": {"gates": "off"}}


def tokens() -> tuple[list[Batch], list[Batch]]:
    """Return batches to train and to validate on: sequences, and whether a token is repeated."""
    torch.manual_seed(2)
    inputs = torch.randint(0, 12, (1000, 10))
    labels = (inputs[:, 1:] == inputs[:, :-1]).any(1).long()
    train = list(zip(inputs[:600].split(40), labels[:600].split(40), strict=True))
    return train, [(inputs[600:], labels[600:])]


def grow(build: Callable[[], Parts], data: tuple[list[Batch], list[Batch]], resumed: int | None = None) -> Numbers:
    """Train and grow a network: what each step reported, and what came out.

    Args:
        build: Returns the network, its optimizer, its schedule and settings of the Gardener.
        data: Batches to train and to validate on.
        resumed: After so many epochs everything is saved, built again and loaded.
    """
    train, validation = data
    model, optimizer, schedule, settings = build()
    common: Numbers = {
        "loss": per_example,
        "slots": ["0"],
        "example": train[0],
        "validation": validation,
        "steps": EPOCHS,
    }
    steps: list[Numbers] = []
    gardener = Gardener(model, optimizer, **common, **settings)
    for epoch in range(EPOCHS):
        if epoch == resumed:
            saved = gardener.state_dict(), optimizer.state_dict()
            gardener.close()
            model, optimizer, schedule, settings = build()
            gardener = Gardener(model, optimizer, **common, **settings)
            gardener.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        for batch in train:
            optimizer.zero_grad()
            per_example(model, batch).mean().backward()
            optimizer.step()
            gardener.step(batch)
        schedule.step()
        tended = gardener.tend()
        moved = [change for change in tended.changes if isinstance(change, StageChanged)]
        changes = [(change.slot, change.blueprint, change.now.name) for change in moved]
        steps.append({"signals": asdict(tended.signals), "changes": changes})
    gardener.close()
    return {"steps": steps, "weights": digest({**dict(model.named_parameters()), **dict(model.named_buffers())})}


def probed() -> Numbers:
    """Probe a network, with a budget that no trial uses up."""
    train, validation = signals()
    result = probe(small_network(), per_example, train, validation, budget="1h")
    return {
        key: value for key, value in result.to_dict().items() if key not in {"budget", "remarks", "reason", "needs"}
    }


def main() -> int:
    """Print the numbers that are asked for."""
    cases = {
        "gardener": lambda: grow(conv_network, signals()),
        "gardener-resumed": lambda: grow(conv_network, signals(), resumed=9),
        "gardener-tokens": lambda: grow(token_network, tokens()),
        "probe": probed,
    }
    if len(sys.argv) != 2 or sys.argv[1] not in cases:
        print(__doc__)
        return 2
    torch.set_num_threads(1)
    print(json.dumps(cases[sys.argv[1]](), default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main())
