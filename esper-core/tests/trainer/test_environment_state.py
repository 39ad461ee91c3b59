"""What an environment knows is written down, and another one goes on from it as if nothing had been between."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from safetensors.torch import load as decode, save as encode
from torch import Tensor, nn

from esper_core.config import GrowthConfig, OptimizersConfig
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
    Site,
    SlotPlace,
    SlotState,
    State,
    Verdict,
)
from esper_core.trainer.environment import Environment, Recipe

Make = Callable[..., Recipe]
PANIC = Verdict(Level.PANIC, "told so")
WARNING = Verdict(Level.WARNING, "told so")
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


def odd_recipe(make: Make, *, schedule: bool = False, batches: int = 1, **growth: Any) -> Recipe:
    """Two slots of two fossils each, in a host where something is everywhere to be forgotten."""
    optimizer, governor = growth.pop("optimizer", {}), growth.pop("governor", {})
    own = {"learning_rate": 1e-2, "clip_norm": 0.5, **optimizer}
    of_seeds = growth.pop("of_seeds", own)
    recipe = make(host=OddHost, batches=batches, steps=40, governor=governor)
    return replace(
        recipe,
        slots={"early": SlotPlace("stem", stack=2), "late": SlotPlace("drop", stack=2)},
        varieties={"early": (ODD, PLAIN), "late": (PLAIN, ODD)},
        growth=GrowthConfig.model_validate({"embargo": 2, **growth}),
        optimizers=OptimizersConfig.model_validate({"host": own, "seed": of_seeds}),
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
                one.keeper.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)
            one.governor.begin(one.garden, float(one.evaluate("validation")[0]))
        return self

    def step(self, step: int, choose: Callable[[ActionMask], Action], opinion: Verdict = CALM) -> list[str]:
        """One step, and whatever there is to be told of it, to the last digit."""
        told: list[Any] = []
        running = [one for one in self.both if not one.over]
        for one in running:
            changes = one.train()
            one.governor.record(changes, step)
            told += changes
        for one in running:
            told.append(one.evaluate("validation").tolist())
        for one in running:
            one.measure_seeds(self.twin.network.evaluation.losses)
        for one in running:
            told += self._judged(one, step, opinion if one is self.grown else CALM)
        mask = self.grown.mask()
        action = choose(mask)
        changes = self.grown.network.apply(action, step)
        self.grown.governor.record(changes, step)
        told += [*self._ops(mask), action, changes, self.grown.network.lost.take(), self._ops(self.grown.mask())]
        return [repr(one) for one in told]

    def _judged(self, one: Environment, step: int, opinion: Verdict) -> list[Any]:
        network = one.network
        signals = network.conclude_step(step, network.numbers().tolist())
        if network.heal(signals):
            signals = one.measure_again(step)
        lost = network.lost.take()
        one.governor.record([seed.ending for seed in lost if seed.ending is not None], step)
        decision = network.judge(signals, opinion)
        told: list[Any] = [signals, lost, decision]
        if decision.act is Act.ROLL_BACK:
            told.append(network.roll_back(decision))
            if one is self.twin:
                self.grown.network.gains.forget_lead()
        elif decision.truncated and one is self.grown:
            told.append(one.garden.remove("the episode is over"))
            one.over = True
        if decision.act in (Act.ROLL_BACK, Act.STOP) or one.over:
            told.append(one.measure_again(step))
        return told

    @staticmethod
    def _ops(mask: ActionMask) -> list[Any]:
        seeds = {slot: {name: sorted(ops) for name, ops in own.items()} for slot, own in mask.seeds.items()}
        return [{slot: sorted(ops) for slot, ops in mask.ops.items()}, mask.blueprints, seeds]

    def known(self) -> list[State]:
        """All that it knows."""
        return [*(one.state_dict() for one in self.both), self.faults.state_dict()]

    def go_on_from(self, known: list[State]) -> World:
        """Stand where another world stood."""
        *states, faults = known
        for one, state in zip(self.both, states, strict=True):
            one.load_state_dict(state)
        self.faults.load_state_dict(faults)
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
    """A choice among all that a mask allows, rather to go on with a seed's life than to wait or to prune."""

    def choose(mask: ActionMask) -> Action:
        ramp = {"speed": random.randrange(3), "curve": random.choice(list(Curve))}
        target = random.choice([0.5, 1.0, 1.0, 1.0])
        possible = [WAIT]
        for slot, ops in mask.ops.items():
            for op in sorted(ops - {Op.GERMINATE}):
                names = [None, *mask.seeds.get(slot, {})] if op in (Op.ADVANCE, Op.PRUNE) else [None]
                weight = {Op.FOSSILISE: 8, Op.ADVANCE: 3}.get(op, 1)
                possible += [Action(op, slot, name, target=target, **ramp) for name in names] * weight
            blend = random.choice(list(Blend))
            for name in mask.blueprints[slot]:
                possible += [Action(Op.GERMINATE, slot, name, blend=blend, target=target, **ramp)] * 2
        return random.choice([action for action in possible if mask.allows(action)])

    return choose


