"""Grow a model in Lightning: ``Grow`` is a callback of ``lightning.pytorch.Trainer``.

grow = Grow(["body.0"])
Trainer(max_epochs=25, callbacks=[grow]).fit(net, train_loader, validation_loader)
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch.optim.swa_utils import AveragedModel
from torchmetrics import Metric

from esper_core.growth import Host
from esper_core.leyline.errors import GrowthError, Problem
from esper_core.leyline.lifecycle import Stage
from esper_grow.gardener.stale_copies import RENEWED
from esper_grow.integrations.attachment import BEST_LOSS, GrowsModel, MovedBatches, grow_as

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from torch import Tensor, nn

    from esper_core.growth import Seed
    from esper_core.leyline import SlotPlace


_LOGGING: Final = ("log", "log_dict", "print")
"""Methods of a LightningModule that leave something behind."""

_KEY: Final = "esper"
"""Key of the state in a checkpoint."""


def step_loss(module: pl.LightningModule, batch: Any) -> Tensor:
    """Return the loss of the module's ``training_step``; nothing is logged, and metrics are put back.

    Raises:
        GrowthError: The module optimizes manually, and its step returns no loss (E364).
    """
    if not module.automatic_optimization:
        message = "the module optimizes manually, so that its training_step cannot be called for its loss"
        raise GrowthError(Problem("E364", message, hint="Pass  Grow(…, loss=Net.losses), which returns the losses."))
    index = (0,) if is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2) else ()
    with _unlogged(module):  # the step of the class: a compiled one would be compiled again for each branch
        returned = type(module).training_step(module, batch, *index)
    loss: Tensor = returned["loss"] if isinstance(returned, Mapping) else returned
    return loss


@contextmanager
def _unlogged(module: pl.LightningModule) -> Iterator[None]:
    """Stop the module's logging in the ``with`` block; restore its metrics, lists, dicts and numbers after it."""
    attributes = vars(module)
    numbers = {name: value for name, value in attributes.items() if type(value) in (int, float)}
    collected = [(value, value.copy()) for value in attributes.values() if type(value) in (list, dict)]
    before = {name: attributes[name] for name in _LOGGING if name in attributes}
    metrics = [
        (metric, {**vars(metric), **deepcopy(metric.metric_state)})
        for metric in module.modules()
        if isinstance(metric, Metric)
    ]
    attributes.update(dict.fromkeys(_LOGGING, lambda *_, **__: None))
    try:
        yield
    finally:
        for name in _LOGGING:
            del attributes[name]
        attributes.update(before | numbers)
        for collection, items in collected:
            collection.clear()
            (collection.extend if isinstance(collection, list) else collection.update)(items)
        for metric, saved in metrics:
            vars(metric).update(saved)


class Grow(GrowsModel, pl.Callback):
    """Grows the LightningModule that a trainer fits.

    ``Gardener.tend`` is called at the end of each epoch, before its validation and its checkpoint; more often in fewer
    than 15 epochs. Checkpoints of Lightning hold the state: ``fit(…, ckpt_path=…)`` with the same callback goes on bit
    for bit.

    Args:
        slots: Names of modules of the LightningModule, as ``esper_core.graft`` takes them.
        loss: ``loss(module, batch)`` returns one loss for each example, or their mean; by default the loss of
            ``training_step``, which is called with batch index 0, and logs nothing then.
        validation: Held-out batches; None: those of the trainer's first validation loader.
        steps: Calls of ``tend`` that policies plan for; None: as many as there will be.
        every: Steps of the optimizer between two calls of ``tend``, instead of an epoch.
        settings: Further arguments of ``esper_grow.Gardener``.

    Attributes:
        tended: What each call of ``tend`` returned.
    """

    def __init__(
        self,
        slots: Sequence[str] | Mapping[str, str | SlotPlace] | None = None,
        *,
        loss: Callable[[Any, Any], Tensor] = step_loss,
        validation: Iterable[Any] | None = None,
        steps: int | None = None,
        every: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__({"loss": loss, "slots": slots, **settings}, validation, steps, every)
        self._state: dict[str, Any] = {}

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Prepare the module for the state of a checkpoint; a hook of Lightning."""
        self._attachment.expects_state = stage == "fit"
        for model in (pl_module, *(average.module for average in _averages(trainer))):
            self._attachment.watch(model)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Make the Gardener, before the module runs for the first time; a hook of Lightning."""
        batches = _loader(trainer) if self._validation is None else self._validation
        self._attachment.begin(
            pl_module,
            trainer.optimizers,
            validation=MovedBatches(batches, partial(_moved, trainer)),
            steps=self._planned_steps(trainer),
            clip_norm=None if trainer.gradient_clip_algorithm == "value" else trainer.gradient_clip_val,
            state=self._state.get("gardener"),
        )
        _renew_averages(trainer, pl_module)
        for average, grown in zip(_averages(trainer), self._state.get("averages", ()), strict=False):
            average.module.load_state_dict({**average.module.state_dict(), **grown})
        if "random" in self._state:
            _set_random_numbers(self._state["random"])
        self._state = {}

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Train the seeds, and tend them at the end of an epoch; a hook of Lightning."""
        ended = trainer.is_last_batch or batch_idx + 1 >= trainer.num_training_batches
        seeds = _seeds(pl_module)
        tended = self._attachment.step(batch, epoch_ended=ended)
        # A set germinates with the first batch, before any tend.
        if _seeds(pl_module) != seeds or (tended is not None and (tended.changes or tended.lost)):
            _renew_averages(trainer, pl_module)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the metric for early stopping, which may look after a validation; a hook of Lightning."""
        if self.gardener is not None and trainer.state.fn == "fit":
            pl_module.log(BEST_LOSS, self.gardener.best_loss)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the metric for early stopping, which may look after an epoch; a hook of Lightning."""
        if self.gardener is not None:
            pl_module.log(BEST_LOSS, self.gardener.best_loss)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """End the Gardener; a checkpoint that is written afterwards has its state. A hook of Lightning."""
        self._state = self._read_state(trainer)
        self._attachment.close(exception)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """End the Gardener after the last checkpoint; a hook of Lightning."""
        self._attachment.close()
        self._attachment.expects_state = False

    def state_dict(self) -> dict[str, Any]:
        """Return where the state is: Lightning names a callback that has some, and is forgotten at a resume."""
        return {"key": _KEY}

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the state to a checkpoint; a hook of Lightning."""
        checkpoint[_KEY] = self._state or self._read_state(trainer)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the state until the training begins; a hook of Lightning."""
        if self._attachment.expects_state:
            self._state = checkpoint.get(_KEY, {})

    def _planned_steps(self, trainer: pl.Trainer) -> int:
        """Return how often ``tend`` will be called in a training."""
        # Lightning loads the training data to count the steps, so it is asked only where they matter.
        planned = self.plan(trainer.max_epochs, lambda: trainer.estimated_stepping_batches)
        if planned is None or not 0 < planned < math.inf:
            message = "the length of the training is unknown, and policies plan for it"
            raise GrowthError(Problem("E363", message, hint="Pass  Grow(…, steps=40), or  Trainer(max_epochs=40)."))
        return int(planned)

    def _read_state(self, trainer: pl.Trainer) -> dict[str, Any]:
        """Return the state of the Gardener, what grew in averages of the weights, and random numbers."""
        if self.gardener is None:
            return {}
        grown = [Host.split_state(average.module.state_dict())[1] for average in _averages(trainer)]
        return {"gardener": self.gardener.state_dict(), "averages": grown, "random": _random_numbers()}


def _random_numbers() -> dict[str, Any]:
    """Return the states of the process's random numbers, as plain data and tensors."""
    kind, keys, *more = cast("tuple[Any, ...]", np.random.get_state())
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": random.getstate(),
        "numpy": (kind, keys.tolist(), *more),
    }


