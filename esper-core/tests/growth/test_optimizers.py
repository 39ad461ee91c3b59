"""Optimizers: each parameter has exactly one over a seed's life, with its state, for any kind of optimizer."""

import copy
import gc
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import pytest
import torch
from torch import Tensor, nn

from esper_core.growth import OptimizerKeeper, OptimizerSettings, host_parameters
from esper_core.growth.optimizer_steps import hand_over_state
from esper_core.growth.optimizers import build_optimizer
from esper_core.leyline import WAIT, Action, Blend, GrowthError, Op
from esper_core.settings import OptimizerConfig, OptimizersConfig
from esper_core.trainer.environment import Environment, Recipe
from tests.support import core_worlds
from tests.support.core_worlds import ADVANCE, FOSSILISE, GERMINATE, Falling, LinearWorld, plain_growth, same, slow


class Signs(torch.optim.Optimizer):
    """A custom optimizer: steps by the sign of a running mean, which exists from the start."""

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr})
        for parameter in (parameter for group in self.param_groups for parameter in group["params"]):
            self.state[parameter]["mean"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    mean = self.state[parameter]["mean"]
                    mean.lerp_(parameter.grad, 0.1)
                    parameter.sub_(mean.sign(), alpha=group["lr"])


def two_groups(parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    flat = [parameter for parameter in parameters if parameter.ndim < 2]
    deep = [parameter for parameter in parameters if parameter.ndim >= 2]
    groups = [{"params": deep, "weight_decay": 0.1}, {"params": flat, "lr": 0.002}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=0.01)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adam": partial(torch.optim.Adam, lr=0.01),
    "adam fused": partial(torch.optim.Adam, lr=0.01, fused=True),
    "adam foreach": partial(torch.optim.Adam, lr=0.01, foreach=True),
    "adam plain": partial(torch.optim.Adam, lr=0.01, foreach=False),
    "adam with a rate on the device": lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.01)),
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
    "sgd with momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "sgd fused": partial(torch.optim.SGD, lr=0.01, momentum=0.9, fused=True),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01),
    "adagrad": partial(torch.optim.Adagrad, lr=0.01),
    "a user's own": Signs,
    "two groups": two_groups,
}
FAST = ("adam", "adam fused", "sgd with momentum", "a user's own", "two groups")
every_optimizer = pytest.mark.parametrize(
    "build", [(pytest.param if name in FAST else slow)(build, id=name) for name, build in OPTIMIZERS.items()]
)


class World(LinearWorld):
    """A host of one slot, and a garden in it."""

    def __init__(self, host: OptimizerSettings, seeds: OptimizerSettings | None = None) -> None:
        super().__init__({"early": 2}, (core_worlds.TAME,), host, seeds, growth=plain_growth(embargo=0))

    @property
    def seed(self) -> Any:
        return self.garden.slots["early"].living

    def act(self, op: Op, **numbers: Any) -> None:
        blueprint = "test/tame" if op is Op.GERMINATE else None
        self.garden.apply(Action(op, "early", blueprint, **{"speed": 1, **numbers}), 0)

    def incubated(self) -> Self:
        self.act(Op.GERMINATE)
        self.train(2)
        return self

    def held(self) -> Self:
        self.incubated().act(Op.ADVANCE)
        self.train(2)
        return self

    def owners(self) -> list[int]:
        groups = [group for owner in self.keeper.owners() for group in owner.groups()]
        return [id(parameter) for group in groups for parameter in group["params"]]


@every_optimizer
def test_run_03_each_parameter_has_exactly_one_optimizer_over_the_whole_life(build):
    """With any optimizer and any number of groups, each parameter always has exactly one owner."""
    world = World(OptimizerSettings(build, 1.0))
    acts: list[Op | None] = [Op.GERMINATE, None, Op.ADVANCE, None, None, Op.FOSSILISE]
    acts += [Op.GERMINATE, None, Op.PRUNE, Op.GERMINATE, None, Op.ADVANCE, None, Op.PRUNE, None, None]
    blends = iter([Blend.GATED, Blend.RESIDUAL, Blend.MULTIPLY])
    for op in acts:
        if op is not None:
            world.act(op, **({"blend": next(blends)} if op is Op.GERMINATE else {}))
        for _ in range(2):
            owners = world.owners()
            assert len(set(owners)) == len(owners)
            assert set(owners) == {id(p) for p in world.model.parameters()}
            assert world.keeper.misowned(world.model) == []
            world.train()
    assert (len(world.keeper.fossils), len(world.keeper.seeds)) == (1, 0)


def test_optimizer_that_needs_a_closure_is_refused():
    lbfgs = OptimizerSettings(torch.optim.LBFGS)
    with pytest.raises(GrowthError, match="E306 LBFGS computes the loss several times"):
        World(lbfgs)
    world = World(OptimizerSettings(OPTIMIZERS["adam"]), lbfgs)
    with pytest.raises(GrowthError, match="E306"):
        world.act(Op.GERMINATE)
    assert world.seed is None
    assert world.keeper.seeds == {}


