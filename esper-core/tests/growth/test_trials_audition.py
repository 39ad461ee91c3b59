"""Audition: a blueprint that breaks its declaration is reported before a run begins."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from core_worlds import zeroed
from torch import Tensor, nn

from esper_core.growth import Variety, audition
from esper_core.leyline import BlueprintSpec, Site

SITE = Site("sequence", 4, (12,))
CPU = torch.device("cpu")


class Honest(nn.Module):
    """x + conv(relu(conv(x))), the last one zero; then ``change`` is applied."""

    def __init__(self, site: Site, change: Callable[[nn.Module, Tensor], Any] | None = None) -> None:
        super().__init__()
        self.first = nn.Conv1d(site.channels, site.channels, 1)
        self.last = zeroed(nn.Conv1d(site.channels, site.channels, 1))
        self.change = change

    def forward(self, hidden: Tensor) -> Any:
        grown = hidden + self.last(torch.relu(self.first(hidden)))
        return grown if self.change is None else self.change(self, grown)


class Rectifies(Honest):
    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden.relu_())


class Dead(Honest):
    """Zero, normalised, rectified: no gradient reaches its parameters (RUN-01)."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.norm = nn.GroupNorm(1, site.channels, affine=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + torch.relu(self.norm(self.last(torch.relu(self.first(hidden)))))


def changed(change: Callable[[nn.Module, Tensor], Any]) -> Callable[[Site], nn.Module]:
    return lambda site: Honest(site, change)


def refuses(block: nn.Module, grown: Tensor) -> Tensor:
    raise ValueError("not today")


def shifted(site: Site) -> nn.Module:
    """Not the identity."""
    block = Honest(site)
    nn.init.ones_(block.last.bias)
    return block


def unbuildable(site: Site) -> nn.Module:
    raise KeyError(site.kind)


def tried(
    factory: Callable[[Site], nn.Module], params: str = "2*(c*c + c)", *, identity: bool = True
) -> tuple[str, str] | None:
    spec = BlueprintSpec("sequence", params, starts_as_identity=identity)
    problem = audition(Variety("test/x", spec, factory), SITE, CPU)
    return None if problem is None else (problem.code, problem.message)


def test_correct_blueprint_passes_and_the_default_generator_is_unchanged():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert tried(Honest) is None
    assert torch.equal(torch.get_rng_state(), before)
    with torch.no_grad():
        assert tried(Honest) is None


NO_IDENTITY = "declares starts_as_identity, but its output differs from its input by up to 1"


@pytest.mark.parametrize(
    ("factory", "code", "said"),
    [
        (changed(lambda _, x: x[..., 1:]), "E323", "returns the shape (4, 4, 11) for an input of shape (4, 4, 12)"),
        (changed(lambda _, x: x.double()), "E323", "returns torch.float64 on cpu for torch.float32 on cpu"),
        (changed(lambda _, x: (x, x)), "E323", "returns a tuple, not a tensor"),
        (changed(lambda _, x: x * math.nan), "E324", "returns infinite or NaN values for ordinary inputs"),
        (shifted, "E326", NO_IDENTITY),
        (changed(lambda block, x: x + (not block.training)), "E326", NO_IDENTITY),
        (Dead, "E327", "has parameters that no gradient reaches in two steps: first.weight, first.bias, last.weight"),
        (Rectifies, "E323", "modifies its input"),
        (lambda site: "a block", "E321", "builds a str, not a torch.nn.Module"),
        (unbuildable, "E321", "raised KeyError: 'sequence'"),
        (changed(refuses), "E322", "raised ValueError: not today"),
    ],
)  # fmt: skip
def test_broken_blueprint_is_reported(factory, code, said):
    found = tried(factory)
    assert found is not None
    assert found[0] == code
    assert found[1].startswith(said)


def test_wrong_parameter_count_is_reported():
    message = 'declares 32 parameters for a sequence of shape (4, 12), by "2*c*c", and has 40'
    assert tried(Honest, "2*c*c") == ("E325", message)
    assert tried(lambda site: nn.Identity(), "0") == ("E327", "has no trainable parameter")


def test_blueprint_that_does_not_declare_the_identity_need_not_be_it():
    assert tried(shifted, identity=False) is None
