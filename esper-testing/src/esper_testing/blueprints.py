"""Checks of blueprints as modules: construction, shapes, state, random numbers and devices.

Each check takes the factory, the spec that it is registered with, and a kind of site.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from esper_core.leyline import Blend
from esper_testing.checks import NotApplicable, applies_if, decisive, demand
from esper_testing.sites import (
    BATCH,
    STRENGTHS,
    USUAL,
    Factory,
    built,
    evaluated,
    examples,
    expect,
    expect_equal,
    expect_independent_copy,
    expect_round_trip,
    expect_same_weights,
    expect_torch_generator,
    newborn,
    seeded,
    sites,
)

if TYPE_CHECKING:
    from esper_core import BlueprintSpec, Site
    from esper_core.leyline import SiteKind


NAME: Final = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
SIZES: Final = (0.0, 1e-30, 1e-8, 1.0, 1e4)


def is_well_declared(name: str, spec: BlueprintSpec) -> None:
    """Check that name, summary and version are valid."""
    problems = []
    if name[:1].islower() and not NAME.fullmatch(name):
        problems.append(f"a name consists of lower-case letters and digits, joined by - or _. Received: {name}")
    if "\n" in spec.summary:
        problems.append("a summary is one line")
    if type(spec.version) is not int or spec.version < 1:
        problems.append(f"a version is an integer of at least 1. Received: {spec.version}")
    demand(not problems, "; ".join(problems))


@decisive
def builds(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Check that the factory builds a module at every site of the grid."""
    for site in sites(kind):
        block = built(factory, site)
        expect(isinstance(block, nn.Module), site, f"builds a {type(block).__name__}, not a torch.nn.Module")


