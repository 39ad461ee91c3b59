"""Governor: its decisions, when it takes snapshots, and when it stops."""

from __future__ import annotations

import math

import pytest
import torch
from core_worlds import same

from esper_core.config import GovernorConfig
from esper_core.governor import Act, Governor
from esper_core.growth import FaultBook
from esper_core.leyline import Level, Verdict

PANIC = Verdict(Level.PANIC, "too hot")


def settings(**changes):
    return GovernorConfig.model_validate(changes)


def heed(drive, loss, signals, **more):
    """One step that is only told of."""
    decision = drive.governor.decide(signals(drive.now, loss), **more)
    drive.now += 1
    return decision


def back_to(drive, signals):
    """Where a rollback would go to now."""
    return drive.governor.decide(signals(drive.now, 1.0), opinion=PANIC).back_to


def test_healthy_environment_continues_unchanged(drive):
    watched, alone = drive(), drive(Governor(settings(snapshot_steps=1)))
    for _ in range(6):
        assert watched.step().act is Act.CONTINUE
        alone.environment.train()
        alone.environment.evaluate("validation")
    assert same(watched.numbers(), alone.numbers())


def test_snapshot_is_taken_after_an_improvement_or_enough_steps(drive, signals):
    driven = drive(Governor(settings(snapshot_steps=3, rollbacks=9)))
    seen = []
    for loss in [2.0, 1.9, 1.95, 1.95, 1.95, 1.95, 1.8]:
        heed(driven, loss, signals)
        seen.append(back_to(driven, signals))
    assert seen == [0, 1, 1, 1, 4, 4, 6]


def test_no_snapshot_is_taken_of_a_step_with_a_warning(drive, signals):
    driven = drive(Governor(settings(snapshot_steps=1)))
    for loss in [2.0, *[1.9] * 6, 9.0, 9.0]:
        heed(driven, loss, signals)
    heed(driven, 1.0, signals, opinion=Verdict(Level.WARNING, "I do not like it"))
    assert back_to(driven, signals) == 6


def test_no_snapshot_is_taken_while_a_seed_blends(drive, grow_and_keep):
    del grow_and_keep[4]
    driven = drive(Governor(settings(snapshot_steps=1)), grow_and_keep)
    for _ in range(5):
        driven.step()
    assert driven.poisoned_step().back_to == 1


def test_all_snapshots_are_retaken_when_a_seed_is_fossilised(drive, grow_and_keep):
    driven = drive(plan=grow_and_keep)
    for _ in range(5):
        driven.step()
    kept = driven.numbers()
    assert any(name.startswith("_esper.") for name in kept)
    tensors = driven.copies()
    assert [told["step"] for told in driven.governor.state_dict().plain["shelf"]["kept"]] == [4, 4]
    assert all(torch.equal(copy[name], kept[name]) for copy in tensors for name in kept)
    decision = driven.poisoned_step()
    assert (decision.act, decision.back_to) == (Act.ROLL_BACK, 4)
    assert same(driven.numbers(), kept)


def test_damaged_snapshot_is_skipped_for_the_previous_one(drive):
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
    kept = driven.governor.state_dict().plain["shelf"]["kept"]
    assert [told["step"] for told in kept] == [1, 1]  # every one is sound again
    assert driven.poisoned_step().act is Act.ROLL_BACK


def test_governor_stops_if_every_snapshot_is_damaged(drive):
    driven = drive(Governor(settings(snapshot_steps=1)))
    for _ in range(3):
        driven.step()
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
def test_governor_stops_after_the_maximum_of_rollbacks_or_without_any(drive, changes, acts, why):
    driven = drive(Governor(settings(**changes)))
    decisions = [driven.poisoned_step() for _ in range(len(acts) + 1)]
    assert [one.act for one in decisions] == [*acts, Act.STOP]
    assert decisions[-1].reason.endswith(why)


