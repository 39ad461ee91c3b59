"""How healthy are a seed's gradients? Their norms, kept on the device until the step's synchronisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from esper_core.leyline.constants import EXPLODING_NORM, VANISHING_NORM
from esper_core.leyline.signals import GradientHealth

if TYPE_CHECKING:
    from torch import Tensor


class GradientCollector:
    """Gathers the gradients of one set of parameters over the batches of a step.

    vanishing, exploding: norms of one parameter's gradient below and above which it counts as such.

    >>> collector = GradientCollector()
    >>> collector.collect([torch.tensor([3.0]), torch.tensor([4.0]), None])
    >>> read_health(collector.take().tolist()).global_norm
    5.0
    """

    def __init__(self, *, vanishing: float = VANISHING_NORM, exploding: float = EXPLODING_NORM) -> None:
        self._vanishing = vanishing
        self._exploding = exploding
        self._norms: list[Tensor] = []
        self._scaled = False

    def collect(self, gradients: Sequence[Tensor | None], *, scaled: bool = False) -> None:
        """Take in the gradients of one batch, one for each parameter; None where a parameter got none.

        scaled: they come from a loss that was scaled, so that a batch may overflow, and is left out of the training
        then: here, too. Where all were, every mean and share is NaN: nothing was learnt from.

        Nothing is read: the device does not wait. TypeError for what can be gone through only once, for whoever went
        through it before has left nothing; ValueError where there is nothing.
        """
        if not isinstance(gradients, Sequence):
            msg = f"gradients are a sequence: a list or a tuple. Received: {type(gradients).__name__}"
            raise TypeError(msg)
        there = [gradient for gradient in gradients if gradient is not None]
        if not gradients:
            msg = "gradients are at least one. Received: none"
            raise ValueError(msg)
        norms = [_norm(gradient.detach()) for gradient in there]
        absent = [torch.zeros((), device=norms[0].device if norms else None)] * (len(gradients) - len(there))
        self._norms.append(torch.stack([*norms, *absent]))
        self._scaled = scaled

    def take(self) -> Tensor | None:
        """What was gathered since it was taken last, as the numbers of ``read_health``; None where that is nothing."""
        batches, self._norms = self._norms, []
        if not batches:
            return None
        norms_NP = torch.stack(batches)
        if self._scaled:
            return self._of_those_left(norms_NP)
        finite_NP = norms_NP.isfinite()
        return torch.stack(
            [
                norms_NP.square().sum(1).sqrt().mean(),
                norms_NP.mean(),
                norms_NP.max(),
                (norms_NP < self._vanishing).float().mean(),
                ((norms_NP > self._exploding) & finite_NP).float().mean(),
                (~finite_NP).float().mean(),
            ]
        )

    def _of_those_left(self, norms_NP: Tensor) -> Tensor:
        """The same, of the batches that did not overflow."""
        left_N1 = norms_NP.isfinite().all(1, keepdim=True)
        norms_NP = torch.where(left_N1, norms_NP, 0.0)
        batches = left_N1.sum()
        numbers = batches * norms_NP.shape[1]
        return torch.stack(
            [
                norms_NP.square().sum(1).sqrt().sum() / batches,
                norms_NP.sum() / numbers,
                norms_NP.max(),
                ((norms_NP < self._vanishing) & left_N1).sum() / numbers,
                (norms_NP > self._exploding).sum() / numbers,
                (batches - batches) / batches,
            ]
        )


def _norm(gradient: Tensor) -> Tensor:
    """The Euclidean norm in float32; numbers of half the width are added up in it, and doubles in their own."""
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    narrow = values.dtype in (torch.float16, torch.bfloat16)
    norm: Tensor = torch.linalg.vector_norm(values, dtype=torch.float32 if narrow else None)
    return norm.float()


WIDTH = 6
"""How many numbers ``take`` gives."""


def read_health(numbers: Sequence[float]) -> GradientHealth:
    """What the collector's numbers mean, once they are read."""
    return GradientHealth(*numbers)
