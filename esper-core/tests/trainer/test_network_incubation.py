"""Incubation: until a seed blends, its network's host is bitwise the twin, and the seed learns all the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from esper_core.config import GrowthConfig
from esper_core.growth import Transition, Variety, incubation
from esper_core.growth.seeds import Presence
from esper_core.leyline import WAIT, Action, BlueprintSpec, Op, SeedSignals, Site, SlotPlace, Split, Stage
from esper_core.trainer.environment import Environment, Recipe
from esper_core.trainer.pool import Pool

Make = Callable[..., Recipe]
GERMINATE, ADVANCE = Action(Op.GERMINATE, "early", "test/local-conv"), Action(Op.ADVANCE, "early")
NOBODY = SeedSignals("nobody", Stage.PRUNED, 0.0, 0)
GERMINATE_QUICKLY = Action(Op.GERMINATE, "early", "test/local-conv", speed=2)
PRUNE, FOSSILISE = Action(Op.PRUNE, "early"), Action(Op.FOSSILISE, "early")
OPTIMIZERS = {
    "adam": {},
    "sgd": {"kind": "sgd", "momentum": 0.9},
    "clipped": {"clip_norm": 0.1},
    "foreach": {"implementation": "foreach"},
}


def host_state(environment: Environment) -> dict[str, torch.Tensor]:
    """Everything that makes the host's future: parameters, buffers, optimizer state, random numbers."""
    state = {key: value for key, value in environment.model.state_dict().items() if not key.startswith("_esper.")}
    for index, parameter in enumerate(environment.keeper.host.parameters):
        for key, value in environment.keeper.host.optimizer.state[parameter].items():
            if isinstance(value, torch.Tensor):
                state[f"optimizer.{index}.{key}"] = value
    state["random"] = environment.network.training_stream.state_dict()[0]
    return state


def differing(left: Environment, right: Environment) -> list[str]:
    a, b = host_state(left), host_state(right)
    assert a.keys() == b.keys()
    return [key for key in a if not torch.equal(a[key], b[key])]


class Replacing(nn.Module):
    """A host that puts another tensor in the place of its buffer, rather than filling it."""

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


@pytest.mark.parametrize("host", ["noisy", "replacing"])
@pytest.mark.parametrize(
    "optimizer", [{}, {"kind": "sgd", "momentum": 0.9}, {"clip_norm": 0.1}], ids=["adam", "sgd", "clipped"]
)
def test_the_host_is_bitwise_its_twin_until_the_first_blending_and_the_seed_has_learnt(
    optimizer: dict[str, object], host: str, make_recipe: Make, noisy_host: Callable[[], nn.Module]
) -> None:
    build = {"noisy": noisy_host, "replacing": Replacing}[host]
    pool = Pool(make_recipe(host=build, optimizer=optimizer, batches=8), ["grown", "twin"], 2)
    pool.reset(0, 3)
    default = torch.get_rng_state()
    losses: list[list[float]] = [[], []]
    weights: list[list[torch.Tensor]] = [[], []]
    plan = {1: GERMINATE, 6: ADVANCE}
    for step in range(9):
        pool.train(step)
        pool.evaluate(step)
        signals = pool.synchronise(step)
        for index in range(2):
            grown, twin = pool.environments[2 * index], pool.environments[2 * index + 1]
            seed = signals[2 * index].slots[0].living
            blended = step > 6
            assert bool(differing(grown, twin)) is blended, differing(grown, twin)
            assert (signals[2 * index].validation_loss == signals[2 * index + 1].validation_loss) is not blended
            if seed is not None and seed.stage is Stage.TRAINING:
                assert seed.incubation_loss is not None
                losses[index].append(seed.incubation_loss)
                weights[index].append(torch.cat([p.detach().flatten() for p in grown.keeper.seeds[0].parameters]))
        pool.apply([plan.get(step, WAIT) if e.arm == "grown" else WAIT for e in pool.environments], step)
    assert torch.equal(torch.get_rng_state(), default)
    for index in range(2):
        assert len(losses[index]) == 5
        assert losses[index][-1] < losses[index][0]
        assert all(not torch.equal(a, b) for a, b in zip(weights[index], weights[index][1:], strict=False))


