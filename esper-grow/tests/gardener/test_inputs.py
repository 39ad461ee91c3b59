"""Batches of any structure, models that take several inputs, and losses behind the mean of a batch."""

from collections import UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from esper_core import graft
from esper_core.growth import Example, slots_of
from esper_core.leyline import Action, Op
from esper_grow.gardener.losses import each_example
from esper_grow.gardener.validation import counted_example
from tests.support.core_worlds import LOCAL_CONV, Net, NoisyHost, per_example
from tests.support.loops import life, make_loop

Pair = namedtuple("Pair", ["inputs", "targets"])


@dataclass
class Record:
    inputs: Tensor
    targets: Tensor
    name: str = "bumps"


BATCHES: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]] = {
    "named tuple": (Pair, lambda batch: (batch.inputs, batch.targets)),
    "dict": (lambda x, y: {"x": x, "y": y, "name": "few"}, lambda batch: (batch["x"], batch["y"])),
    "user dict": (lambda x, y: UserDict(x=x, y=y), lambda batch: (batch["x"], batch["y"])),
    "dataclass": (Record, lambda batch: (batch.inputs, batch.targets)),
    "nested": (lambda x, y: [{"x": (x,)}, y], lambda batch: (batch[0]["x"][0], batch[1])),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_a_batch_may_have_any_structure(kind):
    pack, unpack = BATCHES[kind]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = unpack(batch)
        return nn.functional.cross_entropy(model(inputs), targets, reduction="none")

    loop = make_loop()
    loop.batches = [pack(*batch) for batch in loop.batches]
    loop.validation = [pack(*batch) for batch in loop.validation]
    loop.train = lambda batch: type(loop).train(loop, unpack(batch))
    loop.tended(loss=loss)
    assert loop.epochs(4)[-1].kept


def test_a_model_that_fills_in_missing_values_grows():
    class Filling(NoisyHost):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs.nan_to_num())

    loop = make_loop(host=Filling)
    for inputs, _ in (*loop.batches, *loop.validation):
        inputs[:2] = torch.nan
    assert loop.tended().epochs(4)[-1].kept


@pytest.mark.parametrize("how", [dict, lambda inputs: tuple(inputs.values())], ids=["keywords", "arguments"])
def test_graft_passes_arguments_and_keywords(how):
    def compute(net: Any, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"sum": net.left(left) + net.right(right)}

    example = how({"left": torch.randn(5, 4), "right": torch.randn(5, 3)})
    model = graft(Net(compute, left=nn.Linear(4, 6), right=nn.Linear(3, 6)), ["right"], example=example)
    (slot,) = slots_of(model)
    assert slot.site.example_shape == (6,)


def test_a_copy_of_an_example_shares_no_tensor():
    batch = {"x": torch.zeros(3, 2), "more": [Record(torch.zeros(3), torch.zeros(3))]}
    example = Example.of(batch)
    copied = example.copy()
    copied["x"] += 1
    copied["more"][0].inputs += 1
    assert not batch["x"].any()
    assert not batch["more"][0].inputs.any()
    assert not example.equals(copied)
    assert example.size == 3
    assert len(example.without_last().batch["more"][0].targets) == 2


OUTPUTS = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
CLASSES = torch.tensor([0, 1, 2, 0, 1, 2])
TOKENS = torch.randn(6, 5, 3, generator=torch.Generator().manual_seed(2))
SOME = torch.tensor([[0, 1, 2, -100, -100], [0, -100, -100, -100, -100], *[[2, 1, 0, 1, 2]] * 4])


def cross(**settings: Any) -> Tensor:
    return functional.cross_entropy(OUTPUTS, CLASSES, **settings)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (cross, cross(reduction="none")),
        (lambda: torch.nn.CrossEntropyLoss()(OUTPUTS, CLASSES), cross(reduction="none")),
        (lambda: cross(reduction="none").mean(), cross(reduction="none")),
        (lambda: cross().mean().to(torch.bfloat16).float().double().bfloat16(), cross(reduction="none")),
        (lambda: {"loss": cross(), "accuracy": OUTPUTS.gt(0).float().mean()}["loss"], cross(reduction="none")),
        (lambda: functional.mse_loss(OUTPUTS, OUTPUTS + 1), torch.ones(6)),
        (lambda: torch.mean(OUTPUTS**2), (OUTPUTS**2).mean(1)),
        (lambda: cross(weight=torch.tensor([1.0, 2.0, 3.0])), None),
        (lambda: functional.cross_entropy(TOKENS.flatten(0, 1), SOME.flatten()), None),
    ],
)
def test_the_losses_behind_a_mean_are_found(loss, expected):
    losses = each_example(lambda model, batch: loss(), torch.nn.Identity(), (OUTPUTS, CLASSES))
    assert losses.shape == (6,)
    assert losses.mean() == pytest.approx(float(loss()), 1e-2 if loss().dtype is torch.bfloat16 else 1e-6)
    if expected is not None:
        assert torch.allclose(losses, expected)
    for change in (torch.neg_, lambda mean: mean + 0.0):
        assert not each_example(lambda *_, change=change: change(loss()), nn.Identity(), (OUTPUTS, CLASSES)).ndim


