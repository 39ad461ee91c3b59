"""Stories of run directories: finished, torn, foreign, and how they are drawn."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from esper_core import EsperError, load_run
from esper_core.leyline import Signals, Stage
from esper_core.leyline.events import (
    EpisodeFinished,
    GovernorActed,
    RunFinished,
    RunStarted,
    StageChanged,
    StepFinished,
)
from esper_core.telemetry import encode
from esper_watch import draw, read_story, sparkline
from esper_watch.command import report, watch
from esper_watch.drawing import LEGEND, MARKS

HOSTILE = "\x1b]0;pwned\x07\x9b2J\nsecond\u202eline"
"""A title for the terminal, an order to clear it, a line of its own, and a turn of what follows."""


def changed(step: int, was: Stage | None, now: Stage) -> StageChanged:
    return StageChanged(
        round=0, arm="grown", seed=3, step=step, slot="early", seed_id=0, blueprint="blueprints/conv_light",
        was=was, now=now, parameters=10, reason="asked for",
    )  # fmt: skip


def finished(arm: str, step: int, metric: float) -> StepFinished:
    signals = Signals(step, 1.0, 1.0, metric, 10, 10, ())
    return StepFinished(round=0, arm=arm, seed=3, step=step, signals=signals)


EVENTS = [
    RunStarted(run="r", arms=("grown", "twin"), rounds=1, environments=1, steps=8),
    *(finished(arm, step, 0.1 * step) for step in range(8) for arm in ("grown", "twin")),
    changed(0, None, Stage.GERMINATED),
    changed(1, Stage.GERMINATED, Stage.TRAINING),
    changed(3, Stage.TRAINING, Stage.BLENDING),
    changed(5, Stage.BLENDING, Stage.HOLDING),
    changed(6, Stage.HOLDING, Stage.FOSSILIZED),
    EpisodeFinished(
        round=0, arm="grown", seed=3, test_loss=1.0, test_metric=0.75, validation_metric=0.7,
        parameters=20, host_parameters=10, fossils=1, steps=8, reward=5.0,
    ),
    RunFinished(status="done"),
]  # fmt: skip


def write(run: Path, *events: object) -> Path:
    (run / "events.jsonl").write_text("".join(encode(event) + "\n" for event in events))
    return run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "manifest.json").write_text('{"id": "20261121-101512-quiet-otter"}')
    (tmp_path / "events.jsonl").write_text("".join(encode(event) + "\n" for event in EVENTS))
    return tmp_path


def test_a_finished_run_is_told_whole(run: Path) -> None:
    story = read_story(run)
    assert (story.name, story.status, story.share_done) == ("20261121-101512-quiet-otter", "done", 1.0)
    assert story.curve("twin") == pytest.approx([0.1 * step for step in range(8)])
    (life,) = story.lives.values()
    assert [life.stage_at(step) for step in range(8)] == [
        Stage.GERMINATED,
        Stage.GERMINATED,
        Stage.TRAINING,
        Stage.TRAINING,
        Stage.BLENDING,
        Stage.BLENDING,
        Stage.HOLDING,
        Stage.FOSSILIZED,
    ]


def test_a_killed_run_is_told_as_far_as_it_went(run: Path) -> None:
    whole = (run / "events.jsonl").read_bytes().split(b"\n")
    (run / "events.jsonl").write_bytes(b"\n".join(whole[:9]) + b"\n" + whole[9][:20])
    story = read_story(run)
    assert story.status == "running or killed"
    assert story.share_done == 0.5


@pytest.mark.parametrize(("process", "status"), [({"pid": os.getpid(), "start": None}, "running"), (None, "died")])
def test_whether_a_run_without_an_end_still_runs_is_told(run: Path, process: object, status: str) -> None:
    """As ``esper runs list`` tells it."""
    known = {"format": 1, "id": "otter", "status": "running", "started": "2026-11-21T10:15:12+00:00"}
    (run / "manifest.json").write_text(json.dumps({**known, "process": process}))
    write(run, *EVENTS[:9])
    assert load_run(run).status == status
    assert read_story(run).status == status
    assert draw(read_story(run)).startswith(f"otter   {status}, 50 % trained\n")


def test_what_is_left_out_of_the_story_is_told(run: Path) -> None:
    with (run / "events.jsonl").open("a") as file:
        file.write('{"type": "seed-moved", "v": 1}\n{"type": "step-fin')
    story = read_story(run)
    assert story.share_done == 1.0
    told = ['events of type "seed-moved" are left out', f"line {len(EVENTS) + 2}, the last one, is torn, and left out"]
    assert [one[: len(start)] for one, start in zip(story.as_json()["left_out"], told, strict=True)] == told
    drawing = draw(story, width=60)
    assert max(map(len, drawing.splitlines())) <= 60
    assert all(start in " ".join(drawing.split()) for start in told)


def test_the_drawing_fits_its_width_and_shows_lives(run: Path) -> None:
    for width in (80, 200):
        drawing = draw(read_story(run), width=width)
        assert max(len(line) for line in drawing.splitlines()) <= width
    assert "grown 3 early conv_light  ··░░▒▒▓█" in drawing
    assert "100 % trained" in drawing


def test_what_is_no_run_is_told(tmp_path: Path, run: Path) -> None:
    with pytest.raises(EsperError, match="E420"):
        read_story(tmp_path / "nothing")
    (run / "events.jsonl").write_text('{"type": "from-the-future"}\n')
    with pytest.raises(EsperError, match="E421"):
        read_story(run)


def test_the_command_prints_a_drawing_or_json(run: Path) -> None:
    assert "quiet-otter" in CliRunner().invoke(watch, [str(run)]).stdout
    told = json.loads(CliRunner().invoke(watch, [str(run), "--json"]).stdout)
    assert told["arms"]["grown"]["test"] == 0.75
    assert told["lives"][0]["stages"][-1] == {"step": 6, "stage": "fossilized"}


def test_a_sparkline_leaves_blank_what_is_no_number() -> None:
    assert sparkline([0.0, float("nan"), 1.0], 8) == "▁ █"
    assert sparkline([], 8) == ""
    assert sparkline([2.0, 2.0], 8) == "▁▁"
    assert len(sparkline(range(1000), 40)) == 40


def test_what_the_governor_did_is_told_and_an_episode_that_ended_early_is_done(run: Path) -> None:
    kept = [event for event in EVENTS if not (isinstance(event, StepFinished) and event.step > 4)]
    kept = [replace(event, steps=5) if isinstance(event, EpisodeFinished) else event for event in kept]
    acts = [
        GovernorActed(round=0, arm="grown", seed=3, step=step, act=act, verdict="panic", reason="too hot")
        for step, act in [(1, "warn"), (2, "roll-back"), (4, "early-stop")]
    ]
    twin = replace(next(event for event in kept if isinstance(event, EpisodeFinished)), arm="twin")
    (run / "events.jsonl").write_text("".join(encode(event) + "\n" for event in [*kept[:-1], twin, *acts, kept[-1]]))
    story = read_story(run)
    assert story.share_done == 1.0
    assert [one["act"] for one in story.as_json()["governor"]] == ["warn", "roll-back", "early-stop"]
    drawing = draw(story)
    assert "grown 3, step 2: roll-back: too hot" in drawing
    assert "warn" not in drawing
    assert max(map(len, draw(story, width=50).splitlines())) <= 50
    story.governed = acts * 9
    assert "… and 13 more of the governor's" in draw(story)


def test_no_terminal_obeys_what_a_run_says(run: Path) -> None:
    """Names come from files, and reasons carry what a plugin's exception says."""
    arms = (f"grown{HOSTILE}", "twin")
    hostile = [
        replace(EVENTS[0], arms=arms),
        *(replace(one, arm=arms[0]) for one in EVENTS[1:-1] if getattr(one, "arm", "") == "grown"),
        replace(changed(0, None, Stage.GERMINATED), arm=arms[0], seed_id=1, slot=HOSTILE, blueprint=f"a/{HOSTILE}"),
        GovernorActed(round=0, arm=arms[0], seed=3, step=2, act=HOSTILE, verdict="panic", reason=f"hot{HOSTILE}"),
        GovernorActed(round=0, arm=arms[0], seed=3, step=2, act="roll-back", verdict=HOSTILE, reason=""),
        RunFinished(status="failed", reason=f"E232 it raised {HOSTILE}"),
    ]
    write(run, *hostile)
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps({"type": f"moved{HOSTILE}", "v": 1}) + "\n")
    (run / "manifest.json").write_text(json.dumps({"id": f"otter{HOSTILE}"}))
    for width in (20, 80, 2000):
        answer = CliRunner().invoke(watch, [str(run)], env={"COLUMNS": str(width)})
        assert answer.exception is None, answer.exception
        drawing = answer.stdout
        assert all(sign.isprintable() for sign in drawing if sign != "\n")
        assert not [line for line in drawing.splitlines() if line.startswith("second")]
        assert max(map(len, drawing.splitlines())) <= width
    for told in ("otter\\x1b]0;pwned", "E232 it raised \\x1b]0;pwned", "hot\\x1b", "moved"):
        assert told in drawing


