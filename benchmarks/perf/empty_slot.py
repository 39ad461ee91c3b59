"""P13: cost of empty slots: a forward pass with three of them against the same host without.

Host 3→8→16→32 on 32×32, batches of 128, one thread, without gradients. The two sides take turns pass by pass, and take
turns in who goes first; the median over the turns of what the grafted host took longer, as a share of the plain pass.
"""

from __future__ import annotations

import statistics
import sys
from functools import partial
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from benchmarks.perf.turns import timed, times
from benchmarks.table import Row, Table, answer
from esper_core import graft
from esper_core.app.runtime import one_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

TURNS: Final = 600
BOUND: Final = 1.0


def host() -> nn.Module:
    """Build three blocks, each of which halves the image, and a classifier."""
    widths = ((3, 8), (8, 16), (16, 32))
    blocks = (
        nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2))
        for before, after in widths
    )
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(32 * 4 * 4, 10))


def measure(*, quick: bool = False) -> Sequence[Table]:
    """Measure the plain host, and the additional time of the slots."""
    turns = 2 if quick else TURNS
    torch.manual_seed(0)
    inputs = torch.randn(2 if quick else 128, 3, 32, 32)
    plain, grafted = host().eval(), host().eval()
    grafted.load_state_dict(plain.state_dict(), assign=True)  # one memory for both: where it lies makes a difference
    graft(grafted, ["0", "1", "2"], example=inputs)
    sides = {"plain": timed(partial(plain, inputs)), "grafted": timed(partial(grafted, inputs))}
    with one_thread(), torch.no_grad():
        took = times(sides, turns, warm=10)
    median = statistics.median(took["plain"])
    beyond = [own - before for own, before in zip(took["grafted"], took["plain"], strict=True)]
    rows = [
        Row("plain host, one pass", 1e3 * median, None, "ms", 2),
        Row("three empty slots, beyond that", 100 * statistics.median(beyond) / median, BOUND, "%", 2),
    ]
    return [Table("P13", f"empty slots, conv host, medians of {turns} interleaved passes", rows)]


if __name__ == "__main__":
    sys.exit(answer(measure))
