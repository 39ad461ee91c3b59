"""Transitions: what is refused beside what the lifecycle tables and the configuration say."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from esper_core.config import GrowthConfig, OptimizerConfig
from esper_core.growth import Garden, OptimizerKeeper, Presence, Seed, Variety, graft, host_parameters, slots_of
from esper_core.leyline import Action, BlueprintSpec, LifecycleError, Op, Site
from esper_core.leyline.lifecycle import SlotState, Stage


class Plain(nn.Linear):
    def __init__(self, site: Site) -> None:
        super().__init__(site.channels, site.channels)


GERMINATE = Action(Op.GERMINATE, "late", "test/plain")


def garden_with_acting_seed(add_seed: Callable[..., Seed], incubation: str, **living: Stage) -> Garden:
    """A garden for a network that was loaded with living seeds; that in ``early`` acts on the host."""
    host = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model = graft(host, {"early": "0", "late": "1"}, example=torch.ones(2, 4))
    for number, (slot, stage) in enumerate({"early": Stage.HOLDING, **living}.items()):
        seed = add_seed(model, slot)
        seed.stage, seed.number = stage, number
        slots_of(model).named(slot).state = SlotState.OCCUPIED
    keeper = OptimizerKeeper(host_parameters(model), host_settings=OptimizerConfig(), seed_settings=OptimizerConfig())
    variety = Variety("test/plain", BlueprintSpec("vector", "c*c + c"), Plain)
    settings = GrowthConfig(incubation=incubation)
    return Garden(model, keeper, {"early": [variety], "late": [variety]}, seed=0, batches=1, settings=settings)


def test_no_branch_is_opened_while_a_seed_in_another_slot_acts_on_the_host(add_seed: Callable[..., Seed]) -> None:
    garden = garden_with_acting_seed(add_seed, "branch")
    assert garden.blended_slots == ("early",)
    assert garden.mask().blueprints["late"] == ()
    with pytest.raises(LifecycleError, match=r"E301 germinate .*a seed in slot early is not on a branch"):
        garden.apply(GERMINATE, 0)
    assert garden.incubating == ()
    garden.remove("done", ["early"])
    garden.apply(GERMINATE, 0)
    assert [seed.presence for seed in garden.living_seeds()] == [Presence.BRANCHED]


def test_in_the_shadow_a_seed_may_grow_while_another_one_acts(add_seed: Callable[..., Seed]) -> None:
    garden = garden_with_acting_seed(add_seed, "shadow")
    garden.apply(GERMINATE, 0)
    assert len(garden.incubating) == 1


def test_a_loaded_seed_incubates_in_the_shadow_while_another_one_acts(add_seed: Callable[..., Seed]) -> None:
    garden = garden_with_acting_seed(add_seed, "branch", late=Stage.TRAINING)
    assert [seed.presence for seed in garden.living_seeds()] == [Presence.ACTING, Presence.ACTING]
    assert len(garden.incubating) == 1
