"""How is a batch computed? In which precision, in how many parts, and by whose code.

The network's own arithmetic is shortened where the file asks for it, and nothing else: parameters, losses and metrics
are float32. What is trained, incubated, tried, evaluated and left out is computed alike, or losses could not be
compared. The one exception is the look that a block takes that is born informed: it is float32 always.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from esper_core.trainer.compiling import Compiled, torch_compiler
from esper_core.trainer.ways import AsWritten

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from esper_core.config import ComputeConfig
    from esper_core.growth import Garden
    from esper_core.leyline.protocols import Task
    from esper_core.trainer.compiling import Compiler
    from esper_core.trainer.ways import Notices, Way

Loss = Callable[[nn.Module], Tensor]
"""Runs a network on a part of a batch; what the parts give adds up to the mean loss of the batch."""


class Passes:
    """The passes of one environment.

    Every part of a batch is a pass of its own: BatchNorm sees the part, and random numbers are drawn part by part.
    """

    def __init__(self, settings: ComputeConfig, task: Task, device: torch.device) -> None:
        self.device = device
        self._task = task
        self._half = half_of(settings.precision, device)
        self._parts = settings.micro_batches

    def outputs(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """What the model puts out, as float32 where it was computed in less."""
        if self._half is None:
            outputs: Tensor = model(inputs)
            return outputs
        with self._shortened(self._half):
            outputs = model(inputs)
        return outputs.float()

    def parts(self, inputs: Tensor, targets: Tensor) -> list[Loss]:
        """The parts of a batch, the larger ones first where it cannot be divided evenly."""
        if self._parts == 1:
            return [partial(self._mean, inputs, targets)]
        pairs = zip(inputs.tensor_split(self._parts), targets.tensor_split(self._parts), strict=True)
        return [partial(self._share, *pair, len(pair[1]) / len(targets)) for pair in pairs]

    def new_scaler(self) -> GradScaler | None:
        """A scaler of the loss, where small gradients would vanish without."""
        return GradScaler(self.device.type) if self._half is torch.float16 else None

    def _shortened(self, half: torch.dtype) -> AbstractContextManager[Any]:
        # The cache of shortened weights is the whole process's: what one lane ends, another would compute anew, and
        # where a weight is used twice its gradient would be rounded otherwise.
        return torch.autocast(self.device.type, dtype=half, cache_enabled=False)

    def _mean(self, inputs: Tensor, targets: Tensor, model: nn.Module) -> Tensor:
        return self._task.losses(self.outputs(model, inputs), targets).mean()

    def _share(self, inputs: Tensor, targets: Tensor, share: float, model: nn.Module) -> Tensor:
        return self._mean(inputs, targets, model) * share


def half_of(precision: str, device: torch.device) -> torch.dtype | None:
    """The short numbers that are meant; None: float32. ``auto``: what the device has for it, and a CPU has none.

    >>> half_of("auto", torch.device("cpu")), half_of("bfloat16", torch.device("cpu"))
    (None, torch.bfloat16)
    """
    if precision == "auto" and device.type == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
    return {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(precision)


def way_for(settings: ComputeConfig, garden: Garden, notices: Notices, *, compiler: Compiler = torch_compiler) -> Way:
    """Choose who runs the training pass of the garden's host: torch's compiler, or the network itself."""
    return Compiled(garden, notices, compiler) if settings.compile else AsWritten(garden.model)
