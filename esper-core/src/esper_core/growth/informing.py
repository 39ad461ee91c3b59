"""What passes at a slot, and which way should it change? One pass over a probe batch, of which no trace remains.

A blueprint with the trait ``informed_birth`` chooses its first weights from it: so that, still the identity, it starts
where the loss falls fastest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from esper_core.growth.keeping import KeptBuffers

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from esper_core.growth.randomness import RandomStream
    from esper_core.growth.slot import Slot

TRAIT = "informed_birth"


def inform(
    block: nn.Module, model: nn.Module, slot: Slot, loss: Callable[[nn.Module], Tensor], stream: RandomStream
) -> None:
    """Let a newborn block look at what passes at its slot; ``loss`` runs the model on a batch and returns the mean.

    The model is run as in training, with random numbers from ``stream``; its buffers are put back.
    """
    kept = KeptBuffers(model)
    try:
        with stream, torch.enable_grad(), slot.tapped() as tapped:
            whole = loss(model)
            (hidden,) = tapped
            (gradients,) = torch.autograd.grad(whole, [hidden])
    finally:
        kept.put_back()
    choosing: Any = block
    with stream, torch.no_grad():
        choosing.inform(hidden.detach(), gradients)
