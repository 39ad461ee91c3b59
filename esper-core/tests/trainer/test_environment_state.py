"""The state of an environment: another environment that restores it continues bit for bit."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from safetensors.torch import save
from torch import Tensor, nn

from esper_core import leyline
from esper_core.growth import Variety
from esper_core.leyline import CALM, WAIT, Action, ActionMask, Blend, GrowthError, Level, Op, SlotPlace, State, Verdict
from esper_core.settings import ComputeConfig, OptimizersConfig
from esper_core.trainer.environment import Environment, Recipe
from esper_core.trainer.pool import Pool
from tests.support import core_worlds
from tests.support.core_worlds import GERMINATE, LOUD, bad, begin, change_recipe, make_recipe, slow, through_files

PANIC, WARNING, ENOUGH = (Verdict(level, "an opinion") for level in (Level.PANIC, Level.WARNING, Level.ENOUGH))


class Scaled(nn.Module):
    """Multiplies by a buffer, which another module may share."""

    def __init__(self, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale)

    def forward(self, hidden: Tensor) -> Tensor:
        if self.training:
            self.scale.mul_(1.01)
        return hidden * self.scale.clone()


class OddHost(nn.Module):
    """A host with noise, buffers of every kind, tied and frozen weights, and extra state."""

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
    """BatchNorm, dropout, and a buffer that is drawn at birth and is not saved."""

    def __init__(self, site: leyline.Site) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(site.channels), nn.Dropout(0.1)
        self.last = core_worlds.zeroed(nn.Conv1d(site.channels, site.channels, 1))
        self.register_buffer("mask", torch.rand(site.channels, 1) + 0.5, persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.last(self.drop(self.norm(hidden))) * self.mask


ODD = Variety("test/odd", leyline.BlueprintSpec("sequence", starts_as_identity=True), OddBlock)


def odd_recipe(*, schedule: bool = False, batches: int = 1, data: str = "resident", **growth: Any) -> Recipe:
    """Two slots that hold two seeds each, in the odd host."""
    optimizer, governor = growth.pop("optimizer", {}), growth.pop("governor", {})
    host_settings = {"learning_rate": 1e-2, "clip_norm": 0.5, **optimizer}
    of_seeds = growth.pop("of_seeds", host_settings)
    recipe = make_recipe(host=OddHost, batches=batches, steps=40, governor=governor)
    return change_recipe(
        recipe,
        compute=ComputeConfig(data=data),
        slots={"early": SlotPlace("stem", stack=2), "late": SlotPlace("drop", stack=2)},
        varieties={"early": (ODD, LOUD), "late": (LOUD, ODD)},
        growth=core_worlds.plain_growth(**{"embargo": 2, **growth}),
        optimizers=OptimizersConfig.model_validate({"host": host_settings, "seed": of_seeds}),
        schedules={"host": core_worlds.Falling(), "seed": core_worlds.Falling()} if schedule else {},
    )


def play_step(pool: Pool, step: int, choose: Callable[[ActionMask], Action], opinion: Verdict = CALM) -> Any:
    """Play one step, and return everything reported of it, in full precision."""
    passed = pool.train(step)
    pool.evaluate(step)
    pool.synchronise(step)
    lost, signals = pool.heal(step), list(pool.latest)
    decisions = pool.judge({0: opinion})
    carried_out = pool.carry_out(decisions, step)
    masks = pool.masks()
    action = choose(masks[0])
    changes = pool.apply([action, WAIT], step)
    return core_worlds.spelled([passed, lost, signals, decisions, carried_out, masks, action, changes, pool.masks()])


def differences(first: State, second: State) -> list[str]:
    """Return where two states are not bitwise equal."""
    first_tensors, second_tensors = (
        {name: save({name: tensor.contiguous()}) for name, tensor in state.tensors.items()} for state in (first, second)
    )
    names = [
        name
        for name in sorted(first_tensors.keys() | second_tensors.keys())
        if first_tensors.get(name) != second_tensors.get(name)
    ]
    return names + [key for key in first.plain if first.plain[key] != second.plain.get(key)]


def drawn(random: Random) -> Callable[[ActionMask], Action]:
    """Draw among all actions that a mask allows; those that advance a seed are likelier."""

    def choose(mask: ActionMask) -> Action:
        speed = random.randrange(3)
        possible = [WAIT]
        for slot, ops in mask.ops.items():
            for op in sorted(ops - {Op.GERMINATE}):
                names = [None, *mask.seeds.get(slot, {})] if op in (Op.ADVANCE, Op.PRUNE) else [None]
                weight = {Op.FOSSILISE: 8, Op.ADVANCE: 3}.get(op, 1)
                possible += [Action(op, slot, name, speed=speed) for name in names] * weight
            blend = random.choice(list(Blend))
            for name in mask.blueprints[slot]:
                possible += [Action(Op.GERMINATE, slot, name, blend=blend, speed=speed)] * 2
        return random.choice([action for action in possible if mask.allows(action)])

    return choose


def followed(plan: Mapping[int, Action | Verdict], step: int) -> tuple[Callable[[ActionMask], Action], Verdict]:
    """Return what a plan has for a step: an action, which has to be allowed, or an opinion for the governor."""
    planned = plan.get(step, WAIT)

    def choose(mask: ActionMask) -> Action:
        action = planned if isinstance(planned, Action) else WAIT
        assert mask.allows(action), f"step {step}: {action}"
        return action

    return choose, planned if isinstance(planned, Verdict) else CALM


def assert_resumes(
    recipe: Recipe, before: int, after: int, plan: Mapping[int, Action | Verdict] | int, *, scale: float | None = None
) -> Pool:
    """Assert that a pool which restores the state after some steps plays the others as the first one does.

    plan: what happens after which step, or the seed with which it is drawn. The second pool played another step before.

    Returns:
        A pool that has just restored the state.
    """
    random = Random(plan) if isinstance(plan, int) else Random()

    def happens(step: int) -> tuple[Callable[[ActionMask], Action], Verdict]:
        return (drawn(random), CALM) if isinstance(plan, int) else followed(plan, step)

    pool, later_steps = core_worlds.begin_pool(recipe, scale=scale, interval=2), range(before, before + after)
    for step in range(before):
        play_step(pool, step, *happens(step))
    saved, draws = pool.state_dict(), random.getstate()
    written, restored = through_files(saved), Pool(recipe, ["grown", "twin"], 1, twin="twin")
    restored.load_state_dict(written, in_round=True)
    reports = [play_step(pool, step, *happens(step)) for step in later_steps]

    other = core_worlds.begin_pool(recipe)
    other.reset(1, 77)
    play_step(other, 0, drawn(Random(5)))
    other.load_state_dict(written, in_round=True)
    assert differences(other.state_dict(), saved) == []
    random.setstate(draws)
    for place, step in enumerate(later_steps):
        same = play_step(other, step, *happens(step)) == reports[place]
        assert same, f"step {step}"
    assert differences(saved, written) == [], "a state was changed by playing on"
    assert differences(pool.state_dict(), other.state_dict()) == []
    for environment, counterpart in zip(pool.environments, other.environments, strict=True):
        assert environment.keeper.misowned(environment.model) == counterpart.keeper.misowned(counterpart.model) == []
        assert torch.equal(environment.evaluate("test"), counterpart.evaluate("test"))
    return restored


def stages(pool: Pool) -> dict[str, list[str]]:
    slots = pool.environments[0].garden.slots.items()
    return {name: [seed.stage.value for seed in slot.seeds] for name, slot in slots}


ADAM, FOREACH = {}, {"implementation": "foreach", "weight_decay": 0.01}
MOMENTUM = {"kind": "sgd", "momentum": 0.9, "learning_rate": 0.05}


def germinate(slot: str, name: str, speed: int = 0, **more: Any) -> Action:
    return Action(Op.GERMINATE, slot, f"test/{name}", speed=speed, **more)


def act(op: Op, slot: str, name: str | None = None, **more: Any) -> Action:
    return Action(op, slot, name and f"test/{name}", **more)


NURSERY = {
    0: germinate("late", "loud", blend=Blend.GATED),
    1: germinate("early", "odd", 1),
    2: germinate("early", "loud"),
    5: act(Op.ADVANCE, "early", "odd"),
}
BRANCHES = {
    0: germinate("early", "odd"),
    1: germinate("early", "loud", blend=Blend.RESIDUAL),
    5: act(Op.ADVANCE, "early", "loud"),
    7: act(Op.FOSSILISE, "early"),
}
FOSSILS = {
    0: germinate("late", "odd"),
    1: germinate("early", "odd"),
    2: act(Op.ADVANCE, "late"),
    3: act(Op.ADVANCE, "early"),
    4: act(Op.FOSSILISE, "late"),
    5: act(Op.FOSSILISE, "early"),
    6: germinate("early", "loud"),
    7: act(Op.ADVANCE, "early"),
}
RAMP = {0: germinate("late", "odd", 4), 1: act(Op.ADVANCE, "late"), 4: act(Op.PRUNE, "late", speed=2)}
EMBARGO = {0: germinate("early", "odd"), 1: act(Op.PRUNE, "early"), 5: germinate("early", "loud")}
LATE, HELD = {0: germinate("late", "odd")}, {0: germinate("late", "odd"), 1: act(Op.ADVANCE, "late")}
PANICS = {0: germinate("late", "odd"), 2: PANIC, 5: germinate("late", "odd"), 6: PANIC}
BRANCH = {"incubation": "branch"}
MIXED = {"optimizer": MOMENTUM, "of_seeds": ADAM}
ROLLBACKS = {"embargo": 1, "governor": {"rollbacks": 2, "snapshot_steps": 2}}
GREW = {"early": ["fossilised", "germinated"], "late": ["fossilised"]}
TWO_TRAIN, HOLDS = {"early": ["training"] * 2}, {"early": [], "late": ["holding"]}
SCALE = 2.0**10


def gate(pool: Pool) -> bool:
    """Return whether the seed's gate has an opinion, and the seed a lead."""
    garden = pool.environments[0].garden
    (seed,) = garden.slots["late"].seeds
    return garden.gates.opinion(seed) is not None and math.isfinite(garden.gates.lead(seed))


