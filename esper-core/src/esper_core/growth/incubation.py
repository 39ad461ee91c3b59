"""How does a seed learn before the host sees it? In the shadow of the host, on the loss that it would cause.

After the host's own step the same batch passes once more, with the seed at the strength that it will have when it is
blended in. The loss of that pass trains the seed alone: the host's parameters get no gradient, its buffers are put
back, and random numbers come from a stream of the seed's own. So the host stays bit for bit what it would have been,
and yet the seed is told what it does. It needs a seed that is the identity at birth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from esper_core.growth.keeping import KeptBuffers

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from esper_core.growth.optimizers import OptimizerKeeper
    from esper_core.growth.randomness import RandomStream
    from esper_core.growth.seed import Seed
    from esper_core.growth.slot import Slot


class Shadow:
    """One seed's incubation."""

    def __init__(self, model: nn.Module, slot: Slot, keeper: OptimizerKeeper, stream: RandomStream) -> None:
        self._model = model
        self._slot = slot
        self._seed = cast("Seed", slot.living)
        self._keeper = keeper
        self._stream = stream
        self._losses: list[Tensor] = []

    @property
    def blueprint(self) -> str:
        """Full id of what is incubated."""
        return self._seed.blueprint

    def train(self, loss: Callable[[nn.Module], Tensor]) -> None:
        """Train the seed on one batch; ``loss`` runs the model on it and returns the mean loss."""
        kept = KeptBuffers(self._model, without=[self._seed])
        share = self._keeper.seeds[self._seed.number]
        try:
            with self._stream, self._slot.trying():
                trial = loss(self._model)
                gradients = torch.autograd.grad(trial, share.parameters, allow_unused=True)
        finally:
            kept.put_back()
        self._keeper.step_seed(self._seed.number, gradients)
        self._losses.append(trial.detach())

    def take_loss(self) -> Tensor | None:
        """The mean loss of the batches since it was taken last, on the device; None where there was no batch."""
        losses, self._losses = self._losses, []
        return torch.stack(losses).mean() if losses else None
