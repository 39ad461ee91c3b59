"""A fossil trains with the settings of optimizer.host, from its fossilisation on and with the state that it had."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from core_worlds import ADVANCE, FOSSILISE, GERMINATE, Falling, begin, same
from torch import Tensor, nn

from esper_core.config import GrowthConfig, OptimizerConfig
from esper_core.config.model import OptimizersConfig
from esper_core.growth import Growth, OptimizerKeeper, OptimizerSettings, host_parameters, read_network, slots_of
from esper_core.growth.optimizer_steps import hand_over_state
from esper_core.growth.optimizers import build_optimizer
from esper_core.leyline import WAIT
from esper_core.trainer.environment import Environment, Recipe

Make = Callable[..., Recipe]
Settings = dict[str, Any]
LIFE = {0: GERMINATE, 1: ADVANCE}

HANDED_OVER: dict[str, tuple[Settings, Settings]] = {
    "learning rate and weight decay": ({"learning_rate": 0.1, "weight_decay": 0.3}, {}),
    "adam after adamw": ({"weight_decay": 0.2}, {"kind": "adamw", "weight_decay": 0.1}),
    "adamw after adam": ({"kind": "adamw", "learning_rate": 0.05, "weight_decay": 0.1}, {}),
    "fused after plain": ({"implementation": "fused"}, {"implementation": "plain"}),
    "plain after fused": ({"implementation": "plain", "learning_rate": 0.05}, {"implementation": "fused"}),
    "momentum": ({"kind": "sgd", "momentum": 0.5}, {"kind": "sgd", "momentum": 0.9, "learning_rate": 0.001}),
}
FRESH: dict[str, tuple[Settings, Settings]] = {
    "sgd after adam": ({"kind": "sgd", "momentum": 0.9, "learning_rate": 0.05}, {}),
    "adam after sgd": ({}, {"kind": "sgd", "momentum": 0.9}),
    "momentum after none": ({"kind": "sgd", "momentum": 0.9}, {"kind": "sgd", "momentum": 0.0}),
    "no momentum after one": ({"kind": "sgd", "momentum": 0.0}, {"kind": "sgd", "momentum": 0.9}),
}
PAIRS = HANDED_OVER | FRESH
FAST = ("adamw after adam", "plain after fused", "momentum", "sgd after adam")
every_pair = pytest.mark.parametrize(
    "pair", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in PAIRS]
)


def recipe_of(make: Make, host: Settings, seed: Settings, **more: Any) -> Recipe:
    optimizers = OptimizersConfig.model_validate({"host": host, "seed": seed})
    return replace(make(steps=20), optimizers=optimizers, **more)


def grown(recipe: Recipe) -> Environment:
    """An environment whose seed has trained for four steps, acts on the host and may be fossilised."""
    environment = begin(recipe)
    for step in range(4):
        environment.train()
        environment.network.apply(LIFE.get(step, WAIT), step)
    return environment


def settings_of(optimizer: torch.optim.Optimizer) -> list[Settings]:
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def reference(parameters: list[nn.Parameter], settings: OptimizerConfig, state: Any) -> torch.optim.Optimizer:
    """An optimizer of the given settings over copies of the parameters, with a copy of the state."""
    own = [nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    optimizer = build_optimizer(settings, own)
    for parameter, twin in zip(parameters, own, strict=True):
        if parameter in state:
            optimizer.state[twin] = copy.deepcopy(state[parameter])
    return optimizer


def follows(environment: Environment, expected: torch.optim.Optimizer, steps: int = 3) -> bool:
    """Whether the fossil's steps are, to the bit, those that ``expected`` takes with the same gradients."""
    (fossil,) = environment.keeper.fossils.values()
    own = expected.param_groups[0]["params"]
    same = []
    for _ in range(steps):
        for parameter, twin in zip(fossil.parameters, own, strict=True):
            parameter.grad = torch.rand_like(parameter)
            twin.grad = parameter.grad.clone()
        environment.keeper.step(())
        expected.step()
        same += [torch.equal(parameter, twin) for parameter, twin in zip(fossil.parameters, own, strict=True)]
    return all(same)


