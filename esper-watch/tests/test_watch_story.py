"""Stories of run directories: finished, torn, foreign, and how they are drawn."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from esper_core import EsperError
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
from esper_watch.command import watch


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
