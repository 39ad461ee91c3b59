"""Grow a model in a loop with an Accelerator: ``grow`` makes its Gardener.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    gardener = grow(accelerator, model, optimizer, ["stem"], validation=batches)

Such a loop is one of your own, and calls ``step`` and ``tend`` of the Gardener itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper_core.growth import Host
from esper_grow.gardener import Gardener
from esper_grow.integrations.attachment import STATE_FILE, model_loss, read_state, write_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from accelerate import Accelerator
    from torch import Tensor, nn

    from esper_core.leyline import SlotPlace


def grow(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Any,
    slots: Sequence[str] | Mapping[str, str | SlotPlace] | None = None,
    *,
    loss: Callable[[Any, Any], Tensor] = model_loss,
    **settings: Any,
) -> Gardener:
    """Return a Gardener, which ``accelerator.save_state`` and ``load_state`` save and restore.

    Args:
        accelerator: That of the loop.
        model: The model that ``accelerator.prepare`` returned.
        optimizer: The optimizer that it returned, or several.
        slots: Names of modules of the model, as ``esper_core.graft`` takes them.
        loss: ``loss(model, batch)`` returns one loss for each example, or their mean; by default that which the model
            itself returns as ``["loss"]``.
        settings: Further arguments of ``esper_grow.Gardener``.
    """
    inner = accelerator.unwrap_model(model, keep_torch_compile=False)
    gardener = Gardener(inner, optimizer, slots=slots, loss=loss, **settings)

    def save(models: list[Any], weights: list[Any], folder: str) -> None:
        write_state(Path(folder, STATE_FILE), gardener.state_dict())

    def load(models: list[Any], folder: str) -> None:
        gardener.load_state_dict(read_state(Path(folder, STATE_FILE), Host(gardener.model).device))

    # register_for_checkpointing would restore it last, and models and optimizers do not fit before it is. What is
    # registered holds nothing: accelerate refuses a checkpoint with another number of such objects than the loop has.
    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
    accelerator.register_for_checkpointing(_Mark())
    return gardener


class _Mark:
    """An object without a state, by which a checkpoint shows that its loop had a Gardener."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""
