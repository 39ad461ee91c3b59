"""How does what a seed puts out join what the host puts out? Four operators; each owns its own parameters.

With h the host's output, s the seed's and α its strength:

    add        (1 − α)·h + α·s                the seed replaces the host by degrees
    residual   h + α·g·(s − h)                a learned gain g on what the seed changes
    multiply   h·(1 + α·tanh(s − h))          the seed scales the host's features, to nothing or to twice at most
    gate       h + α·γ(h)·(s − h)             a gate γ = 2·sigmoid(w·mean(h) + b) for each example, 1 at birth

None of them is called at α = 0, where the seed is not evaluated: a formula would let its NaN through. Each leaves a
block that starts as the identity the identity. A block that does not is put behind a gain that starts at 0
(``Eased``; ``residual`` has such a gain of its own). Only one factor on each way from the loss to a parameter is zero
at birth, so that every parameter has a gradient within two steps: where the block itself starts at nothing, a gain
of 0 in front of it would leave both without, for ever. So it is looked at what a block does, and not only at what it
says: one that claims nothing and yet changes next to nothing is not eased.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn

from esper_core.growth.keeping import KeptBuffers
from esper_core.growth.randomness import RandomStream, derive_seed
from esper_core.leyline.actions import Blend

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from esper_core.leyline.specs import Site


NOTICEABLE: Final = 1e-3
"""Change of a newborn block, as a share of what it changes, from which on it is eased."""


class Add(nn.Module):
    """(1 − α)·h + α·s. Exactly s at α = 1."""

    def forward(self, host: Tensor, seed: Tensor, alpha: float) -> Tensor:
        """The blended output."""
        return torch.lerp(host, seed, alpha)


class Residual(nn.Module):
    """h + α·g·(s − h), with a learned gain g that starts at ``gain``."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(gain))

    def forward(self, host: Tensor, seed: Tensor, alpha: float) -> Tensor:
        """The blended output."""
        return host + (alpha * self.gain) * (seed - host)


class Multiply(nn.Module):
    """h·(1 + α·tanh(s − h))."""

    def forward(self, host: Tensor, seed: Tensor, alpha: float) -> Tensor:
        """The blended output."""
        return host * (1.0 + alpha * torch.tanh(seed - host))


class Gate(nn.Module):
    """h + α·γ·(s − h), where γ = 2·sigmoid(w·mean(h) + b) is one number for each example, between 0 and 2.

    ``channels`` is the width of the features, ``axis`` the dimension in which they lie; the others are averaged. With
    w and b at 0 the gate starts at 1: as ``add`` does.
    """

    def __init__(self, channels: int, axis: int) -> None:
        super().__init__()
        self.axis = axis
        self.weight = nn.Parameter(torch.zeros(channels))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, host: Tensor, seed: Tensor, alpha: float) -> Tensor:
        """The blended output."""
        features = host.movedim(self.axis, 1).flatten(2).mean(2) if host.ndim > 2 else host
        gate = 2.0 * torch.sigmoid(features @ self.weight + self.bias)
        return host + alpha * gate.reshape(-1, *[1] * (host.ndim - 1)) * (seed - host)


class Eased(nn.Module):
    """h + g·(b(h) − h): a block behind a learned gain g that starts at 0, so that it starts as the identity."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.gain = nn.Parameter(torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs in the shape of the inputs."""
        outputs: Tensor = inputs + self.gain * (in_shape(self.block(inputs), inputs) - inputs)
        return outputs


class OutOfShapeError(ValueError):
    """A block put out another shape than it was given."""


def in_shape(outputs: Tensor, inputs: Tensor) -> Tensor:
    """``outputs``; OutOfShapeError where they have another shape than ``inputs``: broadcasting would hide it."""
    if outputs.shape != inputs.shape:
        msg = f"put out the shape {tuple(outputs.shape)} for {tuple(inputs.shape)}"
        raise OutOfShapeError(msg)
    return outputs


def changes_at_birth(block: nn.Module, site: Site) -> bool:
    """Whether a newborn block noticeably changes what passes through it; tried on random numbers, and no trace is left.

    A block that gives back something else than its input's like does: others will tell.
    """
    tensor = next((tensor for tensor in block.parameters() if tensor.is_floating_point()), torch.zeros(()))
    kept, training = KeptBuffers(block), block.training
    try:
        with torch.no_grad(), RandomStream(derive_seed(0, "trial"), tensor.device):
            inputs = torch.randn(2, *site.example_shape, device=tensor.device, dtype=tensor.dtype)
            outputs = block.eval()(inputs.clone())
    finally:
        block.train(training)
        kept.put_back()
    if not isinstance(outputs, Tensor) or outputs.shape != inputs.shape:
        return True
    return not bool((outputs - inputs).norm() <= NOTICEABLE * inputs.norm())


_MAKERS: Mapping[Blend, Callable[[Site, bool], nn.Module]] = MappingProxyType(
    {
        Blend.ADD: lambda site, identity: Add(),
        Blend.RESIDUAL: lambda site, identity: Residual(1.0 if identity else 0.0),
        Blend.MULTIPLY: lambda site, identity: Multiply(),
        Blend.GATE: lambda site, identity: Gate(site.channels, -1 if site.kind == "tokens" else 1),
    }
)


def joined(block: nn.Module, blend: Blend, site: Site, *, identity: bool) -> tuple[nn.Module, nn.Module]:
    """What a seed is made of: the block, eased where need be, and the operator that blends it in.

    ``identity`` says whether the block starts as the identity.
    """
    eased = block if identity or blend is Blend.RESIDUAL else Eased(block)
    return eased, _MAKERS[blend](site, identity)


def blend_parameters(blend: Blend, site: Site, *, identity: bool) -> int:
    """How many parameters come on top of the block's own.

    >>> from esper_core.leyline.specs import Site
    >>> blend_parameters(Blend.GATE, Site("vector", 8), identity=True)
    9
    """
    own = {Blend.ADD: 0, Blend.RESIDUAL: 1, Blend.MULTIPLY: 0, Blend.GATE: site.channels + 1}[blend]
    return own if identity or blend is Blend.RESIDUAL else own + 1
