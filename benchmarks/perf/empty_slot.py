"""P13: what does an empty slot cost? A forward pass with three of them against the same host without.

Host 3→8→16→32 on 32×32, batches of 128, one thread, without gradients. The two sides take turns pass by pass, and take
turns in who goes first; the median over the turns of what the grafted host took longer, as a share of the plain pass.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import TYPE_CHECKING

import torch
from torch import nn

from benchmarks.table import Row, show
from esper_core import graft

if TYPE_CHECKING:
    from torch import Tensor

TURNS = 600
BOUND = 1.0


def host() -> nn.Module:
    """Three blocks, each of which halves the picture, and a classifier."""
    widths = ((3, 8), (8, 16), (16, 32))
    blocks = (
        nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2))
        for before, after in widths
    )
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(32 * 4 * 4, 10))


def seconds(model: nn.Module, inputs: Tensor) -> float:
    """Time of one pass."""
    begin = time.perf_counter()
    model(inputs)
    return time.perf_counter() - begin


def main() -> int:
    """Measures and prints; 1 where the bound is not kept."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(128, 3, 32, 32)
    plain, grafted = host().eval(), host().eval()
    grafted.load_state_dict(plain.state_dict(), assign=True)  # one memory for both: where it lies makes a difference
    graft(grafted, ["0", "1", "2"], example=inputs)
    plains: list[float] = []
    beyond: list[float] = []
    with torch.no_grad():
        for turn in range(TURNS + 10):
            order = (plain, grafted) if turn % 2 else (grafted, plain)
            times = {model: seconds(model, inputs) for model in order}
            if turn >= 10:
                plains.append(times[plain])
                beyond.append(times[grafted] - times[plain])
    median = statistics.median(plains)
    rows = [
        Row("plain host, one pass", 1e3 * median, None, "ms", 2),
        Row("three empty slots, beyond that", 100 * statistics.median(beyond) / median, BOUND, "%", 2),
    ]
    return show(f"P13  empty slots, conv host, medians of {TURNS} interleaved passes", rows)


if __name__ == "__main__":
    sys.exit(main())
