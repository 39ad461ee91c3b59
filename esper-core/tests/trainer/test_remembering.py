"""What an environment knows is written down, and another one goes on from it as if nothing had been between."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load as decode
from safetensors.torch import save as encode
from torch import Tensor, nn

from esper_core.config import GovernorConfig, GrowthConfig, OptimizersConfig
from esper_core.governor import Act
from esper_core.growth import FaultBook, Variety
from esper_core.leyline import (
    CALM,
    WAIT,
    Action,
    ActionMask,
    Blend,
    BlueprintSpec,
    Curve,
    GrowthError,
    Level,
    Op,
    Resumable,
    Site,
    SlotPlace,
    SlotState,
    Stage,
    State,
    Verdict,
)
from esper_core.trainer.environment import Environment, Recipe

Make = Callable[..., Recipe]
PANIC = Verdict(Level.PANIC, "told so")
ENOUGH = Verdict(Level.ENOUGH, "told so")


class Scaled(nn.Module):
    """Multiplies with a buffer, which another one may share."""

    def __init__(self, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale)

    def forward(self, hidden: Tensor) -> Tensor:
        if self.training:
            self.scale.mul_(1.01)
        return hidden * self.scale.clone()


class OddHost(nn.Module):
    """Everything that a host may have: noise, buffers of every kind, tied and frozen weights, a memory of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, 4, 1), nn.BatchNorm1d(4), nn.ReLU())
        self.drop = nn.Dropout(0.2)
        self.mix, self.again = nn.Linear(12, 12), nn.Linear(12, 12, bias=False)
        self.again.weight = self.mix.weight
        shared = torch.ones(12)
        self.left, self.right = Scaled(shared), Scaled(shared)
        self.register_buffer("shift", 0.1 * torch.randn(4, 12), persistent=False)
        self.register_buffer("average", torch.zeros(4, 12))
        self.register_buffer("window", torch.zeros(0))
        self.head = nn.Linear(48, 3)
        self.stem[0].bias.requires_grad_(False)
        self.calls = 0

    def get_extra_state(self) -> int:
        return self.calls

    def set_extra_state(self, state: int) -> None:
        self.calls = state

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.drop(self.stem(inputs)) + self.shift
        if self.training:
            self.calls += 1
            self.shift.mul_(0.99)
            self.average = 0.9 * self.average + 0.1 * hidden.detach().mean(0)
            self.window = torch.cat([self.window, hidden.detach().mean().reshape(1)])[-5:]
            if not hasattr(self, "late"):
                self.register_buffer("late", torch.zeros(4, 12), persistent=False)
            self.late.add_(0.01)
        hidden = hidden - self.average + 0.1 * (self.calls % 3)
        hidden = hidden + self.left(self.again(torch.relu(self.mix(self.right(hidden)))))
        if self.window.numel():
            hidden = hidden - 0.1 * self.window.mean()
        return self.head((hidden + (self.late if hasattr(self, "late") else 0.0)).flatten(1))


class OddBlock(nn.Module):
    """Buffers of batch normalisation, one that is drawn at birth and is not saved, and dropout."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(site.channels), nn.Dropout(0.1)
        self.last = nn.Conv1d(site.channels, site.channels, 1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)
        self.register_buffer("mask", torch.rand(site.channels, 1) + 0.5, persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.last(self.drop(self.norm(hidden))) * self.mask


class Plain(nn.Module):
    """Not the identity at birth: a gain stands before it."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.mix = nn.Conv1d(site.channels, site.channels, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.tanh(self.mix(hidden))


ODD = Variety("test/odd", BlueprintSpec("sequence", "c*c + 3*c", starts_as_identity=True), OddBlock)
PLAIN = Variety("test/plain", BlueprintSpec("sequence", "c*c + c"), Plain)


class Falling:
    """A schedule that is another in each step, and knows how many there will be."""

    def factor(self, step: int, steps: int | None) -> float:
        return 1.0 / (1.0 + step) + 0.01 * (steps or 0)


