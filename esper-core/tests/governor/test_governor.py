"""Governor: decisions, snapshots, rollbacks and their causes."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch

from esper_core.governor import Act, Governor
from esper_core.growth import FaultBook
from esper_core.growth.optimizers import build_optimizer
from esper_core.leyline import Level, Op, SlotState, Stage, Verdict
from esper_core.settings import GovernorConfig, OptimizerConfig
from tests.support.core_worlds import ADVANCE, GERMINATE, bad, same, slow
from tests.support.governed import GROW_AND_KEEP, drive, living, signals

PANIC = Verdict(Level.PANIC, "too hot")


def settings(**changes):
    return GovernorConfig.model_validate(changes)


def heed(driven, *losses, **more):
    """Pass the signals of steps to the governor without training, and return the last decision."""
    for loss in losses:
        decision = driven.governor.decide(signals(driven.now, loss), **more)
        driven.now += 1
    return decision


def back_to(driven):
    return driven.governor.decide(signals(driven.now, 1.0), opinion=PANIC).back_to


def test_snapshot_is_taken_after_an_improvement_or_enough_steps():
    driven = drive(Governor(settings(snapshot_steps=3, rollbacks=9)))
    seen = []
    for loss in [2.0, 1.9, 1.95, 1.95, 1.95, 1.95, 1.8]:
        heed(driven, loss)
        seen.append(back_to(driven))
    assert seen == [0, 1, 1, 1, 4, 4, 6]


def test_no_snapshot_is_taken_of_a_step_with_a_warning():
    driven = drive(Governor(settings(snapshot_steps=1)))
    heed(driven, 2.0, *[1.9] * 6)
    decision = heed(driven, 1.9, 1.0, opinion=Verdict(Level.WARNING, "I do not like it"))
    assert decision.act is Act.CONTINUE, "only the first warning in a row is an act"
    assert back_to(driven) == 6


def test_no_snapshot_is_taken_while_a_seed_blends():
    driven = drive(Governor(settings(snapshot_steps=1)), {0: GERMINATE, 1: ADVANCE})
    driven.steps(5)
    assert driven.poisoned_step().back_to == 1


def test_all_snapshots_are_retaken_when_a_seed_is_fossilised():
    driven = drive(plan=GROW_AND_KEEP)
    driven.steps(5)
    kept = driven.numbers()
    assert any("_esper" in name for name in kept)
    tensors = driven.copies()
    assert [snapshot["step"] for snapshot in driven.governor.state_dict().plain["snapshots"]["kept"]] == [4, 4]
    assert all(torch.equal(copy[name], kept[name]) for copy in tensors for name in kept)
    decision = driven.poisoned_step()
    assert (decision.act, decision.back_to) == (Act.ROLL_BACK, 4)
    assert same(driven.numbers(), kept)


def test_damaged_snapshot_is_skipped_for_the_previous_one():
    driven = drive(Governor(settings(snapshot_steps=1)))
    states = []
    for _ in range(3):
        driven.step()
        states.append(driven.numbers())
    newest, _ = driven.copies()
    newest["head.weight"][0, 0] += 1
    decision = driven.poisoned_step()
    assert (decision.act, decision.back_to) == (Act.ROLL_BACK, 1)
    assert same(driven.numbers(), states[1])
    kept = driven.governor.state_dict().plain["snapshots"]["kept"]
    assert [snapshot["step"] for snapshot in kept] == [1, 1]  # all snapshots are undamaged again
    assert driven.poisoned_step().act is Act.ROLL_BACK


def test_governor_stops_if_every_snapshot_is_damaged():
    driven = drive(Governor(settings(snapshot_steps=1)))
    driven.steps(3)
    for copy in driven.copies():
        copy["head.weight"][0, 0] = torch.nan
    decision = driven.poisoned_step()
    assert decision.act is Act.STOP
    assert decision.reason.endswith(
        "there is no intact snapshot to restore: "
        'of step 2: its copy of "head.weight" is damaged; of step 1: its copy of "head.weight" is damaged'
    )
    assert driven.environment.model.head.weight.isnan().any()


@pytest.mark.parametrize(
    ("changes", "acts", "why"),
    [
        ({"rollbacks": 2}, [Act.ROLL_BACK] * 2, "it was already rolled back 2 times (governor.rollbacks)"),
        ({"rollback": False}, [], "rollbacks are disabled (governor.rollback)"),
    ],
)
def test_governor_stops_after_the_maximum_of_rollbacks_or_without_any(changes, acts, why):
    driven = drive(Governor(settings(**changes)))
    decisions = [driven.poisoned_step() for _ in range(len(acts) + 1)]
    assert [decision.act for decision in decisions] == [*acts, Act.STOP]
    assert decisions[-1].reason.endswith(why)


def test_new_episode_resets_rollbacks_and_history_and_blames_no_mutation_of_the_last(monkeypatch):
    monkeypatch.setattr("esper_core.growth.transitions.FAULTS_UNTIL_WITHDRAWN", 1)
    faults = FaultBook()
    driven = drive(Governor(settings(rollbacks=1), faults=faults), {1: GERMINATE, 2: ADVANCE})
    assert driven.poisoned_step().act is Act.ROLL_BACK
    driven.steps(5)
    driven.environment.reset(1, 4)
    driven.governor.begin(driven.environment.garden)
    assert driven.governor.state_dict().plain["history"]["best_loss"] is None
    driven.plan, driven.now = {}, 0
    decision = driven.poisoned_step()
    assert (decision.act, decision.culprit) == (Act.ROLL_BACK, None)
    assert not faults.is_withdrawn("test/local-conv")


@pytest.mark.parametrize(
    ("level", "loss", "act"),
    [
        (Level.PANIC, 1.0, Act.ROLL_BACK),
        (Level.ENOUGH, 1.0, Act.EARLY_STOP),
        (Level.WARNING, 1.0, Act.WARN),
        (Level.CALM, math.nan, Act.ROLL_BACK),
        (Level.ENOUGH, math.nan, Act.ROLL_BACK),
    ],
)
def test_opinion_of_a_plugin_can_raise_the_level_and_not_lower_it(level, loss, act):
    decision = heed(drive(), loss, opinion=Verdict(level, "says a plugin"))
    assert decision.act is act
    assert (decision.reason == "says a plugin") is math.isfinite(loss)
    assert decision.second_opinion is (act is Act.ROLL_BACK and math.isfinite(loss))


def test_sim_low_1_an_episode_on_a_plateau_ends_early_and_is_cut_not_terminal():
    driven = drive(Governor(settings(patience=3)))
    decisions = [heed(driven, loss) for loss in [2.0, 1.9, 1.9, 1.9, 1.9]]
    assert [decision.act for decision in decisions] == [*[Act.CONTINUE] * 4, Act.EARLY_STOP]
    assert decisions[-1].truncated
    assert decisions[-1].reason == "no improvement for 3 steps (governor.patience)"


def test_overfitting_episode_ends_early_without_another_act():
    driven = drive(Governor(settings(patience=3)))
    acts = [heed(driven, loss).act for loss in [2.0, 1.5, 1.0, 0.8, 0.6]]
    acts += [driven.governor.decide(signals(step, 2.6, train=0.1)).act for step in range(5, 8)]
    assert acts == [*[Act.CONTINUE] * 7, Act.EARLY_STOP]


@pytest.mark.parametrize("incubates", [False, True])
def test_host_that_only_trains_is_neither_warned_of_nor_restored(incubates):
    driven = drive(Governor(settings(surge_steps=1)))
    heed(driven, 2.0, 1.5, 1.0, 0.8, 0.6, 0.5)
    if incubates:
        driven.apply(GERMINATE)
    assert {heed(driven, loss).act for loss in [3.0, 30.0, 3e4, 3e8]} == {Act.CONTINUE}
    assert driven.poisoned_step().act is Act.ROLL_BACK


def test_governor_that_is_off_does_nothing_and_keeps_no_copy():
    driven = drive(Governor(settings(enabled=False)), GROW_AND_KEEP)
    decisions = [*driven.steps(5), driven.poisoned_step(), heed(driven, 1.0, opinion=PANIC)]
    assert {decision.act for decision in decisions} == {Act.CONTINUE}
    assert driven.copies() == []
    assert settings(enabled=False) == GovernorConfig.model_validate("off") == GovernorConfig.model_validate(False)


def test_snapshot_is_taken_once_a_frozen_parameter_trains():
    driven = drive(Governor(settings(snapshot_steps=9)))
    frozen = driven.environment.model.head.weight.requires_grad_(False)
    driven.governor.begin(driven.environment.garden, 2.4)
    assert all("head.weight" not in copy for copy in driven.copies())
    heed(driven, 2.0)
    frozen.requires_grad_(True)
    heed(driven, 2.1)  # no improvement, and too soon for another snapshot
    assert "head.weight" in driven.copies()[0]
    before = driven.numbers()
    assert driven.poisoned_step().back_to == 1
    assert same(driven.numbers(), before)


@pytest.mark.parametrize(("changes", "slot"), [({}, None), ({"patience": 2}, living())], ids=["default", "living"])
def test_sim_low_3_patience_is_off_by_default_and_does_not_end_while_a_seed_lives(changes, slot):
    driven = drive(Governor(settings(**changes)))
    assert {driven.governor.decide(signals(step, 2.0, slot=slot)).act for step in range(60)} == {Act.CONTINUE}


def test_outdated_rollback_decision_is_refused():
    driven = drive()
    old = heed(driven, 1.0, opinion=PANIC)
    new = heed(driven, 1.0, opinion=PANIC)
    for spent in (old, new):
        if spent is new:
            driven.governor.roll_back(new)
        with pytest.raises(ValueError, match="only the latest decision"):
            driven.governor.roll_back(spent)


# --- rollbacks: what they restore and clear, and their causes


def test_rollback_reports_the_last_healthy_loss_and_forgets_mutations_and_warnings():
    driven = drive(Governor(settings(snapshot_steps=1)))
    healthy = [heed(driven, loss) for loss in (2.0, 1.0)]
    driven.apply(GERMINATE)
    driven.environment.train()
    driven.apply(ADVANCE)
    uneasy = Verdict(Level.WARNING, "I do not like it")
    assert heed(driven, 9.0, opinion=uneasy).act is Act.WARN
    decision = driven.poisoned_step()
    assert (decision.act, decision.back_to) == (Act.ROLL_BACK, healthy[-1].step)
    assert decision.culprit.mutation.op is Op.ADVANCE
    assert driven.rolled.train_loss == 1.0
    assert heed(driven, 9.0, opinion=uneasy).act is Act.WARN, "the first warning after a rollback is reported"
    assert driven.poisoned_step().culprit is None


FAST = (("sgd", "plain"), ("adam", "fused"), ("adamw", "foreach"))
KINDS = product(("sgd", "adam", "adamw"), ("plain", "foreach", "fused"))


@pytest.mark.parametrize(("kind", "implementation"), [pair if pair in FAST else slow(*pair) for pair in KINDS])
def test_b1_pt_01_step_after_a_rollback_is_the_first_of_a_fresh_optimizer(kind, implementation):
    decay = 0.1 if kind == "adamw" else 0.0
    optimizer = {"kind": kind, "implementation": implementation, "weight_decay": decay}
    driven = drive(plan=GROW_AND_KEEP, optimizer=optimizer, steps=12)
    driven.steps(6)
    parameters = list(driven.environment.model.parameters())
    assert driven.poisoned_step().act is Act.ROLL_BACK
    environment = driven.environment
    assert list(map(id, environment.model.parameters())) == list(map(id, parameters))
    fresh = [parameter.detach().clone().requires_grad_() for parameter in parameters]
    split = environment.recipe.data["train"]
    with environment.network.training_stream:
        loss = environment.recipe.task.losses(environment.model(split.inputs[:20]), split.targets[:20]).mean()
    loss.backward()
    for parameter, fresh_parameter in zip(parameters, fresh, strict=True):
        fresh_parameter.grad = None if parameter.grad is None else parameter.grad.clone()
    build_optimizer(OptimizerConfig.model_validate({"learning_rate": 1e-2, **optimizer}), fresh).step()
    environment.keeper.step(())
    assert same(parameters, fresh)
    assert any(parameter.grad is not None and bool(parameter.grad.any()) for parameter in parameters)


@pytest.mark.parametrize("at", [2, 11], ids=["first", "last"])
def test_exploding_seed_is_rolled_back_and_its_blueprint_withdrawn(at, monkeypatch):
    monkeypatch.setattr("esper_core.growth.transitions.FAULTS_UNTIL_WITHDRAWN", 1)
    faults, plan = FaultBook(), {0: replace(GERMINATE, blueprint="test/bad", speed=0), 1: ADVANCE}
    governor = Governor(settings(surge_steps=1, watch_steps=12), faults=faults)
    passes = (at - 1) * 3  # it incubates in the three batches of step 1, and acts from step 2 on
    driven = drive(governor, plan, steps=12, variety=bad(lambda _, grown: grown * 1e4, passes))
    assert {decision.act for decision in driven.steps(at)} == {Act.CONTINUE}
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
