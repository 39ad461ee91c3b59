"""Rollback: what it restores and clears, and which faults cause it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from core_worlds import ADVANCE, GERMINATE, bad, same

from esper_core.config import GovernorConfig, OptimizerConfig
from esper_core.governor import Act, Governor
from esper_core.growth import FaultBook
from esper_core.growth.optimizers import build_optimizer
from esper_core.leyline import SlotState, Stage

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
def test_b1_pt_01_step_after_a_rollback_is_the_first_of_a_fresh_optimizer(drive, grow_and_keep, optimizer):
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
    assert same(parameters, fresh)
    assert any(one.grad is not None and bool(one.grad.any()) for one in parameters)


STEPS, BATCHES = 12, 3
PLAN = {0: replace(GERMINATE, blueprint="test/bad", speed=0), 1: ADVANCE}


@pytest.mark.parametrize("at", [0, STEPS // 2, STEPS - 1], ids=["first", "middle", "last"])
def test_run_09_non_finite_batch_is_rolled_back_in_the_same_step(drive, at):
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
        assert same(driven.numbers(), before)
        assert driven.rolled.train_loss is not None  # in the first step that of guessing
    assert all(math.isfinite(loss) for place, loss in enumerate(driven.losses) if place != at)


@pytest.mark.parametrize("at", [2, STEPS // 2, STEPS - 1], ids=["first", "middle", "last"])
def test_exploding_seed_is_rolled_back_and_its_blueprint_withdrawn(drive, at):
    faults = FaultBook(limit=1)
    governor = Governor(GovernorConfig(surge_steps=1, watch_steps=STEPS), faults=faults)
    passes = (at - 1) * BATCHES  # it incubates in step 1, and acts from step 2 on
    driven = drive(governor, PLAN, steps=STEPS, batches=BATCHES, variety=bad(lambda _, grown: grown * 1e4, passes))
    for _ in range(at):
        assert driven.step().act is Act.CONTINUE
    decision = driven.step()
    assert (decision.act, decision.step) == (Act.ROLL_BACK, at)
    assert math.isfinite(driven.losses[-1])
    assert decision.reason.startswith("surge, step 1 of 1: " if at == 2 else "collapse: ")
    assert decision.reason.endswith("; after advance early test/bad at step 1")
    assert decision.culprit.blamed
    (dropped,) = driven.rolled.transitions
    assert (dropped.slot, dropped.now, driven.rolled.withdrawn) == ("early", Stage.PRUNED, True)
    slot = driven.environment.garden.slots["early"]
    assert (slot.living, slot.state, slot.embargo) == (None, SlotState.EMBARGOED, 2)
    assert faults.is_withdrawn("test/bad")
    assert driven.environment.keeper.misowned(driven.environment.model) == []
    assert driven.step().act is Act.CONTINUE