def odd_recipe(make: Make, *, schedule: bool = False, batches: int = 2, **growth: Any) -> Recipe:
    """Two slots of two fossils each, in a host where something is everywhere to be forgotten."""
    optimizer, governor = growth.pop("optimizer", {}), growth.pop("governor", {})
    own = {"learning_rate": 1e-2, "clip_norm": 0.5, **optimizer}
    recipe = make(host=OddHost, batches=batches, steps=40, governor=governor)
    return replace(
        recipe,
        slots={"early": SlotPlace("stem", stack=2), "late": SlotPlace("drop", stack=2)},
        varieties={"early": (ODD, PLAIN), "late": (PLAIN, ODD)},
        growth=GrowthConfig.model_validate({"embargo": 2, **growth}),
        optimizers=OptimizersConfig.model_validate({"host": own, "seed": own}),
        host_schedule=Falling() if schedule else None,
        seed_schedule=Falling() if schedule else None,
    )


@dataclass
class World:
    """Two environments of one seed, one that grows and its twin, driven as a pool drives them."""

    recipe: Recipe
    faults: FaultBook = field(default_factory=FaultBook)

    def __post_init__(self) -> None:
        self.grown, self.twin = self.both = [
            Environment(self.recipe, arm=arm, index=0, faults=self.faults) for arm in ("grown", "twin")
        ]

    def begin(self, seed: int = 3, scale: float | None = None) -> World:
        for one in self.both:
            one.reset(2, seed)
            if scale is not None:
                one.keeper.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=5)
            one.governor.begin(one.garden, float(one.evaluate("validation")[0]))
        return self

    def step(self, step: int, choose: Callable[[ActionMask], Action], opinion: Verdict = CALM) -> list[str]:
        """One step, and whatever there is to be told of it, to the last digit."""
        told: list[Any] = []
        running = [one for one in self.both if not one.over]
        for one in running:
            changes = one.train()
            one.governor.note(changes, step)
            told += changes
        for one in running:
            told.append(one.evaluate("validation").tolist())
        for one in running:
            one.weigh(self.twin)
        for one in running:
            told += self._judged(one, step, opinion if one is self.grown else CALM)
        mask = self.grown.mask()
        action = choose(mask)
        changes = self.grown.apply(action, step)
        self.grown.governor.note(changes, step)
        told += [*self._ops(mask), action, changes, self.grown.take_mishaps(), self._ops(self.grown.mask())]
        return [repr(one) for one in told]

    def _judged(self, one: Environment, step: int, opinion: Verdict) -> list[Any]:
        signals = one.reading.signals(step, one.numbers().tolist())
        if not (signals.finite and not one.reading.gone_wild) and one.heal(signals):
            one.evaluate("validation")
            signals = one.reading.signals(step, one.numbers().tolist())
        lost = one.take_mishaps()
        one.governor.note([mishap.ending for mishap in lost if mishap.ending is not None], step)
        decision = one.judge(signals, opinion)
        told: list[Any] = [signals, lost, decision]
        if decision.act is Act.ROLL_BACK:
            told.append(one.roll_back(decision))
            if one is self.twin:
                self.grown.scales.forget_lead()
        elif decision.truncated and one is self.grown:
            told.append(one.garden.uproot("the episode is over"))
            one.over = True
        if decision.terminal or one.over:
            one.evaluate("validation")
            told.append(one.reading.signals(step, one.numbers().tolist()))
        return told

    @staticmethod
    def _ops(mask: ActionMask) -> list[Any]:
        seeds = {slot: {name: sorted(ops) for name, ops in own.items()} for slot, own in mask.seeds.items()}
        return [{slot: sorted(ops) for slot, ops in mask.ops.items()}, mask.blueprints, seeds]

    def known(self) -> list[State]:
        """What is written of it, as it comes from the disk."""
        return [through_files(state) for state in (*(one.state() for one in self.both), self.faults.state())]

    def go_on_from(self, known: list[State]) -> World:
        """Stand where another world stood."""
        for one, state in zip((*self.both, self.faults), known, strict=True):
            one.load(state)
        return self


def through_files(state: State) -> State:
    """The state as a file of text and a file of numbers give it back; they hold all of it."""
    text = json.dumps(state.plain, allow_nan=False, sort_keys=True)
    tensors = decode(encode(dict(state.tensors)))
    assert json.loads(text) == state.plain, "JSON would change it"
    assert all(not one.requires_grad for one in state.tensors.values())
    return State(json.loads(text), tensors)


def differences(one: State, other: State) -> list[str]:
    """Where two states are not the same to the bit."""
    found = [name for name in one.tensors if not equal(one.tensors[name], other.tensors.get(name))]
    found += sorted(other.tensors.keys() - one.tensors.keys())
    return found + [key for key in one.plain if one.plain[key] != other.plain.get(key)]