def followed(plan: Mapping[int, Action | Verdict], step: int) -> tuple[Callable[[ActionMask], Action], Verdict]:
    """What a plan has for a step: an action, which has to be possible, or a second opinion."""
    planned = plan.get(step, WAIT)

    def choose(mask: ActionMask) -> Action:
        action = planned if isinstance(planned, Action) else WAIT
        assert mask.allows(action), f"step {step}: {action}"
        return action

    return choose, planned if isinstance(planned, Verdict) else CALM


def lives(
    recipe: Recipe, before: int, after: int, plan: Mapping[int, Action | Verdict] | int, *, scale: float | None = None
) -> World:
    """Two lives, of which one is interrupted, and goes on in another world: they are one. The world that was told of.

    plan: what happens after which step, or of what it is drawn. The other world did something else before.
    """
    random = Random(plan) if isinstance(plan, int) else Random()

    def happens(step: int) -> tuple[Callable[[ActionMask], Action], Verdict]:
        return (drawn(random), CALM) if isinstance(plan, int) else followed(plan, step)

    world = World(recipe).begin(scale=scale)
    for step in range(before):
        world.step(step, *happens(step))
    known, again, rest = world.known(), random.getstate(), range(before, before + after)
    written, stood = [through_files(state) for state in known], World(recipe)
    stood.go_on_from(written)
    assert repr(World._ops(stood.grown.mask())) == repr(World._ops(world.grown.mask()))
    told = [world.step(step, *happens(step)) for step in rest]
    assert not any(map(differences, known, written)), "a state is no longer what it was"

    other = World(recipe).begin(seed=77)
    other.step(0, drawn(Random(5)))
    other.go_on_from(written)
    assert [differences(one, two) for one, two in zip(other.known(), known, strict=True)] == [[], [], []]
    random.setstate(again)
    for place, step in enumerate(rest):
        assert other.step(step, *happens(step)) == told[place], f"step {step}"
    assert not any(map(differences, known, written)), "who goes on from a state changed it"
    for one, two in zip(world.both, other.both, strict=True):
        assert one.keeper.misowned(one.model) == two.keeper.misowned(two.model) == []
        assert differences(one.state_dict(), two.state_dict()) == []
        assert equal(one.evaluate("test"), two.evaluate("test"))
    return stood


def stages(world: World) -> dict[str, list[str]]:
    """The stages of the seeds of each slot."""
    return {name: [seed.stage.value for seed in slot.stack] for name, slot in world.grown.garden.slots.items()}


WAYS = [("shadow", 1), ("shadow", 2), ("branch", 1), ("branch", 2)]
ADAM, FOREACH, MOMENTUM = (
    {},
    {"implementation": "foreach", "weight_decay": 0.01},
    {"kind": "sgd", "momentum": 0.9, "learning_rate": 0.05},
)


