"""The history of a run: records of seeds and episodes, whatever its events are and whether it has ended."""

import json
import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import given, settings, strategies as st

from esper_core.leyline import WAIT, Action, Cause, Finding, Op, Opinion, Reason, Signals, Stage
from esper_core.leyline.events import EpisodeFinished, Event, GovernorActed, RunStarted, StageChanged, StepFinished
from esper_core.telemetry import encode
from esper_watch import History, read_history
from esper_watch.history import SeedGain
from tests.support.run_folders import stage_changed, step_finished

PLACE = {"round": 0, "arm": "grown", "seed": 7}

stage = partial(stage_changed, **PLACE, blueprint="b/conv", parameters=120)


def step(number: int, *, price: float | None = None, **more: Any) -> StepFinished:
    opinion = None if price is None else Opinion(Finding.SHOWN, price=price)
    return step_finished(number, opinion=opinion, blueprint="b/conv", seed=7, **more)


def history_of(*events: Event) -> History:
    history = History("r")
    for event in events:
        history.add(event)
    return history


def test_the_mean_of_metrics_that_are_too_large_is_not_a_number():
    history = history_of(
        *(replace(step(0), seed=seed, signals=Signals(0, 1.0, 1.0, 1e308, 10, 10, ())) for seed in (1, 2))
    )
    assert math.isnan(history.mean_metric("grown")[0])


def test_a_seed_has_its_latest_gain_and_reason():
    (life,) = history_of(
        stage(1, None, Stage.GERMINATED),
        stage(2, Stage.GERMINATED, Stage.TRAINING),
        step(2, gain=0.1, price=0.02),
        stage(3, Stage.TRAINING, Stage.BLENDING),
        stage(4, Stage.BLENDING, Stage.HOLDING),
        stage(5, Stage.HOLDING, Stage.BLENDING),
        stage(6, Stage.BLENDING, Stage.HOLDING),
        stage(7, Stage.HOLDING, Stage.FOSSILISED, reason=Reason(Cause.POLICY)),
        step(7, gain=0.3, price=0.02),
    ).seeds
    assert life.gain == SeedGain(7, Stage.TRAINING, 0.3, 0.05, 0.02, 100)
    assert (life.slot, life.parameters, str(life.reason)) == ("early", 120, "by the policy")
    assert (life.kept, life.ended) == (True, True)


def test_a_gain_belongs_to_the_seed_that_lived_when_it_was_measured():
    """With two seeds of one blueprint in a slot, in turn: stage changes of a step precede its event."""
    first, second = history_of(
        stage(0, None, Stage.GERMINATED),
        stage(3, Stage.GERMINATED, Stage.PRUNED),
        stage(3, None, Stage.GERMINATED, seed_id=1),
        step(3, gain=-0.2),
        stage(4, Stage.GERMINATED, Stage.TRAINING, seed_id=1),
        step(4, gain=0.6),
        step(5, gain=math.inf),
    ).seeds
    assert first.gain == SeedGain(3, Stage.TRAINING, -0.2, 0.05, None, 100)
    assert second.gain == SeedGain(4, Stage.TRAINING, 0.6, 0.05, None, 100), "one that is not finite is none"
    assert (first.stage, second.ended) == (Stage.PRUNED, False)


@settings(max_examples=20)
@given(data=st.data())
def test_every_event_has_its_record(any_event, data):
    events = data.draw(st.lists(any_event, max_size=12))
    history = history_of(*events)
    counted = {EpisodeFinished: history.episodes, GovernorActed: history.governor}
    for kind, records in counted.items():
        assert len(records) == sum(isinstance(event, kind) for event in events)
    changes = [event for event in events if isinstance(event, StageChanged)]
    kept = [change for life in history.seeds for change in life.changes]
    assert sorted(map(repr, kept)) == sorted(map(repr, changes))
    assert 0.0 <= history.share_done <= 1.0


def test_a_history_is_fed_while_the_run_goes_on_and_keeps_looks():
    history = history_of(stage(0, None, Stage.GERMINATED))
    for number in (1, 2):
        action = Action(Op.PRUNE, "early") if number == 2 else WAIT
        history.add(step(number, gain=0.1 * number, price=0.02, action=action))
        assert history.finished_steps == number
    (life,) = history.seeds
    looks = list(life.looks)
    assert [look.step for look in looks] == [1, 2]
    assert looks[1].mean == pytest.approx(0.2)
    assert looks[1].price == pytest.approx(0.02)
    assert looks[1].opens, "as its gate found, whatever the bound is"
    assert not looks[1].judged
    assert history.metric_by_step(0, "grown") == {1: pytest.approx([0.4]), 2: pytest.approx([0.4])}


def began(*arms: str) -> RunStarted:
    return RunStarted(run="r", arms=arms, rounds=1, environments=1, steps=8)


def trained(arm: str, steps: int) -> Iterator[StepFinished]:
    for number in range(steps):
        yield StepFinished(**{**PLACE, "arm": arm}, step=number, signals=Signals(number, 1.0, 1.0, 0.5, 10, 10, ()))


def ended(arm: str, **more: Any) -> EpisodeFinished:
    unread = dict.fromkeys(("test_loss", "test_metric", "validation_metric", "parameters", "host_parameters"), 1)
    return EpisodeFinished(**{**PLACE, "arm": arm, **unread, "fossils": 0, "steps": 8, "reward": None, **more})


def test_a_control_is_a_phase_of_its_own_unless_nothing_grew():
    pair = [*trained("grown", 8), *trained("twin", 8)]
    history = history_of(began("grown", "twin", "capacity"), *pair, stage(0, None, Stage.GERMINATED))
    assert history.phases == [("grown", "twin"), ("capacity",)]
    assert history.share_done == pytest.approx(2 / 3)
    history = history_of(began("grown", "twin", "capacity"), *pair, ended("grown"))
    assert (history.phases, history.share_done) == ([("grown", "twin")], 1.0)


def test_a_stopped_episode_counts_as_done():
    short = [*trained("grown", 5), *trained("twin", 5)]
    history = history_of(began("grown", "twin"), *short, ended("grown", steps=5), ended("twin", steps=5))
    assert history.share_done == 1.0


def test_means_that_do_not_exist_are_not_finite():
    event = step_finished(0, blueprint="b/conv", seed=7)
    signals = [replace(event.signals, validation_metric=value) for value in (math.inf, -math.inf)]
    huge = [replace(event, signals=huge_signals) for huge_signals in signals]
    assert math.isnan(history_of(began("grown"), *huge).mean_metric("grown")[0])


@pytest.mark.parametrize("status", ["running", "died"])
def test_an_unfinished_run_is_running_or_died_and_says_what_was_skipped(status, tmp_path):
    manifest = {"format": 1, "id": "quiet-otter", "status": "running", "started": "2026-11-21T10:15:12+00:00"}
    run = tmp_path / "quiet-otter"
    run.mkdir()
    (run / "manifest.json").write_text(json.dumps(manifest))
    lines = [encode(event) for event in (began("grown"), *trained("grown", 4))]
    lines += ['{"type": "seed-moved", "v": 2}', '{"type": "step-fin']
    (run / "events.jsonl").write_text("\n".join(lines))
    with FileLock(run / ".lock") if status == "running" else nullcontext():
        history = read_history(run)
    assert (history.name, history.status, history.share_done) == ("quiet-otter", status, 0.5)
    skipped = ['events of type "seed-moved" are skipped', "the last line, line 7, is incomplete"]
    assert [note[: len(start)] for note, start in zip(history.skipped, skipped, strict=True)] == skipped
