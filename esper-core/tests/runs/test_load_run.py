"""A run directory as an object: its tables have a row for each thing that happened, whatever happened, and however far
it came."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

import esper_core
from esper_core import load_run
from esper_core.leyline import (
    Finding,
    Gain,
    Opinion,
    RunFolderError,
    SeedSignals,
    Signals,
    SlotSignals,
    SlotState,
    Stage,
)
from esper_core.leyline.events import (
    EpisodeFinished,
    Event,
    GovernorActed,
    RunStarted,
    StageChanged,
    StepFinished,
)
from esper_core.runs import rows
from esper_core.telemetry import encode

NAME = "20261121-101512-quiet-otter"
HOME = {"round": 0, "arm": "grown", "seed": 7}


def _strategies() -> Any:
    file = Path(__file__).parents[1] / "telemetry" / "test_event_log.py"
    found = importlib.util.spec_from_file_location("told_events", file)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


anything: st.SearchStrategy[Event] = _strategies().events


def write_events(path: Path, events: Sequence[Event]) -> Path:
    (path / "events.jsonl").write_text("".join(f"{encode(event)}\n" for event in events), encoding="utf-8")
    return path


def stage(step: int, was: Stage | None, now: Stage, *, seed_id: int = 0, reason: str = "asked for") -> StageChanged:
    return StageChanged(
        **HOME, step=step, slot="early", seed_id=seed_id, blueprint="b/conv", was=was, now=now, parameters=120,
        reason=reason,
    )  # fmt: skip


def step(
    number: int, *, gain: float | None = None, price: float | None = None, train_loss: float = 2.0, **more: Any
) -> StepFinished:
    measured = None if gain is None else Gain(100, gain, 0.5, 0.0, -1.0, 1.0)
    opinion = None if price is None else Opinion(Finding.SHOWN, "it is shown", price=price)
    seed = SeedSignals("b/conv", Stage.TRAINING, 0.0, 120, gain=measured, opinion=opinion)
    slot = SlotSignals("early", SlotState.OCCUPIED, 0, (seed,))
    return StepFinished(**HOME, step=number, signals=Signals(number, train_loss, 2.1, 0.4, 1120, 1000, (slot,)), **more)


def episode(**more: Any) -> EpisodeFinished:
    known = {"test_loss": 1.0, "test_metric": 0.6, "validation_metric": 0.6, "parameters": 1120}
    counts = {"host_parameters": 1000, "fossils": 1, "steps": 4, "reward": 1.5}
    return EpisodeFinished(**HOME, **(known | counts | more))


@pytest.fixture
def run_of(write_run: Callable[..., Path]) -> Callable[..., esper_core.Run]:
    """``run_of([...])``: a run with these events that has no end."""

    def make(events: Sequence[Event], **manifest: Any) -> esper_core.Run:
        return load_run(write_events(write_run(NAME, status="running", **manifest), events))

    return make


def test_a_finished_run_is_loaded_by_its_folder_its_id_and_its_words(write_run, tmp_path) -> None:
    path = write_run(NAME, {"grown": [0.8] * 8, "twin": [0.5] * 8})
    for name in (path, str(path), NAME, "quiet-otter"):
        run = load_run(name, runs_dir=tmp_path / "runs")
        assert (run.id, run.status, run.seconds, run.reason) == (NAME, "done", 10.0, "")
    (row,) = run.comparisons()
    assert (row["a"], row["b"], row["n"]) == ("grown", "twin", 8)
    assert row["difference"] == pytest.approx(0.3)
    assert set(row) == set(get_type_hints(rows.ComparisonRow))
    assert repr(run) == f"<Run {NAME}: done; accuracy grown 80.0 %, twin 50.0 %>"


def test_what_a_step_measured_is_a_row_and_what_is_not_finite_is_nan(run_of) -> None:
    run = run_of(
        [
            step(0, reward={"improvement": 1.5, "rent": -0.5}, action="germinate early b/conv"),
            step(1, train_loss=math.inf, reward={"improvement": math.nan}),
            step(2, reward={"improvement": 1e308, "bonus": 1e308}),
        ]
    )
    first, second, third = run.steps()
    assert first == {
        **HOME, "step": 0, "train_loss": 2.0, "validation_loss": 2.1, "validation_metric": 0.4, "parameters": 1120,
        "host_parameters": 1000, "fossils": 0, "living": 1, "reward": 1.0, "action": "germinate early b/conv",
    }  # fmt: skip
    assert math.isnan(second["train_loss"])
    assert math.isnan(second["reward"] or 0.0)
    assert math.isnan(third["reward"] or 0.0)


def test_a_step_that_was_not_rewarded_has_no_reward(run_of) -> None:
    assert [row["reward"] for row in run_of([step(0)]).steps()] == [None]


def test_a_seeds_life_is_a_row_with_the_step_of_each_stage_and_its_last_gain(run_of) -> None:
    run = run_of(
        [
            stage(1, None, Stage.GERMINATED),
            stage(2, Stage.GERMINATED, Stage.TRAINING),
            step(2, gain=0.1, price=0.02),
            stage(3, Stage.TRAINING, Stage.BLENDING),
            stage(4, Stage.BLENDING, Stage.HOLDING),
            stage(5, Stage.HOLDING, Stage.BLENDING),
            stage(6, Stage.BLENDING, Stage.HOLDING),
            stage(7, Stage.HOLDING, Stage.FOSSILIZED, reason="it was worth it"),
            step(7, gain=0.3, price=0.02),
        ]
    )
    (row,) = run.seeds()
    assert row == {
        **HOME, "seed_id": 0, "slot": "early", "blueprint": "b/conv", "parameters": 120, "born": 1, "training": 2,
        "blending": 3, "holding": 4, "draining": None, "fossilized": 7, "pruned": None, "stage": "fossilized",
        "fate": "fossilized", "reason": "it was worth it", "gain": 0.3, "gain_error": 0.05, "gain_examples": 100,
        "gain_step": 7, "gain_stage": "training", "price": 0.02,
    }  # fmt: skip
    assert [(one["step"], one["was"], one["now"]) for one in run.stages()][:2] == [
        (1, None, "germinated"),
        (2, "germinated", "training"),
    ]


def test_a_gain_is_the_seeds_that_lived_when_it_was_measured(run_of) -> None:
    """Of two of one blueprint in one slot: what is decided after a step is told before the step is."""
    run = run_of(
        [
            stage(0, None, Stage.GERMINATED),
            stage(3, Stage.GERMINATED, Stage.PRUNED),
            stage(3, None, Stage.GERMINATED, seed_id=1),
            step(3, gain=-0.2),
            stage(4, Stage.GERMINATED, Stage.TRAINING, seed_id=1),
            step(4, gain=0.6),
            step(5),
        ]
    )
    first, second = run.seeds()
    assert (first["fate"], first["gain"], first["gain_step"]) == ("pruned", -0.2, 3)
    assert (second["fate"], second["gain"], second["gain_step"]) == (None, 0.6, 4)


def test_a_seed_that_was_never_measured_has_no_gain_and_one_that_was_not_finite_has_nan(run_of) -> None:
    run = run_of([stage(0, None, Stage.GERMINATED), step(1)])
    assert [run.seeds()[0][key] for key in ("gain", "gain_error", "gain_step", "price")] == [None] * 4
    write_events(run.path, [stage(0, None, Stage.GERMINATED), step(1, gain=math.inf)])
    assert math.isnan(run.seeds()[0]["gain"] or 0.0)


def test_ends_and_what_the_governor_did_are_rows(run_of) -> None:
    acted = GovernorActed(**HOME, step=3, act="roll-back", verdict="sick", reason="the loss rose", back_to=1)
    run = run_of([acted, episode(grown=({"blueprint": "b/conv", "slot": "early"},), reward=None), episode()])
    assert run.governor() == [
        {**HOME, "step": 3, "act": "roll-back", "verdict": "sick", "reason": "the loss rose", "back_to": 1,
         "penalty": 0.0, "withdrawn": False}
    ]  # fmt: skip
    named, unnamed = run.episodes()
    assert (named["grown"], named["reward"], named["test_metric"]) == ("b/conv in early", None, 0.6)
    assert unnamed["grown"] == "unknown"


def test_a_run_that_goes_on_says_more_when_it_is_asked_again(run_of) -> None:
    run = run_of([step(0)])
    assert (run.status, len(run.steps()), run.comparisons(), run.summary) == ("died", 1, [], None)
    with (run.path / "events.jsonl").open("a", encoding="utf-8") as file:
        file.write(f"{encode(step(1))}\n")
    assert len(run.steps()) == 2


def test_a_torn_last_line_is_left_out_and_told(run_of, caplog) -> None:
    run = run_of([step(0)])
    with (run.path / "events.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"type":"step-fin')
    with caplog.at_level(logging.WARNING, logger="esper"):
        assert len(run.steps()) == 1
    assert "torn" in caplog.text
    told: list[str] = []
    assert len(list(run.events(tell=told.append))) == 1
    assert len(told) == 1


def test_a_run_that_has_not_begun_to_train_has_no_rows(write_run) -> None:
    run = load_run(write_run(NAME, status="running"))
    tables = (run.steps(), run.seeds(), run.stages(), run.episodes(), run.comparisons(), run.governor())
    assert tables == ([], [], [], [], [], [])


def test_events_that_are_gone_from_a_finished_run_are_missed(write_run) -> None:
    run = load_run(write_run(NAME, {"grown": [0.8] * 8}))
    with pytest.raises(RunFolderError, match=r"E430 there is no file .*events\.jsonl\n  .*taken away"):
        run.steps()


def test_a_line_that_is_no_event_is_refused_with_its_number_and_not_before_it_is_read(run_of) -> None:
    run = run_of([step(0)])
    with (run.path / "events.jsonl").open("a", encoding="utf-8") as file:
        file.write("nonsense\n")
    assert next(run.events()).type == "step-finished"
    with pytest.raises(RunFolderError, match=r"E421(.|\n)*events\.jsonl:2"):
        run.steps()


def test_what_is_no_run_is_refused_with_what_to_give_instead(write_run, tmp_path) -> None:
    path = write_run(NAME)
    for wrong, message in {
        path.parent: "it has no manifest.json",
        path / "config.yaml": f"config.yaml is a file, and a run is a folder\n  Give the folder that it is in:  {path}",
        tmp_path / "runs" / "20261121-101512-quiet-oter": f"Did you mean {path}",
        "quiet-oter": "there is no folder quiet-oter",
    }.items():
        with pytest.raises(RunFolderError) as refusal:
            load_run(wrong, runs_dir=tmp_path / "runs")
        assert refusal.value.problems[0].code == "E420"
        assert message in str(refusal.value)
    (path / "manifest.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"E430 cannot read .*manifest\.json: it is no JSON"):
        load_run(path)


@given(st.lists(anything, max_size=12))
def test_whatever_is_told_every_event_has_its_row_and_all_rows_have_the_same_keys(events: list[Event]) -> None:
    tables = {
        rows.StepRow: (list(rows.step_rows(events)), StepFinished),
        rows.StageRow: (list(rows.stage_rows(events)), StageChanged),
        rows.EpisodeRow: (list(rows.episode_rows(events)), EpisodeFinished),
        rows.GovernorRow: (list(rows.governor_rows(events)), GovernorActed),
    }
    for kind, (table, event) in tables.items():
        assert len(table) == sum(isinstance(one, event) for one in events)
        assert all(list(row) == list(get_type_hints(kind)) for row in table)
    seeds = rows.seed_rows(events)
    told = [(one.round, one.arm, one.seed, one.seed_id) for one in events if isinstance(one, StageChanged)]
    found = [(one["round"], one["arm"], one["seed"], one["seed_id"]) for one in seeds]
    assert found == list(dict.fromkeys(told))
    assert all(list(row) == list(get_type_hints(rows.SeedRow)) for row in seeds)
    values = [value for table, _ in tables.values() for row in table for value in row.values()]
    values += [value for row in seeds for value in row.values()]
    assert not any(isinstance(value, float) and math.isinf(value) for value in values)


def test_events_are_taken_one_by_one_as_rows_are_made(run_of) -> None:
    run = run_of([RunStarted(run="r", arms=("a",), rounds=1, environments=1, steps=9), *map(step, range(9))])
    taken: list[Event] = []

    def counted():
        for event in run.events():
            taken.append(event)
            yield event

    next(rows.step_rows(counted()))
    assert [event.type for event in taken] == ["run-started", "step-finished"]


def test_rows_are_plain_enough_for_json(run_of) -> None:
    run = run_of([stage(0, None, Stage.GERMINATED), step(1, gain=0.1), episode()])
    for table in (run.steps(), run.seeds(), run.stages(), run.episodes()):
        assert json.loads(json.dumps(table)) == table
