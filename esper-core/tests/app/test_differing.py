"""Where two tellings of an episode part, and what a player does that is asked again where everything stands still."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from esper_core.app.differing import first_before, first_difference
from esper_core.app.recording import Recording, recording_in
from esper_core.app.replaying import Player, Wish
from esper_core.leyline import WAIT, Action, ActionMask, Observation, Op, Signals
from esper_core.leyline.events import EpisodeFinished, Event, GovernorActed, RunFinished, SeedLost, StepFinished
from esper_core.telemetry import encode


def step(number: int, loss: float = 1.0, *, arm: str = "grown", action: str = "wait") -> StepFinished:
    signals = Signals(number, math.nan, loss, 0.5, 9, 9, ())
    return StepFinished(round=0, arm=arm, seed=7, step=number, signals=signals, action=action)


LOST = SeedLost(
    round=0, arm="grown", seed=7, step=1, slot="early", blueprint="a/b", package="a", what="raised", withdrawn=True
)
ENDED = EpisodeFinished(
    round=0,
    arm="grown",
    seed=7,
    test_loss=1.0,
    test_metric=0.6,
    validation_metric=0.6,
    parameters=9,
    host_parameters=9,
    fossils=0,
    steps=3,
    reward=1.5,
)
EVENTS: list[Event] = [step(0), LOST, step(1), step(2), ENDED]


def test_nan_is_the_same_as_nan_and_who_withdrew_a_blueprint_is_no_difference() -> None:
    again: list[Event] = [step(0), replace(LOST, withdrawn=False), step(1), step(2), ENDED]
    assert first_difference(EVENTS, again, None) is None


def test_an_older_version_told_no_arguments_and_that_is_no_difference() -> None:
    now = replace(step(0, action="prune early"), arguments={"speed": 4, "curve": "linear"})
    assert first_difference([step(0, action="prune early")], [now], None) is None


@pytest.mark.parametrize(
    ("place", "changed", "where", "what"),
    [
        (0, step(0, math.nextafter(1.0, 2.0)), 0, "signals.validation_loss"),
        (1, replace(LOST, what="was lost"), 1, "what"),
        (2, step(1, action="prune early"), 1, "action"),
        (3, step(2, math.nan), 2, "signals.validation_loss"),
        (4, replace(ENDED, test_loss=2.0), None, "test_loss"),
    ],
)
def test_the_first_difference_is_told(place: int, changed: Event, where: int | None, what: str) -> None:
    again = [*EVENTS[:place], changed, *EVENTS[place + 1 :]]
    found = first_difference(EVENTS, again, None)
    assert found is not None
    assert (found.step, found.what) == (where, what)
    if where is not None:
        until = first_difference(EVENTS, again, where - 1) if where else None
        assert until is None
        assert first_difference(EVENTS, again, where) == found


def test_what_is_missing_is_a_difference_on_either_side() -> None:
    for events in (EVENTS[:-1], EVENTS[:1], []):
        one, other = first_difference(EVENTS, events, None), first_difference(events, EVENTS, None)
        assert one is not None
        assert other is not None
        assert (one.step, one.replayed) == (other.step, other.recorded)


def test_what_is_done_in_a_step_is_no_difference_before_it() -> None:
    then, now = [step(0), step(1, action="prune early"), step(2)], [step(0), step(1), step(2, 5.0)]
    assert first_before(then, now, 1) is None
    assert first_before(then, now, 2) is not None
    assert first_before(then, [step(0), step(1, 5.0)], 1) is not None


def played(*actions: Action, wish: Wish | None = None) -> tuple[Player, list[str]]:
    steps, told = tuple(step(number) for number in range(len(actions))), list[str]()
    return Player(Recording("grown", 7, 0, steps, steps, None, actions), wish, told.append), told


def observation(number: int) -> Observation:
    return Observation(number, 9, step(number).signals)


OPEN = ActionMask({"early": frozenset({Op.PRUNE})})
PRUNE = Action(Op.PRUNE, "early")


def test_an_environment_whose_episode_is_over_is_left_alone_without_a_word() -> None:
    player, told = played(PRUNE, PRUNE)
    assert player.act([observation(0)], [OPEN]) == [PRUNE]
    assert player.act([observation(0)], [OPEN.shut()]) == [WAIT]
    assert told == []


def test_what_cannot_be_done_is_told_and_beyond_the_record_it_waits() -> None:
    player, told = played(PRUNE)
    assert player.act([observation(0)], [OPEN.shut()]) == [WAIT]
    assert told == ["step 0: what was done then is not possible now, so it waits: prune early"]
    assert player.act([observation(1)], [OPEN]) == [WAIT]
    assert len(told) == 1


def write(path: Path, *events: Event) -> None:
    (path / "events.jsonl").write_text("".join(f"{encode(event)}\n" for event in events))


def test_the_step_in_which_another_episode_went_beyond_repair_is_no_part_of_a_record(tmp_path: Path) -> None:
    stop = GovernorActed(round=0, arm="other", seed=7, step=1, act="stop", verdict="panic", reason="it surged")
    told = [step(0), step(0, arm="other"), step(1), step(1, arm="other"), stop]
    write(tmp_path, *told, RunFinished(status="stopped"))
    assert len(recording_in(tmp_path, "grown:7", {}, pytest.fail).steps) == 1
    assert len(recording_in(tmp_path, "other:7", {}, pytest.fail).steps) == 2
    write(tmp_path, *told[:4], RunFinished(status="interrupted"))
    assert len(recording_in(tmp_path, "grown:7", {}, pytest.fail).steps) == 2


def test_the_seed_is_enough_where_one_arm_has_a_policy(tmp_path: Path) -> None:
    write(tmp_path, step(0), step(0, arm="twin"), step(0, arm="capacity"), RunFinished(status="done"))
    assert recording_in(tmp_path, "7", {"grown": "capacity"}, pytest.fail).name == "grown:7"
