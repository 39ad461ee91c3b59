"""Each check of blueprints fails for its own fault, and passes for a correct blueprint."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from esper_core import BlueprintSpec, Site
from esper_testing import blueprint_checks, run_checks
from esper_testing.sites import SHAPES
from tests.support.faulty_modules import changes_of

pytestmark = pytest.mark.install  # a minute; this suite must pass for every change

SPEC = BlueprintSpec(accepts="vector", starts_as_identity=True)
NO_IDENTITY = replace(SPEC, starts_as_identity=False)


class Right(nn.Module):
    """A block without a fault."""

    def __init__(self, site: Site):
        super().__init__()
        self.first = nn.Linear(site.channels, site.channels)
        self.last = nn.Linear(site.channels, site.channels)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, x):
        return x + self.last(torch.tanh(self.first(x)))


with_forward, with_birth = changes_of(Right)


def with_methods(**methods):
    return type("Changed", (Right,), methods)


TurnsTheShape = with_forward(lambda block, x, right: right(x)[:, None] if len(x) == 1 else right(x))
TurnsTheType = with_forward(lambda block, x, right: right(x) if x.dtype is torch.float32 else x.float())
MovesInTrainingOnly = with_forward(lambda block, x, right: right(x) * (1.0001 if block.training else 1.0))
LeavesALayerOut = with_forward(lambda block, x, right: x + block.last(x))
LearnsTheOpposite = with_forward(lambda block, x, right: x + Backwards.apply(block.last(torch.tanh(block.first(x)))))
DrawsFromPython = with_forward(lambda block, x, right: right(x) + 0 * random.random())
DividesByZero = with_forward(lambda block, x, right: right(x) + 0 * (x / x.norm(dim=1, keepdim=True)))
RunsOver = with_forward(lambda block, x, right: right(x) + 0 * x.square().exp())
HasNoSlopeAtZero = with_forward(lambda block, x, right: right(x) + 0 * x.square().sum(dim=1, keepdim=True).sqrt())
DrawsInEvaluation = with_forward(lambda block, x, right: right(x) + (0 if block.training else 1e-3 * torch.rand(())))
WritesToItsInput = with_forward(lambda block, x, right: right(x.clamp_(max=1.0)))
MakesCpuTensors = with_forward(lambda block, x, right: right(x) + torch.zeros(len(x[0]), dtype=x.dtype, device="cpu"))
ReadsAValue = with_forward(lambda block, x, right: right(x) + 0 * x.sum().item())
BranchesOnAValue = with_forward(lambda block, x, right: right(x) if x.sum() > 0 else 1.0 * right(x))
Drops = with_forward(lambda block, x, right: right(x) + nn.functional.dropout(right(x) - x + 1e-3, 0.5))
ReadsInEvaluation = with_forward(lambda block, x, right: right(x) + (0 if block.training else 0 * x.sum().item()))
ComparesInForward = with_forward(lambda block, x, right: right(x) + 0 * torch.equal(x, x))
PicksByMask = with_forward(lambda block, x, right: right(x) + 0 * x[x > 0].sum())


def moves_the_host(block, x, right):
    """Follow the graph to the host's own parameters, and change them."""
    nodes = [x.grad_fn]
    while nodes:
        node = nodes.pop()
        if hasattr(node, "variable"):
            node.variable.data.add_(1e-3)
        nodes += [] if node is None else [following for following, _ in node.next_functions]
    return right(x)


def cannot_be_built(site):
    raise TypeError("no such thing")


def falls_ill_with_age(block, x, right):
    block.calls += x.requires_grad
    return right(x) * (float("nan") if block.calls > 10 else 1.0)


FallsIllWithAge = with_forward(falls_ill_with_age, lambda block, site: setattr(block, "calls", 0))
ForgetsAPart = with_forward(
    lambda block, x, right: x + block.scale * (right(x) - x),
    lambda block, site: setattr(block, "scale", 1 + float(torch.rand(()))),
)
HidesATensor = with_forward(
    lambda block, x, right: x + (right(x) - x) * block.hidden[0].to(x.dtype),
    lambda block, site: setattr(block, "hidden", [torch.ones(site.channels)]),
)
MovesTheHost = with_forward(moves_the_host)
MovesAtBirth = with_birth(lambda block, site: nn.init.constant_(block.last.bias, 1e-7))
DrawsFromNumpy = with_birth(lambda block, site: nn.init.constant_(block.first.bias, float(np.random.random())))
DrawsFromTheSystem = with_birth(lambda block, site: nn.init.constant_(block.first.bias, random.SystemRandom().random()))
TABLE = torch.ones(1)
SharesATable = with_birth(lambda block, _: block.register_buffer("table", TABLE))
LearnsNowhere = with_birth(lambda block, site: [nn.init.zeros_(parameter) for parameter in block.first.parameters()])
"""Both layers are zero: only the last bias ever gets a gradient."""

MovesWhenInformed = with_methods(inform=lambda block, inputs, gradients: block.last.bias.add_(1e-3))
DividesWhenInformed = with_methods(inform=lambda block, inputs, gradients: block.first.weight.div_(gradients.norm()))
WritesWhenInformed = with_methods(inform=lambda block, inputs, gradients: inputs.zero_())
GuessesWhenInformed = with_methods(
    inform=lambda block, inputs, gradients: block.first.weight.fill_(random.SystemRandom().random())
)
SeedsTorchItself = with_birth(lambda block, site: torch.manual_seed(3))
CannotBeCopied = with_methods(__deepcopy__=lambda block, memo: block)