@decisive
def keeps_shape(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Check that outputs have the shape and dtype of the inputs, in training and evaluation mode."""
    for site in sites(kind):
        for dtype in (torch.float32, torch.float64):
            with seeded(0):
                block = factory(site).to(dtype)
                inputs = examples(site).to(dtype)
                for training in (True, False):
                    outputs = block.train(training)(inputs)
                    returned, taken = _description(outputs), _description(inputs)
                    expect(returned == taken, site, f"returns {returned} for {taken}")


def takes_one_example(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Check that a batch of one example works in evaluation mode and keeps its shape."""
    for site in sites(kind):
        with seeded(0):
            block, inputs = factory(site), examples(site, 1)
            outputs = evaluated(block, inputs)
        expect(outputs.shape == inputs.shape, site, f"returns {tuple(outputs.shape)} for {tuple(inputs.shape)}")


@applies_if(lambda factory, spec, kind: spec.starts_as_identity)
def identity_at_birth(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Check that a new block returns its input, or an adapter zeros, up to the sign of zero and under every blend."""
    for site in sites(kind):
        with seeded(0):
            block = factory(site)
            inputs = examples(site)
            for training in (True, False):
                mode = "training" if training else "evaluation"
                expected = torch.zeros_like(inputs) if spec.adapts else inputs
                expectation = "zero" if spec.adapts else "the identity"
                expect_equal(block.train(training)(inputs), expected, site, f"is not {expectation} in {mode}")
            for blend in Blend:
                seed = newborn(factory, spec, site, blend)
                for alpha in STRENGTHS:
                    conditions = f"under the blend {blend} at {alpha:g}"
                    expect_equal(seed(inputs, alpha, inputs), inputs, site, f"is not the identity {conditions}")


def evaluates_repeatably(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Check that evaluation is repeatable after a pass in training mode, and that training works again after it."""
    for site in sites(kind):
        with seeded(0):
            block, inputs = factory(site), examples(site)
            block.train()(inputs)
            first, second = evaluated(block, inputs), evaluated(block, inputs)
            block.train()(inputs)
        expect_equal(first, second, site, "evaluates differently twice")


def stays_finite(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Check that outputs and gradients are finite for zero, tiny and large inputs."""
    for site in sites(kind):
        for size in SIZES:
            with seeded(0):
                block = factory(site)
                inputs = (size * examples(site)).requires_grad_()
                for training in (True, False):
                    outputs = block.train(training)(inputs.clone())
                    bad = int((~outputs.isfinite()).sum())
                    expect(bad == 0, site, f"outputs {bad} values that are not finite for inputs of size {size:g}")
                outputs.mean().backward()
            gradients = {name: tensor.grad for name, tensor in (*block.named_parameters(), ("the input", inputs))}
            bad_names = [
                name for name, gradient in gradients.items() if gradient is not None and not gradient.isfinite().all()
            ]
            expect(
                not bad_names, site, f"gradients of {', '.join(bad_names)} are not finite for inputs of size {size:g}"
            )


def leaves_its_input_alone(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Check that the forward pass does not modify its input, which the host still uses."""
    for site in sites(kind):
        with seeded(0):
            block, inputs = factory(site), examples(site)
            for training in (True, False):
                block_inputs = inputs.clone()
                with torch.no_grad():
                    block.train(training)(block_inputs)
                expect(torch.equal(block_inputs, inputs), site, "modifies its input")


def survives_a_round_trip(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Check that the state dict is complete: saved as safetensors and loaded, it restores the same block."""
    for site in sites(kind):
        with seeded(0):
            block = factory(site)
            _train(block, site)
            inputs = examples(site)
        expect_round_trip(block, built(factory, site, seed=1), inputs, site)


def deepcopy_is_independent(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Check that a deep copy computes the same outputs, and that training it does not change the original."""
    for site in sites(kind):
        with seeded(0):
            expect_independent_copy(factory(site), examples(site), site, partial(_train, site=site))


def instances_share_nothing(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Check that two blocks share no tensors, and that training one does not change the other."""
    for site in sites(kind):
        with seeded(0):
            trained, untrained, inputs = factory(site), factory(site), examples(site)
            owned = {tensor.data_ptr() for tensor in trained.state_dict().values() if tensor.numel()}
            shared = [name for name, value in untrained.state_dict().items() if value.data_ptr() in owned]
            expect(not shared, site, f"two blocks share: {', '.join(shared)}")
            before = evaluated(untrained, inputs)
            _train(trained, site)
            after = evaluated(untrained, inputs)
        expect(torch.equal(after, before), site, "changes when another block is trained")


def _train(block: nn.Module, site: Site) -> None:
    """Train two steps on random inputs and targets; a block without parameters only passes one batch."""
    block.train()
    if parameters := [parameter for parameter in block.parameters() if parameter.requires_grad]:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            (block(examples(site)) - examples(site)).square().mean().backward()
            optimizer.step()
    else:
        block(examples(site))


def _description(values: Tensor) -> str:
    return f"{tuple(values.shape)} {values.dtype}"


READS: Final = re.compile(r"\.item\(\)|nonzero|masked_select|unique|aten::equal|copy out of meta|to numpy")
"""In what torch raises on the device ``meta`` where a value is read."""


def same_seed_same_weights(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Check that the same RNG seed builds the same block."""
    for site in sites(kind):
        expect_same_weights(factory, site)


def leaves_generators_alone(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Check that building and running a block leaves the global generators of Python, numpy and torch alone."""
    for site in sites(kind):
        expect_torch_generator(site, lambda site=site: factory(site).train()(examples(site)))  # type: ignore[misc]


def computes_where_its_input_is(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Check that a block that was moved to another device creates all of its tensors there, and reads no value.

    To read a value, or to branch on it, would wait for a GPU. The device is ``meta``, which every machine has, and on
    which nothing can be read. Another operation that torch does not support there skips the check.
    """
    site = USUAL[kind]
    block = built(factory, site).to("meta")
    inputs = torch.empty(BATCH, *site.example_shape, device="meta")
    spy = _Spy()
    try:
        with spy:
            block.eval()(inputs)
            outputs = block.train()(inputs)
    except (RuntimeError, TypeError) as error:
        expect(not spy.elsewhere, site, f"makes tensors where its input is not: {', '.join(spy.elsewhere)}")
        expect(not READS.search(str(error)), site, f"reads values in its forward pass: {error}")
        if isinstance(error, NotImplementedError):
            reason = f"torch cannot try it without a device: {error}"
            raise NotApplicable(reason) from error
        expect("device" not in str(error), site, f"does not work on another device: {error}")
        raise
    expect(not spy.elsewhere, site, f"makes tensors where its input is not: {', '.join(spy.elsewhere)}")
    expect(outputs.device.type == "meta", site, f"returns outputs on {outputs.device} for inputs on meta")


class _Spy(TorchFunctionMode):
    """Record the tensors that are not on the device ``meta``, with what makes or gets them."""

    def __init__(self) -> None:
        super().__init__()
        self.elsewhere: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        self._note(f"{name} with a tensor", *args, *kwargs.values())
        result = func(*args, **kwargs)
        self._note(name, result)
        return result

    def _note(self, description: str, *values: Any) -> None:
        tensors = [value for value in values if isinstance(value, Tensor) and value.ndim]
        self.elsewhere += [f"{description} on {tensor.device}" for tensor in tensors if tensor.device.type != "meta"]


CHECKS: Final = (
    builds,
    keeps_shape,
    takes_one_example,
    identity_at_birth,
    evaluates_repeatably,
    stays_finite,
    leaves_its_input_alone,
    survives_a_round_trip,
    deepcopy_is_independent,
    instances_share_nothing,
    same_seed_same_weights,
    leaves_generators_alone,
    computes_where_its_input_is,
)