@every_optimizer
@pytest.mark.parametrize("blended", [False, True], ids=["before it was blended", "after it drained"])
def test_b8_drl_02_parameters_and_state_of_a_pruned_seed_are_freed(build, blended):
    """Nothing holds a reference to its parameters or their optimizer state."""
    world = World(OptimizerSettings(build, 1.0, Falling()))
    world = world.held() if blended else world.incubated()
    optimizer = world.keeper.seeds[0].optimizer
    gone: list[Any] = [weakref.ref(parameter) for parameter in world.seed.parameters()]
    gone += [weakref.ref(v) for s in optimizer.state.values() for v in s.values() if isinstance(v, Tensor)]
    gone += [weakref.ref(optimizer), weakref.ref(world.seed)]
    del optimizer
    assert len(gone) >= 5
    world.act(Op.PRUNE)
    world.train(2)
    gc.collect()
    assert [weak_reference() for weak_reference in gone if weak_reference() is not None] == []


@every_optimizer
def test_b1_pt_01_forgetting_the_state_makes_the_next_step_a_first_step(build):
    """This includes optimizers whose state exists from the start."""
    world = World(OptimizerSettings(build)).held()
    world.act(Op.FOSSILISE)
    world.train()
    sides = [world.keeper.host, world.keeper.fossils[0]]
    twins = [[nn.Parameter(parameter.detach().clone()) for parameter in owner.parameters] for owner in sides]
    fresh = [build(copies) for copies in twins]
    world.keeper.forget_host_state()
    for _ in range(2):
        world.backward()
        for owner, copies in zip(sides, twins, strict=True):
            for mine, parameter in zip(copies, owner.parameters, strict=True):
                mine.grad = parameter.grad.clone()
        world.keeper.step(())
        for optimizer in fresh:
            optimizer.step()
        for owner, copies in zip(sides, twins, strict=True):
            assert same(copies, owner.parameters)


# --- a fossil trains with the settings of optimizer.host and the state that it had

Settings = dict[str, Any]

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
FAST_PAIRS = ("adamw after adam", "plain after fused", "momentum", "sgd after adam")


def recipe_of(host: Settings, seed: Settings, **more: Any) -> Recipe:
    optimizers = OptimizersConfig.model_validate({"host": host, "seed": seed})
    return core_worlds.change_recipe(core_worlds.make_recipe(steps=20), optimizers=optimizers, **more)


def grown(recipe: Recipe) -> Environment:
    """An environment whose seed has trained for four steps, acts on the host and may be fossilised."""
    environment = core_worlds.begin(recipe)
    core_worlds.train_and_act(environment, GERMINATE, ADVANCE, WAIT, WAIT)
    return environment


def settings_of(optimizer: torch.optim.Optimizer) -> list[Settings]:
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


@pytest.mark.parametrize("incubation", ["shadow", slow("branch")])
@pytest.mark.parametrize("pair", [name if name in FAST_PAIRS else slow(name) for name in PAIRS])
def test_b8_drl_02_fossil_steps_with_the_hosts_settings_and_its_own_state(pair, incubation):
    """The state is handed over where host and seed use the same algorithm; otherwise it is fresh."""
    host, seed = PAIRS[pair]
    recipe = recipe_of(host, seed, growth=plain_growth(incubation=incubation))
    environment = grown(recipe)
    living = environment.keeper.seeds[0]
    assert settings_of(living.optimizer) == settings_of(
        build_optimizer(recipe.network.optimizers.seed, living.parameters)
    )
    twins = [nn.Parameter(parameter.detach().clone()) for parameter in living.parameters]
    expected = build_optimizer(recipe.network.optimizers.host, twins)
    if pair in HANDED_OVER:
        states = (living.optimizer.state[parameter] for parameter in living.parameters)
        expected.state.update(zip(twins, copy.deepcopy(list(states)), strict=True))
    environment.network.apply(FOSSILISE, 4)
    (fossil,) = environment.keeper.fossils.values()
    assert settings_of(fossil.optimizer) == settings_of(environment.keeper.host.optimizer)
    assert environment.keeper.misowned(environment.model) == []
    for _ in range(3):
        for parameter, twin in zip(fossil.parameters, twins, strict=True):
            parameter.grad = torch.rand_like(parameter)
            twin.grad = parameter.grad.clone()
        environment.keeper.step(())
        expected.step()
        assert same(fossil.parameters, twins), "bit for bit, with the same gradients"
    environment.train()


@pytest.mark.parametrize(
    ("host", "seed", "rate"), [(Falling(), None, 0.01), (None, Falling(), 0.02), (Falling(), Falling(), 0.02)]
)
def test_fossil_follows_the_hosts_schedule_at_once(host, seed, rate):
    settings = {"learning_rate": 0.01}
    recipe = recipe_of(settings, {"learning_rate": rate}, schedules={"host": host, "seed": seed})
    environment = grown(recipe)
    environment.network.apply(FOSSILISE, 4)
    for _ in range(2):
        of_host, of_fossil = (
            owner.optimizer.param_groups[0]["lr"] for owner in (environment.keeper.host, environment.keeper.fossils[0])
        )
        assert of_fossil == of_host
        environment.train()
    assert of_host == pytest.approx(0.01 / 5 if host else 0.01)


