"""Progress of a run: plain lines on stderr."""

import io
import sys
from collections.abc import Callable

import pytest

from esper_core.leyline import Metric, Signals, SlotSignals, SlotState, Stage
from esper_core.leyline.events import EpisodeFinished, GovernorActed, RunStarted, StageChanged, StepFinished
from esper_run.cli.plain_progress import PlainLines
from tests.support.run_folders import stage_changed

NAME = "20261121-101512-[bold]otter"


def started(arms: tuple[str, ...] = ("grown", "twin"), rounds: int = 1, environments: int = 1) -> RunStarted:
    sizes = {"rounds": rounds, "environments": environments, "steps": 4}
    return RunStarted(run=NAME, arms=arms, metric=Metric("accuracy", unit="%"), **sizes)


def step(number: int, arm: str = "grown", seed: int = 0, round_: int = 0, metric: float = 0.5) -> StepFinished:
    signals = Signals(number, 1.0, 1.0, metric, 1, 1, (SlotSignals("early", SlotState.FREE, 0),))
    return StepFinished(round=round_, arm=arm, seed=seed, step=number, signals=signals)


def moved(now: Stage, round_: int = 0) -> StageChanged:
    return stage_changed(0, None, now, round=round_)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """``clock(10)`` lets ten seconds pass."""
    now = [0.0]
    monkeypatch.setattr("esper_run.cli.plain_progress.monotonic", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


def hear(lines: PlainLines, *events: object) -> None:
    """Pass events to a listener, and end the step so that it prints."""
    for event in events:
        lines.hear(event)
    lines.settle()


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    output = capsys.readouterr()
    assert output.out == ""
    return [line.removeprefix(f"{NAME}: ") for line in output.err.splitlines()]


def test_short_run_prints_its_first_and_its_last_step(capsys) -> None:
    lines = PlainLines()
    lines.hear(started())
    lines.hear(moved(Stage.TRAINING))
    for number in range(4):
        hear(lines, step(number), step(number, "twin"))
    lines.settle()
    first, last = printed(capsys)
    assert first == "25 %, step 1 of 4 | grown 50.0 %, twin 50.0 % | 1 training"
    assert last.startswith("100 %, step 4 of 4 | ")
    assert last.endswith(" steps/s | 1 training")


def test_line_has_rate_time_left_and_acts_of_the_governor(capsys, clock) -> None:
    lines = PlainLines()
    hear(lines, started(), step(0), step(0, "twin"))
    acted = GovernorActed(round=0, arm="grown", seed=0, step=1, act="roll-back", verdict="sick", reason="a\x1b[2J")
    for number in range(1, 4):
        clock(60)
        hear(lines, step(number, metric=0.6), step(number, "twin"), *[acted] * (number == 3))
    assert printed(capsys) == [
        "25 %, step 1 of 4 | grown 50.0 %, twin 50.0 %",
        "50 %, step 2 of 4 | grown 60.0 %, twin 50.0 % | 0.0333 steps/s | 2 min left",
        "75 %, step 3 of 4 | grown 60.0 %, twin 50.0 % | 0.0333 steps/s | 1 min left",
        "100 %, step 4 of 4 | grown 60.0 %, twin 50.0 % | 0.0333 steps/s"
        " | governor: 1 roll-back (roll-back: a\\x1b[2J)",
    ]


def test_share_is_of_all_phases_and_the_step_of_the_current_one(capsys, clock) -> None:
    lines = PlainLines()
    steps = [step(at, arm) for at in range(4) for arm in ("grown", "twin")]
    hear(lines, started(("grown", "twin", "capacity")), *steps)
    clock(60)
    hear(lines, step(0, "capacity", metric=float("nan")))
    first, second = printed(capsys)
    assert first == "67 %, grown and twin, step 4 of 4 | grown 50.0 %, twin 50.0 %"
    assert second.startswith("75 %, capacity, step 1 of 4 | grown 50.0 %, twin 50.0 %, capacity unknown | ")


def test_steps_before_a_resume_do_not_count_for_the_rate(capsys, clock) -> None:
    lines = PlainLines()
    hear(lines, started(environments=50), *(step(0, seed=seed) for seed in range(40)))
    clock(60)
    hear(lines, step(0, seed=40))
    assert printed(capsys)[1] == "10 %, grown, step 1 of 4 | grown 50.0 % | 0.0167 steps/s | 5 h 59 min left"


def test_rate_is_that_of_the_last_two_minutes(capsys, clock) -> None:
    lines = PlainLines()
    hear(lines, started(environments=10_000), step(0))
    for seed in range(1, 1000, 10):
        clock(1)
        hear(lines, *(step(0, seed=seed + more) for more in range(10)))
    for seed in range(1001, 1141):
        clock(1)
        hear(lines, step(0, seed=seed))
    assert " | 1 steps/s | " in printed(capsys)[-1]


def test_episode_that_ended_early_counts_as_done_and_a_new_round_has_new_seeds(capsys, clock) -> None:
    lines = PlainLines()
    unread = dict.fromkeys(("test_loss", "test_metric", "validation_metric", "parameters", "host_parameters"), 1)
    ended = EpisodeFinished(round=0, arm="grown", seed=0, fossils=0, steps=1, reward=None, **unread)
    hear(lines, started(("grown",), rounds=2), step(0), moved(Stage.TRAINING), ended)
    clock(60)
    hear(lines, moved(Stage.GERMINATED, round_=1), step(0, round_=1))
    first, second = printed(capsys)
    assert first == "50 %, round 1 of 2, step 1 of 4 | grown 50.0 % | 1 training"
    assert second.startswith("62 %, round 2 of 2, step 1 of 4 | grown 50.0 % | ")
    assert second.endswith("| 1 germinated")


def test_closed_stderr_stops_the_lines_and_not_the_run(monkeypatch) -> None:
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    lines = PlainLines()
    hear(lines, started())
    hear(lines, step(0))
