"""Incubation: until a seed blends, the host is bitwise its twin, and the seed learns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from esper_core.config import GrowthConfig
from esper_core.growth import Transition, Variety, incubation
from esper_core.growth.seeds import Presence
from esper_core.leyline import WAIT, Action, BlueprintSpec, Op, Signals, Site, SlotPlace, Split, Stage
from esper_core.trainer.environment import Environment, Recipe
from esper_core.trainer.pool import Pool

Make = Callable[..., Recipe]
Play = Callable[..., list[Any]]
GERMINATE = Action(Op.GERMINATE, "early", "test/local-conv", speed=2)
ADVANCE, PRUNE, FOSSILISE = (Action(op, "early") for op in (Op.ADVANCE, Op.PRUNE, Op.FOSSILISE))
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {},
    "sgd": {"kind": "sgd", "momentum": 0.9},
    "clipped": {"clip_norm": 0.1},
    "foreach": {"implementation": "foreach"},
}


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def host_state(environment: Environment) -> dict[str, torch.Tensor]:
    """Everything that determines the host's future: parameters, buffers, optimizer state, random numbers."""
    state = {key: value for key, value in environment.model.state_dict().items() if not key.startswith("_esper.")}
    for index, parameter in enumerate(environment.keeper.host.parameters):
        for key, value in environment.keeper.host.optimizer.state[parameter].items():
            if isinstance(value, torch.Tensor):
                state[f"optimizer.{index}.{key}"] = value
    state["random"] = environment.network.training_stream.state_dict()[0]
    return state


def differing(pool: Pool) -> list[str]:
    """What differs between the host of the first environment and that of its twin."""
    a, b = map(host_state, pool.environments[:2])
    assert a.keys() == b.keys()
    return [key for key in a if not torch.equal(a[key], b[key])]


def begun(recipe: Recipe, way: str = "shadow", **growth: Any) -> Pool:
    settings = GrowthConfig.model_validate({"incubation": way, "embargo": 0, **growth})
    pool = Pool(replace(recipe, growth=settings), ["grown", "twin"], 1)
    pool.reset(0, 3)
    return pool


@pytest.fixture
def live(play: Play) -> Callable[..., list[tuple[bool, Any]]]:
    """``live(pool, plan, steps)``: of each step whether the host differs from its twin, and the signals of its seed."""

    def live(pool: Pool, plan: dict[int, Action], steps: int) -> list[tuple[bool, Any]]:
        def look(signals: list[Signals]) -> tuple[bool, Any]:
            grown = pool.environments[0]
            assert grown.keeper.misowned(grown.model) == []
            return bool(differing(pool)), signals[0].slots[0].living

        return play(pool, range(steps), plan, look)

    return live


def losses(told: list[tuple[bool, Any]]) -> list[float]:
    """The incubation losses of a seed, in order."""
    return [seed.incubation_loss for _, seed in told if seed is not None and seed.incubation_loss is not None]


