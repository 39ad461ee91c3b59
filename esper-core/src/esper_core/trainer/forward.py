"""How batches are computed: precision, micro-batches, memory layout, and compilation with a fallback.

Only the network's own arithmetic uses bfloat16 or float16: parameters, losses and metrics are float32. All passes,
whether of training, trials or evaluation, are computed in the same way, because their losses are compared.

With ``compute.compile`` torch's compiler runs the pass that trains the host, compiled anew for each structure of the
network. Where that fails the network runs as it is written, the run warns once, and the compiler is tried again when
the structure changes. Evaluations, trials and incubating seeds always run as written.

Images lie in memory as channels-last where host and blueprints can work with that (``compute.layout``), which makes
convolutions faster. Code that calls ``view`` where ``reshape`` is needed fails, so it is tried before a run begins.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from esper_core.growth import KeptBuffers
from esper_core.plugins.isolation import summarise
from esper_core.plugins.process_state import restore_defaults
from esper_core.plugins.returned_values import describe_value, refuse

if TYPE_CHECKING:
    from esper_core.growth import Garden
    from esper_core.leyline import Split, Task
    from esper_core.settings import ComputeConfig

log = logging.getLogger("esper")

T = TypeVar("T")

Loss = Callable[[nn.Module], Tensor]
"""Runs a network on a part of a batch. The losses of all parts add up to the mean loss of the batch."""

Compiler = Callable[[nn.Module], Any]

Warn = Callable[[str, str], None]
"""Warns of what failed, and why."""


class ForwardPass:
    """Computes outputs and losses of batches as ``compute`` says.

    Each micro-batch is a pass of its own: BatchNorm sees the micro-batch, and random numbers are drawn for each.
    ``host`` names the host in messages.
    """

    def __init__(self, settings: ComputeConfig, task: Task, device: torch.device, host: str) -> None:
        self._task = task
        self._host = host
        self._device = device
        self._half = half_precision(settings.precision, device)
        self._parts = settings.micro_batches

    def outputs(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """Return the model's outputs, as float32 where they were computed in less."""
        if self._half is None:
            return self._checked(model, model(inputs), inputs)
        # The cache of shortened weights belongs to the process: threads would clear each other's, and gradients of a
        # weight that is used twice would be rounded differently.
        with torch.autocast(self._device.type, dtype=self._half, cache_enabled=False):
            outputs = model(inputs)
        return self._checked(model, outputs, inputs)

    def _checked(self, model: nn.Module, outputs: Any, inputs: Tensor) -> Tensor:
        # Here, because a task that fails on wrong outputs would be named in place of the host.
        if not (isinstance(outputs, Tensor) and outputs.is_floating_point() and outputs.shape[:1] == inputs.shape[:1]):
            what = f"{describe_value(outputs)} for {len(inputs)} examples"
            refuse(self._host, model.forward, what, "A host returns a tensor of floats, with one row for each example.")
        return outputs.float() if outputs.itemsize < 4 else outputs

    def losses(self, inputs: Tensor, targets: Tensor) -> list[Loss]:
        """Return the loss of each micro-batch, weighted by its share; the larger ones first if sizes differ."""
        if self._parts == 1:
            return [partial(self._loss, inputs, targets, None)]
        pairs = zip(inputs.tensor_split(self._parts), targets.tensor_split(self._parts), strict=True)
        return [partial(self._loss, *pair, len(pair[1]) / len(targets)) for pair in pairs]

    def new_scaler(self) -> GradScaler | None:
        """Return a scaler of the loss for float16, in which small gradients would vanish; None otherwise."""
        return GradScaler(self._device.type) if self._half is torch.float16 else None

    def _loss(self, inputs: Tensor, targets: Tensor, share: float | None, model: nn.Module) -> Tensor:
        mean = self._task.losses(self.outputs(model, inputs), targets).mean()
        return mean if share is None else mean * share


def half_precision(precision: str, device: torch.device) -> torch.dtype | None:
    """Return the 16-bit dtype that a precision means on a device; None for float32, as ``auto`` is on a CPU."""
    # 8.0 is Ampere, the first with bfloat16. torch.cuda.is_bf16_supported() is also true where it is only emulated.
    if precision == "auto" and device.type == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
    return {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(precision)


class Notices:
    """Warnings that a run gives once, whichever environment gives them first."""

    def __init__(self) -> None:
        self._reported: set[str] = set()
        self._lock = threading.Lock()

    def warn(self, failure: str, reason: str) -> None:
        """Warn of ``failure`` for this reason, unless the run was warned of it before."""
        # Environments warn from the threads of their lanes, and two of them would both give the warning.
        with self._lock:
            if failure in self._reported:
                return
            self._reported.add(failure)
        log.warning("%s; the network runs uncompiled until its structure changes: %s", failure, reason)


def torch_compiler(model: nn.Module) -> Any:
    """Compile ``model`` for its own sizes alone, apart from other models, with the random numbers of eager mode.

    Dynamic sizes would be compiled for in an order that depends on which environment came first, and all networks of a
    class would share torch's limit of recompilations, as they do in older versions of torch, which cannot isolate them.
    """
    options: dict[str, Any] = {"dynamic": False, "options": {"fallback_random": True}}
    if "isolate_recompiles" in signature(torch.compile).parameters:
        options["isolate_recompiles"] = True
    return torch.compile(model, **options)


@dataclass(slots=True)
class CompiledHost:
    """Runs the training pass of one garden's network compiled, or as written where that fails."""

    garden: Garden
    warn: Warn
    compiler: Compiler
    _structure: Any = field(default=None, init=False)
    _compiled: Any = field(default=None, init=False)

    @property
    def compiles_next(self) -> bool:
        """Whether the structure is new, so that the next pass compiles, which saves and restores torch's generators."""
        return bool(structure_of(self.garden) != self._structure)

    def run(self, train: Callable[[nn.Module], T]) -> T:
        """Return ``train(model)`` with the compiled network, or with the network itself where that fails."""
        model, fresh = self.garden.model, self.compiles_next
        # The compiler failed on this structure before, and would again in each batch.
        if not fresh and self._compiled is None:
            return train(model)
        # A pass that fails may have moved BatchNorm's averages, and the pass after it moves them again. torch compiles
        # anew for a batch of another size, so that a later pass can fail, too.
        kept = KeptBuffers(model)
        try:
            compiled = self.compiler(model) if fresh else self._compiled
            result = train(cast("nn.Module", compiled))
        # A seed's own fault comes here, too: it is raised again by the pass as written, before any warning.
        except Exception as error:
            restore_defaults()
            kept.put_back()
            result = train(model)
            compiled = None
            self.warn("the host cannot be compiled (compute.compile)", summarise(error))
        self._structure, self._compiled = structure_of(self.garden), compiled
        return result


def structure_of(garden: Garden) -> Any:
    """Return which seeds there are, where, in which stage, and whether they act in the host's own pass."""
    return tuple(
        (slot.name, tuple((seed.number, seed.stage, seed.presence) for seed in slot.seeds))
        for slot in garden.slots.values()
    )


def lay_out(model: nn.Module, layout: torch.memory_format) -> nn.Module:
    """Move the model's weights to a memory layout, and return it."""
    laid: nn.Module = cast("Any", model).to(memory_format=layout)  # torch's annotations do not know this argument
    return laid


def channels_last(split: Split) -> Split:
    """Return the split with its images in channels-last layout."""
    return replace(split, inputs=split.inputs.contiguous(memory_format=torch.channels_last))
