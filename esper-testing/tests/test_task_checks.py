"""Each check of tasks and of schedules fails for its own fault, and passes for what is correct."""

import random

import pytest
import torch

from esper_core.leyline import DataShape, Metric, Split
from esper_testing import check_schedule, check_task
from tests.support.core_worlds import ToyTask


class Right(ToyTask):
    """Three classes of noise."""

    shape = DataShape("vector", (4,), 3)

    def __init__(self):
        self.splits = {name: self.made(place) for place, name in enumerate(("train", "validation", "test"))}

    def made(self, place):
        generator = torch.Generator().manual_seed(place)
        targets = torch.arange(30) % 3
        return Split(torch.randn(30, 4, generator=generator) + targets[:, None], targets)

    def split(self, name):
        return self.splits[name]


class SharesARow(Right):
    def split(self, name):
        split = super().split(name)
        if name == "test":
            split.inputs[3] = super().split("train").inputs[5]
        return split


class DetachesItsLosses(Right):
    def losses(self, outputs, targets):
        losses = super().losses(outputs, targets)
        return losses if losses.mean() < 0 else losses.detach() + 0 * outputs.sum(1)


class Symbols(Right):
    """Predict the next of three symbols at each of twelve positions."""

    shape = DataShape("tokens", (12,), 3)

    def made(self, place):
        rows = torch.randint(3, (8, 13), generator=torch.Generator().manual_seed(place))
        return Split(rows[:, :-1], rows[:, 1:])

    def losses(self, outputs, targets):
        return torch.nn.functional.cross_entropy(outputs.transpose(1, 2), targets, reduction="none").mean(1)

    def scores(self, outputs, targets):
        return (outputs.argmax(2) == targets).float().mean(1)


class Regression(Right):
    metric = Metric("squared error", "down")
    shape = DataShape("vector", (4,), 2)

    def made(self, place):
        split = super().made(place)
        return Split(split.inputs, split.inputs[:, :2])

    def losses(self, outputs, targets):
        return (outputs - targets).square().mean(1)

    scores = losses


def with_data(change, base=Right):
    """Return a task whose splits hold ``change(inputs, targets)``."""

    class Changed(base):
        def made(self, place):
            split = super().made(place)
            return Split(*change(split.inputs, split.targets))

    return Changed


def with_attributes(**attributes):
    return type("Changed", (Right,), attributes)


MeansItsLosses = with_attributes(losses=lambda *arguments: Right.losses(*arguments).mean())
MeansItsScores = with_attributes(scores=lambda *arguments: Right.scores(*arguments).mean())
ScoresOfTheBatch = with_attributes(scores=lambda *arguments: Right.scores(*arguments).mean().expand(len(arguments[2])))
FLAT_IMAGES = with_attributes(shape=DataShape("image", (4,), 3))
INTEGERS = with_data(lambda x, y: ((1000 * x).long(), y))
FRACTIONS = with_data(lambda x, y: (x.float(), y), Symbols)
ONE_NAN = with_data(lambda x, y: (x.where(x != x[0, 0], torch.nan), y))
CLASS_3 = with_data(lambda x, y: (x, torch.cat([torch.tensor([3]), y[1:]])))


def failed(results):
    return {result.check: result.message for result in results if not result.ok}


@pytest.mark.parametrize("factory", [Right, Symbols, Regression])
def test_a_task_without_a_fault_passes_every_check(factory):
    assert {result.status for result in check_task(factory)} == {"passed"}


@pytest.mark.parametrize(
    ("factory", "check", "says"),
    [
        (SharesARow, "splits_are_disjoint", '1 inputs of "train" are also in "test"'),
        (with_data(lambda x, y: (x + random.SystemRandom().random(), y)), "is_seeded", "differ when it is built twice"),
        (with_data(lambda x, y: (x + torch.rand(()), y)), "is_seeded", "differ when it is built twice"),
        (ONE_NAN, "inputs_are_finite", '1 values in the inputs of "train" are not finite'),
        (INTEGERS, "inputs_are_finite", '"train" are torch.int64, not torch.float32'),
        (with_data(lambda x, y: (x.double(), y)), "inputs_are_finite", '"train" are torch.float64, not torch.float32'),
        (FRACTIONS, "inputs_are_finite", '"train" are torch.float32, not torch.int64'),
        (with_data(lambda x, y: (x - 1, y), Symbols), "inputs_are_finite", 'symbols of "train" go below 0'),
        (CLASS_3, "targets_fit", 'classes of "train" are 0 to 3, for 3 outputs'),
        (with_data(lambda x, y: (x, y[1:])), "targets_fit", '"train" has 30 inputs and 29 targets'),
        (MeansItsLosses, "losses_are_per_example", "of shape () as losses of 30 examples"),
        (DetachesItsLosses, "losses_are_per_example", "no finite gradient"),
        (MeansItsScores, "scores_are_per_example", "of shape () as scores of 30 examples"),
        (ScoresOfTheBatch, "scores_are_per_example", "15 examples have other scores in a batch of 30"),
        (with_attributes(metric=Metric("accuracy", "down")), "metric_says_what_is_better", "falls, but down is better"),
        (with_attributes(shape=DataShape("vector", (5,), 3)), "shape_agrees_with_data", "the declared shape is (5,)"),
        (FLAT_IMAGES, "shape_agrees_with_data", "of kind image have 3 dimensions"),
    ],
)
def test_a_fault_fails_its_own_check_and_no_other(factory, check, says):
    messages = failed(check_task(factory))
    assert list(messages) == [check] or factory is DetachesItsLosses, messages
    assert says in messages[check]


# --- schedules


def schedule(factor):
    """Return a schedule of ``factor(step, steps)``."""
    return type("Schedule", (), {"factor": lambda schedule, step, steps: factor(step, steps)})


FallsLinearly = schedule(lambda step, steps: max(0.0, 1.0 - step / (steps or 100)))
FallsBelowZero = schedule(lambda step, steps: 1.0 - step / 20)
NeedsTheEnd = schedule(lambda step, steps: 1.0 - step / steps if step < steps else 0.0)
DividesAtTheEnd = schedule(lambda step, steps: 1.0 if steps is None or step < steps else float("nan"))
Sleeps = schedule(lambda step, steps: 0.0)


class Counts:
    calls = 0

    def factor(self, step, steps):
        self.calls += 1
        return 1.0 / self.calls


def test_a_schedule_without_a_fault_passes_every_check():
    assert {result.status for result in check_schedule(FallsLinearly)} == {"passed"}


@pytest.mark.parametrize(
    ("factory", "check", "says"),
    [
        (FallsBelowZero, "gives_a_factor_for_every_step", "returned the factor -0.9"),
        (NeedsTheEnd, "gives_a_factor_for_every_step", "TypeError"),
        (DividesAtTheEnd, "gives_a_factor_for_every_step", "returned the factor nan for step 39 of 1"),
        (Counts, "is_pure", "for step 0 of 1"),
        (Sleeps, "lets_something_be_learnt", "returns 0 for every step"),
    ],
)
def test_a_fault_of_a_schedule_is_found_by_its_check(factory, check, says):
    messages = failed(check_schedule(factory))
    assert says in messages[check]
    assert set(messages) <= {check, "is_pure"}
