"""Is what a blueprint claims of itself true? One check for each trait; one that is not claimed is not asked for."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING

import torch

from esper_core import Site
from esper_testing.checks import NotApplicable
from esper_testing.sites import USUAL, built, evaluated, examples, expect, largest_difference, seeded, sites

if TYPE_CHECKING:
    from torch import Tensor, nn

    from esper_core import BlueprintSpec
    from esper_core.leyline import SiteKind
    from esper_testing.sites import Factory


def is_deterministic(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """deterministic: the same weights and inputs give the same outputs, in training and under any seed."""
    _demand_claim(spec, "deterministic")
    site = USUAL[kind]
    with seeded(0):
        block, inputs = factory(site), examples(site)
        twin = copy.deepcopy(block)
    with seeded(1):
        first = block.train()(inputs)
    with seeded(2):
        second = twin.train()(inputs)
    expect(torch.equal(first, second), site, f"is not deterministic: {largest_difference(first, second)}")


def works_in_bfloat16(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """bf16: it takes and gives bfloat16, and outputs and gradients are finite."""
    _demand_claim(spec, "bf16")
    site = USUAL[kind]
    with seeded(0):
        block, inputs = factory(site).to(torch.bfloat16), examples(site).to(torch.bfloat16)
        try:
            outputs = block.train()(inputs)
        except RuntimeError as error:
            expect(False, site, f"does not work in bfloat16: {error}")
        expect(outputs.dtype is torch.bfloat16, site, f"gives back {outputs.dtype} for bfloat16")
        outputs.float().square().mean().backward()
    gradients = [parameter.grad for parameter in block.parameters() if parameter.grad is not None]
    finite = all(bool(tensor.isfinite().all()) for tensor in (outputs, *gradients))
    expect(finite, site, "puts out, or learns from, what is not finite in bfloat16")


def compiles(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """compile: torch.compile takes it as one graph, and that computes the same."""
    _demand_claim(spec, "compile")
    site = USUAL[kind]
    with seeded(0):
        block, inputs = factory(site), examples(site)
        wanted = evaluated(block, inputs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.compiler.reset()
            try:
                got = evaluated(torch.compile(block.eval(), backend="eager", fullgraph=True), inputs)  # type: ignore[arg-type]
            except Exception as error:
                first = (str(error).strip().splitlines() or [type(error).__name__])[0]
                expect(False, site, f"is not taken whole by torch.compile: {first}")
            finally:
                torch.compiler.reset()
    expect(torch.equal(got, wanted), site, f"computes something else compiled: {largest_difference(got, wanted)}")


def is_stateful(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """stateful: it has buffers, and a pass in training changes one."""
    _demand_claim(spec, "stateful")
    site = USUAL[kind]
    with seeded(0):
        block = factory(site)
        before = {name: value.clone() for name, value in block.named_buffers()}
        block.train()(examples(site))
    changed = [name for name, value in block.named_buffers() if not torch.equal(value, before[name])]
    expect(bool(changed), site, f"claims to be stateful; training changed none of its {len(before)} buffers")


def takes_other_sizes(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """dynamic_spatial: it works on examples of other sizes than those it was built for."""
    _demand_claim(spec, "dynamic_spatial")
    site = USUAL[kind]
    if not site.size:
        reason = f"a {kind} has no size besides its features"
        raise NotApplicable(reason)
    for size in (tuple(2 * length + 1 for length in site.size), tuple(max(length // 2, 2) for length in site.size)):
        other = Site(site.kind, site.channels, size)
        with seeded(0):
            block, inputs = factory(site), examples(other)
            try:
                outputs = block.train()(inputs)
            except (RuntimeError, ValueError) as error:
                expect(False, site, f"does not take {size}: {error}")
        expect(outputs.shape == inputs.shape, site, f"gives back {tuple(outputs.shape)} for {tuple(inputs.shape)}")


def is_born_informed(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """informed_birth: it looks at any batch, an empty one of a signal too, and stays what it says it is at birth."""
    _demand_claim(spec, "informed_birth")
    for site in sites(kind):
        for passing, changing in ((1.0, 1.0), (0.0, 1.0), (1.0, 0.0), (1e4, 1e-6)):
            with seeded(0):
                inputs, gradients = passing * examples(site), changing * examples(site)
            block, twin = built(factory, site), built(factory, site)
            seen = inputs.clone(), gradients.clone()
            with seeded(1):
                _inform(block, site, inputs, gradients)
            with seeded(1):
                _inform(twin, site, inputs, gradients)
            kept = torch.equal(inputs, seen[0]) and torch.equal(gradients, seen[1])
            expect(kept, site, "writes to what it is shown")
            weights = block.state_dict()
            sick = [name for name, value in weights.items() if not value.isfinite().all()]
            expect(not sick, site, f"chooses numbers that are not finite: {', '.join(sick)}")
            others = [name for name, value in twin.state_dict().items() if not torch.equal(value, weights[name])]
            expect(not others, site, f"chooses differently when it is shown the same: {', '.join(others)}")
            outputs = evaluated(block, inputs)
            moved = spec.starts_as_identity and not torch.equal(outputs, inputs)
            wide = largest_difference(outputs, inputs)
            expect(not moved, site, f"is not the identity any more once it is informed: {wide}")


def _inform(block: nn.Module, site: Site, inputs: Tensor, gradients: Tensor) -> None:
    inform = getattr(block, "inform", None)
    expect(callable(inform), site, "has no method inform(inputs, gradients)")
    assert callable(inform)
    with torch.no_grad():
        inform(inputs, gradients)


def _demand_claim(spec: BlueprintSpec, trait: str) -> None:
    if trait not in spec.traits:
        reason = f"{trait} is not claimed"
        raise NotApplicable(reason)
