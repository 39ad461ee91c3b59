"""Incubation: until a seed blends, the host is bitwise its twin, and the seed learns."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from esper_core.growth import Variety
from esper_core.leyline import WAIT, Action, BlueprintSpec, Signals, Site, SlotPlace, Split, Stage
from esper_core.trainer.environment import Environment
from esper_core.trainer.pool import Pool
from tests.support import core_worlds
from tests.support.core_worlds import (
    ADVANCE,
    FOSSILISE,
    PRUNE,
    Net,
    begin,
    begin_pool,
    change_recipe,
    make_recipe,
    replacing,
    same,
    slow,
    zeroed,
)
from tests.support.studies import play

GERMINATE = replace(core_worlds.GERMINATE, speed=2)
HOSTS: dict[str, Callable[[], nn.Module]] = {"noisy": core_worlds.NoisyHost, "replacing": replacing}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {},
    "sgd": {"kind": "sgd", "momentum": 0.9},
    "clipped": {"clip_norm": 0.1},
    "foreach": {"implementation": "foreach"},
}


def host_state(environment: Environment) -> dict[str, torch.Tensor]:
    """Everything that determines the host's future: parameters, buffers, optimizer state, random numbers."""
    state = {key: value for key, value in environment.model.state_dict().items() if "_esper" not in key}
    for index, parameter in enumerate(environment.keeper.host.parameters):
        for key, value in environment.keeper.host.optimizer.state[parameter].items():
            if isinstance(value, torch.Tensor):
                state[f"optimizer.{index}.{key}"] = value
    state["random"] = environment.network.training_stream.state_dict()[0]
    return state


def live(pool: Pool, plan: dict[int, Action], steps: int) -> list[tuple[bool, Any]]:
    """Return of each step whether the host differs from its twin, and the signals of its seed."""

    def look(signals: list[Signals]) -> tuple[bool, Any]:
        grown, twin = pool.environments
        assert grown.keeper.misowned(grown.model) == []
        grown_state, twin_state = host_state(grown), host_state(twin)
        assert grown_state.keys() == twin_state.keys()
        return not same(grown_state, twin_state), signals[0].slots[0].living

    return play(pool, range(steps), plan, look)


def losses(reports: list[tuple[bool, Any]]) -> list[float]:
    return [seed.incubation_loss for _, seed in reports if seed is not None and seed.incubation_loss is not None]


TO_FOSSIL = {1: GERMINATE, 5: ADVANCE, 7: FOSSILISE}


@pytest.mark.parametrize(
    ("way", "host", "optimizer"),
    [
        ("shadow", "noisy", "clipped"),
        ("branch", "replacing", "sgd"),
        ("branch", "noisy", "foreach"),
        *(slow(way, *pair) for way in ("shadow", "branch") for pair in (("noisy", "sgd"), ("replacing", "adam"))),
    ],
)
def test_the_host_is_bitwise_its_twin_until_a_seed_blends_or_its_branch_is_kept_and_the_seed_learns(
    way, host, optimizer
):
    recipe = make_recipe(embargo=0, host=HOSTS[host], optimizer=OPTIMIZERS[optimizer], batches=8)
    pool, default = begin_pool(recipe, incubation=way), torch.get_rng_state()
    reports = live(pool, TO_FOSSIL, 10)
    alike = 6 if way == "shadow" else 8
    assert [differs for differs, _ in reports] == [False] * alike + [True] * (10 - alike)
    assert len(losses(reports)) == alike - 2  # on a branch it trains until it is kept
    assert losses(reports)[-1] < losses(reports)[0]
    assert [reports[step][1].stage for step in (5, 7)] == [Stage.TRAINING, Stage.HOLDING]
    assert torch.equal(torch.get_rng_state(), default)


def test_run_04_the_loss_of_an_incubating_seed_falls():
    """If the gradient did not depend on the seed's output, the loss at full blend would rise without bound."""
    environment = begin(make_recipe(batches=20), seed=1)
    environment.train()
    environment.network.apply(GERMINATE, 0)
    curve = []
    for _ in range(6):
        environment.train()
        curve.append(float(environment.network.measurements.incubation_losses[0]))
        assert all(parameter.grad is None for parameter in environment.keeper.seeds[0].parameters)
    assert curve[-1] < 0.8 * curve[0]
    assert max(curve[1:]) < 1.05 * curve[0]


@pytest.mark.install  # this suite must pass for every change
@pytest.mark.parametrize("way", ["branch", "shadow"])
def test_run_04_an_incubating_seed_lowers_the_loss_that_it_would_cause(way):
    """The loss with the seed at full strength falls while it incubates: its gradient depends on its output."""
    recipe = make_recipe(embargo=0, batches=30, optimizer={"learning_rate": 0.03})

    def validation_losses(steps: int) -> tuple[float, float]:
        """With the seed at full strength, and without it."""
        pool = begin_pool(recipe, incubation=way)
        play(pool, range(steps), {0: GERMINATE})
        grown = pool.environments[0]
        with grown.garden.incubating[0].trial():
            tried = float(grown.evaluate("validation")[0])
        return tried, float(grown.evaluate("validation")[0])

    (born, _), (tried, without) = validation_losses(1), validation_losses(8)
    assert tried < born
    assert tried < without + 0.05


