"""Incubation: train a seed before it acts on the host, in the shadow or on a branch.

    shadow             a second pass with the seed in it trains the seed alone; the host stays what it would have been
    branch             host and seed train together on a branch of the host's numbers; the host itself goes its own way

In both the host stays bit for bit its twin, and the seed learns from the loss that it would cause.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Protocol

import torch

from esper_core.growth.keeping import KeptBuffers
from esper_core.growth.memory import heard, told
from esper_core.growth.optimizer_memory import scaler_told, scaler_with
from esper_core.growth.probe import device_of
from esper_core.leyline.protocols import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor, nn

    from esper_core.growth.optimizers import OptimizerKeeper
    from esper_core.growth.randomness import RandomStream
    from esper_core.growth.seed import Seed
    from esper_core.growth.slot import Slot


class Incubation(Protocol):
    """One seed's way from its birth on.

    lasting: whether it goes on until the seed is kept or pruned, rather than ending when the seed is blended in.
    """

    lasting: bool

    def train(self, *parts: Callable[[nn.Module], Tensor]) -> None:
        """Train on one batch, after the host's own step.

        Each of ``parts`` runs the model on its part of the batch; what they return adds up to the mean loss.
        """
        ...

    def trial(self) -> AbstractContextManager[None]:
        """A block in which the model acts as it would with the seed at its target."""
        ...

    def commit(self) -> None:
        """The seed is kept: what was tried becomes what is."""
        ...

    def reopen(self) -> None:
        """Undo a commit, as long as nothing was trained since."""
        ...

    def take_loss(self) -> Tensor | None:
        """The mean loss of the batches since it was taken last, on the device; None where nothing was measured."""
        ...

    def state(self) -> State:
        """All that it knows beside the seed, between two steps, when no loss is waited for."""
        ...

    def load(self, state: State) -> None:
        """Know what another one of this way knew, of a seed alike."""
        ...


def summed(losses: Sequence[Tensor]) -> Tensor:
    """The loss of a batch, of those of its parts."""
    return losses[0] if len(losses) == 1 else torch.stack(list(losses)).sum()


def _added(gradient: Tensor | None, more: Tensor | None) -> Tensor | None:
    if gradient is None or more is None:
        return more if gradient is None else gradient
    return gradient + more


class Shadow:
    """In the shadow of the host, on the loss that the seed would cause.

    After the host's own step the same batch passes once more, with the seed at its target. The loss of that pass trains
    the seed alone: the host's parameters get no gradient, its buffers are put back, and random numbers come from a
    stream of the seed's own.
    """

    lasting = False

    def __init__(self, model: nn.Module, slot: Slot, seed: Seed, keeper: OptimizerKeeper, stream: RandomStream) -> None:
        self._model = model
        self._slot = slot
        self._seed = seed
        self._keeper = keeper
        self._scaler = deepcopy(keeper.scaler)
        self._stream = stream
        self._losses: list[Tensor] = []

    def train(self, *parts: Callable[[nn.Module], Tensor]) -> None:
        """Train the seed on one batch."""
        share = self._keeper.seeds[self._seed.number]
        losses: list[Tensor] = []
        gradients: list[Tensor | None] = []
        with self.trial(), self._stream:
            for part in parts:
                loss = part(self._model)
                scaled = loss if self._scaler is None else self._scaler.scale(loss)
                more = torch.autograd.grad(scaled, share.parameters, allow_unused=True)
                gradients = list(map(_added, gradients, more)) if gradients else list(more)
                losses.append(loss.detach())
        self._keeper.step_seed(self._seed.number, gradients, self._scaler)
        self._losses.append(summed(losses))

    @contextmanager
    def trial(self) -> Iterator[None]:
        """The host as it is, with the seed at its target; the host's buffers are put back."""
        kept = KeptBuffers(self._model, without=[self._seed])
        try:
            with self._slot.trying(self._seed):
                yield
        finally:
            kept.put_back()

    def commit(self) -> None:
        """Nothing: the host is blended with, in place."""

    def reopen(self) -> None:
        """Nothing."""

    def take_loss(self) -> Tensor | None:
        """The mean loss of the batches since it was taken last."""
        losses, self._losses = self._losses, []
        return torch.stack(losses).mean() if losses else None

    def state(self) -> State:
        """Its random numbers, and its scaler of the loss."""
        return State.of({"stream": told(self._stream.state()), "scaler": scaler_told(self._scaler)})

    def load(self, state: State) -> None:
        """Draw and scale on as another one would have."""
        self._stream.go_to(heard(state.part("stream")))
        self._scaler = scaler_with(state.part("scaler"), self._scaler, device_of(self._model))
