"""The control by static capacity: what an arm grew, trained from the start, on the same seeds and the same data."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch

import esper_core.trainer
from esper_core.growth import Growth, read_network, slots_of
from esper_core.leyline import Action, Observation, Op, Stage
from esper_core.trainer.environment import Recipe
from esper_core.trainer.pool import Pool

Make = Callable[..., Recipe]
LIFE = {
    0: Action(Op.GERMINATE, "early", "test/local-conv", speed=1),
    1: Action(Op.ADVANCE, "early"),
    3: Action(Op.FOSSILISE, "early"),
}


def play(pool: Pool, plan: dict[int, Action], steps: int) -> list[Any]:
    pool.reset(0, 3)
    told = []
    for step in range(steps):
        pool.train(step)
        pool.evaluate(step)
        signals = pool.synchronise(step)
        wanted = plan.get(step, Action())
        pool.apply([wanted if mask.allows(wanted) else Action() for mask in pool.masks()], step)
        told.append(signals)
    return told


def grown(recipe: Recipe) -> tuple[Growth, ...]:
    pool = Pool(recipe, ["grown"], 1)
    play(pool, LIFE, 6)
    model = pool.environments[0].model
    return read_network(slots_of(model), "host").grown


def test_the_control_has_from_the_start_what_was_grown_and_learns_as_long(make_recipe):
    recipe = make_recipe(steps=6)
    what = grown(recipe)
    assert [growth.blueprint for growth in what] == ["test/local-conv"]
    asked: list[tuple[str, int]] = []

    def implants(arm: str, seed: int) -> tuple[Growth, ...]:
        asked.append((arm, seed))
        return what

    pool = Pool(recipe, ["capacity"], 2, implants=implants)
    told = play(pool, LIFE, 6)
    assert asked == [("capacity", 3), ("capacity", 4)]
    own = pool.environments[0]
    (slot,) = slots_of(own.model).each()
    (seed,) = slot.fossils
    assert (seed.stage, seed.alpha.value, seed.blend) == (Stage.FOSSILISED, 1.0, what[0].blend)
    assert own.keeper.misowned(own.model) == [], "every parameter has one owner"
    first = told[0][0]
    assert first.parameters - first.host_parameters == what[0].parameters
    assert first.slots[0].fossils == 1
    assert [signals[0].step for signals in told] == list(range(6))


def test_its_host_begins_as_the_twins_and_sees_the_same_data(make_recipe):
    recipe = make_recipe(steps=6)
    what = grown(recipe)
    pools = [Pool(recipe, ["twin"], 1), Pool(recipe, ["capacity"], 1, implants=lambda arm, seed: what)]
    for pool in pools:
        pool.reset(0, 3)
    twin, control = (pool.environments[0] for pool in pools)
    own = dict(control.model.named_parameters())
    assert all(torch.equal(parameter, own[name]) for name, parameter in twin.model.named_parameters())
    assert torch.equal(twin.order.next(), control.order.next())


def test_a_control_goes_on_from_what_was_written_down(make_recipe):
    recipe = make_recipe(steps=6)
    what = grown(recipe)

    def pool() -> Pool:
        return Pool(recipe, ["capacity"], 1, implants=lambda arm, seed: what)

    whole, first, second = pool(), pool(), pool()
    play(whole, {}, 6)
    play(first, {}, 3)
    second.load_state_dict(first.state_dict(), in_round=True)
    for step in range(3, 6):
        second.train(step)
        second.evaluate(step)
        second.synchronise(step)
    pairs = zip(whole.environments[0].model.parameters(), second.environments[0].model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_sim_med_1_one_train_step_for_all_stages_which_asks_for_none():
    """Only the key by which a compiled pass is looked up may read a seed's stage."""
    folder = Path(esper_core.trainer.__file__).parent
    for name in ("environment.py", "forward.py"):
        tree = ast.parse((folder / name).read_text(encoding="utf-8"))
        tree.body = [node for node in tree.body if getattr(node, "name", "") != "structure_of"]
        asked = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "Stage"]
        asked += [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "stage"]
        assert asked == [], name


def test_sim_med_4_what_a_policy_sees_is_read_already_and_lies_on_no_device(make_recipe):
    (signals,) = play(Pool(make_recipe(steps=4), ["grown"], 1), LIFE, 4)[-1]

    def tensors(value: Any) -> int:
        if isinstance(value, torch.Tensor):
            return 1
        if is_dataclass(value):
            return sum(tensors(getattr(value, field.name)) for field in fields(value))
        return sum(map(tensors, value)) if isinstance(value, tuple | list) else 0

    assert tensors(Observation(step=3, steps=4, signals=signals)) == 0
