"""The oracle: until it blends, a growing environment's host is bitwise its twin, and the seed learns all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from esper_core.growth import incubation
from esper_core.leyline import WAIT, Action, Op, Stage
from esper_core.trainer.environment import Environment, Recipe
from esper_core.trainer.pool import Pool

Make = Callable[..., Recipe]
GERMINATE, ADVANCE = Action(Op.GERMINATE, "early", "test/local-conv"), Action(Op.ADVANCE, "early")


def host_state(environment: Environment) -> dict[str, torch.Tensor]:
    """Everything that makes the host's future: parameters, buffers, optimizer state, random numbers."""
    state = {key: value for key, value in environment.model.state_dict().items() if not key.startswith("_esper.")}
    for index, parameter in enumerate(environment.keeper.host.parameters):
        for key, value in environment.keeper.host.optimizer.state[parameter].items():
            if isinstance(value, torch.Tensor):
                state[f"optimizer.{index}.{key}"] = value
    state["random"] = environment.training_stream.state()[0]
    return state


def differing(left: Environment, right: Environment) -> list[str]:
    a, b = host_state(left), host_state(right)
    assert a.keys() == b.keys()
    return [key for key in a if not torch.equal(a[key], b[key])]


@pytest.mark.parametrize(
    "optimizer", [{}, {"kind": "sgd", "momentum": 0.9}, {"clip_norm": 0.1}], ids=["adam", "sgd", "clipped"]
)
def test_the_host_is_bitwise_its_twin_until_the_first_blending_and_the_seed_has_learnt(
    optimizer: dict[str, object], make_recipe: Make
) -> None:
    pool = Pool(make_recipe(optimizer=optimizer, batches=8), ["grown", "twin"], 2)
    pool.reset(0, 3)
    default = torch.get_rng_state()
    losses: list[list[float]] = [[], []]
    weights: list[list[torch.Tensor]] = [[], []]
    plan = {1: GERMINATE, 6: ADVANCE}
    for step in range(9):
        pool.train(step)
        pool.evaluate(step)
        signals = pool.synchronise(step)
        for index in range(2):
            grown, twin = pool.environments[2 * index], pool.environments[2 * index + 1]
            slot = signals[2 * index].slots[0]
            blended = step > 6
            assert bool(differing(grown, twin)) is blended, differing(grown, twin)
            assert (signals[2 * index].validation_loss == signals[2 * index + 1].validation_loss) is not blended
            if slot.stage is Stage.TRAINING:
                assert slot.incubation_loss is not None
                losses[index].append(slot.incubation_loss)
                weights[index].append(torch.cat([p.detach().flatten() for p in grown.keeper.seeds[0].parameters]))
        pool.apply([plan.get(step, WAIT) if e.arm == "grown" else WAIT for e in pool.environments], step)
    assert torch.equal(torch.get_rng_state(), default)
    for index in range(2):
        assert len(losses[index]) == 5
        assert losses[index][-1] < losses[index][0]
        assert all(not torch.equal(a, b) for a, b in zip(weights[index], weights[index][1:], strict=False))


def test_the_oracle_sees_a_host_that_was_touched(make_recipe: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """An incubation that forgets the host's buffers is found out: so the oracle can fail."""

    class Careless(incubation.Shadow):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)  # type: ignore[arg-type]
            self._guarded = []

    monkeypatch.setattr("esper_core.growth.garden.Shadow", Careless)
    pool = Pool(make_recipe(), ["grown", "twin"], 1)
    pool.reset(0, 3)
    pool.train(0)
    pool.apply([GERMINATE, WAIT], 0)
    pool.train(1)
    assert differing(*pool.environments)


def test_run_04_the_seed_is_told_what_it_does(make_recipe: Make) -> None:
    """A gradient that did not depend on what the seed puts out once let the loss at full blend rise without bound."""
    environment = Environment(make_recipe(batches=40), arm="grown", index=0)
    environment.reset(0, 1)
    environment.train()
    environment.apply(GERMINATE, 0)
    curve = []
    for _ in range(12):
        environment.train()
        curve.append(float(environment._incubation_losses["early"]))
    assert curve[-1] < 0.8 * curve[0]
    assert max(curve[1:]) < 1.05 * curve[0]


def test_run_08_a_trajectory_does_not_depend_on_who_else_is_in_the_pool(make_recipe: Make) -> None:
    def metrics(environments: int, arms: list[str]) -> list[float]:
        pool = Pool(make_recipe(), arms, environments)
        pool.reset(0, 3)
        found = []
        for step in range(4):
            pool.train(step)
            pool.evaluate(step)
            found.append(pool.synchronise(step)[pool.of_arm("grown")[0]].validation_loss)
            pool.apply([GERMINATE if step == 0 and e.arm == "grown" else WAIT for e in pool.environments], step)
        return found

    alone = metrics(1, ["grown"])
    assert metrics(3, ["grown", "twin"]) == alone
    assert metrics(2, ["other", "twin", "grown"]) == alone


def test_another_seed_is_another_trajectory(make_recipe: Make) -> None:
    pool = Pool(make_recipe(), ["twin"], 2)
    pool.reset(0, 0)
    pool.train(0)
    pool.evaluate(0)
    first, second = pool.synchronise(0)
    assert first.validation_loss != second.validation_loss
