"""Four ways to incubate: what each leaves of the host, and what the seed learns meanwhile."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from esper_core.config import GrowthConfig
from esper_core.growth import Transition
from esper_core.growth.seeds import Presence
from esper_core.leyline import WAIT, Action, Op, SeedSignals, SlotPlace, Stage
from esper_core.trainer.environment import Recipe
from esper_core.trainer.pool import Pool

_spec = importlib.util.spec_from_file_location("oracle", Path(__file__).with_name("test_oracle.py"))
assert _spec is not None
assert _spec.loader is not None
oracle: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(oracle)

Make = Callable[..., Recipe]
NOBODY = SeedSignals("nobody", Stage.PRUNED, 0.0, 0)
GERMINATE = Action(Op.GERMINATE, "early", "test/local-conv", speed=2)
ADVANCE, PRUNE, FOSSILISE = (Action(op, "early") for op in (Op.ADVANCE, Op.PRUNE, Op.FOSSILISE))
OPTIMIZERS = {
    "adam": {},
    "sgd": {"kind": "sgd", "momentum": 0.9},
    "clipped": {"clip_norm": 0.1},
    "foreach": {"implementation": "foreach"},
}


def begin(recipe: Recipe, way: str, **growth: Any) -> Pool:
    from dataclasses import replace

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
        told.append((bool(oracle.differing(grown, twin)), signals[0].slots[0].living or NOBODY))
        assert grown.keeper.misowned(grown.model) == []
        pool.apply([plan.get(step, WAIT), WAIT], step)
    return told


def memories(environment: Any) -> dict[str, torch.Tensor]:
    """What the host's optimizer remembers, by name."""
    return {key: value for key, value in oracle.host_state(environment).items() if key.startswith("optimizer.")}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("host", ["noisy", "replacing"])
def test_on_a_branch_the_host_is_its_twin_until_the_seed_is_kept_and_the_seed_has_learnt(
    host: str, optimizer: str, make_recipe: Make, noisy_host: Callable[[], nn.Module]
) -> None:
    build = {"noisy": noisy_host, "replacing": oracle.Replacing}[host]
    pool = begin(make_recipe(host=build, optimizer=OPTIMIZERS[optimizer], batches=8), "branch")
    default = torch.get_rng_state()
    told = live(pool, {1: GERMINATE, 5: ADVANCE, 7: FOSSILISE}, 10)
    assert [differs for differs, _ in told] == [False] * 8 + [True] * 2
    losses = [slot.incubation_loss for _, slot in told if slot.incubation_loss is not None]
    assert len(losses) == 6  # on the branch it trains until it is kept
    assert losses[-1] < losses[0]
    assert [slot.stage for _, slot in told[5:8]] == [Stage.TRAINING, Stage.HOLDING, Stage.HOLDING]
    assert torch.equal(torch.get_rng_state(), default)


def test_when_the_seed_is_kept_the_branch_is_the_host(make_recipe: Make) -> None:
    pool = begin(make_recipe(batches=4), "branch")
    live(pool, {0: GERMINATE, 3: ADVANCE}, 6)
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
    build = {"noisy": noisy_host, "replacing": oracle.Replacing}[host]
    pool = begin(make_recipe(host=build, optimizer=OPTIMIZERS[optimizer]), "branch")
    advance = {3: ADVANCE} if when > 3 else {}
    told = live(pool, {0: GERMINATE, **advance, when: PRUNE}, 10)
    assert not any(differs for differs, _ in told)
    grown, twin = pool.environments
    assert torch.equal(grown.evaluate("validation"), twin.evaluate("validation"))
    assert list(grown.model.state_dict()) == list(twin.model.state_dict())
    assert grown.garden.incubating == ()


