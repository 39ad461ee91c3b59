"""Gates in a run: what they believe is measured, what they do not know they do not let pass, and masks say so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from esper_core.config import GrowthConfig
from esper_core.leyline import WAIT, Action, Finding, LifecycleError, Op, SlotPlace, Stage
from esper_core.trainer.environment import Recipe
from esper_core.trainer.pool import Pool

Make = Callable[..., Recipe]
GERMINATE = Action(Op.GERMINATE, "early", "test/local-conv", speed=2)
ADVANCE, FOSSILISE = Action(Op.ADVANCE, "early"), Action(Op.FOSSILISE, "early")


def begin(recipe: Recipe, *, arms: tuple[str, ...] = ("grown", "twin"), **growth: Any) -> Pool:
    settings = GrowthConfig.model_validate({"embargo": 0, **growth})
    pool = Pool(replace(recipe, growth=settings), arms, 1, twin="twin" if "twin" in arms else None)
    pool.reset(0, 3)
    return pool


def step(pool: Pool, number: int, action: Action = WAIT) -> Any:
    """Train and measure one step, then act in the first environment; what is told of its seed."""
    pool.train(number)
    pool.evaluate(number)
    signals = pool.synchronise(number)
    pool.apply([action, *[WAIT] * (len(signals) - 1)], number)
    return signals[0].slots[0].living


@pytest.mark.parametrize("way", ["shadow", "branch"])
def test_the_gain_of_a_seed_that_incubates_is_against_its_own_host(way, make_recipe):
    pool = begin(make_recipe(batches=6), incubation=way)
    step(pool, 0, GERMINATE)
    for number in range(1, 4):
        told = step(pool, number)
    grown = pool.environments[0]
    host = grown.evaluate("validation")[0].item()
    with grown.garden.trial(0):
        tried = grown.evaluate("validation")[0].item()
    assert told.gain.n == 60
    assert told.gain.mean == pytest.approx(host - tried, abs=1e-5)
    assert told.gain.mean != 0.0


def test_a_seed_that_acts_is_weighed_against_the_twin(make_recipe):
    pool = begin(make_recipe(batches=6))
    step(pool, 0, GERMINATE)
    step(pool, 1, ADVANCE)
    for number in range(2, 6):
        told = step(pool, number)
    grown, twin = (one.evaluate("validation")[0].item() for one in pool.environments)
    assert told.stage is Stage.HOLDING
    assert told.gain.mean == pytest.approx(twin - grown, abs=1e-5)


def test_behind_a_fossil_only_what_came_since_counts(make_recipe):
    pool = begin(make_recipe(batches=6, place=SlotPlace("stem", stack=2)))
    plan = {0: GERMINATE, 1: ADVANCE, 4: FOSSILISE, 5: GERMINATE, 7: ADVANCE}
    for number in range(8):
        told = step(pool, number, plan.get(number, WAIT))
    grown, twin = (one.evaluate("validation")[0].item() for one in pool.environments)
    lead = twin - grown
    told = step(pool, 8)
    grown, twin = (one.evaluate("validation")[0].item() for one in pool.environments)
    assert told.gain.mean == pytest.approx(twin - grown - lead, abs=1e-5)


def test_without_a_twin_the_gain_of_a_seed_that_acts_is_unknown(make_recipe):
    pool = begin(make_recipe(), arms=("grown",), gates="permissive")
    step(pool, 0, GERMINATE)
    assert step(pool, 1).gain is not None
    pool = begin(make_recipe(), arms=("grown",))
    step(pool, 0, GERMINATE)
    step(pool, 1, ADVANCE)
    assert step(pool, 2).gain is None


def test_run_05_what_was_not_measured_is_unknown_and_said_to_be(make_recipe):
    pool = begin(make_recipe(), arms=("grown",))
    step(pool, 0, GERMINATE)
    step(pool, 1, ADVANCE)
    garden = pool.environments[0].garden
    garden.gates._settings = garden.gates._settings.model_copy(update={"gates": "strict"})
    for number in range(2, 7):
        told = step(pool, number)
    assert told.opinion.finding is Finding.UNKNOWN
    assert told.opinion.reason == "the gain was not measured"
    assert not pool.masks()[0].allows(FOSSILISE)
    with pytest.raises(LifecycleError, match="its gate found it unknown: the gain was not measured"):
        pool.apply([FOSSILISE], 7)


def test_a_gate_that_is_shut_is_not_offered(make_recipe):
    pool = begin(make_recipe(), gates="strict", price=1.0)
    step(pool, 0, GERMINATE)
    for number in range(1, 6):
        told = step(pool, number)
        assert not pool.masks()[0].allows(ADVANCE)
    assert told.opinion.finding in (Finding.NOT_SHOWN, Finding.UNKNOWN)
    assert pool.masks()[0].allows(Action(Op.PRUNE, "early"))
    _, pruned = pool.apply([Action(Op.PRUNE, "early")], 6)[0]
    assert pruned.reason == f"by an action; gate before blending: {told.opinion.finding}: {told.opinion.reason}"


@pytest.mark.parametrize("auto", [True, False])
def test_a_gate_that_opens_lets_the_seed_pass_by_itself_where_it_may(auto, make_recipe, monkeypatch):
    from esper_core.growth import gates as evidence

    monkeypatch.setattr(evidence, "MIN_EXAMPLES_FOR_EVIDENCE", 2)
    pool = begin(make_recipe(batches=20), gates="permissive", price=0.0, auto_advance=auto)
    step(pool, 0, GERMINATE)
    stages = [step(pool, number).stage for number in range(1, 9)]
    assert (Stage.BLENDING in stages) is auto
    assert pool.masks()[0].allows(ADVANCE) is not auto


def test_gates_that_are_off_ask_for_nothing_and_advance_nothing(make_recipe):
    pool = begin(make_recipe(batches=20))
    step(pool, 0, GERMINATE)
    stages = [step(pool, number).stage for number in range(1, 6)]
    assert set(stages) == {Stage.TRAINING}
    assert pool.masks()[0].allows(ADVANCE)


def test_weighing_draws_nothing_from_the_hosts_streams(make_recipe):
    pool = begin(make_recipe())
    step(pool, 0, GERMINATE)
    for number in range(1, 4):
        step(pool, number)
    grown, twin = pool.environments
    assert torch.equal(grown.network.evaluation_stream.state_dict()[0], twin.network.evaluation_stream.state_dict()[0])
    assert torch.equal(grown.network.training_stream.state_dict()[0], twin.network.training_stream.state_dict()[0])
