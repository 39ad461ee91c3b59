"""How good is the network as it acts now? Its losses and its metric on a split, in inference mode, on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from esper_core.growth import device_of
from esper_core.trainer.feeding import chunks

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from esper_core.leyline.protocols import Split, Task


@dataclass(frozen=True, slots=True)
class Measured:
    """What a network does on a split: the loss of each example in nats, and the metric of them all."""

    losses: Tensor
    metric: Tensor

    def means(self) -> Tensor:
        """(mean loss, metric)."""
        return torch.stack([self.losses.mean(), self.metric])


def as_written(model: nn.Module, inputs: Tensor) -> Tensor:
    """What the model puts out."""
    outputs: Tensor = model(inputs)
    return outputs


def evaluate(
    model: nn.Module, task: Task, split: Split, run: Callable[[nn.Module, Tensor], Tensor] = as_written
) -> Measured:
    """What ``model`` does on the whole ``split``. The model is left in training mode. run: how a pass is computed."""
    model.eval()
    losses: list[Tensor] = []
    scores: list[Tensor] = []
    with torch.inference_mode():
        for inputs, targets in chunks(split, device_of(model)):
            outputs = run(model, inputs)
            losses.append(task.losses(outputs, targets))
            scores.append(task.scores(outputs, targets))
        own, metric = torch.cat(losses), torch.cat(scores).mean()
        if task.metric.exponential:
            metric = metric.exp()
    model.train()
    return Measured(own.clone(), metric.to(own.dtype).clone())
