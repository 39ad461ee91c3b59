"""Does each check find the one fault that it is there for, and no fault in what is right?"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from esper_core import BlueprintSpec, Site
from esper_testing import Check, CheckResult, blueprint_checks, check_blueprint
from esper_testing.blueprints import SHAPES

SPEC = BlueprintSpec(accepts="vector", params="2*(c*c + c)", starts_as_identity=True)


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


class TurnsTheShape(Right):
    def forward(self, x):
        return super().forward(x)[:, None] if len(x) == 1 else super().forward(x)


class TurnsTheType(Right):
    def forward(self, x):
        return super().forward(x.float()) if x.dtype is torch.float32 else x.float()


class MovesAtBirth(Right):
    def __init__(self, site):
        super().__init__(site)
        nn.init.constant_(self.last.bias, 1e-7)


class MovesInTrainingOnly(Right):
    def forward(self, x):
        return super().forward(x) * (1.0001 if self.training else 1.0)


class HasOneTooMany(Right):
    def __init__(self, site):
        super().__init__(site)
        self.extra = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return super().forward(x) + self.extra


class LearnsNowhere(Right):
    """Both layers zero: neither ever gets a gradient, but for the last bias."""

    def __init__(self, site):
        super().__init__(site)
        nn.init.zeros_(self.first.weight)
        nn.init.zeros_(self.first.bias)


class LeavesALayerOut(Right):
    def forward(self, x):
        return x + self.last(x)


class DrawsFromNumpy(Right):
    def __init__(self, site):
        super().__init__(site)
        nn.init.constant_(self.first.bias, float(np.random.random()))


class DrawsFromPython(Right):
    def __init__(self, site):
        super().__init__(site)
        nn.init.constant_(self.first.bias, random.random())


class DividesByZero(Right):
    def forward(self, x):
        return super().forward(x) + 0 * (x / x.norm(dim=1, keepdim=True))


class RunsOver(Right):
    def forward(self, x):
        return super().forward(x) + 0 * x.square().exp()


class CannotBeBuilt(Right):
    def __init__(self, site):
        msg = "no such thing"
        raise TypeError(msg)


def failed(factory, spec=SPEC):
    return {result.check: result.message for result in check_blueprint(factory, spec) if not result.ok}


def test_a_block_without_a_fault_passes_every_check():
    results = check_blueprint(Right, SPEC)
    assert [result.check for result in results] == [
        "keeps_shape",
        "honest_parameter_count",
        "gradient_within_two_steps",
        "same_seed_same_weights",
        "finite_outputs",
        "identity_at_birth",
    ]
    assert all(result == CheckResult(result.check, ok=True, message="") for result in results)


@pytest.mark.parametrize(
    ("factory", "check", "says"),
    [
        (TurnsTheShape, "keeps_shape", "vector (1,): gives back (1, 1, 1) torch.float32"),
        (TurnsTheType, "keeps_shape", "gives back (16, 1) torch.float32 on cpu for (16, 1) torch.float64 on cpu"),
        (MovesAtBirth, "identity_at_birth", "is not the identity in training: off by up to"),
        (MovesInTrainingOnly, "identity_at_birth", "is not the identity in training: off by up to"),
        (HasOneTooMany, "honest_parameter_count", "has 5 parameters, but 2*(c*c + c) = 4"),
        (LearnsNowhere, "gradient_within_two_steps", "two steps of SGD to first.weight, first.bias, last.weight"),
        (LeavesALayerOut, "gradient_within_two_steps", "no gradient within two steps of SGD to first.weight"),
        (DrawsFromNumpy, "same_seed_same_weights", "under the same seed of torch: first.bias"),
        (DrawsFromPython, "same_seed_same_weights", "under the same seed of torch: first.bias"),
        (DividesByZero, "finite_outputs", "not finite for inputs of size 0"),
        (RunsOver, "finite_outputs", "not finite for inputs of size 10000"),
    ],
)
def test_a_fault_fails_its_own_check_and_no_other(factory, check, says):
    found = failed(factory)
    assert list(found) == [check]
    assert says in found[check]


def test_an_identity_that_is_not_claimed_is_not_asked_for():
    spec = replace(SPEC, starts_as_identity=False)
    assert failed(MovesAtBirth, spec) == {}
    assert "identity_at_birth" not in [check.name for check in blueprint_checks(MovesAtBirth, spec)]


def test_whatever_a_blueprint_raises_is_told():
    found = failed(CannotBeBuilt)
    assert len(found) == 6
    assert set(found.values()) == {"raised TypeError: no such thing"}


def test_a_formula_that_does_not_evaluate_is_told():
    found = failed(Right, replace(SPEC, params="2*width"))
    assert list(found) == ["honest_parameter_count"]
    assert '"width" means nothing in a formula over c, n' in found["honest_parameter_count"]


def test_a_kind_of_site_that_does_not_exist_is_told():
    assert "Received: waves" in failed(Right, replace(SPEC, accepts="waves"))["keeps_shape"]


def test_every_kind_that_a_blueprint_accepts_is_tried():
    seen = []

    def factory(site):
        seen.append(site)
        return Right(site)

    check = next(iter(blueprint_checks(factory, replace(SPEC, accepts=("tokens", "vector")))))
    assert isinstance(check, Check)
    check.run()
    assert {(site.kind, site.example_shape) for site in seen} == {
        (kind, shape) for kind in ("tokens", "vector") for shape in SHAPES[kind]
    }


def test_checking_leaves_every_global_generator_where_it_was():
    np.random.seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    check_blueprint(DrawsFromNumpy, SPEC)
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]