class Backwards(torch.autograd.Function):
    """Returns its input, with gradients of the wrong sign."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


def failed(factory, spec=SPEC):
    """Return the message of each failed check by name, without the kind of site."""
    results = run_checks(blueprint_checks(factory, spec))
    return {result.check.partition("[")[0]: result.message for result in results if not result.ok}


def test_a_block_without_a_fault_passes_every_check():
    results = {result.check: result.status for result in run_checks(blueprint_checks(Right, SPEC))}
    assert set(results.values()) == {"passed"}
    assert "is_born_informed[vector]" not in results


@pytest.mark.parametrize(
    ("factory", "spec", "check", "says"),
    [
        (cannot_be_built, SPEC, "builds", "raised TypeError: no such thing"),
        (lambda site: site, SPEC, "builds", "builds a Site, not a torch.nn.Module"),
        (TurnsTheShape, SPEC, "takes_one_example", "vector (1,): returns (1, 1, 1) for (1, 1)"),
        (TurnsTheType, SPEC, "keeps_shape", "returns (16, 1) torch.float32 for (16, 1) torch.float64"),
        (MovesAtBirth, SPEC, "identity_at_birth", "is not the identity in training: off by up to"),
        (MovesInTrainingOnly, SPEC, "identity_at_birth", "is not the identity in training: off by up to"),
        (LearnsNowhere, SPEC, "gradient_within_two_steps", "add at 0.5: first.weight, first.bias, last.weight"),
        (LeavesALayerOut, SPEC, "gradient_within_two_steps", "steps of SGD under the blend add at 0.5: first.weight"),
        (LearnsTheOpposite, SPEC, "loss_falls_within_fifty_steps", "does not learn to imitate a copy of itself"),
        (DrawsFromNumpy, SPEC, "leaves_generators_alone", "uses numpy's"),
        (DrawsFromPython, SPEC, "leaves_generators_alone", "uses Python's global generator"),
        (SeedsTorchItself, SPEC, "leaves_generators_alone", "seeds torch's default generator itself"),
        (DrawsFromTheSystem, SPEC, "same_seed_same_weights", "with the same RNG seed: first.bias"),
        (DividesByZero, SPEC, "stays_finite", "not finite for inputs of size 0"),
        (RunsOver, SPEC, "stays_finite", "not finite for inputs of size 10000"),
        (HasNoSlopeAtZero, SPEC, "stays_finite", "gradients of the input are not finite for inputs of size 0"),
        (WritesToItsInput, SPEC, "leaves_its_input_alone", "modifies its input"),
        (ForgetsAPart, SPEC, "survives_a_round_trip", "differs after save and load: off by"),
        (CannotBeCopied, SPEC, "deepcopy_is_independent", "changes when its deep copy is trained"),
        (SharesATable, SPEC, "instances_share_nothing", "two blocks share: table"),
        (MakesCpuTensors, SPEC, "computes_where_its_input_is", "makes tensors where its input is not: zeros"),
        (HidesATensor, SPEC, "computes_where_its_input_is", "where its input is not"),
        (ReadsAValue, SPEC, "computes_where_its_input_is", "reads values in its forward pass: Tensor.item()"),
        (BranchesOnAValue, SPEC, "computes_where_its_input_is", "reads values in its forward pass: Tensor.item()"),
        (ReadsInEvaluation, SPEC, "computes_where_its_input_is", "reads values in its forward pass: Tensor.item()"),
        (ComparesInForward, SPEC, "computes_where_its_input_is", "reads values in its forward pass: aten::equal"),
        (PicksByMask, SPEC, "computes_where_its_input_is", "reads values in its forward pass: The register_meta"),
        (MovesTheHost, SPEC, "host_stands_still_while_incubating", "its host while it incubates: stem.1.weight"),
        (FallsIllWithAge, SPEC, "lives_a_whole_life", "losses of its host are not finite"),
        (MovesWhenInformed, SPEC, "is_born_informed", "is no longer the identity after inform()"),
        (DividesWhenInformed, SPEC, "is_born_informed", "not finite: first.weight"),
        (GuessesWhenInformed, SPEC, "is_born_informed", "is not deterministic: first.weight"),
        (WritesWhenInformed, SPEC, "is_born_informed", "inform() modifies its arguments"),
        (Right, replace(SPEC, version=0), "is_well_declared", "a version is an integer of at least 1. Received: 0"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_fault_fails_its_own_check_and_no_other(factory, spec, check, says):
    messages = failed(factory, spec)
    assert list(messages) == [check], messages
    assert says in messages[check]


def test_randomness_in_evaluation_is_reported():
    assert "evaluates_repeatably" in failed(Drops, NO_IDENTITY)
    messages = failed(DrawsInEvaluation, NO_IDENTITY)
    assert "evaluates differently twice" in messages["evaluates_repeatably"]
    # Outputs that are not repeatable cannot be compared either.
    compared = {"survives_a_round_trip", "deepcopy_is_independent", "instances_share_nothing", "lives_a_whole_life"}
    assert set(messages) <= {"evaluates_repeatably", *compared}


def test_every_accepted_kind_of_site_is_checked():
    seen = []

    def factory(site):
        seen.append(site)
        return Right(site)

    spec = replace(SPEC, accepts=("tokens", "vector"))
    runs = [check for check in blueprint_checks(factory, spec) if check.name == "builds"]
    assert [check.case for check in runs] == ["vector", "tokens"]
    seen.clear()  # whether a block chooses its weights by a batch was looked at to list the checks
    for run in runs:
        run.run()
    expected = {(kind, shape) for kind in ("tokens", "vector") for shape in SHAPES[kind]}
    assert {(site.kind, site.example_shape) for site in seen} == expected
