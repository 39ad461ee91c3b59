"""Measure what a seed gains if its first weights are chosen from the activations at its place.

The host ``pointwise-mlp`` on ``mnist1d``: 5 steps by itself, then a seed that incubates for 5 steps, is blended in over
4, and learns on with the host until step 40. A step is 32 batches of 100; Adam at 3e-3 for both. The two arms share
everything, including the initial weights of the seed; in one of them the seed is then informed by one batch.

Printed are means of the paired differences, informed less plain, with 95 % intervals over the pairs: the validation
loss of the host with the incubating seed at full strength, and the accuracy at the end.
"""

from __future__ import annotations

import math
import statistics
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import torch
from torch import nn
from torch.nn import functional

from esper_blueprints.conv_light import ConvLight
from esper_blueprints.low_rank import LowRank
from esper_core import Site
from esper_tasks.hosts import PointwiseMlp
from esper_tasks.mnist1d import mnist1d

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from esper_core.leyline import Task

    Block = ConvLight | LowRank

PAIRS: Final = 16
WIDTH: Final = 2.131
"""Standard errors to each side that make 95 % with 16 pairs."""

ALONE, INCUBATION, RAMP, STEPS = 5, 5, 4, 40
BATCHES, BATCH = 32, 100
LEARNING_RATE = 3e-3
FIGURES = ("loss after one batch", "loss after one step", "loss after five steps", "accuracy at the end, %")


@dataclass(frozen=True)
class Place:
    """A blueprint and where it grows: after the first ``cut`` of the host's layers."""

    name: str
    build: Callable[[Site], Block]
    site: Site
    cut: int


PLACES: Final = (
    Place("conv_light behind stem", ConvLight, Site("sequence", 8, (40,)), 1),
    Place("low_rank behind hidden", LowRank, Site("vector", 32), 3),
)


@dataclass
class Growing:
    """A host in training, cut in two where its seed grows."""

    place: Place
    seed: int
    task: Task
    host: PointwiseMlp = field(init=False)
    block: Block | None = None
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.host = PointwiseMlp(self.task.shape)
        self.optimizers.append(adam(self.host))
        layers = nn.Sequential(self.host.stem, self.host.pool, self.host.hidden, self.host.head)
        self.before, self.behind = layers[: self.place.cut], layers[self.place.cut :]

    def germinate(self, *, informed: bool) -> None:
        """Germinate the seed, and inform it by a batch if requested."""
        torch.manual_seed(self.seed)
        self.block = self.place.build(self.place.site)
        self.optimizers.append(adam(self.block))
        if informed:
            inputs, targets = next(self.batches(STEPS))
            hidden = self.before(inputs).detach().requires_grad_()
            loss = functional.cross_entropy(self.behind(hidden), targets)
            (gradients,) = torch.autograd.grad(loss, [hidden])
            with torch.no_grad():
                self.block.inform(hidden.detach(), gradients)

    def batches(self, step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of a step, the same in both arms."""
        data = self.task.split("train")
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(1000 * self.seed + step))
        for batch in order.split(BATCH)[:BATCHES]:
            yield data.inputs[batch], data.targets[batch]

    def outputs(self, inputs: Tensor, alpha: float) -> Tensor:
        """Return the host's outputs with its seed at a strength."""
        hidden = self.before(inputs)
        if self.block is not None and alpha > 0:
            hidden = torch.lerp(hidden, self.block(hidden), alpha)
        outputs: Tensor = self.behind(hidden)
        return outputs

    def learn(self, inputs: Tensor, targets: Tensor, alpha: float) -> None:
        """Train the host on one batch, and the seed where it is active."""
        acting = self.optimizers if alpha > 0 else self.optimizers[:1]
        for optimizer in acting:
            optimizer.zero_grad()
        functional.cross_entropy(self.outputs(inputs, alpha), targets).backward()
        for optimizer in acting:
            optimizer.step()

    def incubate(self, inputs: Tensor, targets: Tensor) -> None:
        """Train the host without its seed, and the seed at full strength with the host frozen, on one batch."""
        assert self.block is not None
        parameters = list(self.block.parameters())
        loss = functional.cross_entropy(self.outputs(inputs, 1.0), targets)
        gradients = torch.autograd.grad(loss, parameters)
        self.learn(inputs, targets, 0.0)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizers[1].step()

    def judged(self) -> tuple[float, float]:
        """Return validation loss and accuracy with the seed at full strength."""
        data = self.task.split("validation")
        with torch.no_grad():
            outputs = self.outputs(data.inputs, 1.0)
        right = (outputs.argmax(dim=1) == data.targets).float().mean()
        return float(functional.cross_entropy(outputs, data.targets)), 100 * float(right)


def adam(module: nn.Module) -> torch.optim.Optimizer:
    """Build the optimizer of a host or a seed."""
    return torch.optim.Adam(module.parameters(), LEARNING_RATE, fused=True)


def figures(place: Place, seed: int, task: Task, *, informed: bool) -> list[float]:
    """Train once; return the numbers that FIGURES names."""
    growing, found = Growing(place, seed, task), []
    for step in range(STEPS):
        if step == ALONE:
            growing.germinate(informed=informed)
        for batch, (inputs, targets) in enumerate(growing.batches(step)):
            if step < ALONE:
                growing.learn(inputs, targets, 0.0)
            elif step < ALONE + INCUBATION:
                growing.incubate(inputs, targets)
                if (step - ALONE, batch) in ((0, 0), (0, BATCHES - 1), (INCUBATION - 1, BATCHES - 1)):
                    found.append(growing.judged()[0])
            else:
                done = (step - ALONE - INCUBATION) * BATCHES + batch + 1
                growing.learn(inputs, targets, min(1.0, done / (RAMP * BATCHES)))
    return [*found, growing.judged()[1]]


def main() -> int:
    """Measure and print."""
    torch.set_num_threads(1)
    task = mnist1d()
    for place in PLACES:
        arms = [[figures(place, seed, task, informed=informed) for seed in range(PAIRS)] for informed in (False, True)]
        sys.stdout.write(f"{place.name}, {PAIRS} pairs\n")
        for name, plain, told in zip(FIGURES, *(zip(*arm, strict=True) for arm in arms), strict=True):
            differences = [one - other for one, other in zip(told, plain, strict=True)]
            mean, spread = statistics.fmean(differences), WIDTH * statistics.stdev(differences) / math.sqrt(PAIRS)
            line = f"  {name:<24} plain {statistics.fmean(plain):7.3f}   informed less plain {mean:+.3f} ± {spread:.3f}"
            sys.stdout.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
