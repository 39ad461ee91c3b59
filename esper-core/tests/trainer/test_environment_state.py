"""The state of an environment: another environment that restores it continues bit for bit."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from pprint import pformat
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from safetensors.torch import load as decode, save as encode
from torch import Tensor, nn

from esper_core.config import GrowthConfig, OptimizersConfig
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
from esper_core.trainer.pool import Pool

Make = Callable[..., Recipe]
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
    """Everything that a host may have: noise, buffers of every kind, tied and frozen weights, state of its own."""

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
    """Not the identity at birth, so the seed has a gain."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.mix = nn.Conv1d(site.channels, site.channels, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.tanh(self.mix(hidden))


ODD = Variety("test/odd", BlueprintSpec("sequence", "c*c + 3*c", starts_as_identity=True), OddBlock)
PLAIN = Variety("test/plain", BlueprintSpec("sequence", "c*c + c"), Plain)


class Falling:
    """A schedule that differs in each step, and depends on their number."""

    def factor(self, step: int, steps: int | None) -> float:
        return 1.0 / (1.0 + step) + 0.01 * (steps or 0)


def odd_recipe(make: Make, *, schedule: bool = False, batches: int = 1, **growth: Any) -> Recipe:
    """Two slots that hold two seeds each, in the odd host."""
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


def begun(recipe: Recipe, seed: int = 3, scale: float | None = None) -> Pool:
    """A pool of one environment that grows and its twin, at the beginning of a round."""
    pool = new_pool(recipe)
    pool.reset(2, seed)
    if scale is not None:
        for one in pool.environments:
            one.keeper.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)
    return pool


def new_pool(recipe: Recipe) -> Pool:
    return Pool(recipe, ["grown", "twin"], 1, twin="twin")


def play_step(pool: Pool, step: int, choose: Callable[[ActionMask], Action], opinion: Verdict = CALM) -> str:
    """Play one step, and return everything that is reported of it, to the last digit."""
    passed = pool.train(step)
    pool.evaluate(step)
    pool.synchronise(step)
    lost, signals = pool.heal(step), list(pool.latest)
    decisions = pool.judge({0: opinion})
    carried_out = pool.carry_out(decisions, step)
    masks = pool.masks()
    action = choose(masks[0])
    changes = pool.apply([action, WAIT], step)
    return pformat([passed, lost, signals, decisions, carried_out, masks, action, changes, pool.masks()])


def through_files(state: State) -> State:
    """The state as a JSON file and a file of tensors give it back."""
    text = json.dumps(state.plain, allow_nan=False, sort_keys=True)
    assert json.loads(text) == state.plain, "JSON would change it"
    assert all(not one.requires_grad for one in state.tensors.values())
    return State(json.loads(text), decode(encode(dict(state.tensors))))


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
    """Draw among all actions that a mask allows; those that carry a seed's life on are likelier."""

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
    """Return what a plan has for a step: an action, which has to be allowed, or an opinion for the governor."""
    planned = plan.get(step, WAIT)

    def choose(mask: ActionMask) -> Action:
        action = planned if isinstance(planned, Action) else WAIT
        assert mask.allows(action), f"step {step}: {action}"
        return action

    return choose, planned if isinstance(planned, Verdict) else CALM


def assert_resumes(
    recipe: Recipe,
    before: int,
    after: int,
    plan: Mapping[int, Action | Verdict] | int,
    *,
    scale: float | None = None,
) -> Pool:
    """Assert that a pool which restores the state after some steps plays the others as the first one does.

    plan: what happens after which step, or the seed with which it is drawn. The second pool played another step before.

    Returns:
        A pool that has just restored the state.
    """
    random = Random(plan) if isinstance(plan, int) else Random()

    def happens(step: int) -> tuple[Callable[[ActionMask], Action], Verdict]:
        return (drawn(random), CALM) if isinstance(plan, int) else followed(plan, step)

    pool, rest = begun(recipe, scale=scale), range(before, before + after)
    for step in range(before):
        play_step(pool, step, *happens(step))
    known, draws = pool.state_dict(), random.getstate()
    written, restored = through_files(known), new_pool(recipe)
    restored.load_state_dict(written, in_round=True)
    told = [play_step(pool, step, *happens(step)) for step in rest]

    other = begun(recipe, seed=77)
    play_step(other, 0, drawn(Random(5)))
    other.load_state_dict(written, in_round=True)
    assert differences(other.state_dict(), known) == []
    random.setstate(draws)
    for place, step in enumerate(rest):
        same = play_step(other, step, *happens(step)) == told[place]
        assert same, f"step {step}"
    assert differences(known, written) == [], "a state was changed by playing on"
    assert differences(pool.state_dict(), other.state_dict()) == []
    for one, two in zip(pool.environments, other.environments, strict=True):
        assert one.keeper.misowned(one.model) == two.keeper.misowned(two.model) == []
        assert equal(one.evaluate("test"), two.evaluate("test"))
    return restored