@pytest.mark.parametrize(
    "loss", [lambda: cross() + 0.1, lambda: cross(reduction="sum"), lambda: OUTPUTS[:4].mean(), lambda: CLASSES.float()]
)
def test_any_other_loss_is_returned_as_it_is(loss):
    losses = each_example(lambda model, batch: loss(), torch.nn.Identity(), (OUTPUTS, CLASSES))
    assert torch.equal(losses, loss())


ARRANGED = [(torch.clone, 6), (lambda part: part.transpose(0, 1), 1), (lambda part: torch.cat([part, part]), 1)]


@pytest.mark.parametrize(("arranged", "count"), ARRANGED, ids=["by example", "time-major", "two views"])
def test_a_mean_over_mixtures_of_examples_counts_as_one_loss(arranged, count):
    def loss(model: nn.Module, batch: Any) -> Tensor:
        outputs, targets = map(arranged, batch)
        return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    assert len(counted_example(nn.Identity(), (TOKENS, SOME), loss)[2]) == count


def test_the_loss_of_a_single_example_without_dimensions_is_found():
    output, target = torch.tensor(1.0), torch.tensor(3.0)
    losses = each_example(lambda model, batch: functional.mse_loss(output, target), torch.nn.Identity(), OUTPUTS[:1])
    assert losses.tolist() == [4.0]


def test_a_mean_is_as_good_as_its_losses():
    def mean_of(model: torch.nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        return functional.cross_entropy(model(inputs), targets)

    gains = []
    for settings in ({}, {"loss": mean_of}):
        loop = make_loop()
        loop.tended({0: Action(Op.GERMINATE, "stem", "test/local-conv")}, **settings)
        gains.append([loop.epoch() for _ in range(3)][-1].signals.slots[0].seeds[0].gain)
    assert gains[0].n == gains[1].n == 60
    assert gains[0].mean == pytest.approx(gains[1].mean, 1e-4)


def test_every_batch_counts_as_one_where_a_mean_over_chosen_tokens_is_none_over_examples(caplog):
    def loss(model: torch.nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        chosen = torch.arange(len(inputs)) < 20
        return functional.cross_entropy(model(inputs)[chosen], targets[chosen])

    loop = make_loop()
    inputs, targets = loop.validation[0]
    loop.validation = [(inputs[:20], targets[:20]), (inputs[20:53], targets[20:53]), (inputs[53:], targets[53:])]
    report = loop.tended({}, loss=loss).epoch()
    expected = [loss(loop.model.eval(), batch).item() for batch in loop.validation]
    assert report.signals.validation_loss == pytest.approx(sum(expected) / 3)
    assert caplog.text.count("E360") == 1


@pytest.mark.parametrize("batched", [False, True])
def test_examples_in_another_order_in_each_tend_are_not_taken_for_the_same(batched):
    """The loop draws from the generator that shuffles them. Nothing of an example's gain would seem to repeat."""
    loop, generator = make_loop(), torch.Generator()
    examples = TensorDataset(*loop.validation[0])
    order = BatchSampler(RandomSampler(examples, generator=generator), 20, drop_last=False)
    loaders = [DataLoader(examples, 20, shuffle=True, generator=generator), DataLoader(examples, batch_sampler=order)]
    loop.tended(life("stem", loop.variety.id), validation=loaders[batched])
    loop.after.append(lambda: torch.randperm(9, generator=generator))
    gains = [seed.gain for report in loop.epochs(6) for slot in report.signals.slots for seed in slot.seeds]
    assert {gain.repeats for gain in gains if gain} == {1.0}


def test_validation_data_and_the_number_of_losses_may_change_between_two_tends(caplog):
    loop, strides = make_loop(), [1]
    loop.validation *= 2
    settings = {"loss": lambda *call: per_example(*call)[:: strides[-1]], "growth": {"gates": "strict"}}
    loop.tended(life("stem", LOCAL_CONV.id), **settings).epochs(2)
    loop.validation += loop.validation
    assert loop.epoch().signals.slots[0].seeds[0].gain.n == 240
    assert "E361" not in caplog.text
    strides.append(4)
    assert loop.epoch().signals.slots[0].seeds[0].gain.n == 60
    assert "E361 the validation data has 60 losses" in caplog.text