def fossilisable(pool: Pool) -> tuple[dict[str, list[str]], bool]:
    return stages(pool), Op.FOSSILISE in pool.masks()[0].ops["late"]


def scale(pool: Pool) -> float:
    return pool.environments[0].keeper.scaler.state_dict()["scale"]


def rollbacks(pool: Pool) -> int:
    return pool.environments[0].network.governor.state_dict().plain["rollbacks"]


def progress(pool: Pool) -> list[tuple[bool, int, bool]]:
    return [
        (environment.over, environment.steps, any(environment.mask().ops.values())) for environment in pool.environments
    ]


@pytest.mark.parametrize(
    ("growth", "life", "look", "expected"),
    [
        ({"nursery": 2, "optimizer": MOMENTUM}, (4, 4, NURSERY), stages, {**TWO_TRAIN, "late": ["training"]}),
        ({**BRANCH, "nursery": 2}, (4, 5, BRANCHES), stages, {**TWO_TRAIN, "late": []}),
        ({"schedule": True, **MIXED}, (7, 4, FOSSILS), stages, GREW),
        slow({"optimizer": FOREACH, "schedule": True}, (3, 5, RAMP), stages, {"early": [], "late": ["blending"]}),
        slow({"embargo": 3}, (3, 4, EMBARGO), stages, {"early": [], "late": []}),
        ({"gates": "strict", "price": 0.0}, (5, 3, LATE), gate, True),
        ({}, (4, 2, HELD), lambda pool: list(pool.environments[0].network.gains.gains), [0]),
        ({**BRANCH, "average": 8.0}, (3, 2, LATE), stages, {"early": [], "late": ["training"]}),
        ({"scale": SCALE}, (4, 2, {1: LATE[0]}), scale, 4 * SCALE),
        slow({**BRANCH, "scale": SCALE}, (4, 2, {1: LATE[0]}), scale, 4 * SCALE),
        slow(ROLLBACKS, (4, 3, PANICS), rollbacks, 1),
        ({**BRANCH, **ROLLBACKS}, (4, 3, PANICS), rollbacks, 1),
        slow({}, (4, 2, {**HELD, 3: WARNING, 4: WARNING}), fossilisable, (HOLDS, False)),
        slow({"data": "streamed"}, (3, 3, HELD), stages, HOLDS),
        slow({}, (4, 2, {**LATE, 2: ENOUGH}), progress, [(True, 3, False), (False, 4, True)]),
    ],
    ids=[
        *("nursery", "branches", "fossils, other algorithm", "ramp", "embargo", "gates", "gains"),
        *("averages of a branch", "loss scale", "loss scale of a branch", "rollbacks", "rollbacks of a branch"),
        *("warning", "streamed data", "episode is over"),
    ],
)
def test_run_13_an_environment_continues_from_its_state_bit_for_bit(growth, life, look, expected):
    settings = {key: value for key, value in growth.items() if key != "scale"}
    restored = assert_resumes(odd_recipe(**settings), *life, scale=growth.get("scale"))
    assert look(restored) == expected


