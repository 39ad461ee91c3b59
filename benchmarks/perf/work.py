"""The workloads of the comparisons: two hosts with their data, in Esper's environments or in a plain loop.

conv   3→8→16→32 on 32×32, batches of 128; the data are random, for what is learnt does not matter
1-d    ``pointwise-mlp`` on mnist1d, batches of 100
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from esper_blueprints.conv_light import ConvLight
from esper_blueprints.layers import convolution, start_at_zero
from esper_core import BlueprintSpec, Site
from esper_core.config import EpisodeConfig, GovernorConfig, GrowthConfig, OptimizersConfig
from esper_core.growth import Draws, Variety, graft
from esper_core.leyline import Action, DataShape, Op, SlotPlace, Split, SplitName
from esper_core.trainer.environment import Recipe
from esper_tasks.hosts import PointwiseMlp, cnn2d
from esper_tasks.mnist1d import mnist1d
from esper_tasks.supervised import Classification

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from esper_core.trainer.pool import Pool

SEED: Final = "blueprints/conv_light"
SPLITS: Final[tuple[SplitName, ...]] = ("train", "validation", "test")


class Narrow(ConvLight):
    """``conv_light`` with convolutions of width 3, as those of the host: what is light beside it."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.conv_a = convolution(site, site.channels, site.channels, width=3)
        self.conv_b = convolution(site, site.channels, site.channels, width=3)
        start_at_zero(self.conv_b)


@dataclass(frozen=True)
class Work:
    """A host, what it is trained on, and how much of it in a step."""

    name: str
    task: Classification
    build_host: Callable[[], nn.Module]
    slots: Mapping[str, SlotPlace]
    batches: int
    batch_size: int

    @property
    def data(self) -> dict[SplitName, Split]:
        """The task's splits."""
        return {name: self.task.split(name) for name in SPLITS}

    def as_run(self, seed: Callable[[Site], nn.Module] = ConvLight) -> Recipe:
        """Return ``recipe`` as a run uses it: with images in the fastest memory format."""
        recipe, host = self.recipe(seed), self.build_host()
        graft(host, self.slots, example=recipe.data["train"].inputs[:2])
        return recipe.laid_out(host)

    def recipe(self, seed: Callable[[Site], nn.Module] = ConvLight) -> Recipe:
        """Return the recipe of Esper's environments: no growth on its own, images in their original format."""
        kind = "image" if self.name == "conv" else "sequence"
        formula = "50*c*c + 2*c" if self.name == "conv" else "10*c*c + 2*c"
        grows = Variety(SEED, BlueprintSpec(kind, formula, starts_as_identity=True), seed)
        return Recipe(
            task=self.task,
            data=self.data,
            build_host=self.build_host,
            slots=self.slots,
            varieties=dict.fromkeys(self.slots, (grows,)),
            episode=EpisodeConfig(steps=1000, batches=self.batches, batch_size=self.batch_size),
            optimizers=OptimizersConfig(),
            growth=GrowthConfig(auto_advance=False),
            governor=GovernorConfig(),
            device=torch.device("cpu"),
            draws=Draws.NEVER,
        )


def conv(batches: int = 15, validation: int = 4, batch_size: int = 128) -> Work:
    """Build the convolutional host, with so many batches of training and of validation in a step."""
    shape = DataShape("image", (3, 32, 32), 10)
    generator = torch.Generator().manual_seed(0)

    def split(count: int) -> Split:
        examples = count * batch_size
        inputs = torch.randn(examples, *shape.example, generator=generator)
        return Split(inputs, torch.randint(shape.outputs, (examples,), generator=generator))

    data: dict[SplitName, Split] = {"train": split(batches), "validation": split(validation), "test": split(1)}
    task = Classification(data, "image", classes=shape.outputs)
    slots = {slot: SlotPlace(slot) for slot in ("early", "middle", "late")}
    return Work("conv", task, partial(cnn2d, shape), slots, batches, batch_size)


def one_d(batches: int = 32, samples: int = 5000) -> Work:
    """Build the host of the default run, on its data or on a part of it."""
    task = mnist1d(samples=samples, validation=samples * 4 // 25)
    slots = {"early": SlotPlace("stem", "sequence")}
    return Work("1-d", task, lambda: PointwiseMlp(task.shape), slots, batches, 100)


class PlainLoop:
    """The same training, written down as one would."""

    def __init__(self, work: Work) -> None:
        self.data = work.data
        self.batches = work.batches
        self.size = work.batch_size
        self.model = work.build_host()
        rate = OptimizersConfig().host.learning_rate
        self.optimizer = torch.optim.Adam(self.model.parameters(), rate, fused=True)
        self.order = torch.empty(0, dtype=torch.int64)

    def train(self) -> float:
        """Train for one step; return the mean loss."""
        data, total = self.data["train"], torch.zeros(())
        self.model.train()
        for _ in range(self.batches):
            if len(self.order) < self.size:
                self.order = torch.randperm(len(data))
            batch, self.order = self.order[: self.size], self.order[self.size :]
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(data.inputs[batch]), data.targets[batch])
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
        return float(total) / self.batches

    def evaluate(self) -> float:
        """Evaluate on the validation split; return the mean loss."""
        data, total = self.data["validation"], torch.zeros(())
        self.model.eval()
        with torch.inference_mode():
            for inputs, targets in zip(data.inputs.split(self.size), data.targets.split(self.size), strict=True):
                total += nn.functional.cross_entropy(self.model(inputs), targets, reduction="sum")
        return float(total) / len(data)


def blend_in(pool: Pool, slots: Sequence[str]) -> None:
    """Activate a seed, at full strength, in each of ``slots`` of every environment."""
    for op in (Op.GERMINATE, Op.ADVANCE) if slots else ():
        for slot in slots:
            pool.apply([Action(op, slot, SEED, speed=0)] * len(pool.environments), 0)
        pool.train(0)
