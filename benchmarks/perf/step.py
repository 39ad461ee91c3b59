"""P1: what does a training step of an environment cost beyond the plain loop that one would write by hand?

Host ``pointwise-mlp``, batches of 100, Adam, one thread, on both sides. The two sides take turns step by step, so that
a machine that slows down slows both; medians over the turns.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from torch import nn

from benchmarks.table import Row, show
from esper_core.config import EpisodeConfig, GovernorConfig, GrowthConfig, OptimizersConfig
from esper_core.leyline import SlotPlace, SplitName
from esper_core.trainer.environment import Environment, Recipe
from esper_tasks.mnist1d import mnist1d
from esper_tasks.pointwise_mlp import PointwiseMlp

TURNS = 60
BATCHES = 32
BOUND = 60e-6


class PlainLoop:
    """The same training, written down as one would."""

    def __init__(self, recipe: Recipe) -> None:
        self.data = recipe.data["train"]
        self.model = recipe.build_host()
        self.optimizer = torch.optim.Adam(self.model.parameters(), recipe.optimizers.host.learning_rate, fused=True)
        self.order = torch.empty(0, dtype=torch.int64)

    def train(self) -> float:
        """One step of training; the mean loss."""
        total = torch.zeros(())
        for _ in range(BATCHES):
            if len(self.order) < 100:
                self.order = torch.randperm(len(self.data))
            batch, self.order = self.order[:100], self.order[100:]
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(self.data.inputs[batch]), self.data.targets[batch])
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
        return float(total) / BATCHES


def recipe() -> Recipe:
    """The 1-d host on mnist1d, with an empty slot."""
    task = mnist1d()
    names: tuple[SplitName, ...] = ("train", "validation", "test")
    return Recipe(
        task=task,
        data={name: task.split(name) for name in names},
        build_host=lambda: PointwiseMlp(task.shape),
        slots={"early": SlotPlace("stem", "sequence")},
        varieties={},
        episode=EpisodeConfig(batches=BATCHES, batch_size=100),
        optimizers=OptimizersConfig(),
        growth=GrowthConfig(),
        governor=GovernorConfig(),
        device=torch.device("cpu"),
    )


def main() -> int:
    """Measures and prints; 1 where the bound is not kept."""
    torch.set_num_threads(1)
    shared = recipe()
    plain = PlainLoop(shared)
    environment = Environment(shared, arm="plain", index=0)
    environment.reset(0, 0)
    times: dict[str, list[float]] = {"plain": [], "esper": []}
    for turn in range(TURNS + 3):
        for name, train in (("plain", plain.train), ("esper", environment.train)):
            begin = time.perf_counter()
            train()
            if turn >= 3:
                times[name].append((time.perf_counter() - begin) / BATCHES)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    rows = [
        Row("plain loop, one batch", 1e6 * medians["plain"], None, "µs", 0),
        Row("environment, beyond that", 1e6 * (medians["esper"] - medians["plain"]), 1e6 * BOUND, "µs", 0),
    ]
    return show(f"P1  train step without seeds, 1-d host, medians of {TURNS} interleaved steps", rows)


if __name__ == "__main__":
    sys.exit(main())