def _set_random_numbers(state: Mapping[str, Any]) -> None:
    """Go on with random numbers that were saved; those of CUDA only on as many devices."""
    torch.set_rng_state(state["torch"].cpu())
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([device_state.cpu() for device_state in state["cuda"]])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(state["numpy"])


ModuleT = TypeVar("ModuleT", bound=pl.LightningModule)


def load_from_checkpoint(kind: type[ModuleT], checkpoint_path: str | Path, **arguments: Any) -> ModuleT:
    """Load a module as ``kind.load_from_checkpoint`` does, and rebuild what grew in it.

    Args:
        kind: The class of the module.
        checkpoint_path: A checkpoint of Lightning.
        arguments: Further arguments of ``LightningModule.load_from_checkpoint``.

    Raises:
        GrowthError: The checkpoint does not fit the module, or is damaged.
    """

    class Ungrown(kind):  # type: ignore[misc, valid-type]
        def load_state_dict(self, state: Mapping[str, Any], *more: Any, **named: Any) -> Any:
            self.__class__ = kind
            grow_as(self, state)
            return self.load_state_dict(state, *more, **named)

    module: ModuleT = Ungrown.load_from_checkpoint(checkpoint_path, **arguments)
    return module


def _moved(trainer: pl.Trainer, batch: Any) -> Any:
    """Return a batch as the steps of a LightningModule get it."""
    strategy = trainer.strategy
    return strategy.batch_to_device(strategy.precision_plugin.convert_input(batch), dataloader_idx=0)


def _loader(trainer: pl.Trainer) -> Iterable[Any]:
    """Return the first validation loader of a trainer, which sets it up otherwise after the first passes."""
    loop = trainer.fit_loop.epoch_loop.val_loop
    trainer.validating = True
    with suppress(MisconfigurationException):  # raised where there is no validation loader
        loop.setup_data()
    trainer.training = True
    loaders = CombinedLoader(trainer.val_dataloaders, "sequential").flattened
    if loaders in ([], [None]):
        hint = "Pass  Grow(…, validation=batches): Lightning ignores the loader of a module without validation_step."
        raise GrowthError(Problem("E344", "there is no validation data to measure gains with", hint=hint))
    loader: Iterable[Any] = loaders[0]
    return loader


def _averages(trainer: pl.Trainer) -> list[AveragedModel]:
    """Return the averages of the weights that callbacks of the trainer keep."""
    return [
        attribute
        for callback in trainer.callbacks
        for attribute in vars(callback).values()
        if isinstance(attribute, AveragedModel)
    ]


def _renew_averages(trainer: pl.Trainer, module: pl.LightningModule) -> None:
    """Give averages the seeds that the module has: averages are paired with it parameter by parameter."""
    for average in _averages(trainer):
        before = average.module
        setattr(average, RENEWED, True)
        average.module = deepcopy(module).to(next(before.parameters()).device)
        average.module.load_state_dict({**average.module.state_dict(), **Host.split_state(before.state_dict())[0]})
        kept = {seed.number: seed for seed in _seeds(before) if seed.stage is Stage.FOSSILISED}
        for seed in _seeds(average.module):
            if seed.number in kept:
                seed.load_state_dict(kept[seed.number].state_dict())


def _seeds(module: nn.Module) -> list[Seed]:
    slots = Host(module).slots if Host(module).is_grafted else ()
    return [seed for slot in slots for seed in slot.seeds]
