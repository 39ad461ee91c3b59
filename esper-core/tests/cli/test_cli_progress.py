"""What a run shows while it runs, on a terminal and in a pipe."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from esper_core.cli import progress as shown
from esper_core.leyline import Signals, Stage
from esper_core.leyline.events import Event, RunStarted, StageChanged, StepFinished

PLACE = {"round": 0, "seed": 0, "step": 0}
EVENTS: list[Event] = [
    RunStarted(run="20261121-101512-[bold]otter", arms=("grown", "twin"), rounds=1, environments=1, steps=4),
    StageChanged(
        **PLACE, arm="grown", slot="early", seed_id=0, blueprint="b/x", was=None, now=Stage.TRAINING, parameters=1,
        reason="asked for",
    ),
    *(StepFinished(**PLACE, arm=arm, signals=Signals(0, 1.0, 1.0, 0.5, 1, 1, ())) for arm in ("grown", "twin")),
]  # fmt: skip


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_bar_shows_how_far_the_run_is_and_what_grows(width: int) -> None:
    terminal = io.StringIO()
    with shown.live_bar(Console(file=terminal, force_terminal=True, width=width)) as bar:
        bar.refresh()  # before anything was heard
        listener = shown.Bar(bar)
        bar.refresh()
        for event in EVENTS:
            listener.hear(event)
        listener.settle()
        bar.refresh()
    said = terminal.getvalue()
    assert "1/4" in said or width == 40  # there only the name has room
    if width == 200:
        assert "[bold]otter" in said  # a name is no markup
        assert "1 training" in said
        assert "env steps/s" in said


def test_plain_lines_are_few_and_the_last_step_is_always_told(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown.PlainLines()
    for event in EVENTS[:2]:
        lines.hear(event)
    for _ in range(4):
        for event in EVENTS[2:]:
            lines.hear(event)
        lines.settle()
    said = capsys.readouterr()
    assert said.out == ""
    told = said.err.splitlines()
    assert len(told) == 2
    assert told[0].startswith("20261121-101512-[bold]otter: step 1 of 4 · ")
    assert told[-1].startswith("20261121-101512-[bold]otter: step 4 of 4 · ")


def test_quiet_is_quiet() -> None:
    with shown.progress(quiet=True) as listeners:
        assert listeners == []
