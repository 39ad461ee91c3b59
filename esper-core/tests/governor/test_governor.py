"""What the governor decides, when it takes snapshots, and when nothing helps any more."""

from __future__ import annotations

import json

import pytest
import torch

from esper_core.config import GovernorConfig
from esper_core.governor import Act, Governor
from esper_core.growth import FaultBook
from esper_core.leyline import Action, Level, Op, State, Verdict

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


def test_a_healthy_environment_goes_on_and_nothing_of_it_changes(drive) -> None:
    watched, alone = drive(), drive(Governor(settings(snapshot_steps=1)))
    for _ in range(6):
        assert watched.step().act is Act.CONTINUE
        alone.environment.train()
        alone.environment.evaluate("validation")
    left, right = watched.numbers(), alone.numbers()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_there_is_a_way_back_before_anything_was_trained(drive) -> None:
    driven = drive()
    before = driven.numbers()
    decision = driven.poisoned_step()
    assert (decision.act, decision.step, decision.back_to) == (Act.ROLL_BACK, 0, -1)
    assert all(torch.equal(one, before[name]) for name, one in driven.numbers().items())
    assert driven.rolled.train_loss is not None  # that of guessing


def test_a_snapshot_is_taken_after_an_improvement_and_when_the_last_one_is_old(drive, signals) -> None:
    driven = drive(Governor(settings(snapshot_steps=3, rollbacks=9)))
    seen = []
    for loss in [2.0, 1.9, 1.95, 1.95, 1.95, 1.95, 1.8]:
        heed(driven, loss, signals)
        seen.append(back_to(driven, signals))
    assert seen == [0, 1, 1, 1, 4, 4, 6]


def test_no_snapshot_is_taken_of_a_step_that_was_not_calm(drive, signals) -> None:
    driven = drive(Governor(settings(snapshot_steps=1)))
    for loss in [2.0, *[1.9] * 6, 9.0, 9.0]:
        heed(driven, loss, signals)
    heed(driven, 1.0, signals, opinion=Verdict(Level.WARNING, "I do not like it"))
    assert back_to(driven, signals) == 6


def test_no_snapshot_is_taken_while_a_seed_is_blended_in(drive, grow_and_keep) -> None:
    driven = drive(Governor(settings(snapshot_steps=1)), {step: grow_and_keep[step] for step in (0, 1)})
    for _ in range(5):
        driven.step()
    assert driven.poisoned_step().back_to == 1


def test_every_snapshot_is_taken_anew_when_a_seed_is_kept_for_good(drive, grow_and_keep) -> None:
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
    assert all(torch.equal(one, kept[name]) for name, one in driven.numbers().items())


def test_a_damaged_snapshot_is_passed_over_for_the_one_before(drive) -> None:
    driven = drive(Governor(settings(snapshot_steps=1)))
    states = []
    for _ in range(3):
        driven.step()
        states.append(driven.numbers())
    newest, _ = driven.copies()
    newest["head.weight"][0, 0] += 1
    decision = driven.poisoned_step()
    assert (decision.act, decision.back_to) == (Act.ROLL_BACK, 1)
    assert all(torch.equal(one, states[1][name]) for name, one in driven.numbers().items())
    kept = driven.governor.state_dict().plain["shelf"]["kept"]
    assert [told["step"] for told in kept] == [1, 1]  # every one is sound again
    assert driven.poisoned_step().act is Act.ROLL_BACK


def test_where_every_snapshot_is_damaged_the_governor_stops_and_touches_nothing(drive) -> None:
    driven = drive(Governor(settings(snapshot_steps=1)))
    for _ in range(3):
        driven.step()
    for copy in driven.copies():
        copy["head.weight"][0, 0] = torch.nan
    decision = driven.poisoned_step()
    assert decision.act is Act.STOP
    assert decision.reason.endswith(
        "there is no sound snapshot to go back to: "
        'of step 2: its copy of "head.weight" is damaged; of step 1: its copy of "head.weight" is damaged'
    )
    assert driven.environment.model.head.weight.isnan().any()


def test_after_so_many_rollbacks_the_governor_stops(drive) -> None:
    driven = drive(Governor(settings(rollbacks=2)))
    decisions = [driven.poisoned_step() for _ in range(3)]
    assert [one.act for one in decisions] == [Act.ROLL_BACK, Act.ROLL_BACK, Act.STOP]
    assert decisions[-1].reason.endswith("it was rolled back 2 times already (governor.rollbacks)")


def test_a_new_episode_begins_with_all_its_rollbacks_and_no_history(drive) -> None:
    driven = drive(Governor(settings(rollbacks=1)))
    driven.step()
    assert driven.poisoned_step().act is Act.ROLL_BACK
    driven.environment.reset(1, 4)
    driven.governor.begin(driven.environment.garden)
    assert driven.governor.state_dict().plain["history"]["best_loss"] is None
    assert driven.poisoned_step().act is Act.ROLL_BACK


def test_a_mutation_of_one_episode_is_not_blamed_for_a_panic_in_the_next(drive, grow_and_keep) -> None:
    faults = FaultBook(limit=1)
    driven = drive(Governor(faults=faults), grow_and_keep)
    for _ in range(5):
        driven.step()
    driven.environment.reset(1, 4)
    driven.governor.begin(driven.environment.garden)
    driven.plan, driven.now = {}, 0
    decision = driven.poisoned_step()
    assert (decision.act, decision.culprit) == (Act.ROLL_BACK, None)
    assert not faults.is_withdrawn("test/local-conv")


def test_where_rolling_back_is_switched_off_a_panic_is_a_stop(drive) -> None:
    decision = drive(Governor(settings(rollback=False))).poisoned_step()
    assert decision.act is Act.STOP
    assert decision.reason.endswith("rolling back is switched off (governor.rollback)")


