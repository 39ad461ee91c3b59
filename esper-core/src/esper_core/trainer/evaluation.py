"""How good is the network as it acts now? Mean loss and metric over a split, in inference mode, left on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor, nn

    from esper_core.leyline.protocols import Split, Task

CHUNK = 500
"""Examples that are evaluated at once."""


def evaluate(model: nn.Module, task: Task, split: Split) -> Tensor:
    """(mean loss, metric) of ``model`` on the whole ``split``. The model is left in training mode."""
    model.eval()
    losses: list[Tensor] = []
    scores: list[Tensor] = []
    with torch.inference_mode():
        for inputs, targets in zip(split.inputs.split(CHUNK), split.targets.split(CHUNK), strict=True):
            outputs = model(inputs)
            losses.append(task.losses(outputs, targets))
            scores.append(task.scores(outputs, targets))
        means = torch.stack([torch.cat(losses).mean(), torch.cat(scores).mean().to(losses[0].dtype)])
    model.train()
    return means.clone()