def stages(pool: Pool) -> dict[str, list[str]]:
    """The stages of the seeds of each slot."""
    slots = pool.environments[0].garden.slots.items()
    return {name: [seed.stage.value for seed in slot.stack] for name, slot in slots}


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
EMBARGO = {0: germinate("early", "odd"), 1: act(Op.PRUNE, "early"), 5: germinate("early", "plain")}
SLOW = pytest.mark.slow
TRAINING, GREW = ["training", "training"], ["fossilized", "germinated"]
MIXED = {"optimizer": MOMENTUM, "of_seeds": ADAM}
BRANCH = {"incubation": "branch", "nursery": 2}


@pytest.mark.parametrize(
    ("growth", "life", "early", "late"),
    [
        pytest.param({"nursery": 2, "optimizer": MOMENTUM}, (4, 4, NURSERY), TRAINING, ["training"], id="nursery"),
        pytest.param(BRANCH, (4, 5, BRANCHES), TRAINING, [], id="branches"),
        pytest.param({"schedule": True, **MIXED}, (7, 4, FOSSILS), GREW, ["fossilized"], id="fossils, other algorithm"),
        pytest.param({"optimizer": FOREACH, "schedule": True}, (3, 5, RAMP), [], ["blending"], id="ramp"),
        pytest.param({"embargo": 3}, (3, 4, EMBARGO), [], [], id="embargo"),
        pytest.param({"schedule": True}, (7, 4, FOSSILS), GREW, ["fossilized"], id="fossils", marks=SLOW),
        pytest.param(
            {"freeze_fossils": True, "optimizer": MOMENTUM},
            (7, 3, FOSSILS),
            GREW,
            ["fossilized"],
            id="frozen",
            marks=SLOW,
        ),
        pytest.param(
            {"optimizer": FOREACH, "of_seeds": ADAM},
            (5, 6, FOSSILS),
            ["holding"],
            ["fossilized"],
            id="fossils, other settings",
            marks=SLOW,
        ),
        pytest.param(
            {**BRANCH, "optimizer": FOREACH, "of_seeds": MOMENTUM},
            (8, 4, BRANCHES),
            ["fossilized"],
            [],
            id="kept branch, other settings",
            marks=SLOW,
        ),
        pytest.param({}, (5, 3, RAMP), [], ["draining"], id="draining", marks=SLOW),
    ],
)
def test_run_13_an_environment_continues_from_its_state_bit_for_bit(growth, life, early, late, make_recipe):
    assert stages(assert_resumes(odd_recipe(make_recipe, **growth), *life)) == {"early": early, "late": late}


@pytest.mark.parametrize(
    ("incubation", "gates"), [("shadow", "strict"), pytest.param("branch", "permissive", marks=pytest.mark.slow)]
)
def test_gates_continue_with_the_looks_that_are_left(incubation, gates, make_recipe):
    recipe = odd_recipe(make_recipe, incubation=incubation, gates=gates, price=0.0)
    garden = assert_resumes(recipe, 5, 3, {0: germinate("late", "odd")}).environments[0].garden
    (seed,) = garden.slots["late"].seeds
    assert garden.gates.opinion(seed) is not None
    assert math.isfinite(garden.gates.lead(seed))


def test_gains_continue_from_the_lead_of_the_network_over_its_twin(make_recipe):
    plan = {0: germinate("late", "odd"), 1: act(Op.ADVANCE, "late")}
    network = assert_resumes(odd_recipe(make_recipe), 4, 2, plan).environments[0].network
    assert list(network.gains.gains) == list(network.dependence.dependences) == [0]


@pytest.mark.parametrize("incubation", ["shadow", pytest.param("branch", marks=pytest.mark.slow)])
def test_the_loss_scale_continues_after_it_has_grown(incubation, make_recipe):
    recipe = odd_recipe(make_recipe, incubation=incubation)
    pool = assert_resumes(recipe, 4, 2, {1: germinate("late", "odd")}, scale=2.0**10)
    assert pool.environments[0].keeper.scaler.state_dict()["scale"] == 2.0**12


