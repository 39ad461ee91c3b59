"""Workloads of the comparisons: two hosts with their data, in Esper's environments or in a hand-written loop.

conv   channels 3→8→16→32 on 32×32 images, batches of 128; the data are random, since the results are not used
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
from esper_core.growth import Variety, graft
from esper_core.growth.trials import Draws
from esper_core.leyline import Action, DataShape, Op, SlotPlace, Split, SplitName
from esper_core.settings import ComputeConfig, GrowthConfig, OptimizersConfig
from esper_core.trainer import NetworkSettings, Recipe
from esper_tasks.hosts import PointwiseMlp, cnn2d
from esper_tasks.mnist1d import mnist1d
from esper_tasks.supervised import Classification

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from esper_core.trainer.pool import Pool
    from esper_scale.engines.worker_pool import WorkerPool

SEED: Final = "blueprints/conv_light"
CPU: Final = torch.device("cpu")

IMAGES: Final = 4
"""Dimensions of a batch of images."""

QUICK: Final[Mapping[str, Mapping[str, int]]] = {
    "conv": {"batches": 1, "validation": 1, "batch_size": 8},
    "1-d": {"batches": 1, "samples": 500},
}
"""Sizes that only show that a measurement runs."""


class NarrowConvLight(ConvLight):
    """``conv_light`` with convolutions of width 3, like those of the host."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.conv_a = convolution(site, site.channels, site.channels, width=3)
        self.conv_b = convolution(site, site.channels, site.channels, width=3)
        start_at_zero(self.conv_b)


@dataclass(frozen=True)
class Workload:
    """A host, its task, and the number and size of the training batches in a step."""

    name: str
    task: Classification
    build_host: Callable[[], nn.Module]
    slots: Mapping[str, SlotPlace]
    batches: int
    batch_size: int

    @property
    def data(self) -> dict[SplitName, Split]:
        """The task's splits."""
        names: tuple[SplitName, ...] = ("train", "validation", "test")
        return {name: self.task.split(name) for name in names}

    def recipe(
        self,
        *,
        channels_last: bool = False,
        seed: Callable[[Site], nn.Module] = ConvLight,
        device: torch.device = CPU,
        compute: ComputeConfig | None = None,
        average: float = 16.0,
    ) -> Recipe:
        """Return the recipe of Esper's environments, without scheduled growth; ``average`` is the half-life."""
        kind = "image" if self.name == "conv" else "sequence"
        variety = Variety(SEED, BlueprintSpec(kind, starts_as_identity=True), seed)
        recipe = Recipe(
            task=self.task,
            data=self.data,
            build_host=self.build_host,
            slots=self.slots,
            network=NetworkSettings(
                dict.fromkeys(self.slots, (variety,)),
                1000,
                self.batches,
                growth=GrowthConfig(incubation="shadow", gates="off", auto_advance=False, average=average),
                metric=self.task.metric,
                draws=Draws.NEVER,
            ),
            batch_size=self.batch_size,
            device=CPU,
            # As in runs of so few networks; ``benchmarks.fused`` compares the ways.
            compute=compute or ComputeConfig(fused=False),
        ).on(device)
        if not channels_last:
            return recipe
        host = self.build_host().to(device)
        graft(host, self.slots, example=recipe.data["train"].inputs[:2])
        return recipe.laid_out(host)


def conv(batches: int = 15, validation: int = 4, batch_size: int = 128, *, channels: int = 8) -> Workload:
    """Build the convolutional workload with this many training and validation batches per step."""
    shape = DataShape("image", (3, 32, 32), 10)
    generator = torch.Generator().manual_seed(0)

    def split(count: int) -> Split:
        examples = count * batch_size
        inputs = torch.randn(examples, *shape.example, generator=generator)
        return Split(inputs, torch.randint(shape.outputs, (examples,), generator=generator))

    data: dict[SplitName, Split] = {"train": split(batches), "validation": split(validation), "test": split(1)}
    task = Classification(data, "image", classes=shape.outputs)
    slots = {slot: SlotPlace(slot) for slot in ("early", "middle", "late")}
    return Workload("conv", task, partial(cnn2d, shape, channels=channels), slots, batches, batch_size)


