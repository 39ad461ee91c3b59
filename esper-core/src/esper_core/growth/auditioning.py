"""Is a blueprint what it says it is? It is built once for a place where it may grow, and tried, before a run begins.

A liar never reaches the trainer: one that keeps no shape, puts out what is no number, claims to start as the identity
and does not, miscounts its parameters, or has one that no gradient ever reaches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from esper_core.growth.faults import in_words
from esper_core.growth.informing import TRAIT
from esper_core.growth.randomness import RandomStream, derive_seed
from esper_core.leyline.errors import Problem
from esper_core.plugins import FormulaError, evaluate_formula
from esper_core.plugins.isolation import attempt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from esper_core.growth.planting import Variety
    from esper_core.leyline.specs import Site

BATCH = 4
LEARNING_RATE = 0.05


def audition(variety: Variety, site: Site, device: torch.device) -> Problem | None:
    """The first thing that is wrong with ``variety`` at ``site``; None where it keeps its word."""
    with RandomStream(derive_seed(0, "audition", variety.id), device), torch.enable_grad():
        built = attempt(lambda: variety.factory(site))
        if built.error is not None:
            said = in_words(built.error, variety.factory)
            return Problem("E321", f"{said} when it was built for {_place(site)}")
        block = built.value
        if not isinstance(block, nn.Module):
            return Problem("E321", f"builds a {type(block).__name__}, not a torch.nn.Module, for {_place(site)}")
        tried = attempt(lambda: _first_lie(block, variety, site, device))
        if tried.error is not None:
            said = in_words(tried.error, variety.factory)
            return Problem("E322", f"{said} when it was tried on {_place(site)}")
        return tried.value


def _first_lie(block: nn.Module, variety: Variety, site: Site, device: torch.device) -> Problem | None:
    inputs = torch.randn(BATCH, *site.example_shape, device=device)
    return next(_lies(block.to(device), variety, site, inputs), None)


def _lies(block: nn.Module, variety: Variety, site: Site, inputs: Tensor) -> Iterator[Problem]:
    yield from _miscount(block, variety, site)
    if TRAIT in variety.spec.traits:
        choosing: Any = block
        with torch.no_grad():
            choosing.inform(inputs.clone(), torch.randn_like(inputs))
    for training in (True, False):
        block.train(training)
        given = inputs.clone()
        with torch.no_grad():
            outputs = block(given)
        if not torch.equal(given, inputs):
            yield Problem(
                "E323", "writes to its input", hint="The host goes on with it: no inplace=True on what comes in."
            )
        yield from _unfit(outputs, inputs)
        if variety.spec.starts_as_identity and not torch.equal(outputs, inputs):
            distance = (outputs - inputs).abs().max().item()
            hint = "Zero the last layer at birth, or do not claim starts_as_identity."
            yield Problem("E326", f"says it starts as the identity, and is off by up to {distance:.3g}", hint=hint)
    yield from _dead(block.train(), inputs)


def _miscount(block: nn.Module, variety: Variety, site: Site) -> Iterator[Problem]:
    counted = sum(parameter.numel() for parameter in block.parameters())
    try:
        told = evaluate_formula(variety.spec.params, site.formula_variables())
    except FormulaError as error:
        yield Problem("E325", f"has a formula that gives nothing for {_place(site)}: {error}")
        return
    if told != counted:
        message = f'says it has {told:,} parameters at {_place(site)}, by "{variety.spec.params}", and has {counted:,}'
        yield Problem("E325", message, hint="Mend params in its BlueprintSpec; biases count.")


def _unfit(outputs: object, inputs: Tensor) -> Iterator[Problem]:
    if not isinstance(outputs, torch.Tensor):
        yield Problem("E323", f"puts out a {type(outputs).__name__}, not a tensor")
    elif outputs.shape != inputs.shape:
        yield Problem("E323", f"puts out the shape {tuple(outputs.shape)} for {tuple(inputs.shape)}")
    elif outputs.dtype != inputs.dtype or outputs.device != inputs.device:
        received = f"{outputs.dtype} on {outputs.device} for {inputs.dtype} on {inputs.device}"
        yield Problem("E323", f"puts out {received}", hint="Make tensors like the input: new_zeros, zeros_like.")
    elif not outputs.isfinite().all():
        yield Problem("E324", "puts out numbers that are not finite for ordinary inputs")


def _dead(block: nn.Module, inputs: Tensor) -> Iterator[Problem]:
    """Two steps towards something else than it puts out must reach every parameter that can be trained."""
    trainable = {name: parameter for name, parameter in block.named_parameters() if parameter.requires_grad}
    if not trainable:
        yield Problem("E327", "has no parameter that could be trained", hint="A seed that cannot learn is no seed.")
        return
    target = torch.randn_like(inputs)
    alive: set[str] = set()
    for _ in range(2):
        loss = (block(inputs) - target).square().mean()
        gradients = torch.autograd.grad(loss, list(trainable.values()), allow_unused=True)
        with torch.no_grad():
            for (name, parameter), gradient in zip(trainable.items(), gradients, strict=True):
                if gradient is None:
                    continue
                if not gradient.isfinite().all():
                    yield Problem("E324", f"has a gradient that is not finite: {name}")
                    return
                if gradient.any():
                    alive.add(name)
                parameter.sub_(LEARNING_RATE * gradient)
    if dead := [name for name in trainable if name not in alive]:
        hint = "Zero only the last layer at birth, with no normalisation or ReLU behind it."
        yield Problem("E327", f"has parameters that no gradient reaches in two steps: {', '.join(dead[:5])}", hint=hint)


def _place(site: Site) -> str:
    return f"a {site.kind} of shape {site.example_shape}"