@pytest.mark.parametrize("incubation", ["shadow", pytest.param("branch", marks=pytest.mark.slow)])
def test_rollbacks_before_and_after_the_state_was_taken(incubation, make_recipe):
    plan = {0: germinate("late", "odd"), 2: PANIC, 5: germinate("late", "odd"), 6: PANIC}
    recipe = odd_recipe(make_recipe, incubation=incubation, embargo=1, governor={"rollbacks": 2, "snapshot_steps": 2})
    governor = assert_resumes(recipe, 4, 3, plan).environments[0].governor
    assert governor.state_dict().plain["rollbacks"] == 1


def test_a_warning_still_forbids_to_fossilise_after_restoring(make_recipe):
    plan = {0: germinate("late", "odd"), 1: act(Op.ADVANCE, "late"), 3: WARNING, 4: WARNING}
    pool = assert_resumes(odd_recipe(make_recipe), 4, 2, plan)
    assert stages(pool)["late"] == ["holding"]
    assert Op.FOSSILISE not in pool.masks()[0].ops["late"]


def test_an_episode_that_is_over_is_restored_as_over(make_recipe):
    pool = assert_resumes(odd_recipe(make_recipe), 4, 2, {0: germinate("late", "odd"), 2: ENOUGH})
    grown, twin = pool.environments
    assert (grown.over, grown.steps, twin.steps) == (True, 3, 4)
    assert not any(grown.mask().ops.values())


def test_drawn_actions_continue_bit_for_bit(make_recipe):
    recipe = odd_recipe(make_recipe, incubation="branch", nursery=2, gates="permissive", price=0.0, schedule=True)
    assert_resumes(recipe, 8, 3, 11)


class NoisyInEvaluation(nn.Module):
    """Draws random numbers in evaluation, too."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv1d(1, 4, 1), nn.Linear(48, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(nn.functional.dropout(self.stem(inputs), 0.1).flatten(1))


def test_random_streams_of_evaluation_and_of_trials_continue(make_recipe):
    germination = Action(Op.GERMINATE, "early", "test/local-conv", speed=0)
    assert_resumes(make_recipe(host=NoisyInEvaluation, batches=1), 3, 2, {0: germination})


@pytest.mark.slow
@pytest.mark.parametrize("gates", ["off", "permissive", "strict"])
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
    incubation, nursery, gates, before, seed, optimizer, of_seeds, more, make_recipe
):
    growth = {"incubation": incubation, "nursery": nursery, "gates": gates, "price": 0.0, "of_seeds": of_seeds, **more}
    assert_resumes(odd_recipe(make_recipe, optimizer=optimizer, **growth), before, 4, seed)


@pytest.mark.slow
def test_a_fresh_process_continues_bit_for_bit(make_recipe, tmp_path):
    """The process that is started here runs this very test, and finds the folder of the one that started it."""
    recipe = odd_recipe(make_recipe, incubation="branch", nursery=2)
    parent = os.environ.get("ESPER_TEST_PARENT_FOLDER")
    folder = Path(parent or tmp_path)
    text, tensors, reported = (folder / name for name in ("state.json", "state.safetensors", "reported.json"))
    if parent is None:
        pool = begun(recipe)
        for step in range(4):
            play_step(pool, step, *followed(BRANCHES, step))
        state = pool.state_dict()
        text.write_text(json.dumps(state.plain), encoding="utf-8")
        tensors.write_bytes(encode(dict(state.tensors)))
    else:
        pool = new_pool(recipe)
        pool.load_state_dict(State(json.loads(text.read_text()), decode(tensors.read_bytes())), in_round=True)
    told = [play_step(pool, step, *followed(BRANCHES, step)) for step in range(4, 9)]
    if parent is None:
        reported.write_text(json.dumps(told), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-k", "fresh_process", str(Path(__file__))]
        environment = {**os.environ, "ESPER_TEST_PARENT_FOLDER": str(folder)}
        subprocess.run(command, check=True, env=environment, capture_output=True)
        assert not reported.exists(), "the other process compared it, and removed it"
    else:
        assert told == json.loads(reported.read_text(encoding="utf-8"))
        reported.unlink()


# --- parts of a state, and states that are refused


class Failing(nn.Module):
    """Cannot be trained."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.mix = nn.Conv1d(site.channels, site.channels, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        raise ValueError("not today")


def unbuildable(site: Site) -> nn.Module:
    raise ValueError("never")