def one_d(batches: int = 32, samples: int = 5000) -> Workload:
    """Build the workload of the default run, on its data or on a part of it."""
    task = mnist1d(samples=samples, validation=samples * 4 // 25)
    slots = {"early": SlotPlace("stem", "sequence")}
    return Workload("1-d", task, lambda: PointwiseMlp(task.shape), slots, batches, 100)


def workload(name: str, *, quick: bool = False) -> Workload:
    """Build a workload by name."""
    build: Mapping[str, Callable[..., Workload]] = {"conv": conv, "1-d": one_d}
    return build[name](**(QUICK[name] if quick else {}))


class PlainLoop:
    """The same training as a hand-written loop.

    seeds: insert a block after each of the host's slots, and evaluate the network without each of them as well.
    bfloat16: run the network in autocast.
    """

    def __init__(
        self,
        work: Workload,
        *,
        channels_last: bool = False,
        seeds: bool = False,
        device: torch.device = CPU,
        bfloat16: bool = False,
    ) -> None:
        self.batches, self.size, self.device = work.batches, work.batch_size, device
        self.model = work.build_host()
        self.blocks = self._insert_blocks(work) if seeds else []
        self.model.to(device)
        self.data = {
            name: Split(split.inputs.to(device), split.targets.to(device)) for name, split in work.data.items()
        }
        if channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.data = {
                name: Split(split.inputs.contiguous(memory_format=torch.channels_last), split.targets)
                for name, split in self.data.items()
            }
        if bfloat16:
            self.model.forward = torch.autocast(device.type, torch.bfloat16)(self.model.forward)
        rate = OptimizersConfig().host.learning_rate
        self.optimizer = torch.optim.Adam(self.model.parameters(), rate, fused=True)
        self.order = torch.empty(0, dtype=torch.int64, device=device)

    def evaluate_all(self) -> None:
        """Evaluate, and without each block in turn."""
        for left_out in (None, *self.blocks):
            self.evaluate(left_out)

    def train(self) -> float:
        """Train for one step; return the mean loss."""
        data, total = self.data["train"], torch.zeros((), device=self.device)
        self.model.train()
        for _ in range(self.batches):
            if len(self.order) < self.size:
                self.order = torch.randperm(len(data), device=self.device)
            batch, self.order = self.order[: self.size], self.order[self.size :]
            # Brackets keep the memory layout of images; index_select is faster but does not.
            inputs = data.inputs[batch] if data.inputs.dim() == IMAGES else data.inputs.index_select(0, batch)
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(inputs), data.targets[batch])
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
        return float(total) / self.batches

    def evaluate(self, left_out: Residual | None = None) -> float:
        """Evaluate on the validation split, without one of the blocks if given; return the mean loss."""
        data, total = self.data["validation"], torch.zeros((), device=self.device)
        self.model.eval()
        if left_out is not None:
            left_out.active = False
        with torch.inference_mode():
            for inputs, targets in zip(data.inputs.split(self.size), data.targets.split(self.size), strict=True):
                total += nn.functional.cross_entropy(self.model(inputs), targets, reduction="sum")
        if left_out is not None:
            left_out.active = True
        return float(total) / len(data)

    def _insert_blocks(self, work: Workload) -> list[Residual]:
        """Append a block to the module of each slot."""
        blocks: list[Residual] = []
        shapes: list[torch.Size] = []
        for name in work.slots:
            module = self.model.get_submodule(name)
            handle = module.register_forward_hook(lambda module, args, output: shapes.append(output.shape))
            self.model(work.data["train"].inputs[:2])
            handle.remove()
            _, channels, *shape = shapes[-1]
            blocks.append(Residual(NarrowConvLight(Site("image", channels, tuple(shape)))))
            setattr(self.model, name, nn.Sequential(module, blocks[-1]))
        return blocks


class Residual(nn.Module):
    """A block that replaces its inputs while it is active; ``ConvLight`` adds its inputs itself."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.active = True

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs of the block, or the inputs."""
        outputs: Tensor = self.block(inputs) if self.active else inputs
        return outputs


def activate_seeds(pool: Pool | WorkerPool, slots: Sequence[str]) -> None:
    """Activate a seed, at full strength, in each of ``slots`` of every environment."""
    for op in (Op.GERMINATE, Op.ADVANCE) if slots else ():
        for slot in slots:
            pool.apply([Action(op, slot, SEED, speed=0)] * len(pool.environments), 0)
        pool.train(0)
