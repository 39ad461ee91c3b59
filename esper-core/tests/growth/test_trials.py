"""Trials: blueprints that break their declaration are reported."""

import math
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core.growth import Variety
from esper_core.growth.trials import audition
from esper_core.leyline import BlueprintSpec, Site
from tests.support.core_worlds import NanGradient, local_conv, out_of_patience


def changed(change: Callable[[Any, Tensor], Any]) -> Callable[[Site], nn.Module]:
    """Return a factory of blocks that are the identity at birth, whose outputs are then changed."""

    def build(site: Site) -> nn.Module:
        block = local_conv(site)
        grow = block.compute
        block.compute = lambda net, hidden: change(net, grow(net, hidden))
        return block

    return build


def rectifying(site: Site) -> nn.Module:
    block = local_conv(site)
    grow = block.compute
    block.compute = lambda net, hidden: grow(net, hidden.relu_())
    return block


def dead(site: Site) -> nn.Module:
    """Return a block with a zero layer before a normalisation and a ReLU: no gradient reaches it (RUN-01)."""
    block = local_conv(site)
    block.norm = nn.GroupNorm(1, site.channels, affine=False)
    block.compute = lambda net, hidden: hidden + torch.relu(net.norm(net.last(torch.relu(net.first(hidden)))))
    return block


def shifted(site: Site) -> nn.Module:
    """Not the identity."""
    block = local_conv(site)
    nn.init.ones_(block.last.bias)
    return block


def of_doubles(block: Any) -> nn.Module:
    """Return a block that computes in double precision."""
    grow = block.double().compute
    block.compute = lambda net, hidden: grow(net, hidden.double()).float()
    return block


def with_phase(site: Site) -> nn.Module:
    block = local_conv(site)
    block.phase = nn.Parameter(torch.ones(site.channels, dtype=torch.complex64))
    return block


def unbuildable(site: Site) -> nn.Module:
    raise KeyError(site.kind)


def tried(factory: Callable[[Site], nn.Module]) -> tuple[str, str] | None:
    spec = BlueprintSpec("sequence", starts_as_identity=True)
    problem = audition(Variety("test/x", spec, factory), Site("sequence", 4, (12,)), torch.device("cpu"))
    return None if problem is None else (problem.code, problem.message)


NO_IDENTITY = "declares starts_as_identity, but its output differs from its input by up to 1"


@pytest.mark.parametrize(
    ("factory", "code", "message"),
    [
        (changed(lambda _, x: x[..., 1:]), "E323", "returns the shape (4, 4, 11) for an input of shape (4, 4, 12)"),
        (changed(lambda _, x: x.double()), "E323", "returns torch.float64 on cpu for torch.float32 on cpu"),
        (changed(lambda _, x: (x, x)), "E323", "returns a tuple, not a tensor"),
        (changed(lambda _, x: x * math.nan), "E324", "returns infinite or NaN values for ordinary inputs"),
        (changed(lambda _, x: NanGradient.apply(x)), "E324", "has a gradient that is not finite: first.weight"),
        (shifted, "E326", NO_IDENTITY),
        (changed(lambda block, x: x + (not block.training)), "E326", NO_IDENTITY),
        (dead, "E327", "has parameters that no gradient reaches in two steps: first.weight, first.bias, last.weight"),
        (changed(lambda _, x: x.detach()), "E327", "has parameters that no gradient reaches in two steps: "),
        (rectifying, "E323", "modifies its input"),
        (lambda site: "a block", "E321", "builds a str, not a torch.nn.Module"),
        (unbuildable, "E321", "raised KeyError: 'sequence'"),
        (lambda site: sys.exit(0), "E321", "raised SystemExit"),
        (cache(local_conv), "E321", "builds blocks that have parameters in common"),
        (with_phase, "E327", "has complex parameters"),
        (lambda site: of_doubles(local_conv(site)), "E322", "raised RuntimeError: Input type (double) and bias type"),
        (changed(out_of_patience), "E322", "raised ValueError: out of patience"),
    ],
)  # fmt: skip
def test_broken_blueprint_is_reported(factory, code, message):
    problem = tried(factory)
    assert problem is not None
    assert problem[0] == code
    assert problem[1].startswith(message)


def test_a_block_without_parameters_is_reported():
    assert tried(lambda site: nn.Identity()) == ("E327", "has no trainable parameter")