def test_there_is_one_branch_at_a_time(make_recipe: Make, noisy_host: Callable[[], nn.Module]) -> None:
    from dataclasses import replace

    recipe = make_recipe(host=noisy_host)
    recipe = replace(
        recipe,
        slots={"early": SlotPlace("stem", "sequence"), "again": SlotPlace("drop", "sequence")},
        varieties={**recipe.varieties, "again": recipe.varieties["early"]},
    )
    pool = begin(recipe, "branch")
    grown = pool.environments[0]
    assert grown.mask().blueprints["again"]
    grown.network.apply(GERMINATE, 0)
    assert grown.mask().blueprints["again"] == ()
    grown.network.apply(PRUNE, 1)
    assert grown.mask().blueprints["again"]


@pytest.mark.parametrize("way", ["shadow", "branch"])
def test_a_whole_life_in_each_way(way: str, make_recipe: Make) -> None:
    pool = begin(make_recipe(), way)
    live(pool, {0: GERMINATE, 2: ADVANCE, 6: FOSSILISE}, 8)
    (seed,) = pool.environments[0].garden.slots["early"].fossils
    assert (seed.alpha.value, seed.presence, seed.kept) == (1.0, Presence.ACTING, 6)
    assert pool.environments[0].garden.incubating == ()


def test_a_fault_after_the_commit_of_a_branch_leaves_it_open(
    make_recipe: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = begin(make_recipe(), "branch")
    live(pool, {0: GERMINATE, 2: ADVANCE}, 5)
    grown, twin = pool.environments
    outside = grown.evaluate("validation")

    def fails(*arguments: object) -> None:
        raise MemoryError("in the middle")

    monkeypatch.setattr(Transition, "of", fails)
    with pytest.raises(MemoryError):
        grown.network.apply(FOSSILISE, 5)
    monkeypatch.undo()
    assert torch.equal(grown.evaluate("validation"), outside)
    assert not oracle.differing(grown, twin)
    assert grown.garden.incubating == (0,)
    grown.network.apply(FOSSILISE, 5)
    assert bool(oracle.differing(grown, twin))


@pytest.mark.slow
@pytest.mark.install  # so that every change has to pass it all the same
def test_run_04_an_incubating_seed_lowers_the_loss_that_it_would_cause(make_recipe: Make) -> None:
    """The loss with the seed at full strength falls while it incubates: its gradient depends on its output."""
    recipe = make_recipe(batches=30, optimizer={"learning_rate": 0.03})

    def losses(way: str, steps: int) -> tuple[float, float]:
        """With the seed at full strength, and without it."""
        pool = begin(recipe, way)
        live(pool, {0: GERMINATE}, steps)
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
    told = live(pool, {1: GERMINATE, 4: PRUNE}, 7)
    assert [differs for differs, _ in told] == [False] * 7
    assert grown.keeper.scaler.state_dict() == twin.keeper.scaler.state_dict()
    losses = [seed.incubation_loss for _, seed in told if seed.incubation_loss is not None]
    assert losses[-1] < losses[0]


def test_with_a_branch_its_scaler_is_kept(make_recipe: Make) -> None:
    pool = scaled(begin(make_recipe(batches=8), "branch"), 16.0)
    grown, _ = pool.environments
    live(pool, {1: GERMINATE, 3: ADVANCE}, 5)
    (branch,) = grown.garden._incubations.values()
    own = branch._scaler
    assert grown.keeper.scaler is not own
    grown.network.apply(FOSSILISE, 5)
    assert grown.keeper.scaler is own


@pytest.mark.parametrize("clip", [{}, {"clip_norm": 0.05}], ids=["unclipped", "clipped"])
def test_a_scale_that_is_a_power_of_two_changes_no_number(clip: dict[str, Any], make_recipe: Make) -> None:
    """Gradients are brought back before they are clipped and collected: else a scaled loss would be clipped more."""
    plan = {0: GERMINATE, 2: ADVANCE, 5: FOSSILISE}
    plain, with_scale = (begin(make_recipe(batches=4, optimizer=clip), "shadow") for _ in range(2))
    told = [live(plain, plan, 7), live(scaled(with_scale, 8.0), plan, 7)]
    for one, other in zip(plain.environments, with_scale.environments, strict=True):
        assert oracle.differing(one, other) == []
    assert [seed.gradients for _, seed in told[0]] == [seed.gradients for _, seed in told[1]]
