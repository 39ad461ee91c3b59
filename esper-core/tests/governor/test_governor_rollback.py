"""Rollback: what it restores and clears, which faults cause it, and that neighbours are unaffected."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from esper_core.config import GovernorConfig, OptimizerConfig
from esper_core.governor import Act, Governor
from esper_core.growth import FaultBook, Variety
from esper_core.growth.optimizers import build_optimizer
from esper_core.leyline import WAIT, Action, BlueprintSpec, Op, Site, SlotState, Stage
from esper_core.trainer.environment import Recipe
from esper_core.trainer.pool import Pool

GERMINATE = Action(Op.GERMINATE, "early", "test/local-conv", speed=1)
ADVANCE, FOSSILISE = Action(Op.ADVANCE, "early"), Action(Op.FOSSILISE, "early")

FAST = (("sgd", "plain"), ("adam", "fused"), ("adamw", "foreach"))
KINDS = [
    pytest.param(
        {"kind": kind, "implementation": implementation, "weight_decay": decay},
        id=f"{kind}-{implementation}",
        marks=() if (kind, implementation) in FAST else pytest.mark.slow,
    )
    for kind, decay in (("sgd", 0.0), ("adam", 0.0), ("adamw", 0.1))
    for implementation in ("plain", "foreach", "fused")
]


@pytest.mark.parametrize("optimizer", KINDS)
def test_b1_pt_01_step_after_a_rollback_is_the_first_of_a_fresh_optimizer(drive, grow_and_keep, optimizer) -> None:
    driven = drive(plan=grow_and_keep, optimizer=optimizer, steps=12)
    for _ in range(6):
        driven.step()
    parameters = list(driven.environment.model.parameters())
    assert driven.poisoned_step().act is Act.ROLL_BACK
    environment = driven.environment
    assert [id(one) for one in environment.model.parameters()] == [id(one) for one in parameters]

    fresh = [one.detach().clone().requires_grad_() for one in parameters]
    split = environment.recipe.data["train"]
    with environment.network.training_stream:
        loss = environment.recipe.task.losses(environment.model(split.inputs[:20]), split.targets[:20]).mean()
    loss.backward()
    for own, one in zip(parameters, fresh, strict=True):
        one.grad = None if own.grad is None else own.grad.clone()
    build_optimizer(OptimizerConfig.model_validate({"learning_rate": 1e-2, **optimizer}), fresh).step()
    environment.keeper.step(())
    assert all(torch.equal(own, one) for own, one in zip(parameters, fresh, strict=True))
    assert any(one.grad is not None and bool(one.grad.any()) for one in parameters)


class Harm(nn.Module):
    """Behaves for ``patience`` training passes, then raises or explodes."""

    def __init__(self, site: Site, harm: str, patience: int) -> None:
        super().__init__()
        self.mix = nn.Conv1d(site.channels, site.channels, 1)
        nn.init.zeros_(self.mix.weight)
        nn.init.zeros_(self.mix.bias)
        self.harm, self.patience = harm, patience

    def forward(self, hidden: Tensor) -> Tensor:
        self.patience -= self.training
        grown = hidden + self.mix(hidden)
        if self.patience >= 0:
            return grown
        if self.harm == "raise":
            raise ValueError("out of patience")
        return grown * 1e4


def harmful(harm: str, patience: int) -> Variety:
    spec = BlueprintSpec("sequence", "c*c + c", starts_as_identity=True)
    return Variety("test/harm", spec, lambda site: Harm(site, harm, patience))


STEPS, BATCHES = 12, 3
PLAN = {0: Action(Op.GERMINATE, "early", "test/harm", speed=0), 1: ADVANCE}


@pytest.mark.parametrize("at", [0, STEPS // 2, STEPS - 1], ids=["first", "middle", "last"])
def test_run_09_non_finite_batch_is_rolled_back_in_the_same_step(drive, at) -> None:
    driven = drive(Governor(GovernorConfig(penalty=7.0, snapshot_steps=1)), steps=STEPS)
    for step in range(STEPS):
        if step != at:
            assert driven.step().act is Act.CONTINUE
            continue
        before = driven.numbers()
        decision = driven.poisoned_step()
        assert (decision.act, decision.step, decision.penalty) == (Act.ROLL_BACK, at, 7.0)
        assert decision.back_to == at - 1
        assert decision.culprit is None
        assert all(torch.equal(one, before[name]) for name, one in driven.numbers().items())
    assert all(math.isfinite(loss) for place, loss in enumerate(driven.losses) if place != at)


@pytest.mark.parametrize("at", [2, STEPS // 2, STEPS - 1], ids=["first", "middle", "last"])
def test_exploding_seed_is_rolled_back_and_its_blueprint_withdrawn(drive, at) -> None:
    faults = FaultBook(limit=1)
    governor = Governor(GovernorConfig(surge_steps=1, watch_steps=STEPS), faults=faults)
    passes = (at - 1) * BATCHES  # it incubates in step 1, and acts from step 2 on
    driven = drive(governor, PLAN, steps=STEPS, batches=BATCHES, variety=harmful("explode", passes))
    for _ in range(at):
        assert driven.step().act is Act.CONTINUE
    decision = driven.step()
    assert (decision.act, decision.step) == (Act.ROLL_BACK, at)
    assert math.isfinite(driven.losses[-1])
    assert decision.reason.startswith("surge, step 1 of 1: " if at == 2 else "collapse: ")
    assert decision.reason.endswith("; after advance early test/harm at step 1")
    assert decision.culprit.blamed
    (dropped,) = driven.rolled.transitions
    assert (dropped.slot, dropped.now, driven.rolled.withdrawn) == ("early", Stage.PRUNED, True)
    slot = driven.environment.garden.slots["early"]
    assert (slot.living, slot.state, slot.embargo) == (None, SlotState.EMBARGOED, 2)
    assert faults.is_withdrawn("test/harm")
    assert driven.environment.keeper.misowned(driven.environment.model) == []
    assert driven.step().act is Act.CONTINUE


@pytest.mark.parametrize("at", [1, STEPS // 2, STEPS - 1], ids=["first", "middle", "last"])
def test_blueprint_that_raises_is_lost_without_a_rollback(drive, at) -> None:
    passes = (at - 1) * BATCHES + 1
    driven = drive(None, PLAN, steps=STEPS, batches=BATCHES, variety=harmful("raise", passes))
    acts = [driven.step(heal=True).act for _ in range(STEPS)]
    assert acts == [Act.CONTINUE] * STEPS
    (mishap,) = driven.environment.network.lost.take()
    assert "out of patience" in mishap.what
    assert driven.environment.garden.slots["early"].living is None


def test_training_improves_after_a_rollback(drive) -> None:
    driven = drive(steps=30)
    for _ in range(10):
        driven.step()
    assert driven.poisoned_step().act is Act.ROLL_BACK
    before = driven.losses[9]
    assert [driven.step().act for _ in range(15)] == [Act.CONTINUE] * 15
    assert driven.losses[-1] < before


def test_b1_pt_05_rollback_leaves_neighbouring_environments_bit_for_bit_unchanged(
    make_recipe: Callable[..., Recipe],
) -> None:
    def run(sick_at: int | None) -> list[list[tuple[float, ...]]]:
        recipe = make_recipe(steps=8)
        pool = Pool(recipe, ["left", "sick", "right"], 1)
        pool.reset(0, 3)
        governors = [Governor() for _ in pool.environments]
        for governor, environment in zip(governors, pool.environments, strict=True):
            governor.begin(environment.garden)
        told: list[list[tuple[float, ...]]] = [[] for _ in governors]
        plan = {0: GERMINATE, 2: ADVANCE, 5: FOSSILISE}
        for step in range(8):
            for place, change in pool.train(step):
                governors[place].record([change], step)
            if step == sick_at:
                with torch.no_grad():
                    pool.environments[1].model.head.weight.fill_(torch.nan)
            pool.evaluate(step)
            actions = []
            for place, signals in enumerate(pool.synchronise(step)):
                decision = governors[place].decide(signals)
                if decision.act is Act.ROLL_BACK:
                    governors[place].roll_back(decision)
                told[place].append((signals.train_loss, signals.validation_loss, signals.validation_metric))
                actions.append(plan.get(step, WAIT) if place != 1 else WAIT)
            for place, change in pool.apply(actions, step)[0]:
                governors[place].record([change], step)
        for place, environment in enumerate(pool.environments):
            told[place] += [tuple(one.flatten().tolist()) for one in environment.model.parameters()]
            told[place].append(tuple(environment.network.training_stream.state_dict()[0].tolist()))
        return told

    plain, rolled = run(None), run(4)
    assert (rolled[0], rolled[2]) == (plain[0], plain[2])
    assert rolled[1] != plain[1]
    assert all(math.isfinite(number) for line in rolled[1][5:8] for number in line)