@pytest.mark.parametrize("incubation", ["shadow", pytest.param("branch", marks=pytest.mark.slow)])
@every_pair
def test_b8_drl_02_fossil_steps_with_the_hosts_settings_and_its_own_state(pair, incubation, make_recipe):
    """The state is handed over where host and seed use the same algorithm; otherwise it is fresh."""
    host, seed = PAIRS[pair]
    recipe = recipe_of(make_recipe, host, seed, growth=GrowthConfig.model_validate({"incubation": incubation}))
    environment = grown(recipe)
    living = environment.keeper.seeds[0]
    assert settings_of(living.optimizer) == settings_of(build_optimizer(recipe.optimizers.seed, living.parameters))
    state = living.optimizer.state if pair in HANDED_OVER else {}
    expected = reference(list(living.parameters), recipe.optimizers.host, state)
    environment.network.apply(FOSSILISE, 4)
    (fossil,) = environment.keeper.fossils.values()
    assert settings_of(fossil.optimizer) == settings_of(environment.keeper.host.optimizer)
    assert environment.keeper.misowned(environment.model) == []
    assert follows(environment, expected)
    environment.train()


def test_optimizer_is_kept_if_the_settings_are_equal_and_a_handover_changes_no_bit(make_recipe):
    """A clip norm that is never reached makes the settings differ, so that a new optimizer takes the state over."""
    clipped: Settings = {"clip_norm": 1e9}
    worlds = [grown(recipe_of(make_recipe, clipped, seed)) for seed in (clipped, {})]
    before = [one.keeper.seeds[0].optimizer for one in worlds]
    for environment in worlds:
        environment.network.apply(FOSSILISE, 4)
    kept = [one.keeper.fossils[0].optimizer is own for one, own in zip(worlds, before, strict=True)]
    assert kept == [True, False]
    for environment in worlds * 3:
        environment.train()
    assert same(*(environment.model.parameters() for environment in worlds))


@pytest.mark.parametrize(
    ("host", "seed", "rate"), [(Falling(), None, 0.01), (None, Falling(), 0.02), (Falling(), Falling(), 0.02)]
)
def test_fossil_follows_the_hosts_schedule_at_once(host, seed, rate, make_recipe):
    own = {"learning_rate": 0.01}
    recipe = recipe_of(make_recipe, own, {"learning_rate": rate}, host_schedule=host, seed_schedule=seed)
    environment = grown(recipe)
    environment.network.apply(FOSSILISE, 4)
    for _ in range(2):
        of_host, of_fossil = (
            share.optimizer.param_groups[0]["lr"] for share in (environment.keeper.host, environment.keeper.fossils[0])
        )
        assert of_fossil == of_host
        environment.train()
    assert of_host == pytest.approx(0.01 / 5 if host else 0.01)


def test_a_learning_rate_tensor_is_never_shared_between_host_seeds_and_fossils():
    """A share that is built later has to find the rate that was given."""
    given = torch.tensor(0.1)
    parameter, block = nn.Parameter(torch.ones(2)), nn.Linear(2, 2)
    of_host = OptimizerSettings(partial(torch.optim.Adam, lr=given), schedule=Falling())
    of_seed = OptimizerSettings(partial(torch.optim.Adam, lr=given))
    keeper = OptimizerKeeper([parameter], host_settings=of_host, seed_settings=of_seed)
    for _ in range(3):
        keeper.open_step()
    block.number = 0  # type: ignore[assignment]
    keeper.adopt(block)  # type: ignore[arg-type]
    assert float(keeper.seeds[0].optimizer.param_groups[0]["lr"]) == pytest.approx(0.1)
    keeper.settle(block, freeze=False)  # type: ignore[arg-type]
    rates = [share.optimizer.param_groups[0]["lr"] for share in keeper.shares()]
    assert [float(rate) for rate in rates] == [pytest.approx(0.1 / 3)] * 2
    assert float(given) == pytest.approx(0.1)


