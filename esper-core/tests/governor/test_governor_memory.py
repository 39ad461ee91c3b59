"""Memory budget: what a seed would take is estimated, and germination beyond the budget is masked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_worlds import ADVANCE, FOSSILISE, LOCAL_CONV, begin

from esper_core.config import GovernorConfig
from esper_core.config.model import OptimizersConfig
from esper_core.governor import MemoryBudget
from esper_core.leyline import Action, BlueprintSpec, Op

GERMINATE = Action(Op.GERMINATE, "early", "test/big")
MIB = 1 << 20


@pytest.fixture
def environment(make_recipe):
    """Its seeds would have 250,000 parameters and a few of the operator's, just under a MiB."""
    spec = BlueprintSpec("sequence", "250000", starts_as_identity=True)
    return begin(make_recipe(variety=replace(LOCAL_CONV, id="test/big", spec=spec)))


def preflight(environment, host="adam", seed="adam", **changes) -> MemoryBudget:
    optimizers = OptimizersConfig.model_validate({"host": {"kind": host}, "seed": {"kind": seed}})
    return MemoryBudget(GovernorConfig.model_validate(changes), optimizers, environment.recipe.varieties)


@pytest.mark.parametrize(("mebibytes", "refused"), [(None, False), (6, False), (5, True)])
def test_germination_beyond_the_memory_budget_is_masked(environment, mebibytes, refused):
    asked = preflight(environment, memory_mib=mebibytes)  # value, gradient, two of Adam's, two snapshots: 5.7 MiB
    mask = asked.restrict(environment.garden, environment.mask())
    assert mask.allows(GERMINATE) is not refused


@pytest.mark.parametrize(
    ("kind", "changes", "copies"),
    [
        ("adam", {}, 6),
        ("adamw", {"snapshots": 4}, 8),
        ("sgd", {}, 5),
        ("sgd", {"rollback": False}, 3),
    ],
)
def test_estimate_counts_all_copies_of_each_parameter(environment, kind, changes, copies):
    host = sum(one.nbytes for one in environment.model.parameters())
    asked = preflight(environment, kind, "adam", **changes)
    assert asked.mebibytes(environment.garden) == host * copies / MIB
    seeds = 6 if not changes else copies if kind == "adamw" else 4
    assert asked.mebibytes(environment.garden, 1000) == (host * copies + 4000 * seeds) / MIB


def test_living_seed_is_counted_with_the_seed_settings_and_a_fossil_with_those_of_the_host(environment):
    asked = preflight(environment, "sgd", "adam")
    before = asked.mebibytes(environment.garden)
    environment.network.apply(replace(GERMINATE, speed=0), 0)
    (seed,) = environment.garden.living_seeds()
    assert asked.mebibytes(environment.garden) == pytest.approx(before + seed.parameter_count * 4 * 6 / MIB)
    environment.train()
    for step, action in enumerate((ADVANCE, FOSSILISE), 1):
        environment.train()
        environment.network.apply(action, step)
        environment.train()
    assert environment.garden.living_seeds() == []
    assert asked.mebibytes(environment.garden) == pytest.approx(before + seed.parameter_count * 4 * 5 / MIB)
