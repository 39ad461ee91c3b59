"""How is a batch computed? In which precision, in how many parts, and by whose code.

The network's own arithmetic is shortened where the file asks for it, and nothing else: parameters, losses and metrics
are float32. What is trained, incubated, tried, evaluated and left out is computed alike, or losses could not be
compared. The one exception is the look that a block takes that is born informed: it is float32 always.

By whose code is the host trained? As it is written; compiled; recorded once and replayed. Way within way.

Each of them can fail on a network that is in order otherwise. Then the network goes on as it is written, the run says
so once, with the reason, and it is tried again when the network's structure has changed: a seed came, went, moved on.

What if torch's compiler is to run the host? It compiles the pass anew for each structure; where it cannot, it rests.

Only the pass in which the host is trained is compiled. Evaluations, trials and incubating seeds run as they are
written: their networks differ from batch to batch, and a compiler would be asked again and again.

How do images lie in memory? With the features of one place side by side, where host and blueprints allow it.

Convolutions, pooling and normalisation of small images are half as quick again then. Weights and data lie so, and
whatever passes through takes it over. But code that looks at the same memory in another shape, with
``view`` where ``reshape`` would do, cannot go on; so it is tried before a run begins.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from esper_core.growth import KeptBuffers, draws_of, draws_of_variety, restore_torch_defaults, slots_of
from esper_core.leyline.constants import PROBE_EXAMPLES
from esper_core.plugins.isolation import attempt
from esper_core.trainer.batches import IMAGES, sent

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from esper_core.config import ComputeConfig
    from esper_core.growth import Garden
    from esper_core.leyline import Split
    from esper_core.leyline.protocols import Task
    from esper_core.trainer.environment import Recipe


log = logging.getLogger("esper")

Act = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""Leaves the gradients of a batch, of its inputs and targets, where they are looked for; returns the loss, detached."""


class Way(Protocol):
    """Runs the pass in which the host is trained.

    holds: whether its next pass has to hold the turn to draw random numbers until its gradients are there, for a host
    that draws in its forward pass alone: since torch's generators cannot be exchanged on the way.
    """

    @property
    def holds(self) -> bool: ...

    def run(self, act: Act, inputs: Tensor, targets: Tensor) -> Tensor:
        """What ``act`` gives for a batch, of the network, or of something that computes the same."""
        ...


class AsWritten:
    """The network itself."""

    holds = False

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def run(self, act: Act, inputs: Tensor, targets: Tensor) -> Tensor:
        """What ``act`` gives."""
        return act(self._model, inputs, targets)


class Notices:
    """What is told once in a run, whoever finds it out."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._turn = threading.Lock()

    def once(self, about: str, error: BaseException) -> None:
        """Warn that a way does not go, unless it was said of it before."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        self.tell(about, reason[:500])

    def tell(self, about: str, reason: str) -> None:
        """The same, of what failed in another process."""
        with self._turn:
            if about in self._told:
                return
            self._told.add(about)
        log.warning("%s; the network goes on as it is written, until its structure changes: %s", about, reason)


def structure_of(garden: Garden) -> Any:
    """Which seeds there are, where, and what they are to the host's own pass."""
    return tuple(
        (slot.name, tuple((seed.number, seed.stage, seed.presence) for seed in slot.stack))
        for slot in garden.slots.values()
    )


Compiler = Callable[[nn.Module], Any]

ABOUT = "the host cannot be compiled (compute.compile)"


def torch_compiler(model: nn.Module) -> Any:
    """``model`` under torch's compiler: for its sizes alone, apart from its likes, with the numbers that it would draw.

    Otherwise a size that changes would be compiled for in general, in an order that depends on who came first; and all
    networks of a class would share what torch allows in recompilations, and none of them be compiled any more.
    """
    apart: dict[str, Any] = {"dynamic": False, "isolate_recompiles": True, "options": {"fallback_random": True}}
    return torch.compile(model, **apart)


class Compiled:
    """The pass of one garden's network, compiled."""

    def __init__(self, garden: Garden, notices: Notices, compiler: Compiler = torch_compiler) -> None:
        self._garden = garden
        self._notices = notices
        self._compiler = compiler
        self._structure: Any = None
        self._compiled: Any = None

    @property
    def holds(self) -> bool:
        """Whether the next pass is the first of its structure: compilers save torch's generators and restore them."""
        return bool(structure_of(self._garden) != self._structure)

    def run(self, act: Act, inputs: Tensor, targets: Tensor) -> Tensor:
        """What ``act`` gives of the compiled network, or of the network itself where that does not go.

        What is the network's own fault is raised as without a compiler.
        """
        model, fresh = self._garden.model, self.holds
        if not fresh and self._compiled is None:
            return act(model, inputs, targets)
        kept = KeptBuffers(model) if fresh else None
        try:
            compiled = self._compiler(model) if fresh else self._compiled
            whole = act(cast("nn.Module", compiled), inputs, targets)
        except Exception as error:
            restore_torch_defaults()
            if kept is not None:
                kept.put_back()
            whole = act(model, inputs, targets)
            compiled = None
            self._notices.once(ABOUT, error)
        self._structure, self._compiled = structure_of(self._garden), compiled
        return whole


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


def laid_out(recipe: Recipe, host: nn.Module) -> Recipe:
    """The recipe for hosts with channels last, if ``host``, which is one of them, takes images and goes so."""
    if recipe.compute.layout == "plain" or recipe.data["train"].inputs.dim() != IMAGES:
        return recipe
    _lay(host, torch.channels_last)
    if attempt(lambda: _try_all(recipe, host)).error is not None:
        _lay(host, torch.contiguous_format)
        return recipe
    streamed = recipe.compute.data == "streamed"  # from a file, maybe: such data stay as they are
    data = recipe.data if streamed else {name: _laid(split) for name, split in recipe.data.items()}
    return replace(recipe, build_host=lambda: _lay(recipe.build_host(), torch.channels_last), data=data)


def _laid(split: Split) -> Split:
    return replace(split, inputs=split.inputs.contiguous(memory_format=torch.channels_last))


def _lay(model: Any, layout: torch.memory_format) -> nn.Module:
    """The model, with its weights laid so. Torch's own annotations do not know that it can."""
    laid: nn.Module = model.to(memory_format=layout)
    return laid


def _try_all(recipe: Recipe, host: nn.Module) -> None:
    """Run the host and each block that may grow in it, forth and back; what any of them raises is raised."""
    train = _laid(recipe.data["train"])
    inputs, targets = (sent(own[:PROBE_EXAMPLES], recipe.device) for own in (train.inputs, train.targets))
    draws_of(host, lambda model: recipe.task.losses(model(inputs), targets).mean())
    sites = {slot.name: slot.site for slot in slots_of(host).each()}
    for name, varieties in recipe.varieties.items():
        if (site := sites[name]) is not None:
            for variety in varieties:
                draws_of_variety(variety, site, recipe.device, memory_format=torch.channels_last)
