"""The pool: its order, rounds without leftovers, and the control of static capacity."""

import ast
import gc
import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

import esper_core.trainer
from esper_core.growth import Growth, Host, derive_seed
from esper_core.leyline import Observation, Stage
from esper_core.trainer.batches import BatchOrder
from esper_core.trainer.pool import Pool
from tests.support import core_worlds
from tests.support.core_worlds import ADVANCE, FOSSILISE, GERMINATE, PRUNE, SmoothHost, change_recipe, make_recipe
from tests.support.studies import play


def test_b8_drl_03_arms_are_interleaved_and_take_turns_in_being_first():
    pool = Pool(make_recipe(), ["a", "b", "twin"], 2)
    pool.reset(0, 4)
    assert [(e.arm, e.seed) for e in pool.environments] == [
        ("a", 4), ("b", 4), ("twin", 4), ("a", 5), ("b", 5), ("twin", 5),
    ]  # fmt: skip
    firsts = [pool.turns(step)[0].arm for step in range(6)]
    assert sorted(firsts) == ["a", "a", "b", "b", "twin", "twin"]


def play_round(pool: Pool, number: int) -> None:
    """Play a round with seeds that are blended in, pruned, or alive at the end."""
    pool.reset(number, 10 * number)
    play(pool, range(6), {0: GERMINATE, 2: ADVANCE, 4: replace(PRUNE, speed=0), 5: GERMINATE}, lambda signals: None)
    pool.conclude(5)


def tensors() -> int:
    return sum(issubclass(type(candidate), torch.Tensor) for candidate in gc.get_objects())


def test_b8_pt_04_every_round_leaves_as_many_tensors_as_the_one_before_and_close_frees_all(request):
    """Without the garbage collector: reference counting alone frees everything."""
    gc.collect()
    gc.disable()
    request.addfinalizer(gc.enable)
    growth = core_worlds.plain_growth(embargo=0, incubation="branch", average=16)
    recipe = change_recipe(make_recipe(batches=1), growth=growth)
    first = Pool(recipe, ["grown"], 1)
    play_round(first, 0)  # the first optimizer of a process makes torch import more, and an import keeps some tensors
    first.close()
    before, counts = tensors(), []
    pool = Pool(recipe, ["grown", "twin"], 2, twin="twin", lanes=2)
    for number in range(3):
        play_round(pool, number)
        counts.append(tensors())
    assert len(set(counts[1:])) == 1
    pool.close()
    assert tensors() == before


RECIPE = make_recipe(batches=1)
KEPT = {0: GERMINATE, 1: ADVANCE, 3: FOSSILISE}


@pytest.fixture
def grown() -> Sequence[Growth]:
    """What an arm grew."""
    pool = Pool(RECIPE, ["grown"], 1)
    play(pool, 5, KEPT)
    return Host(pool.environments[0].model).network.grown


def test_the_control_has_from_the_start_what_was_grown_and_trains_as_long(grown):
    assert [growth.blueprint for growth in grown] == ["test/local-conv"]
    requested: list[tuple[str, int]] = []

    def implants(arm: str, seed: int) -> Sequence[Growth]:
        requested.append((arm, seed))
        return grown

    pool = Pool(RECIPE, ["capacity"], 2, implants=implants)
    reports = play(pool, 6)
    assert requested == [("capacity", 3), ("capacity", 4)]
    environment = pool.environments[0]
    (seed,) = next(iter(Host(environment.model).slots)).fossils
    assert (seed.stage, seed.alpha.value, seed.blend) == (Stage.FOSSILISED, 1.0, grown[0].blend)
    assert environment.keeper.misowned(environment.model) == [], "every parameter has one owner"
    first = reports[0][0]
    assert first.parameters - first.host_parameters == grown[0].parameters
    assert first.slots[0].fossils == 1
    assert [signals[0].step for signals in reports] == list(range(6))


def test_the_control_equals_a_plain_torch_loop_from_the_same_weights(grown):
    recipe = make_recipe(batches=1, host=SmoothHost)
    pool = Pool(recipe, ["capacity"], 1, implants=lambda arm, seed: grown)
    pool.reset(0, 3)
    control, train = pool.environments[0], recipe.data["train"]
    model = deepcopy(control.model)
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.network.optimizers.host.learning_rate, fused=True)
    order = BatchOrder(len(train), recipe.batch_size, derive_seed(3, "order"))
    for step in range(4):
        pool.train(step)
        examples = order.next()
        optimizer.zero_grad()
        recipe.task.losses(model(train.inputs[examples]), train.targets[examples]).mean().backward()
        optimizer.step()
    assert all(map(torch.equal, control.model.state_dict().values(), model.state_dict().values()))


def test_the_control_continues_from_its_state(grown):
    complete, first, second = (Pool(RECIPE, ["capacity"], 1, implants=lambda arm, seed: grown) for _ in range(3))
    play(complete, 4)
    play(first, 2)
    second.load_state_dict(first.state_dict(), in_round=True)
    play(second, range(2, 4))
    models = [pool.environments[0].model for pool in (complete, second)]
    assert all(map(torch.equal, *(model.parameters() for model in models)))


def test_sim_med_1_one_train_step_for_all_stages_that_reads_no_stage():
    """Only the key by which a compiled pass is looked up may read a seed's stage."""
    folder = Path(esper_core.trainer.__file__).parent
    for name in ("environment.py", "forward.py"):
        tree = ast.parse((folder / name).read_text(encoding="utf-8"))
        tree.body = [node for node in tree.body if getattr(node, "name", "") != "structure_of"]
        line_numbers = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "Stage"]
        line_numbers += [
            node.lineno for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "stage"
        ]
        assert line_numbers == [], name


def test_sim_med_4_an_observation_contains_no_tensor():
    """Only plain data can be written as JSON: it raises for a tensor."""
    (signals,) = play(Pool(RECIPE, ["grown"], 1), 3, KEPT)[-1]
    assert json.dumps(asdict(Observation(step=3, steps=4, signals=signals)))