class Replacing(nn.Module):
    """A host that replaces its buffer by another tensor, rather than filling it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, 4, 1), nn.ReLU())
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(48, 3)
        self.register_buffer("average", torch.zeros(4, 12))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(self.stem(inputs))
        if self.training:
            self.average = 0.9 * self.average + 0.1 * hidden.detach().mean(0)
        return self.head((hidden - self.average).flatten(1))


@pytest.fixture
def hosts(noisy_host: type[nn.Module]) -> dict[str, type[nn.Module]]:
    return {"noisy": noisy_host, "replacing": Replacing}


@pytest.mark.parametrize(
    ("host", "optimizer"),
    [("noisy", "clipped"), ("replacing", "sgd"), slow("noisy", "sgd"), slow("replacing", "adam")],
)
def test_in_shadow_the_host_is_bitwise_its_twin_until_the_seed_blends_and_the_seed_learns(
    host, optimizer, make_recipe, hosts, play
):
    recipe = make_recipe(host=hosts[host], optimizer=OPTIMIZERS[optimizer], batches=8)
    pool, default = begun(recipe), torch.get_rng_state()

    def look(signals: list[Signals]) -> tuple[bool, bool, Any, Any]:
        seed = signals[0].slots[0].living
        training = seed is not None and seed.stage is Stage.TRAINING
        parameters = pool.environments[0].keeper.seeds[0].parameters if training else ()
        weights = [parameter.detach().flatten().clone() for parameter in parameters]
        unlike = signals[0].validation_loss != signals[1].validation_loss
        return (
            bool(differing(pool)),
            unlike,
            seed.incubation_loss if training else None,
            torch.cat(weights or [torch.ones(1)]),
        )

    told = play(pool, range(9), {1: GERMINATE, 6: ADVANCE}, look)
    assert [one[0] for one in told] == [one[1] for one in told] == [False] * 7 + [True] * 2
    assert torch.equal(torch.get_rng_state(), default)
    learnt = [(loss, weights) for _, _, loss, weights in told if loss is not None]
    assert len(learnt) == 5
    assert learnt[-1][0] < learnt[0][0]
    assert all(not torch.equal(a, b) for (_, a), (_, b) in pairwise(learnt))


def test_a_shadow_that_does_not_restore_the_buffers_is_detected(make_recipe, monkeypatch, play):
    """The comparison with the twin can fail."""

    class Careless(incubation.KeptBuffers):
        def put_back(self) -> None:
            pass

    monkeypatch.setattr(incubation, "KeptBuffers", Careless)
    pool = begun(make_recipe())
    play(pool, range(2), {0: GERMINATE})
    assert differing(pool)


def test_run_04_the_loss_of_an_incubating_seed_falls(make_recipe):
    """A gradient that did not depend on the seed's output once let the loss at full blend rise without bound."""
    environment = Environment(make_recipe(batches=40), arm="grown", index=0)
    environment.reset(0, 1)
    environment.train()
    environment.network.apply(GERMINATE, 0)
    curve = []
    for _ in range(6):
        environment.train()
        curve.append(float(environment.network.measurements.incubation_losses[0]))
        assert all(parameter.grad is None for parameter in environment.keeper.seeds[0].parameters)
    assert curve[-1] < 0.8 * curve[0]
    assert max(curve[1:]) < 1.05 * curve[0]


@pytest.mark.slow
@pytest.mark.install  # so that every change has to pass it all the same
@pytest.mark.parametrize("way", ["branch", "shadow"])
def test_run_04_an_incubating_seed_lowers_the_loss_that_it_would_cause(way, make_recipe, play):
    """The loss with the seed at full strength falls while it incubates: its gradient depends on its output."""
    recipe = make_recipe(batches=30, optimizer={"learning_rate": 0.03})

    def validation_losses(steps: int) -> tuple[float, float]:
        """With the seed at full strength, and without it."""
        pool = begun(recipe, way)
        play(pool, range(steps), {0: GERMINATE})
        grown = pool.environments[0]
        with grown.garden.trial(0):
            tried = float(grown.evaluate("validation")[0])
        return tried, float(grown.evaluate("validation")[0])

    (born, _), (tried, without) = validation_losses(1), validation_losses(8)
    assert tried < born
    assert tried < without + 0.05


def test_run_08_a_trajectory_does_not_depend_on_the_other_arms_of_the_pool(make_recipe, play):
    def validation_losses(environments: int, arms: list[str]) -> list[float]:
        pool = Pool(make_recipe(), arms, environments)
        return play(pool, 3, {0: GERMINATE}, lambda signals: signals[pool.of_arm("grown")[0]].validation_loss)

    alone = validation_losses(1, ["grown"])
    assert validation_losses(2, ["other", "twin", "grown"]) == alone


def test_environments_of_different_seeds_differ(make_recipe, play):
    ((first, second),) = play(Pool(make_recipe(), ["twin"], 2), 1)
    assert first.validation_loss != second.validation_loss


