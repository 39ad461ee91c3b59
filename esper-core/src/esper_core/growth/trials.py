"""Trials of blueprints before a run: shape, gradients, random numbers.

``audition`` builds a blueprint at a site and refuses one that does not do what its spec says. ``draws_of`` finds out
whether a network draws random numbers: passes that draw none need no turn on torch's default generators.
"""

from __future__ import annotations

from contextlib import ExitStack
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from esper_core.growth.dry_runs import KeptBuffers, device_of
from esper_core.growth.random_streams import RandomStream, derive_seed
from esper_core.growth.seeds import describe_error, is_informed
from esper_core.leyline.errors import Problem
from esper_core.plugins.isolation import attempt
from esper_core.plugins.process_state import Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from esper_core.growth.seeds import Variety
    from esper_core.leyline.specs import Site


BATCH: Final = 4
"""Examples on which a block is tried."""

LEARNING_RATE = 0.05
NUMBERS = 512
"""Inputs, so many that each unit of a narrow block acts on one at least."""


def audition(variety: Variety, site: Site, device: torch.device) -> Problem | None:
    """Return the first thing that is wrong with ``variety`` at ``site``; None if it does what its spec says."""
    place = f"a {site.kind} of shape {site.example_shape}"
    with RandomStream(derive_seed(0, "audition", variety.id), device), torch.enable_grad():
        built = attempt(lambda: variety.build_alone(site))
        if built.error is not None:
            return Problem("E321", f"{describe_error(built.error, variety.factory)} when it was built for {place}")
        block = built.value
        if not isinstance(block, nn.Module):
            return Problem("E321", f"builds a {type(block).__name__}, not a torch.nn.Module, for {place}")
        inputs = torch.randn(BATCH, *variety.spec.input_shape(site), device=device)
        tried = attempt(lambda: next(_problems(block, variety, site, inputs), None), variety.title, Scope.PROCESS)
        if tried.error is not None:
            return Problem("E322", f"{describe_error(tried.error, variety.factory)} when it was tried on {place}")
        return tried.value


def _problems(block: nn.Module, variety: Variety, site: Site, inputs: Tensor) -> Iterator[Problem]:
    parameters = {*block.parameters()}
    if any(parameter.requires_grad for parameter in parameters.intersection(variety.build(site).parameters())):
        hint = "Each seed trains its own. Build new modules in each call, or copy them:  copy.deepcopy(module)"
        yield Problem("E321", "builds blocks that have parameters in common", hint=hint)
    if any(map(torch.is_complex, parameters)):
        hint = "Seeds are cast to the dtype of their host. Keep two real numbers, as torch.view_as_complex takes them."
        yield Problem("E327", "has complex parameters, of which a cast leaves the real part alone", hint=hint)
    block.to(inputs.device, inputs.dtype)  # as a seed is built
    like = inputs.new_zeros(BATCH, *site.example_shape) if variety.spec.adapts else inputs
    if is_informed(block):
        informed: Any = block
        with torch.no_grad():
            informed.inform(inputs.clone(), torch.randn_like(like))
    for training in (True, False):
        block.train(training)
        block_input = inputs.clone()
        with torch.no_grad():
            outputs = block(block_input)
        if not torch.equal(block_input, inputs):
            hint = "The host uses the input afterwards. Don't modify it in place, as with inplace=True."
            yield Problem("E323", "modifies its input", hint=hint)
        yield from _wrong_outputs(outputs, inputs, like)
        if variety.spec.starts_as_identity and not torch.equal(outputs, like):
            distance = (outputs - like).abs().max().item()
            identity = "zero" if variety.spec.adapts else "its input"
            hint = "Initialise the last layer with zeros, or don't declare starts_as_identity."
            message = f"declares starts_as_identity, but its output differs from {identity} by up to {distance:.3g}"
            yield Problem("E326", message, hint=hint)
    yield from _untrained(block.train(), inputs, like)


def _wrong_outputs(outputs: object, inputs: Tensor, like: Tensor) -> Iterator[Problem]:
    if not isinstance(outputs, torch.Tensor):
        yield Problem("E323", f"returns a {type(outputs).__name__}, not a tensor")
    elif outputs.shape != like.shape:
        yield Problem("E323", f"returns the shape {tuple(outputs.shape)} for an input of shape {tuple(inputs.shape)}")
    elif outputs.dtype != like.dtype or outputs.device != like.device:
        received = f"{outputs.dtype} on {outputs.device} for {inputs.dtype} on {inputs.device}"
        hint = "Create tensors with inputs.new_zeros(...) or torch.zeros_like(inputs)."
        yield Problem("E323", f"returns {received}", hint=hint)
    elif not outputs.isfinite().all():
        yield Problem("E324", "returns infinite or NaN values for ordinary inputs")