def test_random_streams_of_evaluation_and_of_trials_continue():
    assert_resumes(make_recipe(host=core_worlds.noisy_in_evaluation, batches=1), 3, 2, {0: replace(GERMINATE, speed=0)})


@pytest.mark.slow
@pytest.mark.parametrize("gates", ["off", "strict"])
@pytest.mark.parametrize(("incubation", "nursery"), [("shadow", 1), ("shadow", 2), ("branch", 1), ("branch", 2)])
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    before=st.integers(1, 16),  # a checkpoint follows a step
    seed=st.integers(0, 2**16),
    optimizer=st.sampled_from([ADAM, FOREACH, MOMENTUM]),
    of_seeds=st.sampled_from([ADAM, FOREACH, MOMENTUM]),
    more=st.fixed_dictionaries(
        {"schedule": st.booleans(), "freeze_fossils": st.booleans(), "embargo": st.integers(0, 3)}
    ),
)
def test_an_environment_continues_bit_for_bit_with_any_settings_and_actions(
    incubation, nursery, gates, before, seed, optimizer, of_seeds, more
):
    growth = {"incubation": incubation, "nursery": nursery, "gates": gates, "price": 0.0, "of_seeds": of_seeds, **more}
    assert_resumes(odd_recipe(optimizer=optimizer, **growth), before, 4, seed)