def equal(one: Tensor, other: Tensor | None) -> bool:
    if other is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.contiguous().reshape(-1).view(torch.uint8), other.contiguous().reshape(-1).view(torch.uint8))


def drawn(random: Random) -> Callable[[ActionMask], Action]:
    """A choice among all that a mask allows, rather to grow than to wait or to prune."""

    def choose(mask: ActionMask) -> Action:
        ramp = {"speed": random.randrange(3), "curve": random.choice(list(Curve))}
        target = random.choice([0.5, 1.0, 1.0])
        possible = [WAIT]
        for slot, ops in mask.ops.items():
            for op in sorted(ops - {Op.GERMINATE}):
                names = [None, *mask.seeds.get(slot, {})] if op in (Op.ADVANCE, Op.PRUNE) else [None]
                weight = {Op.FOSSILISE: 6, Op.ADVANCE: 2}.get(op, 1)
                possible += [Action(op, slot, name, target=target, **ramp) for name in names] * weight
            blend = random.choice(list(Blend))
            for name in mask.blueprints[slot]:
                possible += [Action(Op.GERMINATE, slot, name, blend=blend, target=target, **ramp)] * 2
        return random.choice([action for action in possible if mask.allows(action)])

    return choose


def lives(recipe: Recipe, before: int, after: int, *, seed: int = 0, scale: float | None = None) -> set[Any]:
    """Two lives, of which the second is interrupted and goes on in another world: they are one. What was seen of them.

    The other world did something else before. The first is watched after its state was told, so that the state is
    seen to stay what it is.
    """
    random, seen = Random(seed), set[Any]()
    world = World(recipe).begin(scale=scale)
    for step in range(before):
        world.step(step, drawn(random))
    seen |= {(seed.stage, seed.presence) for seed in world.grown.garden.living_seeds()}
    seen |= {Stage.FOSSILIZED for slot in world.grown.garden.slots.values() if slot.fossils}
    seen |= {slot.state for slot in world.grown.garden.slots.values()}
    known, again = world.known(), random.getstate()
    told = [world.step(step, drawn(random)) for step in range(before, before + after)]

    other = World(recipe).begin(seed=77)
    other.step(0, drawn(Random(5)))
    other.go_on_from(known)
    assert [differences(one, two) for one, two in zip(other.known(), known, strict=True)] == [[], [], []]
    random.setstate(again)
    for place, step in enumerate(range(before, before + after)):
        assert other.step(step, drawn(random)) == told[place], f"step {step}"
    for one, two in zip(world.both, other.both, strict=True):
        assert one.keeper.astray(one.model) == two.keeper.astray(two.model) == []
        assert differences(one.state(), two.state()) == []
        assert equal(one.evaluate("test"), two.evaluate("test"))
    return seen


WAYS = [("shadow", 1), ("shadow", 2), ("branch", 1), ("branch", 2), ("straight_through", 1), ("live", 1)]
ADAM, FOREACH, MOMENTUM = (
    {},
    {"implementation": "foreach", "weight_decay": 0.01},
    {"kind": "sgd", "momentum": 0.9, "learning_rate": 0.05},
)


@pytest.mark.parametrize(
    ("way", "nursery", "gates", "optimizer", "schedule", "freeze", "seed"),
    [
        ("shadow", 1, "off", ADAM, True, False, 1),
        ("shadow", 2, "strict", MOMENTUM, False, True, 4),
        ("branch", 1, "permissive", MOMENTUM, True, False, 1),
        ("branch", 2, "off", ADAM, False, False, 3),
        ("live", 1, "off", FOREACH, True, True, 1),
        ("straight_through", 1, "off", MOMENTUM, False, False, 2),
    ],
    ids=lambda value: str(value) if isinstance(value, str | int) else "",
)
def test_run_13_an_environment_goes_on_from_what_is_written_bit_for_bit(
    way, nursery, gates, optimizer, schedule, freeze, seed, make_recipe: Make
) -> None:
    growth = {"incubation": way, "nursery": nursery, "gates": gates, "freeze_fossils": freeze, "price": 0.0}
    recipe = odd_recipe(make_recipe, schedule=schedule, optimizer=optimizer, **growth)
    lives(recipe, before=7, after=4, seed=seed)
