"""Measurements: evaluation on a split, ages and gains of seeds, and floating-point operations."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from esper_core.growth import graft, slots_of
from esper_core.trainer.measurements import are_finite, evaluate
from esper_core.trainer.pool import Pool
from tests.support import core_worlds
from tests.support.core_worlds import ADVANCE, FOSSILISE, GERMINATE, SmoothHost, begin, change_recipe, make_recipe
from tests.support.studies import play

LIFE = {0: GERMINATE, 2: ADVANCE, 5: FOSSILISE}


def test_evaluation_changes_nothing_and_is_the_mean_over_all_examples():
    environment = begin(make_recipe())
    state = {key: value.clone() for key, value in environment.model.state_dict().items()}
    random = torch.get_rng_state()
    loss, metric = environment.evaluate("validation").tolist()
    assert torch.equal(torch.get_rng_state(), random)
    assert core_worlds.same(environment.model.state_dict(), state)
    assert environment.model.training
    environment.model.eval()
    split = environment.recipe.data["validation"]
    outputs = environment.model(split.inputs)
    assert loss == pytest.approx(torch.nn.functional.cross_entropy(outputs, split.targets).item(), rel=1e-5)
    assert metric == pytest.approx((outputs.argmax(1) == split.targets).float().mean().item())


@pytest.mark.parametrize("direction", ["up", "down"])
def test_networks_are_compared_by_loss_or_metric_of_which_less_is_better(direction):
    environment = begin(make_recipe())
    task, split = environment.recipe.task, environment.recipe.data["validation"]
    by_loss = evaluate(environment.model, task, split)
    assert torch.equal(by_loss.evidence, by_loss.losses)
    task.metric = replace(task.metric, direction=direction)
    by_metric = evaluate(environment.model, task, split, evidence="metric")
    assert torch.equal(by_metric.losses, by_loss.losses)
    sign = -1 if direction == "up" else 1
    assert by_metric.evidence.mean().item() == pytest.approx(sign * by_metric.metric.item())


def test_sim_low_3_evaluation_is_in_inference_mode_and_its_figures_are_ordinary_tensors():
    seen: set[tuple[bool, bool]] = set()

    class Watching(SmoothHost):
        def forward(self, inputs: Tensor) -> Tensor:
            seen.add((self.training, torch.is_inference_mode_enabled()))
            return super().forward(inputs)

    environment = begin(make_recipe(host=Watching, batches=1))
    environment.train()
    seen.clear()
    figures = environment.evaluate("validation")
    assert seen == {(False, True)}
    assert not figures.is_inference()


HUGE, TINY = torch.tensor([3e38, -3e38]), torch.tensor([1e-45])


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ([], True),
        ([torch.empty(0), HUGE, TINY, torch.ones(2, dtype=torch.bfloat16), HUGE.double() * 1e200], True),
        ([HUGE, torch.tensor([0.0, torch.nan])], False),
        ([torch.tensor(-torch.inf), HUGE], False),
        ([torch.tensor([torch.inf], dtype=torch.bfloat16), HUGE.double()], False),
        ([torch.ones(3).to_sparse(), TINY], True),
        ([torch.tensor([0.0, torch.nan]).to_sparse()], False),
    ],
)
def test_one_value_that_is_not_finite_is_found_among_all(tensors, expected):
    assert are_finite(tensors, torch.device("cpu")).item() is expected


def test_a_seed_that_is_judged_by_a_single_example_is_not_lost():
    recipe = make_recipe(host=SmoothHost)
    data = {**recipe.data, "validation": core_worlds.toy_split(1, 2)}
    (seed,) = play(Pool(replace(recipe, data=data), ["grown"], 1), 3, {0: GERMINATE})[-1][0].slots[0].seeds
    assert seed.gain.n == 1


def test_age_counts_from_germination_and_a_gain_knows_how_much_it_repeats():
    seeds = play(Pool(make_recipe(), ["grown", "twin"], 1, twin="twin"), 8, LIFE, lambda seen: seen[0].slots[0].living)
    assert [seed and seed.age for seed in seeds] == [None, 1, 2, 3, 4, 5, None, None]
    first, *later = [seed.gain.repeats for seed in seeds if seed is not None]
    assert first == 1.0
    assert all(0.0 < repeats < 1.0 for repeats in later), "each gain is compared with that of the step before"


KEPT = {0: GERMINATE, 1: ADVANCE, 2: FOSSILISE}


@pytest.fixture
def recipe():
    small_recipe = make_recipe(batches=2, host=SmoothHost)
    small_recipe = change_recipe(small_recipe, growth=core_worlds.plain_growth())
    example = small_recipe.data["train"].inputs[:1]
    host = graft(small_recipe.build_host(), small_recipe.slots, example=example)
    sites = {slot.name: slot.site for slot in slots_of(host)}
    descriptions = pytest.importorskip("esper_run.app.descriptions")
    operations = descriptions.count_operations(host, sites, small_recipe.network.varieties, example)
    return change_recipe(small_recipe, operations=operations)


def cost(recipe, plan, steps=4):
    pool = Pool(recipe, ["grown"], 1)
    play(pool, steps, plan)
    return pool


@pytest.mark.parametrize("plan", [{}, KEPT], ids=["host", "grown"])
def test_the_count_is_close_to_what_torch_counts_in_the_passes(recipe, plan):
    for incubation in ("shadow", "branch"):
        variant = change_recipe(recipe, growth=core_worlds.plain_growth(incubation=incubation))
        with FlopCounterMode(display=False) as counter:
            pool = cost(variant, plan)
        assert 0.8 < counter.get_total_flops() / pool.environments[0].flops <= 1.0, incubation


def test_a_pruned_seed_is_counted(recipe):
    plain, pruned, kept = (
        cost(recipe, plan).environments[0].flops
        for plan in ({}, {0: GERMINATE, 2: replace(core_worlds.PRUNE, speed=0)}, KEPT)
    )
    assert plain < pruned < kept


def test_the_count_continues_from_a_state(recipe):
    plan = {0: GERMINATE}
    complete, first = cost(recipe, plan), cost(recipe, plan, steps=2)
    first.environments[0].load_state_dict(first.environments[0].state_dict())
    play(first, range(2, 4), plan)
    assert first.environments[0].flops == complete.environments[0].flops


def test_what_torch_cannot_count_is_unknown(recipe):
    assert cost(make_recipe(), {}).environments[0].flops is None