def test_the_path_of_a_report_is_no_order_either(run: Path) -> None:
    place = run / "a\x1b]0;pwned\x07"
    place.mkdir()
    for file in ("events.jsonl", "manifest.json"):
        (run / file).rename(place / file)
    answer = CliRunner().invoke(report, [str(place)])
    assert answer.exit_code == 0
    assert "\x1b" not in answer.stdout
    assert (place / "report.html").is_file()


def test_what_finds_no_room_ends_with_a_sign_that_says_so(run: Path) -> None:
    act = GovernorActed(round=0, arm="grown", seed=3, step=2, act="roll-back", verdict="panic", reason="hot " * 40)
    write(run, *EVENTS[:-1], act, RunFinished(status="stopped", reason="E402 " + "too hot " * 40))
    lines = draw(read_story(run), width=60).splitlines()
    (reason,) = [line for line in lines if "E402" in line]
    (governor,) = [line for line in lines if "roll-back" in line]
    assert [(len(one), one[-1]) for one in (reason, governor)] == [(60, "…"), (60, "…")]


def test_a_reason_without_a_word_is_no_crash(run: Path) -> None:
    act = GovernorActed(round=0, arm="grown", seed=3, step=2, act="roll-back", verdict="", reason="")
    write(run, *EVENTS[:-1], act, RunFinished(status="failed", reason="\n"))
    assert "grown 3, step 2: roll-back:" in draw(read_story(run))


