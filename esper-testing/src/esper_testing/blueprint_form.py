"""Is a block well formed? It builds, keeps shapes, counts its parameters honestly, and its state is all its own.

Each check takes the factory, the spec that it is registered with and a kind of site; AssertionError where a promise is
broken.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor, nn

from esper_core.leyline import Blend
from esper_core.leyline.specs import BLUEPRINT_TRAITS, SITE_KINDS
from esper_core.plugins import evaluate_formula
from esper_testing.checks import NotApplicable
from esper_testing.sites import (
    BATCH,
    STRENGTHS,
    Factory,
    built,
    evaluated,
    examples,
    expect,
    largest_difference,
    newborn,
    seeded,
    sites,
    train_on,
)

if TYPE_CHECKING:
    from esper_core import BlueprintSpec, Site
    from esper_core.leyline import SiteKind

NAME: Final = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
SIZES: Final = (0.0, 1e-30, 1e-8, 1.0, 1e4)


def is_well_declared(name: str, spec: BlueprintSpec) -> None:
    """Name, summary, kinds, formula, traits and version are such that the core would take them."""
    problems = []
    if name[:1].islower() and not NAME.fullmatch(name):
        problems.append(f"a name is lower case letters and digits, joined by - or _. Received: {name}")
    if "\n" in spec.summary:
        problems.append("a summary is one line")
    if not spec.kinds or set(spec.kinds) - set(SITE_KINDS):
        problems.append(f"it accepts one or several of {', '.join(SITE_KINDS)}. Received: {spec.accepts}")
    if strange := sorted(set(spec.traits) - set(BLUEPRINT_TRAITS)):
        problems.append(f"traits are {', '.join(BLUEPRINT_TRAITS)}. Received: {', '.join(strange)}")
    if type(spec.version) is not int or spec.version < 1:
        problems.append(f"a version is a whole number from 1. Received: {spec.version}")
    if problems:
        raise AssertionError("; ".join(problems))


def builds(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """The factory makes a module at every site of the grid."""
    for site in sites(kind):
        block = built(factory, site)
        expect(isinstance(block, nn.Module), site, f"builds a {type(block).__name__}, not a torch.nn.Module")


def keeps_shape(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Outputs have the shape and the dtype of the inputs, in training and in evaluation."""
    for site in sites(kind):
        for dtype in (torch.float32, torch.float64):
            with seeded(0):
                block = factory(site).to(dtype)
                inputs = examples(site).to(dtype)
                for training in (True, False):
                    outputs = block.train(training)(inputs)
                    given, taken = _description(outputs), _description(inputs)
                    expect(given == taken, site, f"gives back {given} for {taken}")


