"""A user's own training loop over a workload's images, with a Gardener or without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from benchmarks.perf.workloads import CPU
from esper_core.growth import slots_of
from esper_core.leyline import Action, Op
from esper_grow import Gardener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from benchmarks.perf.workloads import Workload
    from esper_core.leyline import ActionMask, Observation


class Once:
    """Germinates a seed in the first step, or nothing."""

    def __init__(self, slot: str | None, blueprint: str) -> None:
        self.slot, self.blueprint = slot, blueprint

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        """Return the action of the only environment."""
        begins = self.slot is not None and observations[0].step == 0
        return [Action(Op.GERMINATE, self.slot, f"blueprints/{self.blueprint}") if begins else Action()]


def per_example(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """Return the loss of each example."""
    inputs, targets = batch
    return nn.functional.cross_entropy(model(inputs), targets, reduction="none")


class OwnLoop:
    """The loop, in which a seed of ``blueprint`` incubates in the slot ``seed_in``, if that is given."""

    def __init__(
        self,
        work: Workload,
        optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        *,
        seed_in: str | None = None,
        blueprint: str = "conv_light",
        gardener: bool = True,
        device: torch.device = CPU,
        layout: torch.memory_format = torch.contiguous_format,
    ) -> None:
        torch.manual_seed(0)
        self.model = work.build_host().to(device, memory_format=layout)  # type: ignore[call-overload]
        self.optimizer = optimizer(self.model.parameters())
        batches = {}
        for name, split in work.data.items():
            inputs = split.inputs.to(device).contiguous(memory_format=layout).split(work.batch_size)
            batches[name] = list(zip(inputs, split.targets.to(device).split(work.batch_size), strict=True))
        self.batches, self.validation = batches["train"], batches["validation"]
        self.gardener = None
        if gardener:
            self.gardener = Gardener(
                self.model,
                self.optimizer,
                loss=per_example,
                slots=list(work.slots),
                blueprints=[blueprint],
                example=self.batches[0],
                validation=self.validation,
                steps=1000,
                policy=Once(seed_in, blueprint),
                growth={"gates": "off", "auto_advance": False},
            )

    @property
    def living(self) -> int:
        """How many seeds live."""
        return sum(len(slot.nursery) for slot in slots_of(self.model))

    def step(self) -> None:
        """Train on each batch, and evaluate the validation data, which a Gardener does itself."""
        self.model.train()
        for batch in self.batches:
            self.optimizer.zero_grad()
            per_example(self.model, batch).mean().backward()
            self.optimizer.step()
            if self.gardener is not None:
                self.gardener.step(batch)
        if self.gardener is not None:
            self.gardener.tend()
            return
        self.model.eval()
        with torch.no_grad():
            torch.cat([per_example(self.model, batch) for batch in self.validation]).mean().item()

    def close(self) -> None:
        """Close the Gardener."""
        if self.gardener is not None:
            self.gardener.close()
