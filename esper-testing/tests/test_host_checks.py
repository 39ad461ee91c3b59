"""Each check of hosts fails for its own fault, and passes for a correct host."""

import math
import random
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from esper_core import HostSpec, SlotPlace
from esper_core.leyline import ConfigError, Problem
from esper_testing import check_host, hosts as home
from tests.support.faulty_modules import changes_of

pytestmark = pytest.mark.install  # a minute; this suite must pass for every change

SPEC = HostSpec("Good.", {"early": SlotPlace("stem", "vector"), "late": SlotPlace("hidden")})


class Right(nn.Module):
    """Two layers over vectors of three numbers or more, with batch norm and dropout."""

    def __init__(self, shape, *, width=8):
        if shape.kind != "vector" or shape.example[0] < 3:
            raise ConfigError(Problem("E120", "right takes vectors of three", hint=f"Received: {shape.example}"))
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(shape.example[0], width), nn.BatchNorm1d(width))
        self.drop = nn.Dropout(0.2)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, shape.outputs)
        nn.init.zeros_(self.head.weight)  # nothing behind it has a gradient at the first step

    def forward(self, inputs):
        return self.head(torch.relu(self.hidden(self.drop(self.stem(inputs)))))


with_forward, with_birth = changes_of(Right)


def infinite_in_training(host, x, right):
    return right(x) + (math.inf if host.training and not torch.is_grad_enabled() else 0.0)


def minds_its_modules(host, x, right):
    """Return outputs that depend on the number of modules by less than the tolerance of a graft."""
    return right(x) * (1 + 1e-5 * len(list(host.modules())))


TripsAtItsFirstBatch = with_forward(lambda host, x, right: right(x) if x.shape[1] != 64 else x.reshape(3, 3, 3))
PutsOutOneTooMany = with_forward(lambda host, x, right: torch.cat([right(x), right(x)[:, :1]], 1))
PutsOutDoubles = with_forward(lambda host, x, right: right(x).double())
PutsOutInfinityInTraining = with_forward(infinite_in_training)
Squeezes = with_forward(lambda host, x, right: right(x).squeeze(0))
DrawsInTraining = with_forward(lambda host, x, right: right(x) + (0 * random.random() if host.training else 0))
DropsInEvaluation = with_forward(lambda host, x, right: right(x) + 0 * torch.rand(()))
CallsItsStemTwice = with_forward(lambda host, x, right: right(x) + 0 * host.stem(x).sum())
MindsItsModules = with_forward(minds_its_modules)


def needs_company(host, x, right):
    if len(x) < 2:
        raise ValueError("lonely")
    return right(x)


def cannot_learn(host, x, right):
    return right(x) + torch.zeros((), requires_grad=True)


def counts_its_evaluations(host, x, right):
    host.seen += not host.training
    return right(x)


def is_louder_each_time(host, x, right):
    host.times += not host.training
    return right(x) * host.times


def calls_its_stem_in_training_only(host, x, right):
    hidden = host.stem(x) if host.training else nn.Sequential.forward(host.stem, x)
    return host.head(torch.relu(host.hidden(host.drop(hidden))))


IsLouderEachTime = with_forward(is_louder_each_time, lambda host, _: setattr(host, "times", 0))
CallsItsStemInTrainingOnly = with_forward(calls_its_stem_in_training_only)
KeepsAnAttribute = with_forward(
    lambda host, x, right: right(x) + host.offset, lambda host, _: setattr(host, "offset", torch.rand(()))
)
"""A number that is drawn when the host is built, and is not in the state dict."""

NeedsCompany = with_forward(needs_company)
IsNeverTheSame = with_birth(lambda host, _: host.hidden.bias.add_(random.SystemRandom().random()))
DrawsFromNumpy = with_birth(lambda host, _: host.hidden.bias.add_(float(np.random.random())))
HasADeadLayer = with_birth(lambda host, _: host.add_module("unused", nn.Linear(2, 2)))
SeedsTorch = with_birth(lambda host, _: torch.manual_seed(3))
KeepsTextInItsState = type("Changed", (Right,), {"get_extra_state": lambda host: "a note", "set_extra_state": print})
CopiesByReference = type("Changed", (Right,), {"__deepcopy__": lambda host, memo: host})
CannotLearn = with_forward(cannot_learn, lambda host, _: host.requires_grad_(requires_grad=False))
CountsItsEvaluations = with_forward(
    counts_its_evaluations, lambda host, _: host.register_buffer("seen", torch.zeros(()))
)


def trips_over_images(shape):
    if shape.kind == "image":
        raise KeyError(shape.kind)
    return Right(shape)


def is_no_module(shape):
    return "a host" if shape.kind == "image" else Right(shape)


SHARED = {}


class SharesALayer(Right):
    """Shares a layer between hosts of a shape, with equal weights for each."""

    def __init__(self, shape):
        super().__init__(shape)
        self.hidden = SHARED.setdefault(shape, self.hidden)
        with torch.no_grad():
            self.hidden.weight.fill_(0.1)
            self.hidden.bias.fill_(0.1)


STEPS = Counter()


class RemembersItsTraining(Right):
    def __init__(self, shape):
        super().__init__(shape)
        self.shape = shape
        with torch.no_grad():
            self.hidden.bias.add_(STEPS[shape])

    def forward(self, inputs):
        STEPS[self.shape] += self.training and bool(inputs.any())
        return super().forward(inputs)


