"""What a network leans on is measured in each step in which a seed acts, told, and believed by no gate."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from esper_core.leyline import WAIT, Action, Op, SeedSignals
from esper_core.trainer.environment import Recipe
from esper_core.trainer.measurements import evaluate
from esper_core.trainer.pool import Pool

Make = Callable[..., Recipe]
PLAN = {
    0: Action(Op.GERMINATE, "early", "test/local-conv", speed=1),
    2: Action(Op.ADVANCE, "early"),
    5: Action(Op.FOSSILISE, "early"),
}


def lived(recipe: Recipe, steps: int) -> tuple[Pool, list[SeedSignals | None]]:
    """A pool after some steps, and what was told of its seed in each."""
    pool = Pool(recipe, ["grown", "twin"], 1, twin="twin")
    pool.reset(0, 3)
    told = []
    for step in range(steps):
        pool.train(step)
        pool.evaluate(step)
        told.append(pool.synchronise(step)[0].slots[0].living)
        pool.apply([PLAN.get(step, WAIT), WAIT], step)
    return pool, told


def test_it_is_what_the_loss_rises_by_without_the_seed(make_recipe):
    recipe = make_recipe(batches=8)
    pool, told = lived(recipe, 5)
    environment, seed = pool.environments[0], told[-1]
    assert seed is not None
    assert seed.dependence is not None
    split = recipe.data["validation"]
    with environment.garden.slots["early"].disabled():
        without = evaluate(environment.model, recipe.task, split).losses
    difference = without - evaluate(environment.model, recipe.task, split).losses
    assert abs(float(difference.mean())) > 1e-3
    assert seed.dependence.mean == pytest.approx(float(difference.mean()), rel=1e-5)
    assert seed.dependence.n == len(split)


def test_it_is_known_where_a_seed_acts_and_nowhere_else(make_recipe):
    _, told = lived(make_recipe(), 8)
    known = [None if seed is None else seed.dependence is not None for seed in told]
    assert known == [None, False, False, True, True, True, None, None]


class NoisyInEvaluation(nn.Module):
    """A host with dropout in evaluation, too."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, 4, 1)
        self.head = nn.Linear(48, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(nn.functional.dropout(self.stem(inputs), 0.2, training=True).flatten(1))
        return outputs


def test_a_host_that_has_to_be_run_whole_without_each_seed_is_logged_once_with_the_reason(make_recipe, caplog):
    caplog.set_level(logging.INFO, "esper")
    _, told = lived(make_recipe(host=NoisyInEvaluation), 5)
    assert sum(seed is not None and seed.dependence is not None for seed in told) == 2
    assert caplog.messages == [
        "NoisyInEvaluation is evaluated in whole passes with each seed left out: it draws random numbers in evaluation"
    ]


def test_it_is_no_evidence(make_recipe):
    """Without a twin there is nothing to say for a seed that acts, however much the network leans on it."""
    recipe = make_recipe()
    recipe = replace(recipe, growth=recipe.growth.model_copy(update={"gates": "strict"}))
    pool = Pool(recipe, ["grown"], 1)
    pool.reset(0, 3)
    environment = pool.environments[0]
    environment.network.apply(PLAN[0], 0)
    environment.garden.open_step()
    environment.garden.gates._settings = recipe.growth.model_copy(update={"gates": "off"})
    environment.network.apply(Action(Op.ADVANCE, "early"), 0)
    environment.garden.gates._settings = recipe.growth
    for step in range(1, 5):
        pool.train(step)
        pool.evaluate(step)
        (signals,) = pool.synchronise(step)
    (seed,) = signals.seeds
    assert seed.dependence is not None
    assert seed.gain is None
    assert seed.opinion is not None
    assert seed.opinion.finding == "unknown"


def test_to_measure_it_or_not_moves_no_number(make_recipe):
    recipe = make_recipe()
    off = replace(recipe, growth=recipe.growth.model_copy(update={"dependence": False}))
    (one, told), (other, silent) = lived(recipe, 7), lived(off, 7)
    assert any(seed is not None and seed.dependence is not None for seed in told)
    assert all(seed is None or seed.dependence is None for seed in silent)
    states = [pool.environments[0].model.state_dict() for pool in (one, other)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
