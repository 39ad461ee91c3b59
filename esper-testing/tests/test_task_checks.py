"""Each check of tasks fails for its own fault, and passes for a correct task."""

from __future__ import annotations

import random

import pytest
import torch

from esper_core.leyline import DataShape, Metric, Split
from esper_testing import check_task


class Right:
    """Three classes of noise."""

    metric = Metric("accuracy", "up", "%")
    shape = DataShape("vector", (4,), 3)

    def __init__(self):
        self.splits = {name: self.made(place) for place, name in enumerate(("train", "validation", "test"))}

    def made(self, place):
        generator = torch.Generator().manual_seed(place)
        targets = torch.arange(30) % 3
        return Split(torch.randn(30, 4, generator=generator) + targets[:, None], targets)

    def split(self, name):
        return self.splits[name]

    def losses(self, outputs, targets):
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

    def scores(self, outputs, targets):
        return (outputs.argmax(1) == targets).float()


class SharesARow(Right):
    def split(self, name):
        found = super().split(name)
        if name == "test":
            found.inputs[3] = super().split("train").inputs[5]
        return found


class ComesOutDifferently(Right):
    def made(self, place):
        found = super().made(place)
        return Split(found.inputs + random.SystemRandom().random(), found.targets)


class DrawsFromTheGlobalGenerator(Right):
    def made(self, place):
        found = super().made(place)
        return Split(found.inputs + torch.rand(()), found.targets)


class HasAHole(Right):
    def made(self, place):
        found = super().made(place)
        found.inputs[place, 0] = float("nan")
        return found


class HasAClassTooMany(Right):
    def made(self, place):
        found = super().made(place)
        found.targets[0] = 3
        return found


class LosesATarget(Right):
    def made(self, place):
        found = super().made(place)
        return Split(found.inputs, found.targets[1:])


class MeansItsLosses(Right):
    def losses(self, outputs, targets):
        return super().losses(outputs, targets).mean()


class DetachesItsLosses(Right):
    def losses(self, outputs, targets):
        found = super().losses(outputs, targets)
        return found if found.mean() < 0 else found.detach() + 0 * outputs.sum(1)


class MeansItsScores(Right):
    def scores(self, outputs, targets):
        return super().scores(outputs, targets).mean()


class LooksTheWrongWay(Right):
    metric = Metric("accuracy", "down")


class TellsAnotherShape(Right):
    shape = DataShape("vector", (5,), 3)


class TellsAnotherKind(Right):
    shape = DataShape("image", (4,), 3)


class Symbols(Right):
    """Which of three symbols comes next, for each of twelve."""

    shape = DataShape("tokens", (12,), 3)

    def made(self, place):
        rows = torch.randint(3, (8, 13), generator=torch.Generator().manual_seed(place))
        return Split(rows[:, :-1], rows[:, 1:])

    def losses(self, outputs, targets):
        return torch.nn.functional.cross_entropy(outputs.transpose(1, 2), targets, reduction="none").mean(1)

    def scores(self, outputs, targets):
        return (outputs.argmax(2) == targets).float().mean(1)


class CountsSymbolsInFloats(Symbols):
    def made(self, place):
        found = super().made(place)
        return Split(found.inputs.float(), found.targets)


class CountsSymbolsFromMinus1(Symbols):
    def made(self, place):
        found = super().made(place)
        return Split(found.inputs - 1, found.targets)


class HasDoubles(Right):
    def made(self, place):
        found = super().made(place)
        return Split(found.inputs.double(), found.targets)


class HasWholeNumbers(Right):
    def made(self, place):
        found = super().made(place)
        return Split((1000 * found.inputs).long(), found.targets)


def failed(factory):
    return {one.check: one.message for one in check_task(factory) if not one.ok}


@pytest.mark.parametrize("factory", [Right, Symbols])
def test_a_task_without_a_fault_passes_every_check(factory):
    assert {one.status for one in check_task(factory)} == {"passed"}


@pytest.mark.parametrize(
    ("factory", "check", "says"),
    [
        (SharesARow, "splits_are_disjoint", '1 inputs of "train" are also in "test"'),
        (ComesOutDifferently, "is_seeded", 'the inputs of "train" differ when it is built twice'),
        (DrawsFromTheGlobalGenerator, "is_seeded", 'the inputs of "train" differ when it is built twice'),
        (HasAHole, "inputs_are_finite", '1 values in the inputs of "train" are not finite'),
        (HasWholeNumbers, "inputs_are_finite", 'inputs of "train" are torch.int64, not torch.float32'),
        (HasDoubles, "inputs_are_finite", 'inputs of "train" are torch.float64, not torch.float32'),
        (CountsSymbolsInFloats, "inputs_are_finite", 'symbols of "train" are torch.float32, not torch.int64'),
        (CountsSymbolsFromMinus1, "inputs_are_finite", 'symbols of "train" go below 0'),
        (HasAClassTooMany, "targets_fit", 'classes of "train" are 0 to 3, for 3 outputs'),
        (LosesATarget, "targets_fit", '"train" has 30 inputs and 29 targets'),
        (MeansItsLosses, "losses_are_per_example", "losses have the shape ()"),
        (MeansItsScores, "scores_are_per_example", "scores have the shape ()"),
        (LooksTheWrongWay, "metric_says_what_is_better", "as the loss falls, but down is better"),
        (TellsAnotherShape, "shape_agrees_with_data", "the declared shape is (5,)"),
        (TellsAnotherKind, "shape_agrees_with_data", "examples of kind image have 3 dimensions"),
    ],
)
def test_a_fault_fails_its_own_check_and_no_other(factory, check, says):
    found = failed(factory)
    assert list(found) == [check], found
    assert says in found[check]


def test_losses_without_a_gradient_are_reported():
    assert "no finite gradient" in failed(DetachesItsLosses)["losses_are_per_example"]


def test_a_regression_conforms_too():
    class Regression(Right):
        metric = Metric("squared error", "down")
        shape = DataShape("vector", (4,), 2)

        def made(self, place):
            found = super().made(place)
            return Split(found.inputs, found.inputs[:, :2])

        def losses(self, outputs, targets):
            return (outputs - targets).square().mean(1)

        scores = losses

    assert {one.status for one in check_task(Regression)} == {"passed"}