def adopted(keeper: OptimizerKeeper, after: int = 0) -> tuple[OptimizerKeeper, Any]:
    """Let a keeper adopt a block after some steps, and return both."""
    block: Any = nn.Linear(2, 2)
    block.number = 0
    for _ in range(after):
        keeper.open_step()
    keeper.adopt(block)
    return keeper, block


def test_a_learning_rate_tensor_is_never_shared_between_host_seeds_and_fossils():
    """An owner that is built later must use the original rate."""
    rate_tensor, parameter = torch.tensor(0.1), nn.Parameter(torch.ones(2))
    of_host = OptimizerSettings(partial(torch.optim.Adam, lr=rate_tensor), schedule=Falling())
    of_seed = OptimizerSettings(of_host.build)
    keeper, block = adopted(OptimizerKeeper([parameter], host_settings=of_host, seed_settings=of_seed), after=3)
    assert float(keeper.seeds[0].optimizer.param_groups[0]["lr"]) == pytest.approx(0.1)
    keeper.settle(block, freeze=False)
    rates = [owner.optimizer.param_groups[0]["lr"] for owner in keeper.owners()]
    assert [float(rate) for rate in rates] == [pytest.approx(0.1 / 3)] * 2
    assert float(rate_tensor) == pytest.approx(0.1)


def test_a_seeds_schedule_begins_with_its_first_step_and_ends_when_it_is_kept():
    """Also beside a frozen host, whose rate the fossil cannot follow."""
    of_seed = OptimizerSettings(partial(torch.optim.SGD, lr=0.1), schedule=Falling())
    of_host = OptimizerSettings(of_seed.build)
    keeper, block = adopted(OptimizerKeeper([], host_settings=of_host, seed_settings=of_seed), after=3)
    rates = []
    for _ in range(3):
        keeper.open_step()
        rates.append(keeper.seeds[0].groups()[0]["lr"])
    assert rates == [pytest.approx(0.1 / step) for step in (1, 2, 3)]
    keeper.settle(block, freeze=False)
    keeper.step(())
    assert keeper.fossils[0].groups()[0]["lr"] == pytest.approx(0.1)


def test_gradients_are_clipped_by_their_own_norm_not_by_that_of_a_scaled_loss():
    parameter = nn.Parameter(torch.zeros(4))
    settings = OptimizerConfig(kind="sgd", learning_rate=1.0, momentum=0.0, clip_norm=3.0)
    keeper, block = adopted(OptimizerKeeper([parameter], host_settings=settings, seed_settings=settings))
    keeper.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = block.weight.detach().clone()
    keeper.backward(parameter.sum() + block.weight.sum())
    keeper.step([0])
    assert parameter.tolist() == [-1.0] * 4
    torch.testing.assert_close(block.weight.detach(), before - 1.0)


def test_fossils_of_a_frozen_host_are_clipped_by_the_hosts_norm():
    host = nn.Linear(2, 2).requires_grad_(requires_grad=False)
    of_seed = OptimizerConfig(kind="sgd", learning_rate=1.0, momentum=0.0)
    of_host = of_seed.model_copy(update={"clip_norm": 1e-3})
    keeper, block = adopted(OptimizerKeeper(host_parameters(host), host_settings=of_host, seed_settings=of_seed))
    keeper.settle(block, freeze=False)
    before = nn.utils.parameters_to_vector(block.parameters()).detach()
    for parameter in block.parameters():
        parameter.grad = torch.ones_like(parameter)
    keeper.step(())
    moved = nn.utils.parameters_to_vector(block.parameters()) - before
    assert moved.norm().item() == pytest.approx(1e-3, rel=1e-3)


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
    copied = {key: copy.deepcopy(value) for key, value in old.state[parameter].items()}
    expected = dict((old if handed else new).state.get(parameter, {}))
    hand_over_state(old, new)
    now = dict(new.state.get(parameter, {}))
    assert {key: id(value) for key, value in now.items()} == {key: id(value) for key, value in expected.items()}
    unchanged = old.state[parameter]
    assert all(torch.equal(value, unchanged[key]) for key, value in copied.items() if isinstance(value, Tensor))
    new.step()


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_a_fossil_follows_a_scheduler_of_torch_on_the_hosts_optimizer(kind):
    environment = grown(recipe_of({"kind": kind, "learning_rate": 0.02}, {"learning_rate": 0.5}))
    keeper = environment.keeper
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(keeper.host.optimizer, 2)
    environment.network.apply(FOSSILISE, 4)
    for expected in (0.02, 0.01, 0.02):
        keeper.step(())
        assert [group["lr"] for owner in keeper.owned_by_host() for group in owner.groups()] == [expected] * 2
        scheduler.step()