def germinate(slot: str, name: str, speed: int = 0, **more: Any) -> Action:
    return Action(Op.GERMINATE, slot, f"test/{name}", speed=speed, **more)


def act(op: Op, slot: str, name: str | None = None, **more: Any) -> Action:
    return Action(op, slot, name and f"test/{name}", **more)


NURSERY = {
    0: germinate("late", "plain", blend=Blend.GATE),
    1: germinate("early", "odd", 1, curve=Curve.COSINE),
    2: germinate("early", "plain"),
    5: act(Op.ADVANCE, "early", "odd"),
}
BRANCHES = {
    0: germinate("early", "odd"),
    1: germinate("early", "plain", blend=Blend.RESIDUAL),
    5: act(Op.ADVANCE, "early", "plain"),
    7: act(Op.FOSSILISE, "early"),
}
FOSSILS = {
    0: germinate("late", "odd"),
    1: germinate("early", "odd"),
    2: act(Op.ADVANCE, "late"),
    3: act(Op.ADVANCE, "early"),
    4: act(Op.FOSSILISE, "late"),
    5: act(Op.FOSSILISE, "early"),
    6: germinate("early", "plain"),
    7: act(Op.ADVANCE, "early"),
}
RAMP = {0: germinate("late", "odd", 4), 1: act(Op.ADVANCE, "late"), 4: act(Op.PRUNE, "late", speed=2)}
ALONE = {1: germinate("late", "odd"), 4: act(Op.ADVANCE, "late"), 6: act(Op.FOSSILISE, "late")}
EMBARGO = {0: germinate("early", "odd"), 1: act(Op.PRUNE, "early"), 5: germinate("early", "plain")}
SCENES = {
    "a nursery, behind a seed of a later slot": (
        {"nursery": 2, "optimizer": MOMENTUM},
        (4, 4, NURSERY),
        {"early": ["training", "training"], "late": ["training"]},
    ),
    "two branches": (
        {"incubation": "branch", "nursery": 2},
        (4, 5, BRANCHES),
        {"early": ["training", "training"], "late": []},
    ),
    "fossils, the later slot's first": (
        {"schedule": True},
        (7, 4, FOSSILS),
        {"early": ["fossilized", "germinated"], "late": ["fossilized"]},
    ),
    "fossils that stand still": (
        {"freeze_fossils": True, "optimizer": MOMENTUM},
        (7, 3, FOSSILS),
        {"early": ["fossilized", "germinated"], "late": ["fossilized"]},
    ),
    "fossils that learnt by another algorithm": (
        {"schedule": True, "optimizer": MOMENTUM, "of_seeds": ADAM},
        (7, 4, FOSSILS),
        {"early": ["fossilized", "germinated"], "late": ["fossilized"]},
    ),
    "fossils that learnt with other settings": (
        {"optimizer": FOREACH, "of_seeds": ADAM},
        (5, 6, FOSSILS),
        {"early": ["holding"], "late": ["fossilized"]},
    ),
    "a branch that is kept under other settings": (
        {"incubation": "branch", "nursery": 2, "optimizer": FOREACH, "of_seeds": MOMENTUM},
        (8, 4, BRANCHES),
        {"early": ["fossilized"], "late": []},
    ),
    "a ramp": ({"optimizer": FOREACH, "schedule": True}, (3, 5, RAMP), {"early": [], "late": ["blending"]}),
    "drained": ({}, (5, 3, RAMP), {"early": [], "late": ["draining"]}),
    "a slot that rests": ({"embargo": 3}, (3, 4, EMBARGO), {"early": [], "late": []}),
}


@pytest.mark.parametrize("scene", SCENES)
def test_run_13_an_environment_goes_on_from_what_is_written_bit_for_bit(scene: str, make_recipe: Make) -> None:
    growth, life, there = SCENES[scene]
    assert stages(lives(odd_recipe(make_recipe, **growth), *life)) == there