def test_an_incubating_seed_runs_once_a_batch_beside_a_younger_acting_one():
    def normed(site: Site) -> nn.Module:
        last = zeroed(nn.Conv1d(site.channels, site.channels, 1))
        return Net(
            lambda net, hidden: hidden + net.last(net.norm(hidden)), norm=nn.BatchNorm1d(site.channels), last=last
        )

    variety = Variety("test/local-conv", BlueprintSpec("sequence", starts_as_identity=True), normed)
    slots = {"early": SlotPlace("stem"), "late": SlotPlace("drop")}
    environment = begin(change_recipe(make_recipe(batches=2), slots=slots, varieties=dict.fromkeys(slots, (variety,))))
    later = replace(GERMINATE, slot="late"), WAIT, replace(ADVANCE, slot="late"), WAIT, WAIT
    core_worlds.train_and_act(environment, GERMINATE, *later)
    (late,) = environment.garden.slots["late"].seeds
    assert late.block.norm.num_batches_tracked.item() == 4 * 2  # once a batch since its birth, in shadow or blended


def test_run_10_the_test_split_is_read_once_at_the_end():
    recipe = make_recipe(embargo=0)
    read: list[str] = []

    class Watched(dict):
        def __getitem__(self, name: str) -> object:
            read.append(name)
            return super().__getitem__(name)

    test = recipe.data["test"]
    shifted = Split(test.inputs, (test.targets + 1) % 3)
    pool = Pool(replace(recipe, data=Watched({**recipe.data, "test": shifted})), ["twin"], 1)
    play(pool, 2)
    assert "test" not in read
    _, (ending,) = pool.conclude(1)
    assert read.count("test") == 1
    model = pool.environments[0].model.eval()
    right = (model(shifted.inputs).argmax(1) == shifted.targets).float().mean().item()
    assert ending.test_metric == pytest.approx(right)
    assert ending.test_metric != ending.signals.validation_metric


def test_when_a_seed_is_kept_its_branch_becomes_the_host():
    pool = begin_pool(make_recipe(embargo=0, batches=4), incubation="branch")
    live(pool, {0: GERMINATE, 3: ADVANCE}, 6)
    grown = pool.environments[0]

    def numbers() -> dict[str, torch.Tensor]:
        """Of the host and of its optimizer."""
        skipped = ("random", "esper_core")
        return {key: value.clone() for key, value in host_state(grown).items() if not any(s in key for s in skipped)}

    with grown.garden.incubating[0].trial():
        before, tried = numbers(), grown.evaluate("validation")
    assert not torch.equal(grown.evaluate("validation"), tried)
    grown.network.apply(FOSSILISE, 6)
    assert torch.equal(grown.evaluate("validation"), tried)
    assert any(key.startswith("optimizer.") for key in before)
    assert all(torch.equal(numbers()[key], value) for key, value in before.items())


@pytest.mark.parametrize(
    ("host", "optimizer", "when"),
    [
        ("noisy", "adam", 6),
        ("replacing", "foreach", 2),
        *(slow("noisy", optimizer, 4) for optimizer in OPTIMIZERS),
        *(slow("replacing", "sgd", when) for when in (2, 4, 6)),
    ],
)
def test_after_a_branch_is_pruned_the_host_is_bitwise_its_twin(host, optimizer, when):
    pool = begin_pool(make_recipe(embargo=0, host=HOSTS[host], optimizer=OPTIMIZERS[optimizer]), incubation="branch")
    advance = {3: ADVANCE} if when > 3 else {}
    reports = live(pool, {0: GERMINATE, **advance, when: PRUNE}, 10)
    assert not any(differs for differs, _ in reports)
    grown, twin = pool.environments
    assert torch.equal(grown.evaluate("validation"), twin.evaluate("validation"))
    assert list(grown.model.state_dict()) == list(twin.model.state_dict())
    assert not grown.garden.incubating


@pytest.mark.parametrize(
    ("way", "scale"), [("shadow", 16.0), ("branch", 2.0**126), slow("shadow", 2.0**126), slow("branch", 16.0)]
)
def test_an_incubating_seed_does_not_change_the_scaler_of_the_host(way, scale):
    """With a factor of 2^126, the first steps overflow and are skipped."""
    pool = begin_pool(make_recipe(embargo=0, batches=8), incubation=way, scale=scale, interval=5)
    reports = live(pool, {1: GERMINATE, 4: PRUNE}, 6)
    assert not any(differs for differs, _ in reports)
    grown, twin = pool.environments
    assert grown.keeper.scaler.state_dict() == twin.keeper.scaler.state_dict()
    assert losses(reports)[-1] < losses(reports)[0]
