"""Nurseries: several seeds incubate in one slot independently, and one of them advances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from core_worlds import ADVANCE, numbers, same

from esper_core import BlueprintSpec
from esper_core.growth import Gates, Variety
from esper_core.leyline import WAIT, Action, GrowthError, LifecycleError, Op, Stage
from esper_core.leyline.signals import Gain
from esper_core.trainer.environment import Environment, Recipe
from esper_core.trainer.pool import Pool

Make = Callable[..., Recipe]
NAMES = ("test/local-conv", "test/second", "test/third")
GERMINATE = [Action(Op.GERMINATE, "early", name, speed=2) for name in NAMES]


def nursery(make_recipe: Make, size: int = 3, way: str = "shadow", **growth: Any) -> Recipe:
    """A recipe whose slot holds so many seeds at once, and three blueprints to fill it with."""
    recipe = make_recipe(embargo=1)
    (first,) = recipe.varieties["early"]
    varieties = (first, replace(first, id=NAMES[1]), replace(first, id=NAMES[2]))
    settings = recipe.growth.model_copy(update={"nursery": size, "incubation": way, **growth})
    return replace(recipe, varieties={"early": varieties}, growth=settings)


def begin(recipe: Recipe, plan: dict[int, Action], steps: int) -> tuple[Environment, Environment]:
    """A grown environment and its twin after some steps."""
    pool = Pool(recipe, ["grown", "twin"], 1, twin="twin")
    pool.reset(0, 3)
    for step in range(steps):
        pool.train(step)
        pool.evaluate(step)
        pool.synchronise(step)
        pool.apply([plan.get(step, WAIT), WAIT], step)
    return pool.environments[0], pool.environments[1]


@pytest.mark.parametrize("way", ["shadow", "branch"])
def test_seed_learns_the_same_alone_and_beside_others_and_the_host_stays_its_twin(way, make_recipe):
    alone, _ = begin(nursery(make_recipe, way=way), {0: GERMINATE[0]}, 6)
    crowded, twin = begin(nursery(make_recipe, way=way), dict(enumerate(GERMINATE)), 6)
    assert [(seed.blueprint, seed.stage) for seed in crowded.garden.living_seeds()] == [
        (name, Stage.TRAINING) for name in NAMES
    ]
    own, among = alone.garden.living_seeds()[0], crowded.garden.living_seeds()[0]
    assert same([*own.parameters()], [*among.parameters()])
    with alone.garden.trial(0), crowded.garden.trial(0):
        assert torch.equal(alone.evaluate("validation"), crowded.evaluate("validation"))
    assert same(numbers(crowded.model), numbers(twin.model))
    assert crowded.keeper.misowned(crowded.model) == []


def test_signals_report_each_seed_separately(make_recipe):
    pool = Pool(nursery(make_recipe), ["grown"], 1)
    pool.reset(0, 3)
    for step in range(5):
        pool.train(step)
        pool.evaluate(step)
        (signals,) = pool.synchronise(step)
        pool.apply([GERMINATE[step] if step < 3 else WAIT], step)
    (slot,) = signals.slots
    assert slot.living is None
    assert [(seed.blueprint, seed.age) for seed in slot.seeds] == list(zip(NAMES, (4, 3, 2), strict=True))
    assert len({seed.incubation_loss for seed in slot.seeds}) == 3
    assert len({seed.gain.mean for seed in slot.seeds if seed.gain is not None}) == 3


def test_chosen_branch_becomes_the_host_and_the_others_leave_no_trace(make_recipe):
    plan = {0: GERMINATE[0], 4: ADVANCE, 5: Action(Op.FOSSILISE, "early")}
    alone, _ = begin(nursery(make_recipe, way="branch"), plan, 6)
    crowd = {0: GERMINATE[0], 1: GERMINATE[1], 4: Action(Op.ADVANCE, "early", NAMES[0]), 5: plan[5]}
    chosen, twin = begin(nursery(make_recipe, way="branch"), crowd, 6)
    assert same(numbers(alone.model), numbers(chosen.model))
    assert not same(numbers(chosen.model), numbers(twin.model))


@pytest.mark.parametrize(
    ("action", "error", "said"),
    [
        (Action(Op.ADVANCE, "early", "test/nobody"), GrowthError, 'no seed of "test/nobody" grows in slot'),
        (GERMINATE[0], LifecycleError, "a seed of this blueprint already incubates in the slot"),
        (GERMINATE[2], LifecycleError, "holds 2 of 2 seeds"),
    ],
)
def test_illegal_action_is_refused_and_masked(action, error, said, make_recipe):
    environment, _ = begin(nursery(make_recipe, 2), {0: GERMINATE[0], 1: GERMINATE[1]}, 4)
    assert not environment.mask().allows(action)
    with pytest.raises(error, match=said):
        environment.network.apply(action, 4)
    assert len(environment.garden.living_seeds()) == 2


def test_advance_without_a_name_takes_the_seed_with_the_largest_gain_and_prunes_the_others(make_recipe):
    environment, _ = begin(nursery(make_recipe), dict(enumerate(GERMINATE)), 6)
    gates = environment.garden.gates
    ranked = sorted(environment.garden.living_seeds(), key=gates.lead, reverse=True)
    assert len({gates.lead(seed) for seed in ranked}) == 3
    assert environment.mask().allows(ADVANCE)
    advanced, *pruned = environment.network.apply(ADVANCE, 6)
    assert (advanced.seed, advanced.now) == (ranked[0].number, Stage.BLENDING)
    assert {change.now for change in pruned} == {Stage.PRUNED}
    assert "was chosen" in pruned[0].reason
    assert environment.garden.living_seeds() == ranked[:1]


def test_seed_that_raises_is_lost_alone(make_recipe):
    recipe = nursery(make_recipe)
    good, _, third = recipe.varieties["early"]

    def bad(site: Any) -> torch.nn.Module:
        class Raising(torch.nn.Module):
            def forward(self, hidden: torch.Tensor) -> torch.Tensor:
                raise ValueError("no")

        return Raising()

    second = Variety(NAMES[1], BlueprintSpec("sequence", "0", starts_as_identity=True), bad)
    environment, _ = begin(replace(recipe, varieties={"early": (good, second, third)}), dict(enumerate(GERMINATE)), 5)
    assert [seed.blueprint for seed in environment.garden.living_seeds()] == [NAMES[0], NAMES[2]]
    assert environment._faults._counts == {NAMES[1]: 1}


def test_gates_of_a_nursery_share_one_alpha(make_recipe):
    """Of three worthless seeds one passes no more often than of one."""
    shares = []
    for size in (1, 3):
        environment, _ = begin(nursery(make_recipe, size), {0: GERMINATE[0]}, 3)
        gates = Gates(environment.recipe.growth.model_copy(update={"gates": "strict"}), looks=10)
        (seed,) = environment.garden.living_seeds()
        for _ in range(3):
            gates.look([seed], {seed.number: Gain(800, 0.1, 0.5, 0.0, -1.0, 1.0)})
        opinion = gates.opinion(seed)
        assert opinion is not None
        assert opinion.evidence is not None
        shares.append(opinion.evidence.alpha)
    assert shares == pytest.approx([0.05 / 10, 0.05 / 30])