@pytest.mark.parametrize(("way", "gates"), [("shadow", "strict"), ("branch", "permissive")])
def test_gates_go_on_with_the_looks_that_are_left(way: str, gates: str, make_recipe: Make) -> None:
    plan = {0: germinate("late", "odd")}
    stood = lives(odd_recipe(make_recipe, incubation=way, gates=gates, price=0.0), 5, 3, plan)
    (seed,) = stood.grown.garden.slots["late"].seeds
    assert stood.grown.garden.gates.opinion(seed) is not None
    assert math.isfinite(stood.grown.garden.gates.lead(seed))


def test_a_seed_is_weighed_on_by_what_the_twin_was_behind(make_recipe: Make) -> None:
    plan = {0: germinate("late", "odd"), 1: act(Op.ADVANCE, "late")}
    stood = lives(odd_recipe(make_recipe), 4, 2, plan)
    assert list(stood.grown.network.gains.gains) == list(stood.grown.network.dependence.dependences) == [0]


@pytest.mark.parametrize("way", ["shadow", "branch"])
def test_what_scales_the_loss_goes_on_where_it_was(way: str, make_recipe: Make) -> None:
    """One that has grown already: at its end it would begin with another factor."""
    recipe = odd_recipe(make_recipe, incubation=way)
    stood = lives(recipe, 4, 2, {1: germinate("late", "odd")}, scale=2.0**10)
    assert stood.grown.keeper.scaler.state_dict()["scale"] == 2.0**12


@pytest.mark.parametrize("way", ["shadow", pytest.param("branch", marks=pytest.mark.slow)])
def test_a_rollback_before_and_one_after(way: str, make_recipe: Make) -> None:
    plan = {0: germinate("late", "odd"), 2: PANIC, 5: germinate("late", "odd"), 6: PANIC}
    recipe = odd_recipe(make_recipe, incubation=way, embargo=1, governor={"rollbacks": 2, "snapshot_steps": 2})
    assert lives(recipe, 4, 3, plan).grown.governor.state_dict().plain["rollbacks"] == 1


def test_a_warning_is_not_told_twice_and_until_it_is_calm_nothing_final_is_offered(make_recipe: Make) -> None:
    plan = {0: germinate("late", "odd"), 1: act(Op.ADVANCE, "late"), 3: WARNING, 4: WARNING}
    stood = lives(odd_recipe(make_recipe), 4, 2, plan)
    assert stages(stood)["late"] == ["holding"]
    assert Op.FOSSILISE not in stood.grown.mask().ops["late"]


def test_an_episode_that_is_over_stays_over(make_recipe: Make) -> None:
    recipe = odd_recipe(make_recipe)
    stood = lives(recipe, 4, 2, {0: germinate("late", "odd"), 2: ENOUGH})
    assert (stood.grown.over, stood.grown.steps, stood.twin.steps) == (True, 3, 4)
    assert not any(stood.grown.mask().ops.values())


def test_what_is_drawn_at_random_goes_on_as_well(make_recipe: Make) -> None:
    recipe = odd_recipe(make_recipe, incubation="branch", nursery=2, gates="permissive", price=0.0, schedule=True)
    lives(recipe, 8, 3, 11)


@pytest.mark.slow
@pytest.mark.parametrize("gates", ["off", "permissive", "strict"])
@pytest.mark.parametrize(("way", "nursery"), WAYS)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    before=st.integers(0, 16),
    seed=st.integers(0, 2**16),
    optimizer=st.sampled_from([ADAM, FOREACH, MOMENTUM]),
    of_seeds=st.sampled_from([ADAM, FOREACH, MOMENTUM]),
    more=st.fixed_dictionaries(
        {"schedule": st.booleans(), "freeze_fossils": st.booleans(), "embargo": st.integers(0, 3)}
    ),
)
def test_whatever_happens_it_goes_on_bit_for_bit(
    way, nursery, gates, before, seed, optimizer, of_seeds, more, make_recipe: Make
) -> None:
    growth = {"incubation": way, "nursery": nursery, "gates": gates, "price": 0.0, "of_seeds": of_seeds, **more}
    lives(odd_recipe(make_recipe, optimizer=optimizer, **growth), before, 4, seed)