def test_the_oracle_sees_a_host_that_was_touched(make_recipe: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """An incubation that forgets the host's buffers is found out: so the oracle can fail."""

    class Careless(incubation.KeptBuffers):
        def put_back(self) -> None:
            pass

    monkeypatch.setattr(incubation, "KeptBuffers", Careless)
    pool = Pool(make_recipe(), ["grown", "twin"], 1)
    pool.reset(0, 3)
    pool.train(0)
    pool.apply([GERMINATE, WAIT], 0)
    pool.train(1)
    assert differing(*pool.environments)


def test_run_04_the_seed_is_told_what_it_does(make_recipe: Make) -> None:
    """A gradient that did not depend on what the seed puts out once let the loss at full blend rise without bound."""
    environment = Environment(make_recipe(batches=40), arm="grown", index=0)
    environment.reset(0, 1)
    environment.train()
    environment.network.apply(GERMINATE, 0)
    curve = []
    for _ in range(12):
        environment.train()
        curve.append(float(environment.network.measurements.incubation_losses[0]))
    assert curve[-1] < 0.8 * curve[0]
    assert max(curve[1:]) < 1.05 * curve[0]


def test_run_08_a_trajectory_does_not_depend_on_who_else_is_in_the_pool(make_recipe: Make) -> None:
    def metrics(environments: int, arms: list[str]) -> list[float]:
        pool = Pool(make_recipe(), arms, environments)
        pool.reset(0, 3)
        found = []
        for step in range(4):
            pool.train(step)
            pool.evaluate(step)
            found.append(pool.synchronise(step)[pool.of_arm("grown")[0]].validation_loss)
            pool.apply([GERMINATE if step == 0 and e.arm == "grown" else WAIT for e in pool.environments], step)
        return found

    alone = metrics(1, ["grown"])
    assert metrics(3, ["grown", "twin"]) == alone
    assert metrics(2, ["other", "twin", "grown"]) == alone


def test_another_seed_is_another_trajectory(make_recipe: Make) -> None:
    pool = Pool(make_recipe(), ["twin"], 2)
    pool.reset(0, 0)
    pool.train(0)
    pool.evaluate(0)
    first, second = pool.synchronise(0)
    assert first.validation_loss != second.validation_loss


class Normed(nn.Module):
    """A block with buffers of its own."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(site.channels)
        self.last = nn.Conv1d(site.channels, site.channels, 1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.last(self.norm(hidden))


def test_a_seed_that_incubates_leaves_a_younger_one_alone_that_is_blended(make_recipe: Make) -> None:
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


def test_the_seeds_of_a_stack_act_in_the_order_in_which_they_grew(make_recipe: Make) -> None:
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


def test_no_gradient_of_a_seed_stays_behind_when_it_incubates(make_recipe: Make) -> None:
    environment = Environment(make_recipe(), arm="grown", index=0)
    environment.reset(0, 1)
    environment.train()
    environment.network.apply(GERMINATE, 0)
    environment.train()
    assert all(parameter.grad is None for parameter in environment.keeper.seeds[0].parameters)


def test_run_10_the_figure_of_the_end_is_read_from_the_test_split_and_once(make_recipe: Make) -> None:
    """Three splits: the test split is read once, at the end, and for nothing but the report."""
    recipe = make_recipe()
    read: list[str] = []

    class Watched(dict):
        def __getitem__(self, name: str) -> object:
            read.append(name)
            return super().__getitem__(name)

    test = recipe.data["test"]
    shifted = Split(test.inputs, (test.targets + 1) % 3)
    pool = Pool(replace(recipe, data=Watched({**recipe.data, "test": shifted})), ["twin"], 1)
    pool.reset(0, 0)
    for step in range(3):
        pool.train(step)
        pool.evaluate(step)
        pool.synchronise(step)
    assert "test" not in read
    _, (ending,) = pool.conclude(2)
    assert read.count("test") == 1
    model = pool.environments[0].model.eval()
    right = (model(shifted.inputs).argmax(1) == shifted.targets).float().mean().item()
    assert ending.test_metric == pytest.approx(right)
    assert ending.test_metric != ending.signals.validation_metric


def begin(recipe: Recipe, way: str, **growth: Any) -> Pool:
    settings = GrowthConfig.model_validate({"incubation": way, "embargo": 0, **growth})
    pool = Pool(replace(recipe, growth=settings), ["grown", "twin"], 1)
    pool.reset(0, 3)
    return pool


def live(pool: Pool, plan: dict[int, Action], steps: int) -> list[tuple[bool, Any]]:
    """For each step whether the host differs from its twin, and what is told of the seed in the slot."""
    told = []
    for step in range(steps):
        pool.train(step)
        pool.evaluate(step)
        signals = pool.synchronise(step)
        grown, twin = pool.environments
        told.append((bool(differing(grown, twin)), signals[0].slots[0].living or NOBODY))
        assert grown.keeper.misowned(grown.model) == []
        pool.apply([plan.get(step, WAIT), WAIT], step)
    return told


def memories(environment: Any) -> dict[str, torch.Tensor]:
    """What the host's optimizer remembers, by name."""
    return {key: value for key, value in host_state(environment).items() if key.startswith("optimizer.")}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("host", ["noisy", "replacing"])
def test_on_a_branch_the_host_is_its_twin_until_the_seed_is_kept_and_the_seed_has_learnt(
    host: str, optimizer: str, make_recipe: Make, noisy_host: Callable[[], nn.Module]
) -> None:
    build = {"noisy": noisy_host, "replacing": Replacing}[host]
    pool = begin(make_recipe(host=build, optimizer=OPTIMIZERS[optimizer], batches=8), "branch")
    default = torch.get_rng_state()
    told = live(pool, {1: GERMINATE_QUICKLY, 5: ADVANCE, 7: FOSSILISE}, 10)
    assert [differs for differs, _ in told] == [False] * 8 + [True] * 2
    losses = [slot.incubation_loss for _, slot in told if slot.incubation_loss is not None]
    assert len(losses) == 6  # on the branch it trains until it is kept
    assert losses[-1] < losses[0]
    assert [slot.stage for _, slot in told[5:8]] == [Stage.TRAINING, Stage.HOLDING, Stage.HOLDING]
    assert torch.equal(torch.get_rng_state(), default)


def test_when_the_seed_is_kept_the_branch_is_the_host(make_recipe: Make) -> None:
    pool = begin(make_recipe(batches=4), "branch")
    live(pool, {0: GERMINATE_QUICKLY, 3: ADVANCE}, 6)
    grown = pool.environments[0]
    with grown.garden.trial(0):
        before = {key: value.clone() for key, value in grown.model.state_dict().items()}
        memory = {key: value.clone() for key, value in memories(grown).items()}
        tried = grown.evaluate("validation")
    assert not torch.equal(grown.evaluate("validation"), tried)
    grown.network.apply(FOSSILISE, 6)
    assert torch.equal(grown.evaluate("validation"), tried)
    assert all(
        torch.equal(value, before[key]) for key, value in grown.model.state_dict().items() if "esper_core" not in key
    )
    assert memory
    assert all(torch.equal(memories(grown)[key], value) for key, value in memory.items())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("when", [2, 4, 6])
@pytest.mark.parametrize("host", ["noisy", "replacing"])
def test_a_pruned_branch_leaves_the_host_as_if_the_seed_had_never_been(
    host: str, when: int, optimizer: str, make_recipe: Make, noisy_host: Callable[[], nn.Module]
) -> None:
    build = {"noisy": noisy_host, "replacing": Replacing}[host]
    pool = begin(make_recipe(host=build, optimizer=OPTIMIZERS[optimizer]), "branch")
    advance = {3: ADVANCE} if when > 3 else {}
    told = live(pool, {0: GERMINATE_QUICKLY, **advance, when: PRUNE}, 10)
    assert not any(differs for differs, _ in told)
    grown, twin = pool.environments
    assert torch.equal(grown.evaluate("validation"), twin.evaluate("validation"))
    assert list(grown.model.state_dict()) == list(twin.model.state_dict())
    assert grown.garden.incubating == ()


def test_there_is_one_branch_at_a_time(make_recipe: Make, noisy_host: Callable[[], nn.Module]) -> None:
    recipe = make_recipe(host=noisy_host)
    recipe = replace(
        recipe,
        slots={"early": SlotPlace("stem", "sequence"), "again": SlotPlace("drop", "sequence")},
        varieties={**recipe.varieties, "again": recipe.varieties["early"]},
    )
    pool = begin(recipe, "branch")
    grown = pool.environments[0]
    assert grown.mask().blueprints["again"]
    grown.network.apply(GERMINATE_QUICKLY, 0)
    assert grown.mask().blueprints["again"] == ()
    grown.network.apply(PRUNE, 1)
    assert grown.mask().blueprints["again"]


@pytest.mark.parametrize("way", ["shadow", "branch"])
def test_a_whole_life_in_each_way(way: str, make_recipe: Make) -> None:
    pool = begin(make_recipe(), way)
    live(pool, {0: GERMINATE_QUICKLY, 2: ADVANCE, 6: FOSSILISE}, 8)
    (seed,) = pool.environments[0].garden.slots["early"].fossils
    assert (seed.alpha.value, seed.presence, seed.kept) == (1.0, Presence.ACTING, 6)
    assert pool.environments[0].garden.incubating == ()


def test_a_fault_after_the_commit_of_a_branch_leaves_it_open(
    make_recipe: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = begin(make_recipe(), "branch")
    live(pool, {0: GERMINATE_QUICKLY, 2: ADVANCE}, 5)
    grown, twin = pool.environments
    outside = grown.evaluate("validation")

    def fails(*arguments: object) -> None:
        raise MemoryError("in the middle")

    monkeypatch.setattr(Transition, "of", fails)
    with pytest.raises(MemoryError):
        grown.network.apply(FOSSILISE, 5)
    monkeypatch.undo()
    assert torch.equal(grown.evaluate("validation"), outside)
    assert not differing(grown, twin)
    assert grown.garden.incubating == (0,)
    grown.network.apply(FOSSILISE, 5)
    assert bool(differing(grown, twin))


@pytest.mark.slow
@pytest.mark.install  # so that every change has to pass it all the same
def test_run_04_an_incubating_seed_lowers_the_loss_that_it_would_cause(make_recipe: Make) -> None:
    """The loss with the seed at full strength falls while it incubates: its gradient depends on its output."""
    recipe = make_recipe(batches=30, optimizer={"learning_rate": 0.03})

    def losses(way: str, steps: int) -> tuple[float, float]:
        """With the seed at full strength, and without it."""
        pool = begin(recipe, way)
        live(pool, {0: GERMINATE_QUICKLY}, steps)
        grown = pool.environments[0]
        with grown.garden.trial(0):
            tried = float(grown.evaluate("validation")[0])
        return tried, float(grown.evaluate("validation")[0])

    for way in ("branch", "shadow"):
        (born, _), (tried, without) = losses(way, 1), losses(way, 8)
        assert tried < born
        assert tried < without + 0.05


def scaled(pool: Pool, scale: float) -> Pool:
    """The pool with a scaler of the loss in each environment, as half precision takes one."""
    for environment in pool.environments:
        environment.keeper.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=5)
    return pool


@pytest.mark.parametrize("scale", [16.0, 2.0**126], ids=["in order", "far too much at first"])
@pytest.mark.parametrize("way", ["shadow", "branch"])
def test_a_seed_leaves_the_scaler_of_the_hosts_loss_as_if_it_had_never_been(
    way: str, scale: float, make_recipe: Make
) -> None:
    """With a factor that overflows the first steps are left out; what the seed's do to its own is nobody else's."""
    pool = scaled(begin(make_recipe(batches=8), way), scale)
    grown, twin = pool.environments
    told = live(pool, {1: GERMINATE_QUICKLY, 4: PRUNE}, 7)
    assert [differs for differs, _ in told] == [False] * 7
    assert grown.keeper.scaler.state_dict() == twin.keeper.scaler.state_dict()
    losses = [seed.incubation_loss for _, seed in told if seed.incubation_loss is not None]
    assert losses[-1] < losses[0]


def test_with_a_branch_its_scaler_is_kept(make_recipe: Make) -> None:
    pool = scaled(begin(make_recipe(batches=8), "branch"), 16.0)
    grown, _ = pool.environments
    live(pool, {1: GERMINATE_QUICKLY, 3: ADVANCE}, 5)
    (branch,) = grown.garden._incubations.values()
    own = branch._scaler
    assert grown.keeper.scaler is not own
    grown.network.apply(FOSSILISE, 5)
    assert grown.keeper.scaler is own


@pytest.mark.parametrize("clip", [{}, {"clip_norm": 0.05}], ids=["unclipped", "clipped"])
def test_a_scale_that_is_a_power_of_two_changes_no_number(clip: dict[str, Any], make_recipe: Make) -> None:
    """Gradients are brought back before they are clipped and collected: else a scaled loss would be clipped more."""
    plan = {0: GERMINATE_QUICKLY, 2: ADVANCE, 5: FOSSILISE}
    plain, with_scale = (begin(make_recipe(batches=4, optimizer=clip), "shadow") for _ in range(2))
    told = [live(plain, plan, 7), live(scaled(with_scale, 8.0), plan, 7)]
    for one, other in zip(plain.environments, with_scale.environments, strict=True):
        assert differing(one, other) == []
    assert [seed.gradients for _, seed in told[0]] == [seed.gradients for _, seed in told[1]]
