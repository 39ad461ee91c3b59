"""Floating-point operations of an episode: what is trained, tried and evaluated, discarded seeds included."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from esper_core.config import GrowthConfig
from esper_core.growth import count_operations, graft, slots_of
from esper_core.leyline import Action, Op
from esper_core.trainer.pool import Pool

GERMINATE = Action(Op.GERMINATE, "early", "test/local-conv", speed=1)
BLEND = Action(Op.ADVANCE, "early")
KEEP = Action(Op.FOSSILISE, "early")
PRUNE = Action(Op.PRUNE, "early", speed=0)


@pytest.fixture
def recipe(make_recipe, smooth_host):
    own = make_recipe(batches=2, host=smooth_host)
    own = replace(own, growth=GrowthConfig(incubation="shadow", dependence=False))
    example = own.data["train"].inputs[:1]
    host = graft(own.build_host(), own.slots, example=example)
    sites = {slot.name: slot.site for slot in slots_of(host).each()}
    return replace(own, operations=count_operations(host, sites, own.varieties, example))


def cost(recipe, play, plan, steps=4):
    pool = Pool(recipe, ["grown"], 1)
    play(pool, steps, plan)
    return pool


@pytest.mark.parametrize("plan", [{}, {0: GERMINATE, 1: BLEND, 2: KEEP}], ids=["host", "grown"])
def test_the_count_is_close_to_what_torch_counts_in_the_passes(recipe, play, plan):
    for incubation in ("shadow", "branch"):
        own = replace(recipe, growth=GrowthConfig(incubation=incubation, dependence=False))
        with FlopCounterMode(display=False) as counter:
            pool = cost(own, play, plan)
        assert 0.8 < counter.get_total_flops() / pool.environments[0].flops <= 1.0, incubation


def test_a_pruned_seed_is_counted(recipe, play):
    plain, pruned, kept = (
        cost(recipe, play, plan).environments[0].flops
        for plan in ({}, {0: GERMINATE, 2: PRUNE}, {0: GERMINATE, 1: BLEND, 2: KEEP})
    )
    assert plain < pruned < kept


def test_the_count_continues_from_a_state_and_stays_unknown_after_an_older_one(recipe, play):
    plan = {0: GERMINATE}
    whole, first = cost(recipe, play, plan), cost(recipe, play, plan, steps=2)
    state = first.environments[0].state_dict()
    older = type(state)({key: value for key, value in state.plain.items() if key != "flops"}, state.tensors)
    for saved, expected in ((state, whole.environments[0].flops), (older, None)):
        first.environments[0].load_state_dict(saved)
        play(first, range(2, 4), plan)
        assert first.environments[0].flops == expected


def test_what_torch_cannot_count_is_unknown(recipe, make_recipe, play):
    assert cost(make_recipe(), play, {}).environments[0].flops is None
    nothing = graft(torch.nn.Sequential(torch.nn.ReLU()), ["0"], example=torch.zeros(1, 3))
    assert count_operations(nothing, {}, {}, torch.zeros(1, 3)) is None
