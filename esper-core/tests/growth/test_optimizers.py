"""Optimizers: each parameter has exactly one over a seed's life, with its state, for any kind of optimizer."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from core_worlds import TAME, Falling, LinearWorld, same
from torch import Tensor, nn

from esper_core.config import GrowthConfig
from esper_core.growth import OptimizerSettings
from esper_core.leyline import Action, Blend, GrowthError, Op


class Signs(torch.optim.Optimizer):
    """A user's own: steps by the sign of a running mean, which is there from the start."""

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
    "adam with a rate on the device": lambda own: torch.optim.Adam(own, lr=torch.tensor(0.01)),
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
    "build",
    [
        pytest.param(build, id=name, marks=() if name in FAST else pytest.mark.slow)
        for name, build in OPTIMIZERS.items()
    ],
)


class World(LinearWorld):
    """A host of one slot, and a garden in it."""

    def __init__(
        self, host: OptimizerSettings, seeds: OptimizerSettings | None = None, *, freeze: bool = False
    ) -> None:
        super().__init__({"early": 2}, (TAME,), host, seeds, growth=GrowthConfig(embargo=0, freeze_fossils=freeze))

    @property
    def seed(self) -> Any:
        return self.garden.slots["early"].living

    def act(self, op: Op, **numbers: Any) -> None:
        blueprint = "test/tame" if op is Op.GERMINATE else None
        self.garden.apply(Action(op, "early", blueprint, **{"speed": 1, **numbers}), 0)

    def incubated(self) -> World:
        self.act(Op.GERMINATE)
        self.train(2)
        return self

    def held(self) -> World:
        self.incubated().act(Op.ADVANCE)
        self.train(2)
        return self

    def owners(self) -> list[int]:
        groups = [group for share in self.keeper.shares() for group in share.groups()]
        return [id(parameter) for group in groups for parameter in group["params"]]


@every_optimizer
def test_run_03_each_parameter_has_exactly_one_optimizer_over_the_whole_life(build):
    """Any optimizer, one or several groups: no parameter is ever without an owner, or has two."""
    world = World(OptimizerSettings(build, 1.0))
    acts: list[Op | None] = [Op.GERMINATE, None, Op.ADVANCE, None, Op.RETARGET, None, None, Op.FOSSILISE]
    acts += [Op.GERMINATE, None, Op.PRUNE, Op.GERMINATE, None, Op.ADVANCE, None, Op.PRUNE, None, None]
    blends = iter([Blend.GATE, Blend.RESIDUAL, Blend.MULTIPLY])
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


@every_optimizer
def test_every_parameter_moves_at_every_stage_in_which_it_learns(build):
    world = World(OptimizerSettings(build)).incubated()
    for op in (None, Op.ADVANCE, None, Op.FOSSILISE, None):
        if op is not None:
            world.act(op)
            world.train()
        before = {name: value.detach().clone() for name, value in world.model.named_parameters()}
        world.train()
        still = [name for name, value in world.model.named_parameters() if torch.equal(value, before[name])]
        assert still == []


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
def test_b8_drl_02_fossil_continues_with_its_optimizer_state(build):
    """Bit for bit: what an optimizer remembers goes over to the host's side as it is."""
    world = World(OptimizerSettings(build)).held()
    own = list(world.seed.parameters())
    twins = [nn.Parameter(parameter.detach().clone()) for parameter in own]
    twin = build(twins)
    share = world.keeper.seeds[0]
    known = copy.deepcopy(share.optimizer.state_dict())
    twin.load_state_dict(known)
    world.act(Op.FOSSILISE)
    for _ in range(3):
        world.garden.open_step()
        world.backward()
        for mine, parameter in zip(twins, own, strict=True):
            mine.grad = parameter.grad.clone()
        world.keeper.step(world.garden.blended)
        twin.step()
        assert same(twins, own)


@every_optimizer
@pytest.mark.parametrize("blended", [False, True], ids=["before it was blended", "after it drained"])
def test_b8_drl_02_parameters_and_state_of_a_pruned_seed_are_freed(build, blended):
    """Neither its parameters nor what its optimizer knew of them are held by anybody."""
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
    assert [one() for one in gone if one() is not None] == []


@pytest.mark.parametrize("scale", [0.0, 1e6, float("inf"), float("nan")])
def test_clipped_step_of_the_host_does_not_depend_on_a_seeds_gradients(scale):
    worlds = [World(OptimizerSettings(partial(torch.optim.SGD, lr=0.1), clip_norm=1e-2)).held() for _ in range(2)]
    for world, factor in zip(worlds, (1.0, scale), strict=True):
        world.backward()
        for parameter in world.seed.parameters():
            parameter.grad = parameter.grad * factor
        world.keeper.step(world.garden.blended)
    sides = [list(world.keeper.host.parameters) for world in worlds]
    assert same(*sides)


def test_schedule_counts_from_the_birth_of_host_or_seed():
    world = World(OptimizerSettings(partial(torch.optim.Adam, lr=0.01), schedule=Falling()))
    world.train(2)
    world.act(Op.GERMINATE)
    seen: list[tuple[float, float]] = []
    groups = [share.optimizer.param_groups[0] for share in (world.keeper.host, world.keeper.seeds[0])]
    for _ in range(3):
        world.train()
        seen.append((float(groups[0]["lr"]), float(groups[1]["lr"])))
    assert seen == [pytest.approx(pair) for pair in [(0.01 / 3, 0.01), (0.01 / 4, 0.005), (0.01 / 5, 0.01 / 3)]]


@every_optimizer
def test_a_frozen_fossil_has_no_owner_and_does_not_move(build):
    world = World(OptimizerSettings(build, 1.0), freeze=True).held()
    own = list(world.seed.parameters())
    world.backward()
    world.act(Op.FOSSILISE)
    before = [parameter.detach().clone() for parameter in own]
    assert [parameter.grad for parameter in own] == [None] * len(own)
    assert world.keeper.misowned(world.model) == []
    assert not {id(parameter) for parameter in own} & set(world.owners())
    world.act(Op.GERMINATE)  # another behind it
    world.train(2)
    world.act(Op.ADVANCE)
    world.train(3)
    assert same(own, before)
    assert world.keeper.misowned(world.model) == []


@every_optimizer
def test_b1_pt_01_forgetting_the_state_makes_the_next_step_a_first_step(build):
    """Also one that begins with a memory: its next step is the first step of a new one."""
    world = World(OptimizerSettings(build)).held()
    world.act(Op.FOSSILISE)
    world.train()
    sides = [world.keeper.host, world.keeper.fossils[0]]
    twins = [[nn.Parameter(parameter.detach().clone()) for parameter in share.parameters] for share in sides]
    fresh = [build(own) for own in twins]
    world.keeper.forget_host_state()
    for _ in range(2):
        world.backward()
        for share, own in zip(sides, twins, strict=True):
            for mine, parameter in zip(own, share.parameters, strict=True):
                mine.grad = parameter.grad.clone()
        world.keeper.step(())
        for one in fresh:
            one.step()
        for share, own in zip(sides, twins, strict=True):
            assert same(own, share.parameters)