def takes_one_example(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """In evaluation a batch of one example goes through, and keeps its shape."""
    for site in sites(kind):
        with seeded(0):
            block, inputs = factory(site), examples(site, 1)
            outputs = evaluated(block, inputs)
        expect(outputs.shape == inputs.shape, site, f"gives back {tuple(outputs.shape)} for {tuple(inputs.shape)}")


def identity_at_birth(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """A block that was just built returns its input, bit for bit up to the sign of zero, however it is blended in."""
    if not spec.starts_as_identity:
        reason = "starts_as_identity is not claimed"
        raise NotApplicable(reason)
    for site in sites(kind):
        with seeded(0):
            block = factory(site)
            inputs = examples(site)
            for training in (True, False):
                outputs = block.train(training)(inputs)
                same = outputs.shape == inputs.shape and torch.equal(outputs, inputs)
                mode = "training" if training else "evaluation"
                expect(same, site, f"is not the identity in {mode}: {largest_difference(outputs, inputs)}")
            for blend in Blend:
                seed = newborn(factory, spec, site, blend)
                for alpha in STRENGTHS:
                    outputs = seed(inputs, alpha)
                    same = outputs.shape == inputs.shape and torch.equal(outputs, inputs)
                    wide = largest_difference(outputs, inputs)
                    expect(same, site, f"is not the identity under the blend {blend} at {alpha:g}: {wide}")


def honest_parameter_count(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """A block has as many parameters as the spec's formula says."""
    for site in sites(kind):
        counted = sum(parameter.numel() for parameter in built(factory, site).parameters())
        told = evaluate_formula(spec.params, site.formula_variables())
        expect(counted == told, site, f"has {counted} parameters, but {spec.params} = {told}")


def evaluates_repeatably(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """After training, evaluation works, draws nothing, and says the same twice; and training works again."""
    for site in sites(kind):
        with seeded(0):
            block, inputs = factory(site), examples(site)
            block.train()(inputs)
            first, second = evaluated(block, inputs), evaluated(block, inputs)
            block.train()(inputs)
        expect(torch.equal(first, second), site, f"evaluates differently twice: {largest_difference(first, second)}")


def stays_finite(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Outputs and gradients are finite where all inputs are zero, tiny or large."""
    for site in sites(kind):
        for size in SIZES:
            with seeded(0):
                block = factory(site)
                inputs = (size * examples(site)).requires_grad_()
                for training in (True, False):
                    outputs = block.train(training)(inputs.clone())
                    bad = int((~outputs.isfinite()).sum())
                    expect(bad == 0, site, f"puts out {bad} numbers that are not finite for inputs of size {size:g}")
                outputs.mean().backward()
            sick = [name for name, value in _gradients(block, inputs).items() if not value.isfinite().all()]
            expect(not sick, site, f"gives gradients that are not finite to {', '.join(sick)} for inputs of {size:g}")


def leaves_its_input_alone(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """What goes in is not written to: the host goes on with it."""
    for site in sites(kind):
        with seeded(0):
            block, inputs = factory(site), examples(site)
            for training in (True, False):
                given = inputs.clone()
                with torch.no_grad():
                    block.train(training)(given)
                expect(torch.equal(given, inputs), site, "writes to its input")


def survives_a_round_trip(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """The state dict holds all there is: loaded from plain bytes, it makes the same block."""
    for site in sites(kind):
        with seeded(0):
            block = factory(site)
            _train(block, site)
            inputs = examples(site)
            wanted = evaluated(block, inputs)
        state = block.state_dict()
        others = [name for name, value in state.items() if not isinstance(value, Tensor)]
        expect(not others, site, f"keeps what is no tensor in its state: {', '.join(others)}")
        other = built(factory, site, seed=1)
        other.load_state_dict({name: _through_bytes(value) for name, value in state.items()})
        got = evaluated(other, inputs)
        expect(torch.equal(got, wanted), site, f"is another after save and load: {largest_difference(got, wanted)}")


def deepcopy_is_independent(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """A deep copy computes the same, and training it does nothing to the original."""
    for site in sites(kind):
        with seeded(0):
            block, inputs = factory(site), examples(site)
            before = evaluated(block, inputs)
            twin = copy.deepcopy(block)
            expect(torch.equal(evaluated(twin, inputs), before), site, "is another block once it was copied")
            _train(twin, site)
            after = evaluated(block, inputs)
        expect(torch.equal(after, before), site, "changes when its deep copy is trained")


def instances_share_nothing(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Two blocks have no tensor in common, and training one does nothing to the other."""
    for site in sites(kind):
        with seeded(0):
            one, other, inputs = factory(site), factory(site), examples(site)
            owned = {tensor.data_ptr() for tensor in one.state_dict().values() if tensor.numel()}
            shared = [name for name, value in other.state_dict().items() if value.data_ptr() in owned]
            expect(not shared, site, f"shares between two blocks: {', '.join(shared)}")
            before = evaluated(other, inputs)
            _train(one, site)
            after = evaluated(other, inputs)
        expect(torch.equal(after, before), site, "changes when another block is trained")


def _train(block: nn.Module, site: Site) -> None:
    block.train()
    if parameters := [parameter for parameter in block.parameters() if parameter.requires_grad]:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        for _ in range(2):
            train_on(block, site, optimizer)
    else:
        block(examples(site, BATCH))


def _gradients(block: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    named = {**dict(block.named_parameters()), "the input": inputs}
    return {name: tensor.grad for name, tensor in named.items() if tensor.grad is not None}


def _through_bytes(value: Tensor) -> Tensor:
    """The tensor as a file would give it back."""
    plain = value.detach().cpu().contiguous()
    raw = np.frombuffer(bytearray(plain.reshape(-1).view(torch.uint8).numpy().tobytes()), dtype=np.uint8)
    return torch.from_numpy(raw.copy()).view(plain.dtype).reshape(plain.shape)


def _description(values: Tensor) -> str:
    return f"{tuple(values.shape)} {values.dtype}"