def test_fossils_of_a_frozen_host_are_clipped_by_the_hosts_norm():
    host, block = nn.Linear(2, 2).requires_grad_(requires_grad=False), nn.Linear(2, 2)
    block.number = 0  # type: ignore[assignment]
    of_seed = OptimizerConfig(kind="sgd", learning_rate=1.0, momentum=0.0)
    of_host = of_seed.model_copy(update={"clip_norm": 1e-3})
    keeper = OptimizerKeeper(host_parameters(host), host_settings=of_host, seed_settings=of_seed)
    keeper.adopt(block)  # type: ignore[arg-type]
    keeper.settle(block, freeze=False)  # type: ignore[arg-type]
    before = nn.utils.parameters_to_vector(block.parameters()).detach()
    for parameter in block.parameters():
        parameter.grad = torch.ones_like(parameter)
    keeper.step(())
    moved = nn.utils.parameters_to_vector(block.parameters()) - before
    assert moved.norm().item() == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("pair", ["adamw after adam", pytest.param("sgd after adam", marks=pytest.mark.slow)])
def test_static_control_trains_its_blocks_with_the_hosts_settings(pair, make_recipe):
    recipe = recipe_of(make_recipe, *PAIRS[pair], host_schedule=Falling())
    environment = grown(recipe)
    environment.network.apply(FOSSILISE, 4)
    what: tuple[Growth, ...] = read_network(slots_of(environment.model), "host").grown
    control = begin(recipe, arm="capacity", implants=lambda seed: what)
    (fossil,) = control.keeper.fossils.values()
    assert settings_of(fossil.optimizer) == settings_of(control.keeper.host.optimizer)
    assert follows(control, reference(list(fossil.parameters), recipe.optimizers.host, {}))
    for _ in range(2):
        control.train()
        assert settings_of(fossil.optimizer) == settings_of(control.keeper.host.optimizer)


ALIKE = [
    (partial(torch.optim.Adam, amsgrad=True), torch.optim.Adam, False),
    (torch.optim.Adam, partial(torch.optim.Adam, amsgrad=True), False),
    (partial(torch.optim.RMSprop, centered=True), torch.optim.RMSprop, False),
    (partial(torch.optim.RMSprop, momentum=0.5), partial(torch.optim.RMSprop, momentum=0.9), True),
    (partial(torch.optim.SGD, lr=1e-3, momentum=0.9, nesterov=True), partial(torch.optim.SGD, momentum=0.5), True),
    (torch.optim.Adam, torch.optim.NAdam, False),
    (torch.optim.NAdam, torch.optim.NAdam, True),
    (torch.optim.Adagrad, partial(torch.optim.Adagrad, lr=1e-3), True),
    (torch.optim.Adagrad, partial(torch.optim.SGD, momentum=0.9), False),
]


@pytest.mark.parametrize(("before", "after", "handed"), ALIKE)
def test_state_is_handed_over_only_between_optimizers_with_the_same_quantities(before, after, handed):
    parameter = nn.Parameter(torch.ones(3))
    old, new = before([parameter]), after([parameter])

    parameter.grad = torch.ones(3)
    old.step()
    known = {key: copy.deepcopy(value) for key, value in old.state[parameter].items()}
    expected = dict((old if handed else new).state.get(parameter, {}))
    hand_over_state(old, new)
    now = dict(new.state.get(parameter, {}))
    assert {key: id(value) for key, value in now.items()} == {key: id(value) for key, value in expected.items()}
    unchanged = old.state[parameter]
    assert all(torch.equal(value, unchanged[key]) for key, value in known.items() if isinstance(value, Tensor))
    new.step()


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_a_fossil_follows_a_scheduler_of_torch_on_the_hosts_optimizer(kind, make_recipe):
    environment = grown(recipe_of(make_recipe, {"kind": kind, "learning_rate": 0.02}, {"learning_rate": 0.5}))
    keeper = environment.keeper
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(keeper.host.optimizer, 2)
    environment.network.apply(FOSSILISE, 4)
    for expected in (0.02, 0.01, 0.02):
        keeper.step(())
        assert [group["lr"] for share in keeper.host_shares() for group in share.groups()] == [expected] * 2
        scheduler.step()