class Normed(nn.Module):
    """A block with buffers."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(site.channels)
        self.last = nn.Conv1d(site.channels, site.channels, 1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.last(self.norm(hidden))


def test_an_incubating_seed_runs_once_a_batch_beside_a_younger_acting_one(make_recipe):
    normed = Variety("test/local-conv", BlueprintSpec("sequence", "0", starts_as_identity=True), Normed)
    recipe = replace(
        make_recipe(variety=normed, batches=2),
        slots={"early": SlotPlace("stem"), "late": SlotPlace("drop")},
        varieties={"early": (normed,), "late": (normed,)},
    )
    environment = Environment(recipe, arm="grown", index=0)
    environment.reset(0, 1)
    plan = [GERMINATE, replace(GERMINATE, slot="late"), WAIT, replace(ADVANCE, slot="late"), WAIT, WAIT]
    for step, action in enumerate(plan):
        environment.train()
        environment.network.apply(action, step)
    (late,) = environment.garden.slots["late"].seeds
    assert late.block.norm.num_batches_tracked.item() == 4 * 2  # once a batch since its birth, in shadow or blended


def test_seeds_of_a_stack_act_in_the_order_in_which_they_grew(make_recipe):
    class Affine(nn.Module):
        def __init__(self, site: Site) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(()))
            self.summand = nn.Parameter(torch.zeros(()))

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden * self.factor + self.summand

    affine = Variety("test/local-conv", BlueprintSpec("sequence", "2", starts_as_identity=True), Affine)
    environment = Environment(make_recipe(variety=affine, place=SlotPlace("stem", stack=2)), arm="grown", index=0)
    environment.reset(0, 1)
    for step, action in enumerate([replace(GERMINATE, speed=1), ADVANCE, Action(Op.FOSSILISE, "early")] * 2):
        environment.train()
        environment.network.apply(action, step)
        environment.train()
    slot = environment.garden.slots["early"]
    assert len(slot.fossils) == 2
    with torch.no_grad():
        slot.fossils[0].block.factor.fill_(2.0)
        slot.fossils[0].block.summand.fill_(0.0)
        slot.fossils[1].block.factor.fill_(1.0)
        slot.fossils[1].block.summand.fill_(3.0)
    assert slot(environment.model, (), torch.ones(1, 4, 12)).unique().item() == 5.0  # 2 · 1 + 3, not 2 · (1 + 3)


def test_run_10_the_test_split_is_read_once_at_the_end(make_recipe, play):
    recipe = make_recipe()
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


# --- branches


@pytest.mark.parametrize(
    ("host", "optimizer"),
    [("noisy", "foreach"), ("replacing", "clipped"), slow("noisy", "sgd"), slow("replacing", "adam")],
)
def test_with_a_branch_the_host_is_its_twin_until_the_seed_is_kept_and_the_seed_learns(
    host, optimizer, make_recipe, hosts, live
):
    pool = begun(make_recipe(host=hosts[host], optimizer=OPTIMIZERS[optimizer], batches=8), "branch")
    default = torch.get_rng_state()
    told = live(pool, {1: GERMINATE, 5: ADVANCE, 7: FOSSILISE}, 10)
    assert [differs for differs, _ in told] == [False] * 8 + [True] * 2
    assert len(losses(told)) == 6  # on the branch it trains until it is kept
    assert losses(told)[-1] < losses(told)[0]
    assert [seed.stage for _, seed in told[5:8]] == [Stage.TRAINING, Stage.HOLDING, Stage.HOLDING]
    assert torch.equal(torch.get_rng_state(), default)


def test_when_a_seed_is_kept_its_branch_becomes_the_host(make_recipe, live):
    pool = begun(make_recipe(batches=4), "branch")
    live(pool, {0: GERMINATE, 3: ADVANCE}, 6)
    grown = pool.environments[0]

    def numbers() -> dict[str, torch.Tensor]:
        """Of the host and of its optimizer."""
        skipped = ("random", "esper_core")
        return {key: value.clone() for key, value in host_state(grown).items() if not any(s in key for s in skipped)}

    with grown.garden.trial(0):
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
def test_after_a_branch_is_pruned_the_host_is_bitwise_its_twin(host, optimizer, when, make_recipe, hosts, live):
    pool = begun(make_recipe(host=hosts[host], optimizer=OPTIMIZERS[optimizer]), "branch")
    advance = {3: ADVANCE} if when > 3 else {}
    told = live(pool, {0: GERMINATE, **advance, when: PRUNE}, 10)
    assert not any(differs for differs, _ in told)
    grown, twin = pool.environments
    assert torch.equal(grown.evaluate("validation"), twin.evaluate("validation"))
    assert list(grown.model.state_dict()) == list(twin.model.state_dict())
    assert grown.garden.incubating == ()


def test_only_one_branch_is_open_at_a_time(make_recipe):
    recipe = make_recipe()
    recipe = replace(
        recipe,
        slots={"early": SlotPlace("stem", "sequence"), "again": SlotPlace("drop", "sequence")},
        varieties={**recipe.varieties, "again": recipe.varieties["early"]},
    )
    grown = begun(recipe, "branch").environments[0]
    assert grown.mask().blueprints["again"]
    grown.network.apply(GERMINATE, 0)
    assert grown.mask().blueprints["again"] == ()
    grown.network.apply(PRUNE, 1)
    assert grown.mask().blueprints["again"]


@pytest.mark.parametrize("way", ["shadow", "branch"])
def test_a_kept_seed_acts_at_full_strength_and_incubates_no_more(way, make_recipe, live):
    pool = begun(make_recipe(batches=1), way)
    live(pool, {0: GERMINATE, 2: ADVANCE, 6: FOSSILISE}, 8)
    (seed,) = pool.environments[0].garden.slots["early"].fossils
    assert (seed.alpha.value, seed.presence, seed.kept) == (1.0, Presence.ACTING, 6)
    assert pool.environments[0].garden.incubating == ()


def test_a_fault_while_a_branch_is_kept_leaves_it_open(make_recipe, monkeypatch, live):
    pool = begun(make_recipe(batches=1), "branch")
    live(pool, {0: GERMINATE, 2: ADVANCE}, 5)
    grown = pool.environments[0]
    outside = grown.evaluate("validation")

    def fails(*arguments: object) -> None:
        raise MemoryError("in the middle")

    with monkeypatch.context() as patch:
        patch.setattr(Transition, "of", fails)
        with pytest.raises(MemoryError):
            grown.network.apply(FOSSILISE, 5)
    assert torch.equal(grown.evaluate("validation"), outside)
    assert not differing(pool)
    assert grown.garden.incubating == (0,)
    grown.network.apply(FOSSILISE, 5)
    assert differing(pool)


# --- scaled losses


def scaled(pool: Pool, scale: float) -> Pool:
    """The pool with a scaler of the loss in each environment, as half precision takes one."""
    for environment in pool.environments:
        environment.keeper.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=5)
    return pool


@pytest.mark.parametrize(
    ("way", "scale"),
    [
        ("shadow", 16.0),
        ("branch", 2.0**126),
        slow("shadow", 2.0**126),
        slow("branch", 16.0),
    ],
)
def test_an_incubating_seed_does_not_change_the_scaler_of_the_host(way, scale, make_recipe, live):
    """With a factor of 2^126, the first steps overflow and are skipped."""
    pool = scaled(begun(make_recipe(batches=8), way), scale)
    told = live(pool, {1: GERMINATE, 4: PRUNE}, 6)
    assert not any(differs for differs, _ in told)
    grown, twin = pool.environments
    assert grown.keeper.scaler.state_dict() == twin.keeper.scaler.state_dict()
    assert losses(told)[-1] < losses(told)[0]


def test_a_kept_branch_brings_its_scaler_along(make_recipe, live):
    pool = scaled(begun(make_recipe(), "branch"), 16.0)
    grown, _ = pool.environments
    live(pool, {1: GERMINATE, 3: ADVANCE}, 5)
    (branch,) = grown.garden._incubations.values()
    own = branch._scaler
    assert grown.keeper.scaler is not own
    grown.network.apply(FOSSILISE, 5)
    assert grown.keeper.scaler is own


def test_a_scale_that_is_a_power_of_two_changes_no_number_with_clipped_gradients(make_recipe, live):
    """Gradients are brought back before they are clipped and collected: else a scaled loss would be clipped more."""
    plan = {0: GERMINATE, 2: ADVANCE, 5: FOSSILISE}
    recipe = make_recipe(batches=4, optimizer={"clip_norm": 0.05})
    plain, with_scale = begun(recipe), scaled(begun(recipe), 8.0)
    told = [live(plain, plan, 7), live(with_scale, plan, 7)]
    for one, other in zip(plain.environments, with_scale.environments, strict=True):
        one_state, other_state = host_state(one), host_state(other)
        assert all(torch.equal(value, other_state[key]) for key, value in one_state.items())
    assert [seed and seed.gradients for _, seed in told[0]] == [seed and seed.gradients for _, seed in told[1]]