def failed(factory, spec=SPEC):
    broken = [result for result in check_host(factory, spec) if not result.ok]
    return {result.check.removesuffix("[vector]"): result.message for result in broken}


def test_a_host_without_a_fault_passes_the_checks_of_the_kind_that_it_accepts():
    results = {result.check: result.status for result in check_host(Right, SPEC)}
    assert set(results.values()) == {"passed"}
    expected = {f"{check.__name__}[vector]" for check in (home.builds_or_says_why_not, *home.CHECKS)}
    assert {name for name in results if name.endswith("[vector]")} == expected
    assert {name for name in results if name.endswith("[image]")} == {"builds_or_says_why_not[image]"}


WITH_CONSEQUENCES = {PutsOutOneTooMany, IsNeverTheSame, SeedsTorch, IsLouderEachTime}
"""Faults that fail other checks, too."""


def with_slot(place):
    return HostSpec(slots={"early": place})


FAULTS = [
    (trips_over_images, "builds_or_says_why_not[image]", "KeyError for image (1, 8, 8); expected a ConfigError"),
    (is_no_module, "builds_or_says_why_not[image]", "image (1, 8, 8): builds a str, not a torch.nn.Module"),
    (TripsAtItsFirstBatch, "builds_or_says_why_not", "raises RuntimeError at the first batch of"),
    (PutsOutDoubles, "outputs_fit", "vector (8,): returns torch.float64, not torch.float32"),
    (PutsOutInfinityInTraining, "outputs_fit", "vector (8,): returns values that are not finite"),
    (NeedsCompany, "takes_one_example", "one example of vector (8,): lonely"),
    (Squeezes, "takes_one_example", "vector (8,): returns 3 rows for one example"),
    (DrawsFromNumpy, "leaves_generators_alone", "vector (8,): uses numpy's; use torch's default"),
    (DrawsInTraining, "leaves_generators_alone", "uses Python's global generator"),
    (HasADeadLayer, "every_parameter_gets_a_gradient", "after two steps: unused.weight, unused.bias"),
    (CannotLearn, "every_parameter_gets_a_gradient", "has no trainable parameter"),
    (DropsInEvaluation, "evaluates_repeatably", "draws random numbers in evaluation"),
    (CountsItsEvaluations, "evaluates_repeatably", "changes in evaluation: seen"),
    (CallsItsStemTwice, "slots_fire_where_its_spec_says", 'module "stem" is called 2 times in one pass'),
    (CallsItsStemInTrainingOnly, "slots_fire_where_its_spec_says", 'module "stem" is not called in evaluation'),
    (MindsItsModules, "grafting_changes_no_number", "changes when it is grafted: outputs in training, out"),
    (KeepsAnAttribute, "survives_a_round_trip", "differs after save and load: off by up to"),
    (KeepsTextInItsState, "survives_a_round_trip", "in its state dict that are not tensors: _extra_state"),
    (CopiesByReference, "deepcopy_is_independent", "changes when its deep copy is trained"),
    (SharesALayer, "starts_afresh_each_time", "shares with a host that was built earlier: hidden.weight"),
    (RemembersItsTraining, "starts_afresh_each_time", "is built differently after another was trained"),
    (PutsOutOneTooMany, "outputs_fit", "vector (8,): returns the shape (16, 4), not (16, 3)"),
    (IsNeverTheSame, "same_seed_same_weights", "differently with the same RNG seed: hidden.bias"),
    (SeedsTorch, "leaves_generators_alone", "seeds torch's default generator itself"),
    (IsLouderEachTime, "evaluates_repeatably", "evaluates differently: off by up to"),
]
SPECS = [
    (HostSpec("Two\nlines."), "is_well_declared", "a summary is one line"),
    (HostSpec(slots={"a slot": SlotPlace("stem")}), "is_well_declared", "Received: a slot"),
    (with_slot(SlotPlace("stem", stack=0)), "is_well_declared", 'slot "early" must be at least 1'),
    (with_slot(SlotPlace("stme")), "slots_fire_where_its_spec_says", 'no module of Right is called "stme"'),
    (with_slot(SlotPlace("stem", "image")), "slots_fire_where_its_spec_says", '"stem" does not return a image'),
]


@pytest.mark.parametrize(
    ("factory", "spec", "check", "says"),
    [*((factory, SPEC, *expected) for factory, *expected in FAULTS), *((Right, *row) for row in SPECS)],
)
def test_a_fault_fails_its_own_check_and_no_other(factory, spec, check, says):
    messages = failed(factory, spec)
    assert list(messages) == [check] or factory in WITH_CONSEQUENCES, messages
    assert says in messages[check]


def test_a_host_that_accepts_no_data_is_reported_with_a_remedy():
    def picky(shape):
        raise ConfigError(Problem("E120", "picky takes vectors of 12,345"))

    ((check, message),) = failed(picky).items()
    assert check == "accepts_some_data"
    assert message.startswith("accepts none of the shapes that are tried: ((1, 8, 8), (1, 28, 28)")
    remedy = "It reports: picky takes vectors of 12,345. Pass settings with which it accepts one of them"
    assert message.endswith(remedy)