# --- parts of a state, and states that are refused


def test_lost_seeds_that_were_not_reported_yet_are_restored():
    def unbuildable(site: leyline.Site) -> nn.Module:
        raise ValueError("never")

    varieties = (bad(), replace(bad(), id="test/unbuildable", factory=unbuildable))
    recipe = change_recipe(make_recipe(), varieties={"early": varieties})
    environment = begin(recipe)
    environment.network.apply(germinate("early", "bad"), 0)
    environment.train()
    environment.garden.slots["early"].embargo, environment.garden.slots["early"].state = 0, leyline.SlotState.FREE
    environment.network.apply(germinate("early", "unbuildable"), 1)
    other = Environment(recipe, arm="grown", index=0)
    other.load_state_dict(through_files(environment.state_dict()))
    lost = environment.network.lost.take()
    assert [seed.ending is None for seed in lost] == [False, True]
    assert other.network.lost.take() == lost


@pytest.fixture
def written() -> tuple[Recipe, State]:
    """A recipe, and the state of an environment in which a seed incubates."""
    recipe = odd_recipe()
    environment = core_worlds.begin_pool(recipe).environments[0]
    environment.network.apply(germinate("late", "odd"), 0)
    environment.train()
    return recipe, through_files(environment.state_dict())


def without(state: State, name: str) -> State:
    """The state without a tensor, or without a part of its plain data."""
    plain, tensors = ({key: value for key, value in of.items() if key != name} for of in (state.plain, state.tensors))
    return State(plain, tensors)


def with_garden(state: State, **plain: Any) -> State:
    return State({**state.plain, "garden": {**state.plain["garden"], **plain}}, state.tensors)


HEAD = "garden/model/parameters.head.weight"
DAMAGED: list[tuple[Callable[[State], State], str]] = [
    (lambda state: without(state, HEAD), "parameters.head.weight is not a tensor"),
    (
        lambda state: State(state.plain, {**state.tensors, HEAD: torch.zeros(2, 2)}),
        r"is \(2, 2\) float32, and was \(3,",
    ),
    (lambda state: without(state, "garden/optimizers/0/state.0.step"), "state.0.step is not a tensor"),
    (lambda state: without(state, "governor/snapshots/1/copies.head.bias"), "copies.head.bias is not a tensor"),
    (lambda state: without(state, "order"), "cannot be read: KeyError: 'order'"),
    (lambda state: with_garden(state, incubating=[5]), r"\[5\] incubated"),
    (lambda state: State({**state.plain, "seed": "seven"}, state.tensors), "cannot be read: TypeError: 'str' object"),
]


def test_a_damaged_state_is_refused_and_a_sound_one_can_be_loaded_after_it(written):
    recipe, state = written
    pool = core_worlds.begin_pool(recipe)
    pool.reset(1, 8)
    environment = pool.environments[0]
    for damage, message in DAMAGED:
        with pytest.raises(GrowthError, match=rf"E334 .*\n.*{message}"):
            environment.load_state_dict(damage(state))
    with pytest.raises(GrowthError, match="E330 the state is not a growth journal"):
        environment.load_state_dict(with_garden(state, network={"model": 5}))
    environment.load_state_dict(state)
    assert differences(environment.state_dict(), state) == []


class Wider(OddHost):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(48, 5)


NEWER = Variety("test/odd", replace(ODD.spec, version=2), OddBlock)
OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"build_host": Wider}, r"E334 .*\n.*head.bias is \(3,\) float32, expected \(5,\) float32"),
    (
        {"slots": {"early": SlotPlace("drop"), "late": SlotPlace("stem")}},
        r"E334 the state does not fit this OddHost\n.*other slots",
    ),
    ({"varieties": {"late": (NEWER,)}}, 'E333 "test/odd" grew in version 1, and version 2 is installed'),
    ({"varieties": {"late": (LOUD,)}}, 'E303 "test/odd" grew where the state was taken, and cannot grow here'),
]


def test_a_state_of_another_recipe_is_refused(written):
    recipe, state = written
    for change, message in OTHERS:
        environment = Environment(change_recipe(recipe, **change), arm="grown", index=0)
        with pytest.raises(GrowthError, match=message):
            environment.load_state_dict(state)
