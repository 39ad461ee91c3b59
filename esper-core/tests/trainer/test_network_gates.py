"""Gates in a run: gains are measured, and what is unknown or not shown does not pass."""

from __future__ import annotations

from dataclasses import replace

import core_worlds
import pytest
import torch
from core_worlds import ADVANCE, FOSSILISE, PRUNE, begin_pool

from esper_core.growth import gates
from esper_core.leyline import WAIT, Finding, LifecycleError, SlotPlace, Stage
from esper_core.trainer.pool import Pool

GERMINATE = replace(core_worlds.GERMINATE, speed=2)


@pytest.fixture
def live(play):
    """``live(pool, steps, plan)``: the signals of the seed in the slot, of each step."""
    return lambda pool, steps, plan=None: play(pool, steps, plan, lambda signals: signals[0].slots[0].living)


def lead(pool: Pool) -> float:
    """By how much the loss of the grown network is below that of its twin."""
    grown, twin = (one.evaluate("validation")[0].item() for one in pool.environments)
    return twin - grown


@pytest.mark.parametrize("way", ["shadow", "branch"])
def test_the_gain_of_an_incubating_seed_is_measured_against_its_own_host(way, make_recipe, live):
    pool = begin_pool(make_recipe(embargo=0, batches=6), incubation=way)
    seed = live(pool, range(4), {0: GERMINATE})[-1]
    grown = pool.environments[0]
    host = grown.evaluate("validation")[0].item()
    with grown.garden.trial(0):
        tried = grown.evaluate("validation")[0].item()
    assert seed.gain.n == 60
    assert seed.gain.mean == pytest.approx(host - tried, abs=1e-5) != 0.0


def test_the_gain_of_an_acting_seed_is_measured_against_the_twin_since_the_latest_fossil(make_recipe, live):
    pool = begin_pool(make_recipe(embargo=0, batches=6, place=SlotPlace("stem", stack=2)))
    seed = live(pool, range(4), {0: GERMINATE, 1: ADVANCE})[-1]
    assert seed.stage is Stage.HOLDING
    assert seed.gain.mean == pytest.approx(lead(pool), abs=1e-5)
    live(pool, range(4, 8), {4: FOSSILISE, 5: GERMINATE, 7: ADVANCE})
    before = lead(pool)
    (seed,) = live(pool, range(8, 9))
    assert seed.gain.mean == pytest.approx(lead(pool) - before, abs=1e-5)


def test_run_05_without_a_twin_the_gain_of_an_acting_seed_is_unknown_and_forbids_to_fossilise(make_recipe, live):
    pool = begin_pool(make_recipe(embargo=0), twin=False)
    live(pool, range(2), {0: GERMINATE, 1: ADVANCE})
    garden = pool.environments[0].garden
    garden.gates._settings = garden.gates._settings.model_copy(update={"gates": "strict"})
    seed = live(pool, range(2, 7))[-1]
    assert seed.gain is None
    assert seed.opinion.finding is Finding.UNKNOWN
    assert seed.opinion.reason == "the gain was not measured"
    assert not pool.masks()[0].allows(FOSSILISE)
    with pytest.raises(LifecycleError, match="its gate is closed: the gain was not measured"):
        pool.apply([FOSSILISE], 7)


def test_without_a_twin_the_gain_of_an_incubating_seed_is_known(make_recipe, live):
    pool = begin_pool(make_recipe(embargo=0), twin=False, gates="permissive")
    assert live(pool, range(2), {0: GERMINATE})[-1].gain is not None


def test_a_seed_that_its_gate_does_not_pass_cannot_be_advanced(make_recipe, live):
    pool = begin_pool(make_recipe(embargo=0), gates="strict", price=1.0)
    seed = live(pool, range(6), {0: GERMINATE})[-1]
    assert seed.opinion.finding in (Finding.NOT_SHOWN, Finding.UNKNOWN)
    assert not pool.masks()[0].allows(ADVANCE)
    assert pool.masks()[0].allows(PRUNE)
    ((_, pruned),), _ = pool.apply([PRUNE, WAIT], 6)
    assert pruned.reason == f"by the policy; gate before blending: {seed.opinion.reason}"


@pytest.mark.parametrize("auto", [True, False])
def test_a_seed_that_passes_its_gate_advances_by_itself_where_that_is_set(auto, make_recipe, live, monkeypatch):
    monkeypatch.setattr(gates, "MIN_EXAMPLES_FOR_EVIDENCE", 2)
    pool = begin_pool(make_recipe(embargo=0, batches=20), gates="permissive", price=0.0, auto_advance=auto)
    stages = [seed and seed.stage for seed in live(pool, range(9), {0: GERMINATE})]
    assert (Stage.BLENDING in stages) is auto
    assert pool.masks()[0].allows(ADVANCE) is not auto


def test_gates_that_are_off_allow_to_advance_and_advance_nothing(make_recipe, live):
    pool = begin_pool(make_recipe(embargo=0))
    stages = {seed.stage for seed in live(pool, range(4), {0: GERMINATE})[1:]}
    assert stages == {Stage.TRAINING}
    assert pool.masks()[0].allows(ADVANCE)
    grown, twin = (one.network for one in pool.environments)  # and measuring a gain draws nothing from the host's
    assert torch.equal(grown.evaluation_stream.state_dict()[0], twin.evaluation_stream.state_dict()[0])
    assert torch.equal(grown.training_stream.state_dict()[0], twin.training_stream.state_dict()[0])
