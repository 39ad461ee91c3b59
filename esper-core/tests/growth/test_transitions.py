"""Transitions: incubation beside a seed that acts on the host."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from core_worlds import TAME
from torch import nn

from esper_core.growth import Garden, Presence, Seed, graft, slots_of
from esper_core.leyline import Action, LifecycleError, Op
from esper_core.leyline.lifecycle import SlotState, Stage

GERMINATE = Action(Op.GERMINATE, "late", "test/tame")


@pytest.fixture
def load_garden(add_seed: Callable[..., Seed], make_garden: Callable[..., Garden]) -> Callable[..., Garden]:
    """``load_garden(incubation, slot=stage)``: a garden of a network with living seeds; that in ``early`` acts."""

    def load(incubation: str, **living: Stage) -> Garden:
        host = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model = graft(host, {"early": "0", "late": "1"}, example=torch.ones(2, 4))
        for number, (slot, stage) in enumerate({"early": Stage.HOLDING, **living}.items()):
            seed = add_seed(model, slot)
            seed.stage, seed.number = stage, number
            slots_of(model).named(slot).state = SlotState.OCCUPIED
        return make_garden(model, TAME, growth={"incubation": incubation})

    return load


def test_no_branch_opens_while_another_seed_acts_on_the_host(load_garden):
    garden = load_garden("branch")
    assert garden.blended_slots == ("early",)
    assert garden.mask().blueprints["late"] == ()
    with pytest.raises(LifecycleError, match=r"E301 germinate .*a seed in slot early is not on a branch"):
        garden.apply(GERMINATE, 0)
    assert garden.incubating == ()
    garden.remove("done", ["early"])
    garden.apply(GERMINATE, 0)
    assert [seed.presence for seed in garden.living_seeds()] == [Presence.BRANCHED]
    assert garden.mask().blueprints["early"] == (), "one branch is open"
    in_shadow = load_garden("shadow")
    in_shadow.apply(GERMINATE, 0)
    assert len(in_shadow.incubating) == 1


def test_loaded_seed_incubates_in_the_shadow_while_another_one_acts(load_garden):
    garden = load_garden("branch", late=Stage.TRAINING)
    assert [seed.presence for seed in garden.living_seeds()] == [Presence.ACTING, Presence.ACTING]
    assert len(garden.incubating) == 1
