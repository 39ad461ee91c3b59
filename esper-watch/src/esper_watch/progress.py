"""Live display of a run on a terminal: progress, rate and time left, and what each slot is doing.

``esper run`` uses it on an interactive terminal; see ``SinkSpec.terminal``. rich draws it on a thread of its own, four
times a second, so a slow terminal does not slow down the run.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from esper_core.leyline import Stage
from esper_core.leyline.errors import printable
from esper_watch.formats import short_name
from esper_watch.history import History

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.console import RenderableType
    from rich.progress import Task

    from esper_core.leyline.events import Event

RATE_SECONDS: Final = 120.0
"""How far back the rate looks: a run is slower with all that grows."""

REDRAWS_PER_SECOND: Final = 4


def live(run: str | Path) -> LiveDisplay:
    """Build the display on stderr. run: the run directory, which is not needed."""
    return LiveDisplay(Console(stderr=True))


class LiveDisplay:
    """A sink that draws the state of a run at the bottom of a terminal, and removes it at the end.

    What is printed meanwhile appears above.
    """

    def __init__(self, console: Console) -> None:
        self._history = History(keep_steps=False)
        self._lock = Lock()
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            _TimeLeft(),
            console=console,
            speed_estimate_period=RATE_SECONDS,
        )
        self._task = self._progress.add_task("starting", total=None)
        self._started = False
        self._live = _Live(
            console=console,
            get_renderable=self._render,
            refresh_per_second=REDRAWS_PER_SECOND,
            transient=True,
            redirect_stdout=False,
        )
        self._live.start()

    def hear(self, event: Event) -> None:
        """Record an event."""
        with self._lock:
            self._history.add(event)

    def settle(self) -> None:
        """Update the progress at the end of a step."""
        with self._lock:
            total, done = self._history.total_steps, self._history.finished_steps
            if self._started:
                self._progress.update(self._task, completed=done)
            elif total:
                # What a resumed run did before does not count for its rate.
                name = printable(self._history.started.run if self._history.started else "")
                self._progress.reset(self._task, total=total, completed=done, description=name)
                self._started = True

    def close(self) -> None:
        """Remove the display."""
        with suppress(OSError):  # the terminal may be gone
            self._live.stop()

    def _render(self) -> RenderableType:
        with self._lock:
            return Group(self._progress, *self._lines(), self._slots())

    def _lines(self) -> Iterator[Text]:
        history = self._history
        if history.started is None or history.latest is None:
            return
        step, rounds = history.latest, history.started.rounds
        parts = [f"round {step.round + 1} of {rounds}"] if rounds > 1 else []
        parts.append(f"step {step.step + 1} of {history.started.steps}")
        (task,) = self._progress.tasks
        if task.speed:
            rate = f"{task.speed:,.0f}" if task.speed >= 10 else f"{task.speed:.2g}"
            parts.append(f"{rate} env steps/s")
        arms = dict.fromkeys(arm for _, arm, _ in history.running)
        yield _text(", ".join([*parts, *arms]), "dim")
        if history.governor:
            acts = Counter(act.act for act in history.governor)
            last = history.governor[-1]
            counts = ", ".join(f"{count} {act}" for act, count in sorted(acts.items()))
            where = f"{last.arm}, RNG seed {last.seed}, step {last.step}"
            yield _text(f"governor: {counts}; last {last.act}: {where}: {last.reason}", "yellow")

    def _slots(self) -> Table:
        """Return a table with a row for each slot: how many seeds of which blueprint are in which stage."""
        seeds = reversed(list(self._history.running_seeds()))
        counts = Counter((life.slot, life.blueprint, life.stage) for life in seeds)
        arms = {arm for _, arm, _ in self._history.running}
        slots = dict.fromkeys(slot for arm in arms for slot in self._history.slots.get(arm, ()))
        slots.update(dict.fromkeys(slot for slot, _, _ in counts))
        table = Table.grid(padding=(0, 2))
        if not counts:
            return table
        for slot in slots:
            blueprints = dict.fromkeys(blueprint for own, blueprint, _ in counts if own == slot)
            told = [
                f"{short_name(name)}: "
                + ", ".join(
                    f"{counts[slot, name, stage]} {stage.label}" for stage in Stage if counts[slot, name, stage]
                )
                for name in blueprints
            ]
            table.add_row(_text(slot), _text("; ".join(told) or "nothing yet"))
        return table


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


class _Live(Live):
    """A live display that ignores a terminal that is gone."""

    def refresh(self) -> None:
        """Draw the display."""
        with suppress(OSError):
            super().refresh()


class _TimeLeft(TimeRemainingColumn):
    """The time left, in words."""

    def render(self, task: Task) -> Text:
        """Return the time left, or nothing while it is unknown."""
        text = super().render(task)
        return Text(f"{text.plain} left", style=text.style) if task.time_remaining else Text("")
