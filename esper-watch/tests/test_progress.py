"""The live display: what it draws of a run, in terminals of any size, and that it leaves nothing behind."""

import io
import os
import re
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from esper_core.leyline import Metric, Signals, SlotSignals, SlotState, Stage
from esper_core.leyline.events import Event, GovernorActed, RunStarted, StageChanged, StepFinished
from esper_testing import check_sink
from esper_watch.progress import LiveDisplay
from tests.support.run_folders import stage_changed
from tests.support.waiting import until

CLEAR = "\x1b[2J"
NAME = "20261121-101512-[bold]otter"


def started(arms: tuple[str, ...] = ("grown", "twin"), rounds: int = 1, environments: int = 1) -> RunStarted:
    return RunStarted(
        run=NAME, arms=arms, rounds=rounds, environments=environments, steps=4, metric=Metric("accuracy", unit="%")
    )


def step(number: int, arm: str = "grown", seed: int = 0, round_: int = 0) -> StepFinished:
    slots = tuple(SlotSignals(name, SlotState.FREE, 0) for name in ("early", "late"))
    signals = Signals(number, 1.0, 1.0, 0.5, 1, 1, slots)
    return StepFinished(round=round_, arm=arm, seed=seed, step=number, signals=signals)


def moved(now: Stage, seed: int = 0, blueprint: str = "b/x", **more: Any) -> StageChanged:
    return stage_changed(0, None, now, seed=seed, blueprint=blueprint, **more)


def acted(act: str, reason: str = "the loss rose") -> GovernorActed:
    return GovernorActed(round=0, arm="grown", seed=0, step=1, act=act, verdict="sick", reason=reason)


GROWING = [
    started(environments=4),
    *(step(0, arm, seed) for seed in range(4) for arm in ("grown", "twin")),
    *(moved(Stage.TRAINING, seed, "b/conv_light") for seed in range(3)),
    moved(Stage.HOLDING, 3, "b/conv_light"),
    moved(Stage.PRUNED, 0, "b/pointwise", seed_id=1),
]


@pytest.fixture(autouse=True)
def _terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


def drawn(events: Sequence[Event], width: int = 80) -> list[str]:
    """Return what is drawn after some events, as lines."""
    console = Console(file=io.StringIO(), width=width, height=24, force_terminal=True, color_system=None)
    with closing(LiveDisplay(console)) as display:
        for event in events:
            display.hear(event)
        display.settle()
    with console.capture() as captured:
        console.print(display.render())
    return [line.rstrip() for line in captured.get().splitlines() if line.strip()]


def test_progress_step_arms_and_the_seeds_of_each_slot_are_drawn():
    head, *below = drawn(GROWING)
    assert re.fullmatch(re.escape(NAME) + r" ━+╸? *━*  25 %", head), head
    assert [" ".join(line.split()) for line in below] == [
        "grown, twin, step 1 of 4, 4 networks",
        "validation accuracy now to twin 95 % interval",
        "grown ▁ 50.0 % +0.0 points +0.0 to +0.0",
        "twin ▁ 50.0 %",
        "▁ 50.0 % █ 50.0 %",
        "early conv_light 3 training, 1 holding; pointwise 1 pruned",
        "late nothing yet",
    ]


def test_rounds_and_acts_of_the_governor_are_drawn():
    events = [started(rounds=3), step(1, round_=1), acted("warn"), acted("warn"), acted("roll-back", f"loss{CLEAR}")]
    lines = " ".join(drawn(events))
    assert "round 2 of 3, step 2 of 4" in lines
    assert re.search(r"governor: roll-back of grown 0, step 2: loss\\x1b\[2J +governor: 2 warnings", lines)


@pytest.mark.parametrize("width", [20, 40, 79, 199])
def test_the_display_fits_the_terminal(width):
    many = [moved(Stage.TRAINING, n, slot=f"slot-{n}-双子", blueprint=CLEAR * 4) for n in range(20)]
    for events in ([], [started()], GROWING, [*GROWING, *many, acted("warn", "x" * 300)]):
        lines = drawn(events, width)
        assert all(cell_len(line) <= width for line in lines), lines
        assert CLEAR not in "".join(lines)


def test_rate_and_time_left_are_drawn_without_what_a_resumed_run_did_before():
    now = 0.0
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True, get_time=lambda: now)
    with closing(LiveDisplay(console)) as display:
        for event in [started(environments=500), *(step(0, seed=seed) for seed in range(400))]:
            display.hear(event)
        display.settle()
        assert display.view.speed is None
        for seed in range(400, 404):
            now += 0.05
            display.hear(step(0, seed=seed))
            display.settle()
        assert display.view.speed == pytest.approx(20, rel=0.4)
    with console.capture() as captured:
        console.print(display.render())
    assert re.search(r"\d steps/s", captured.get())
    assert re.search(r"\d:\d\d left", captured.get())


def test_the_display_is_redrawn_prints_above_it_and_is_removed_in_the_end(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    display = LiveDisplay(Console(stderr=True, width=80, force_terminal=True))
    for event in GROWING:
        display.hear(event)
    display.settle()
    until(lambda: "conv_light 3 training" in screen.getvalue())
    print("warning: one thing", file=sys.stderr)
    display.close()
    display.close()
    assert sys.stderr is screen
    shown = screen.getvalue()
    *_, last = shown.split("warning: one thing")
    assert shown.count("\x1b[?25l") == 1
    assert last.endswith("\x1b[2K"), "the lines of the display are erased"
    assert "\x1b[?25h" in shown, "the cursor is visible again"


def test_a_terminal_that_goes_away_stops_nothing():
    controller, terminal = os.openpty()
    file = os.fdopen(terminal, "w")
    with closing(LiveDisplay(Console(file=file, force_terminal=True))) as display:
        os.close(controller)
        time.sleep(0.4)
        for event in GROWING:
            display.hear(event)
        display.settle()
    with suppress(OSError):
        file.close()


def test_the_display_passes_the_conformance_checks():
    checked = check_sink(lambda run: LiveDisplay(Console(file=io.StringIO(), force_terminal=True)))
    assert {result.status for result in checked} == {"passed"}
