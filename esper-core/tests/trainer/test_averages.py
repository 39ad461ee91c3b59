"""Running averages: networks are judged by the average of their weights, and go on as they are."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from esper_core.growth import Averages, Host
from esper_core.leyline import CALM
from tests.support import core_worlds
from tests.support.core_worlds import ADVANCE, FOSSILISE, LOUD, PRUNE, Net, begin, begin_pool, change_recipe, same, slow
from tests.support.studies import play

GERMINATE = replace(core_worlds.GERMINATE, blueprint=LOUD.id, speed=1)
LIVES = {
    "kept": {0: GERMINATE, 2: ADVANCE, 4: FOSSILISE},
    "pruned": {0: GERMINATE, 2: ADVANCE, 4: replace(PRUNE, speed=1), 7: GERMINATE},
}
NEXT_TO_NOTHING = 1e-3
"""A half-life after which a batch counts 2 ** -1000, so that the average equals the latest weights to the bit."""


def averaging(half_life: float, **more: Any) -> Any:
    recipe = core_worlds.make_recipe(batches=5, steps=9, variety=LOUD, embargo=0, **more)
    return change_recipe(recipe, growth=recipe.network.growth.model_copy(update={"average": half_life}))


def test_a_network_is_judged_by_the_average_of_its_weights_and_tested_and_trained_with_its_own(monkeypatch):
    environment, weights, take = begin(averaging(2.0)), [], Averages.take_batch

    def note(averages: Averages) -> None:
        weights.append(deepcopy(environment.model.state_dict()))
        take(averages)

    monkeypatch.setattr(Averages, "take_batch", note)
    for _ in range(3):
        environment.train()
    before = deepcopy(environment.model.state_dict())
    environment.evaluate("validation")
    assert same(before, environment.model.state_dict())

    average = {name: tensor.clone() for name, tensor in weights[0].items()}
    for batch, latest in enumerate(weights[1:], start=2):
        share = 1 - min(0.5 ** (1 / 2.0), 1 - 1 / batch)
        for name, tensor in latest.items():
            average[name] = average[name] + share * (tensor - average[name]) if tensor.is_floating_point() else tensor
    reference = begin(averaging(0))
    reference.model.load_state_dict(average)
    reference.evaluate("validation")
    judged, expected = environment.network.evaluation.losses, reference.network.evaluation.losses
    assert torch.allclose(judged, expected, atol=1e-5)

    reference.model.load_state_dict(before)
    assert same(environment.evaluate("test"), reference.evaluate("test"))


@pytest.mark.parametrize("way", ["branch", slow("shadow")])
@pytest.mark.parametrize("life", LIVES)
def test_everything_is_measured_as_without_averages_with_a_short_half_life_and_trained_so_with_any(way, life):
    reports, ends = [], []
    for half_life in (0, NEXT_TO_NOTHING, 8.0):
        pool = begin_pool(averaging(half_life), incubation=way)
        reports.append(core_worlds.spelled(play(pool, 9, LIVES[life])))
        ends.append([environment.model.state_dict() for environment in pool.environments])
    assert reports[0] == reports[1] != reports[2]
    assert same(ends[0], ends[1])
    assert same(ends[0], ends[2])


def test_a_network_can_end_with_the_average_of_its_weights_and_both_are_tested():
    pools = [begin_pool(averaging(8.0), final_weights=weights) for weights in ("last", "average")]
    for pool in pools:
        play(pool, 9, LIVES["kept"])
    network = pools[1].environments[0].network
    with network.averages.judged():
        average = deepcopy(network.model.state_dict())
    (_, plain), (_, averaged) = (pool.conclude(8) for pool in pools)
    assert [ending.test_last for ending in averaged] == [ending.test_metric for ending in plain]
    assert {ending.test_last for ending in plain} == {None}
    assert averaged[0].test_loss != plain[0].test_loss
    assert same(network.model.state_dict(), average)


def test_a_branch_begins_with_the_average_of_its_host():
    """A seed that is the identity gains nothing before its first batch."""
    environment = begin(change_recipe(averaging(8.0), varieties={"early": (core_worlds.LOCAL_CONV,)}))
    environment.train()
    environment.network.apply(core_worlds.GERMINATE, 0)
    environment.evaluate("validation")
    environment.measure_seeds(None)
    (gain,) = environment.network.gains.gains.values()
    assert not gain[1:-1].any()


def test_after_a_rollback_the_restored_weights_are_judged():
    environment = begin(averaging(8.0))
    network = environment.network
    network.governor.begin(network.garden)
    environment.train()
    environment.evaluate("validation")
    for _ in range(2):
        environment.train()
    with torch.no_grad():
        environment.model.head.weight.fill_(torch.nan)
    environment.evaluate("validation")

    decision = network.judge(network.conclude_step(2, network.numbers().tolist()), CALM)
    assert decision.act == "roll-back"
    network.roll_back(decision)
    judged = environment.evaluate("validation")
    assert judged.isfinite().all()
    assert not same(judged, environment.evaluate("test"))


def test_the_average_of_no_buffer_but_statistics_is_taken():
    """An average of the vectors of a spectral norm is no unit vector, and the norm would not be 1."""
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))
    mask = torch.full((3,), -torch.inf)
    model = Net(lambda net, inputs: net.norm(net.layer(inputs)), layer=layer, norm=nn.BatchNorm1d(3), mask=mask)
    average = Host(model).running_average(4)
    for _ in range(3):
        model(torch.randn(4, 3))
        average.update()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with average.applied():
        averaged = {name for name, buffer in model.named_buffers() if not torch.equal(buffer, before[name])}
    assert averaged == {"norm.running_mean", "norm.running_var"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_average_follows_weights_in_half_precision(dtype):
    """The share that a batch has in an average is too small to be added in half precision."""
    model = nn.Linear(1, 1, bias=False).to(dtype)
    average = Host(model).running_average(16)
    for batch in range(400):
        nn.init.constant_(model.weight, 1.0 + min(batch, 200) / 5000)
        average.update()
    last = model.weight.clone()
    with average.applied():
        assert model.weight.dtype is dtype
        assert torch.equal(model.weight, last)
    assert torch.equal(model.weight, last)


@pytest.mark.parametrize(
    "change",
    [
        lambda model, _: model.register_parameter("weight", nn.Parameter(torch.zeros_like(model.weight))),
        lambda model, _: model.double(),
        lambda model, average: average.load_state_dict(model, average.state_dict({id(model): ""})),
    ],
    ids=["another parameter", "another type", "a state is loaded"],
)
def test_an_average_follows_what_a_loop_does_to_weights_between_two_batches(change):
    model = nn.Linear(1, 1, bias=False)
    average = Host(model).running_average(4)
    average.update()
    change(model, average)
    nn.init.constant_(model.weight, 5.0)
    for _ in range(100):
        average.update()
    with average.applied():
        torch.testing.assert_close(model.weight, torch.full_like(model.weight, 5.0), rtol=1e-5, atol=0.0)
