"""Checkpoints of accelerate: ``register`` puts the state of a Gardener into those of an Accelerator.

A loop with an Accelerator is a loop of your own, and drives a Gardener itself, made after ``prepare``:

    gardener = Gardener(accelerator.unwrap_model(model), optimizer, …)
    register(accelerator, gardener)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper_core.growth import device_of
from esper_core.integrations.attachment import STATE_FILE, read_state, write_state

if TYPE_CHECKING:
    from accelerate import Accelerator

    from esper_core.gardener import Gardener


def register(accelerator: Accelerator, gardener: Gardener) -> None:
    """Let ``accelerator.save_state`` and ``load_state`` save a Gardener, and restore one that was just made.

    ``register_for_checkpointing`` would restore it last, but models and optimizers only fit after it.
    """

    def save(models: list[Any], weights: list[Any], folder: str) -> None:
        write_state(Path(folder, STATE_FILE), gardener.state_dict())

    def load(models: list[Any], folder: str) -> None:
        gardener.load_state_dict(read_state(Path(folder, STATE_FILE), device_of(gardener.model)))

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
