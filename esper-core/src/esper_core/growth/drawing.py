"""Does a network draw random numbers while it computes, and when? It is tried, before a run begins.

Torch's default generators belong to the whole process, so passes that draw from them take turns. Those of a network
that draws nothing need not; and where it draws in its forward pass alone, its backward passes need not either.
"""

from __future__ import annotations

from contextlib import ExitStack
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from esper_core.growth.keeping import KeptBuffers
from esper_core.growth.probe import device_of
from esper_core.growth.randomness import RandomStream, derive_seed

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from esper_core.growth.planting import Variety
    from esper_core.leyline.specs import Site


class Draws(IntEnum):
    """When random numbers are drawn. Of several networks the one that draws most decides."""

    NEVER = 0
    FORWARD = 1
    """In the forward pass alone."""
    ANYWHERE = 2
    """In the backward pass, too, or the forward pass is computed again there."""


EXAMPLES: Final = 4
"""On which a block is tried."""

DRAWING: Final = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
    nn.RReLU,
    nn.FractionalMaxPool2d,
    nn.FractionalMaxPool3d,
)
"""Modules that are taken to draw, though they may have been told not to: somebody may turn them up later."""


def draws_of(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> Draws:
    """When ``model`` draws. ``loss`` runs it on a few examples; afterwards the model is what it was."""
    was, kept = model.training, KeptBuffers(model)
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        with RandomStream(0, device_of(model)), torch.enable_grad():
            training = _tried(model.train(), loss)
            evaluation = _tried(model.eval(), loss)
    finally:
        model.train(was)
        kept.put_back()
        for parameter, gradient in gradients:
            parameter.grad = gradient
    looks_so = any(isinstance(module, DRAWING) or _drops_out(module) for module in model.modules())
    return max(training, evaluation, Draws.FORWARD if looks_so else Draws.NEVER)


def draws_of_variety(
    variety: Variety, site: Site, device: torch.device, *, memory_format: torch.memory_format = torch.contiguous_format
) -> Draws:
    """When a block of the blueprint draws that stands at ``site``. memory_format: of images it is tried on."""
    with RandomStream(derive_seed(0, "drawing", variety.id), device):
        block = variety.factory(site).to(device)
        inputs = torch.randn(EXAMPLES, *site.example_shape, device=device)
        if site.kind == "image":
            inputs = inputs.contiguous(memory_format=memory_format)
    return draws_of(block, lambda module: module(inputs).square().mean())


def _tried(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> Draws:
    before, again = _generators(model), 0

    def computed_again(*_: Any) -> None:
        nonlocal again
        again += 1

    whole = loss(model)
    between = _generators(model)
    with ExitStack() as hooks:
        for module in model.modules():
            hooks.callback(module.register_forward_pre_hook(computed_again).remove)
        if whole.requires_grad:
            whole.backward()
    in_forward, in_backward = _differ(before, between), _differ(between, _generators(model))
    if in_backward or (again and in_forward):
        return Draws.ANYWHERE
    return Draws.FORWARD if in_forward else Draws.NEVER


def _drops_out(module: nn.Module) -> bool:
    """Whether it says of itself that it does, as recurrent layers and attention do."""
    share = getattr(module, "dropout", None)
    return isinstance(share, float) and share > 0.0


def _generators(model: nn.Module) -> list[Tensor]:
    device = device_of(model)
    own = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *own]


def _differ(before: list[Tensor], after: list[Tensor]) -> bool:
    return any(not torch.equal(then, now) for then, now in zip(before, after, strict=True))