@pytest.mark.slow
def test_a_fresh_process_goes_on_bit_for_bit(make_recipe: Make, tmp_path: Path) -> None:
    """The process that is started here runs this very test, and finds the folder of the one that started it."""
    recipe = odd_recipe(make_recipe, incubation="branch", nursery=2)
    begun = os.environ.get("ESPER_TEST_BEGUN")
    folder = Path(begun or tmp_path)
    names = ["grown", "twin", "faults"]
    if begun is None:
        world = World(recipe).begin()
        for step in range(4):
            world.step(step, *followed(BRANCHES, step))
        for name, state in zip(names, world.known(), strict=True):
            (folder / f"{name}.json").write_text(json.dumps(state.plain), encoding="utf-8")
            (folder / f"{name}.safetensors").write_bytes(encode(dict(state.tensors)))
    else:
        texts = [json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in names]
        numbers = [decode((folder / f"{name}.safetensors").read_bytes()) for name in names]
        world = World(recipe).go_on_from([State(*both) for both in zip(texts, numbers, strict=True)])
    told = [world.step(step, *followed(BRANCHES, step)) for step in range(4, 9)]
    if begun is None:
        (folder / "told.json").write_text(json.dumps(told), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-k", "fresh_process", str(Path(__file__))]
        subprocess.run(command, check=True, env={**os.environ, "ESPER_TEST_BEGUN": str(folder)}, capture_output=True)
        assert (folder / "done").exists()
    else:
        assert told == json.loads((folder / "told.json").read_text(encoding="utf-8"))
        (folder / "done").touch()


class Fails(nn.Module):
    """Cannot be trained."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.mix = nn.Conv1d(site.channels, site.channels, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        raise ValueError("not today")


def unbuildable(site: Site) -> nn.Module:
    raise ValueError("never")


def test_mishaps_of_which_nobody_was_told_are_not_lost(make_recipe: Make) -> None:
    spec = BlueprintSpec("sequence", "c*c + c", starts_as_identity=True)
    varieties = (Variety("test/fails", spec, Fails), Variety("test/unbuildable", spec, unbuildable))
    recipe = replace(make_recipe(), varieties={"early": varieties})
    environment = World(recipe).begin().grown
    environment.network.apply(germinate("early", "fails"), 0)
    environment.train()
    environment.garden.slots["early"].embargo, environment.garden.slots["early"].state = 0, SlotState.FREE
    environment.network.apply(germinate("early", "unbuildable"), 1)
    other = World(recipe).grown
    other.load_state_dict(through_files(environment.state_dict()))
    mishaps = environment.network.lost.take()
    assert [mishap.ending is None for mishap in mishaps] == [False, True]
    assert other.network.lost.take() == mishaps


def test_a_blueprint_that_went_wrong_too_often_stays_withdrawn(make_recipe: Make) -> None:
    book, other = FaultBook(limit=2), FaultBook(limit=2)
    book.record("test/odd")
    other.record("test/plain")
    other.load_state_dict(through_files(book.state_dict()))
    assert (other.record("test/plain"), other.record("test/odd")) == (False, True)
    assert not book.is_withdrawn("test/odd")


class Restless(nn.Module):
    """Draws in evaluation, too."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv1d(1, 4, 1), nn.Linear(48, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(nn.functional.dropout(self.stem(inputs), 0.1).flatten(1))


def test_random_numbers_of_evaluation_and_of_trials_go_on(make_recipe: Make) -> None:
    germination = Action(Op.GERMINATE, "early", "test/local-conv", speed=0)
    lives(make_recipe(host=Restless, batches=1), 3, 2, {0: germination})


def without(state: State, name: str) -> State:
    return State(state.plain, {key: value for key, value in state.tensors.items() if key != name})


def with_other(state: State, name: str) -> State:
    return State(state.plain, {**state.tensors, name: torch.zeros(2, 2)})


def with_plain(state: State, **plain: Any) -> State:
    return State({**state.plain, **plain}, state.tensors)


def other_garden(state: State, **plain: Any) -> State:
    return with_plain(state, garden={**state.plain["garden"], **plain})


HEAD = "garden/numbers/parameters.head.weight"
MANGLED: dict[str, tuple[Callable[[State], State], str]] = {
    "a number is missing": (lambda state: without(state, HEAD), r"E334 .*\n.*parameters.head.weight is not a tensor"),
    "a number of another shape": (
        lambda state: with_other(state, HEAD),
        r"E334 .*\n.*is \(2, 2\) float32, and was \(3,",
    ),
    "a memory is missing": (
        lambda state: without(state, "garden/keeper/0/memory.0.step"),
        r"E334 .*\n.*memory.0.step is not a tensor",
    ),
    "a snapshot is damaged in its names": (
        lambda state: without(state, "governor/shelf/1/copies.head.bias"),
        r"E334 .*\n.*copies.head.bias is not a tensor",
    ),
    "a part is missing": (
        lambda state: State({k: v for k, v in state.plain.items() if k != "order"}, state.tensors),
        r"E334 .*\n.*cannot be read: KeyError: 'order'",
    ),
    "another seed incubates": (lambda state: other_garden(state, incubating=[5]), r"E334 .*\n.*\[5\] incubated"),
    "no journal": (lambda state: other_garden(state, grown={"model": 5}), "E330 the state is no growth journal"),
    "text for a number": (
        lambda state: with_plain(state, seed="seven and a half"),
        r"E334 .*\n.*cannot be read: TypeError: 'str' object",
    ),
}


@pytest.fixture
def written(make_recipe: Make) -> tuple[Recipe, State]:
    """A recipe, and the state of an environment in which a seed incubates."""
    recipe = odd_recipe(make_recipe)
    environment = World(recipe).begin().grown
    environment.network.apply(germinate("late", "odd"), 0)
    environment.train()
    return recipe, through_files(environment.state_dict())


def test_a_state_that_is_not_whole_is_refused_and_a_whole_one_is_taken_after_it(written) -> None:
    recipe, state = written
    environment = World(recipe).begin(seed=8).grown
    for mangle, message in MANGLED.values():
        with pytest.raises(GrowthError, match=message):
            environment.load_state_dict(mangle(state))
    environment.load_state_dict(state)
    assert differences(environment.state_dict(), state) == []


class Wider(OddHost):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(48, 5)


OTHERS: dict[str, tuple[Callable[[Recipe], Recipe], str]] = {
    "another host": (
        lambda recipe: replace(recipe, build_host=Wider),
        r"E334 .*\n.*head.bias is \(3,\) float32, and here \(5,\) float32",
    ),
    "other slots": (
        lambda recipe: replace(recipe, slots={"early": SlotPlace("drop"), "late": SlotPlace("stem")}),
        r"E334 the state does not fit this OddHost\n.*other slots",
    ),
    "another version": (
        lambda recipe: replace(
            recipe, varieties={"late": (Variety("test/odd", replace(ODD.spec, version=2), OddBlock),)}
        ),
        'E333 "test/odd" grew in version 1, and version 2 is installed',
    ),
    "no such blueprint": (
        lambda recipe: replace(recipe, varieties={"late": (PLAIN,)}),
        'E303 "test/odd" grew where the state was taken, and cannot grow here',
    ),
}


def test_a_state_of_another_recipe_is_refused(written) -> None:
    recipe, state = written
    for change, message in OTHERS.values():
        other = change(recipe)
        environment = Environment(other, arm="grown", index=0)
        with pytest.raises(GrowthError, match=message):
            environment.load_state_dict(state)