def test_new_episode_resets_rollbacks_and_history_and_blames_no_mutation_of_the_last(drive, grow_and_keep):
    faults = FaultBook(limit=1)
    driven = drive(Governor(settings(rollbacks=1), faults=faults), grow_and_keep)
    assert driven.poisoned_step().act is Act.ROLL_BACK
    for _ in range(5):
        driven.step()
    driven.environment.reset(1, 4)
    driven.governor.begin(driven.environment.garden)
    assert driven.governor.state_dict().plain["history"]["best_loss"] is None
    driven.plan, driven.now = {}, 0
    decision = driven.poisoned_step()
    assert (decision.act, decision.culprit) == (Act.ROLL_BACK, None)
    assert not faults.is_withdrawn("test/local-conv")


def test_warning_is_repeated_only_after_a_calm_step(drive, signals):
    driven = drive()
    acts = [heed(driven, loss, signals).act for loss in [*[1.0] * 6, 2.5, 2.5, 1.0, 2.5]]
    assert acts[6:] == [Act.WARN, Act.CONTINUE, Act.CONTINUE, Act.WARN]


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
def test_opinion_of_a_plugin_can_raise_the_level_and_not_lower_it(drive, signals, level, loss, act):
    decision = heed(drive(), loss, signals, opinion=Verdict(level, "says a plugin"))
    assert decision.act is act
    assert (decision.reason == "says a plugin") is math.isfinite(loss)


def test_sim_low_1_an_episode_on_a_plateau_ends_early_and_is_cut_not_terminal(drive, signals):
    driven = drive(Governor(settings(patience=3)))
    decisions = [heed(driven, loss, signals) for loss in [2.0, 1.9, 1.9, 1.9, 1.9]]
    assert [one.act for one in decisions] == [*[Act.CONTINUE] * 4, Act.EARLY_STOP]
    assert decisions[-1].truncated
    assert decisions[-1].reason == "no improvement for 3 steps (governor.patience)"


def test_overfitting_episode_ends_early(drive, signals):
    driven = drive(Governor(settings(patience=3)))
    for loss in [2.0, 1.5, 1.0, 0.8, 0.6]:
        assert heed(driven, loss, signals).act is Act.CONTINUE
    acts = [driven.governor.decide(signals(step, 2.6, train=0.1)).act for step in range(5, 8)]
    assert acts == [Act.WARN, Act.CONTINUE, Act.EARLY_STOP]


def test_episode_does_not_end_early_while_a_seed_lives(drive, signals, living):
    driven = drive(Governor(settings(patience=2)))
    acts = [driven.governor.decide(signals(step, 2.0, slot=living())).act for step in range(6)]
    assert acts == [Act.CONTINUE] * 6


def test_sim_low_3_patience_is_off_by_default(drive, signals):
    driven = drive()
    assert {heed(driven, 2.0, signals).act for _ in range(60)} == {Act.CONTINUE}


def test_outdated_rollback_decision_is_refused(drive, signals):
    driven = drive()
    old = heed(driven, 1.0, signals, opinion=PANIC)
    new = heed(driven, 1.0, signals, opinion=PANIC)
    for spent in (old, new):
        if spent is new:
            driven.governor.roll_back(new)
        with pytest.raises(ValueError, match="only the latest decision"):
            driven.governor.roll_back(spent)


def test_rollback_restores_the_history(drive, signals):
    driven = drive(Governor(settings(snapshot_steps=100)))
    for loss in [2.0, 1.0]:
        heed(driven, loss, signals)
    known = driven.governor.state_dict().plain["history"]
    for loss in [1.1] * 6:
        heed(driven, loss, signals)
    driven.governor.roll_back(heed(driven, float("nan"), signals))
    assert driven.governor.state_dict().plain["history"] == known


def test_snapshots_reuse_their_memory(drive, monkeypatch):
    driven = drive(Governor(settings(snapshot_steps=1)))
    places = {one.data_ptr() for copy in driven.copies() for one in copy.values()}
    monkeypatch.setattr(
        "esper_core.governor.governor.Snapshot", lambda garden: pytest.fail("another snapshot was made")
    )
    for _ in range(4):
        driven.step()
    driven.environment.reset(1, 4)
    driven.governor.begin(driven.environment.garden)
    assert {one.data_ptr() for copy in driven.copies() for one in copy.values()} == places