def _untrained(block: nn.Module, inputs: Tensor, like: Tensor) -> Iterator[Problem]:
    """Yield a problem if two steps towards other outputs do not reach every trainable parameter."""
    trainable = {name: parameter for name, parameter in block.named_parameters() if parameter.requires_grad}
    if not trainable:
        yield Problem("E327", "has no trainable parameter", hint="A seed needs parameters to train.")
        return
    reached: set[str] = set()
    # In a few examples each unit of a narrow block may be dead.
    for rows in (len(inputs), max(len(inputs), NUMBERS // inputs[0].numel())):
        if rows > len(inputs):
            inputs = torch.randn(rows, *inputs.shape[1:], device=inputs.device, dtype=inputs.dtype)
        target = torch.randn(rows, *like.shape[1:], device=like.device, dtype=like.dtype)
        # Twice, because behind a gain of 0 a parameter gets no gradient until the gain has moved.
        for _ in range(2):
            loss = (block(inputs) - target).square().mean()
            if not loss.requires_grad:
                break
            gradients = torch.autograd.grad(loss, list(trainable.values()), allow_unused=True)
            with torch.no_grad():
                for (name, parameter), gradient in zip(trainable.items(), gradients, strict=True):
                    if gradient is None:
                        continue
                    if not gradient.isfinite().all():
                        yield Problem("E324", f"has a gradient that is not finite: {name}")
                        return
                    if gradient.any():
                        reached.add(name)
                    parameter.sub_(LEARNING_RATE * gradient)
        if reached.issuperset(trainable):
            return
    missed = [name for name in trainable if name not in reached]
    message = f"has parameters that no gradient reaches in two steps: {', '.join(missed[:5])}"
    hint = "Initialise only the last layer with zeros, with no normalisation or ReLU after it."
    yield Problem("E327", message, hint=hint)


class Draws(IntEnum):
    """When a network draws random numbers. For several networks, take the maximum."""

    NEVER = 0
    FORWARD = 1
    """In the forward pass alone."""
    ANYWHERE = 2
    """In the backward pass, too, or the forward pass is recomputed there."""


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
"""Modules that count as drawing even at a rate of 0, which may be changed later."""


def draws_of(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> Draws:
    """Return when ``model``, which is not changed, draws random numbers; ``loss`` runs it on a few examples."""
    was = model.training
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        with KeptBuffers(model), RandomStream(0, device_of(model)), torch.enable_grad():
            training = _tried(model.train(), loss)
            with torch.no_grad():  # as in evaluation; recurrent layers have no backward pass there on a GPU
                evaluation = _tried(model.eval(), loss)
    finally:
        model.train(was)
        for parameter, gradient in gradients:
            parameter.grad = gradient
    declared = any(isinstance(module, DRAWING) or _drops_out(module) for module in model.modules())
    return max(training, evaluation, Draws.FORWARD if declared else Draws.NEVER)


def draws_of_variety(variety: Variety, site: Site, device: torch.device, memory_format: torch.memory_format) -> Draws:
    """Return when a block of the blueprint at ``site`` draws, tried on images in ``memory_format``."""
    with RandomStream(derive_seed(0, "drawing", variety.id), device):
        block = variety.build_alone(site).to(device)
        inputs = torch.randn(BATCH, *variety.spec.input_shape(site), device=device)
        if site.kind == "image":
            inputs = inputs.contiguous(memory_format=memory_format)
    with variety.guard():
        return draws_of(block, lambda module: module(inputs).square().mean())


def _tried(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> Draws:
    before, recomputed = _generators(model), []
    mean = loss(model)
    between = _generators(model)
    with ExitStack() as hooks:
        # A module that runs while gradients are computed is run again there, as by checkpointing.
        for module in model.modules():
            hooks.callback(module.register_forward_pre_hook(lambda *_: recomputed.append(True)).remove)
        if mean.requires_grad:
            mean.backward()
    in_forward = not torch.equal(before, between)
    in_backward = not torch.equal(between, _generators(model))
    if in_backward or (recomputed and in_forward):
        return Draws.ANYWHERE
    return Draws.FORWARD if in_forward else Draws.NEVER


def _drops_out(module: nn.Module) -> bool:
    """Return whether the module has a dropout rate, as recurrent layers and attention do."""
    share = getattr(module, "dropout", None)
    # In other modules ``dropout`` is a layer, which is looked at by itself.
    return isinstance(share, float) and share > 0.0


def _generators(model: nn.Module) -> Tensor:
    device = device_of(model)
    device_states = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return torch.cat([torch.get_rng_state(), *device_states])