def test_a_life_goes_no_further_than_its_environment(run: Path) -> None:
    """Who was killed at step 5 of 8 did not train on until the end."""
    write(run, *(one for one in EVENTS[:-2] if getattr(one, "step", 0) < 5))
    story = read_story(run)
    drawing = draw(story)
    assert "conv_light  ··░░▒" in drawing
    assert "conv_light  ··░░▒▒" not in drawing
    assert story.as_json()["lives"][0]["last_step"] == 4


def test_a_life_that_was_told_of_by_its_stages_alone_ends_with_the_last_of_them(run: Path) -> None:
    write(run, EVENTS[0], *(one for one in EVENTS if isinstance(one, StageChanged) and one.step < 5))
    assert "conv_light  ··░░\n" in draw(read_story(run)) + "\n"


@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf])
def test_a_figure_that_is_no_number_is_null_in_json(run: Path, strange: float) -> None:
    events = [replace(one, test_metric=strange) if isinstance(one, EpisodeFinished) else one for one in EVENTS]
    events[1] = finished("grown", 0, strange)
    write(run, *events)

    def refused(name: str) -> None:
        raise AssertionError(name)

    told = json.loads(CliRunner().invoke(watch, [str(run), "--json"]).stdout, parse_constant=refused)
    assert told["arms"]["grown"]["test"] is None
    assert told["arms"]["grown"]["validation"][:2] == [None, 0.1]


def test_figures_without_a_mean_are_told_and_drawn(run: Path) -> None:
    huge = [finished("grown", 0, one) for one in (math.inf, -math.inf)]
    huge += [finished("grown", 1, 1.7e308), finished("grown", 1, 1.7e308)]
    huge += [finished("grown", 2, 1.7e308), finished("grown", 3, -1.7e308)]
    write(run, EVENTS[0], *huge)
    story = read_story(run)
    assert story.as_json()["arms"]["grown"]["validation"] == [None, None, 1.7e308, -1.7e308]
    assert "grown    █▁" in draw(story)


def test_every_stage_has_a_sign_of_its_own_and_the_legend_names_them() -> None:
    assert len(set(MARKS.values())) == len(MARKS) == len(Stage)
    told = {"fossilized": "kept"}
    for stage, mark in MARKS.items():
        assert stage is Stage.PRUNED or f"{mark} {told.get(stage.value, stage.value)}" in LEGEND


def test_the_legend_finds_room_in_a_narrow_terminal(run: Path) -> None:
    drawing = draw(read_story(run), width=40)
    assert max(map(len, drawing.splitlines())) <= 40
    for name in ("germinated", "training", "blending", "holding", "draining", "kept"):
        assert f" {name}" in drawing