def test_lost_seeds_that_were_not_reported_yet_are_restored(make_recipe):
    spec = BlueprintSpec("sequence", "c*c + c", starts_as_identity=True)
    varieties = (Variety("test/failing", spec, Failing), Variety("test/unbuildable", spec, unbuildable))
    recipe = replace(make_recipe(), varieties={"early": varieties})
    environment = begun(recipe).environments[0]
    environment.network.apply(germinate("early", "failing"), 0)
    environment.train()
    environment.garden.slots["early"].embargo, environment.garden.slots["early"].state = 0, SlotState.FREE
    environment.network.apply(germinate("early", "unbuildable"), 1)
    other = Environment(recipe, arm="grown", index=0)
    other.load_state_dict(through_files(environment.state_dict()))
    lost = environment.network.lost.take()
    assert [seed.ending is None for seed in lost] == [False, True]
    assert other.network.lost.take() == lost


def test_faults_of_blueprints_are_restored():
    book, other = FaultBook(limit=2), FaultBook(limit=2)
    book.record("test/odd")
    other.record("test/plain")
    other.load_state_dict(through_files(book.state_dict()))
    assert (other.record("test/plain"), other.record("test/odd")) == (False, True)
    assert not book.is_withdrawn("test/odd")


@pytest.fixture
def written(make_recipe: Make) -> tuple[Recipe, State]:
    """A recipe, and the state of an environment in which a seed incubates."""
    recipe = odd_recipe(make_recipe)
    environment = begun(recipe).environments[0]
    environment.network.apply(germinate("late", "odd"), 0)
    environment.train()
    return recipe, through_files(environment.state_dict())


def without(state: State, name: str) -> State:
    """The state without a tensor, or without a part of its plain data."""
    plain, tensors = ({key: value for key, value in of.items() if key != name} for of in (state.plain, state.tensors))
    return State(plain, tensors)


def with_garden(state: State, **plain: Any) -> State:
    return State({**state.plain, "garden": {**state.plain["garden"], **plain}}, state.tensors)


HEAD = "garden/numbers/parameters.head.weight"
DAMAGED: list[tuple[Callable[[State], State], str]] = [
    (lambda state: without(state, HEAD), r"E334 .*\n.*parameters.head.weight is not a tensor"),
    (
        lambda state: State(state.plain, {**state.tensors, HEAD: torch.zeros(2, 2)}),
        r"E334 .*\n.*is \(2, 2\) float32, and was \(3,",
    ),
    (lambda state: without(state, "garden/keeper/0/memory.0.step"), r"E334 .*\n.*memory.0.step is not a tensor"),
    (
        lambda state: without(state, "governor/shelf/1/copies.head.bias"),
        r"E334 .*\n.*copies.head.bias is not a tensor",
    ),
    (lambda state: without(state, "order"), r"E334 .*\n.*cannot be read: KeyError: 'order'"),
    (lambda state: with_garden(state, incubating=[5]), r"E334 .*\n.*\[5\] incubated"),
    (lambda state: with_garden(state, grown={"model": 5}), "E330 the state is no growth journal"),
    (
        lambda state: State({**state.plain, "seed": "seven and a half"}, state.tensors),
        r"E334 .*\n.*cannot be read: TypeError: 'str' object",
    ),
]


def test_a_damaged_state_is_refused_and_a_sound_one_can_be_loaded_after_it(written):
    recipe, state = written
    environment = begun(recipe, seed=8).environments[0]
    for damage, message in DAMAGED:
        with pytest.raises(GrowthError, match=message):
            environment.load_state_dict(damage(state))
    environment.load_state_dict(state)
    assert differences(environment.state_dict(), state) == []


class Wider(OddHost):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(48, 5)


NEWER = Variety("test/odd", replace(ODD.spec, version=2), OddBlock)
OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"build_host": Wider}, r"E334 .*\n.*head.bias is \(3,\) float32, and here \(5,\) float32"),
    (
        {"slots": {"early": SlotPlace("drop"), "late": SlotPlace("stem")}},
        r"E334 the state does not fit this OddHost\n.*other slots",
    ),
    ({"varieties": {"late": (NEWER,)}}, 'E333 "test/odd" grew in version 1, and version 2 is installed'),
    ({"varieties": {"late": (PLAIN,)}}, 'E303 "test/odd" grew where the state was taken, and cannot grow here'),
]


def test_a_state_of_another_recipe_is_refused(written):
    recipe, state = written
    for change, message in OTHERS:
        environment = Environment(replace(recipe, **change), arm="grown", index=0)
        with pytest.raises(GrowthError, match=message):
            environment.load_state_dict(state)