def test_a_warning_is_told_once_and_again_when_it_was_calm_between(drive, signals) -> None:
    driven = drive()
    acts = [heed(driven, loss, signals).act for loss in [*[1.0] * 6, 2.5, 2.5, 1.0, 2.5]]
    assert acts[6:] == [Act.WARN, Act.CONTINUE, Act.CONTINUE, Act.WARN]


@pytest.mark.parametrize(
    ("level", "act"), [(Level.PANIC, Act.ROLL_BACK), (Level.ENOUGH, Act.EARLY_STOP), (Level.WARNING, Act.WARN)]
)
def test_others_can_raise_the_alarm_or_say_that_it_is_enough(drive, signals, level, act) -> None:
    decision = heed(drive(), 1.0, signals, opinion=Verdict(level, "says a plugin"))
    assert (decision.act, decision.reason) == (act, "says a plugin")


def test_nobody_can_call_the_alarm_off(drive, signals) -> None:
    for opinion in (Verdict(Level.CALM), Verdict(Level.ENOUGH, "that will do")):
        assert heed(drive(), float("nan"), signals, opinion=opinion).act is Act.ROLL_BACK


def test_sim_low_1_an_episode_on_a_plateau_ends_early_and_is_cut_not_terminal(drive, signals) -> None:
    driven = drive(Governor(settings(patience=3)))
    decisions = [heed(driven, loss, signals) for loss in [2.0, 1.9, 1.9, 1.9, 1.9]]
    assert [one.act for one in decisions] == [*[Act.CONTINUE] * 4, Act.EARLY_STOP]
    assert decisions[-1].truncated
    assert decisions[-1].reason == "no improvement for 3 steps (governor.patience)"


def test_an_episode_that_overfits_ends_early_too(drive, signals) -> None:
    driven = drive(Governor(settings(patience=3)))
    for loss in [2.0, 1.5, 1.0, 0.8, 0.6]:
        assert heed(driven, loss, signals).act is Act.CONTINUE
    acts = [driven.governor.decide(signals(step, 2.6, train=0.1)).act for step in range(5, 8)]
    assert acts == [Act.WARN, Act.CONTINUE, Act.EARLY_STOP]


def test_no_episode_ends_on_a_plateau_while_a_seed_is_tried(drive, signals, living) -> None:
    driven = drive(Governor(settings(patience=2)))
    acts = [driven.governor.decide(signals(step, 2.0, slot=living())).act for step in range(6)]
    assert acts == [Act.CONTINUE] * 6


def test_sim_low_3_patience_is_off_unless_it_is_asked_for(drive, signals) -> None:
    driven = drive()
    assert {heed(driven, 2.0, signals).act for _ in range(60)} == {Act.CONTINUE}


def test_an_old_decision_to_roll_back_is_refused(drive, signals) -> None:
    driven = drive()
    old = heed(driven, 1.0, signals, opinion=PANIC)
    new = heed(driven, 1.0, signals, opinion=PANIC)
    for spent in (old, new):
        if spent is new:
            driven.governor.roll_back(new)
        with pytest.raises(ValueError, match="only the latest decision"):
            driven.governor.roll_back(spent)


def test_what_is_remembered_goes_back_with_the_host(drive, signals) -> None:
    driven = drive(Governor(settings(snapshot_steps=100)))
    for loss in [2.0, 1.0]:
        heed(driven, loss, signals)
    known = driven.governor.state_dict().plain["history"]
    for loss in [1.1] * 6:
        heed(driven, loss, signals)
    driven.governor.roll_back(heed(driven, float("nan"), signals))
    assert driven.governor.state_dict().plain["history"] == known


def test_a_governor_goes_on_from_where_it_was_written(drive, grow_and_keep) -> None:
    driven = drive(plan=grow_and_keep, steps=12)
    for _ in range(6):
        driven.step()
    driven.poisoned_step()
    driven.step()
    written = driven.governor.state_dict()
    other = Governor()
    other.begin(driven.environment.garden)
    other.load_state_dict(State(json.loads(json.dumps(written.plain, allow_nan=False)), written.tensors))
    assert other.state_dict().plain == driven.governor.state_dict().plain
    assert all(torch.equal(one, written.tensors[name]) for name, one in other.state_dict().tensors.items())
    driven.governor = other
    assert driven.step().act is Act.CONTINUE
    decision = driven.poisoned_step()
    assert decision.act is Act.ROLL_BACK
    assert driven.governor.state_dict().plain["rollbacks"] == 2


def test_taking_a_snapshot_allocates_nothing_new(drive, monkeypatch) -> None:
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


def test_a_seed_that_is_pruned_after_it_was_leant_on_is_no_panic(drive) -> None:
    plan = {
        0: Action(Op.GERMINATE, "early", "test/local-conv", speed=1),
        1: Action(Op.ADVANCE, "early"),
        9: Action(Op.PRUNE, "early", speed=0),
    }
    driven = drive(Governor(settings(surge_steps=1, surge_ratio=1.5)), plan, steps=14)
    assert [driven.step().act for _ in range(14)] == [Act.CONTINUE] * 14
    assert driven.losses[10] > 1.5 * driven.losses[9]  # it would have been taken for a surge


def test_a_seed_that_incubates_is_named_in_a_rollback_and_not_blamed(drive, grow_and_keep) -> None:
    faults = FaultBook(limit=1)
    driven = drive(Governor(faults=faults), {0: grow_and_keep[0]})
    driven.step()
    decision = driven.poisoned_step()
    assert decision.reason.endswith("; after germinate early test/local-conv at step 0")
    assert (driven.rolled.withdrawn, faults.is_withdrawn("test/local-conv")) == (False, False)
