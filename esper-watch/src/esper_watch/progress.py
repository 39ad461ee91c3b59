"""Live view of a run on a terminal: how far it is, what each arm reached, and what each slot is doing.

``esper run`` uses it as a sink on an interactive terminal; see ``SinkSpec.terminal``. ``esper watch`` follows a run of
another process with it. rich draws it on a thread of its own, so a slow terminal does not slow down the run.
"""

from __future__ import annotations

import time
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from esper_core import EsperError
from esper_core.leyline.errors import printable
from esper_run.formats import format_rate, plain
from esper_watch import terminal
from esper_watch.history import UNFINISHED, History

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rich.console import RenderableType
    from rich.progress import Task

    from esper_core.leyline.events import Event
    from esper_watch.history import SeedLife

RATE_SECONDS: Final = 120.0
"""How far back the rate looks: a run is slower with all that grows."""

REDRAWS_PER_SECOND: Final = 4

LOOK_SECONDS: Final = 1.0
"""Pause between two looks at a run of another process."""

PATIENCE: Final = 4.0
"""A look that took long is followed by a pause of so many times its length."""


def live(run: str | Path) -> LiveDisplay:
    """Build the display on stderr. run: the run directory, which is not needed."""
    return LiveDisplay(Console(stderr=True))


class RunView:
    """What is drawn of a run: a bar over all of its phases, arms, seeds by stage, acts of the governor, and lives.

    Args:
        console: Where it is drawn.
        lives: Whether to draw lives of seeds below, as many as there is room for.
    """

    def __init__(self, console: Console, *, lives: bool = False) -> None:
        self.console = console
        self._lives = lives
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TaskProgressColumn("[progress.percentage]{task.percentage:>3.0f} %"),
            _TimeLeft(),
            console=console,
            speed_estimate_period=RATE_SECONDS,
        )
        self.task = self._progress.add_task("starting", total=None)
        self._is_started = False
        self._texts: list[Text] = []

    def update(self, history: History) -> None:
        """Update bar, rate and texts. A redraw in between draws the same texts, since means take time in large runs."""
        total, done = history.total_steps, history.finished_steps
        if self._is_started:
            self._progress.update(self.task, completed=done, total=total)
        elif total:
            # What a resumed run did before does not count for its rate.
            name = terminal.cut(printable(history.started.run if history.started else ""), self.console.width // 2)
            self._progress.reset(self.task, total=total, completed=done, description=name)
            self._is_started = True
        self._texts = list(self._told(history))

    @property
    def speed(self) -> float | None:
        """Steps of environments per second; None if unknown."""
        return self._progress.tasks[0].speed

    def draw(self) -> RenderableType:
        """Return what to draw."""
        return Group(self._progress, *self._texts)

    def _told(self, history: History) -> Iterator[Text]:
        width = self.console.width
        lines = [_text(line, "dim") for line in self._where(history, width)]
        lines += [_text(line) for line in terminal.arm_lines(history, width)]
        lines += [_text(line) for line in terminal.slot_lines(history, width)]
        lines += [_text(line, "yellow") for line in terminal.governor_lines(history.governor, width)]
        yield from lines
        if self._lives and (room := self.console.height - len(lines) - 6) > 0:
            yield from (_text(line) for line in terminal.life_lines(history, _current(history, room), width))

    def _where(self, history: History, width: int) -> list[str]:
        text = terminal.phase_text(history)
        if not text:
            return []
        if speed := self.speed:
            text += f", {format_rate(speed)}"
        return terminal.wrap(text, width)


class LiveDisplay:
    """A sink that draws the state of a run at the bottom of a terminal, and removes it at the end.

    What is printed meanwhile appears above.
    """

    def __init__(self, console: Console) -> None:
        self._history = History(keep_steps=False)
        self._lock = Lock()
        self.view = RunView(console)
        self._live = _live_on(console, self.render)
        self._live.start()

    def hear(self, event: Event) -> None:
        """Record an event."""
        with self._lock:
            self._history.add(event)

    def settle(self) -> None:
        """Update the progress at the end of a step."""
        with self._lock:
            self.view.update(self._history)

    def close(self) -> None:
        """Remove the display."""
        with suppress(OSError):  # the terminal may be gone
            self._live.stop()

    def render(self) -> RenderableType:
        """Return what to draw."""
        return self.view.draw()


def follow(run: Path, console: Console) -> History:
    """Draw a run until it has ended, or until Ctrl-C, which does not reach the run. Returns its history.

    Raises:
        EsperError: E420 if ``run`` is not a run directory, E421 if a line of its events is not an event.
    """
    from esper_watch.web.index import FollowedRun

    followed = FollowedRun(run.resolve())
    view = RunView(console, lives=True)

    def look() -> bool:
        """Read what is new. Return whether the run goes on."""
        with followed.lock:
            followed.refresh()
            if followed.problem is not None:
                raise EsperError(followed.problem)
            view.update(followed.history)
            return followed.history.status in ("running", UNFINISHED)

    with suppress(KeyboardInterrupt):
        if look():
            with _live_on(console, view.draw):
                began = time.monotonic()
                while look():
                    time.sleep(max(LOOK_SECONDS, PATIENCE * (time.monotonic() - began)))
                    began = time.monotonic()
    history: History = followed.history
    return history


def _current(history: History, limit: int) -> list[SeedLife]:
    """Return seeds of the latest round in the order of their networks: those that are undecided, then others."""
    first = sorted(history.latest_seeds(), key=lambda life: (life.ended, life.seed))[:limit]
    return sorted(first, key=lambda life: (life.arm, life.seed, life.seed_id))


def _live_on(console: Console, render: Callable[[], RenderableType]) -> Live:
    return _Live(
        console=console,
        get_renderable=render,
        refresh_per_second=REDRAWS_PER_SECOND,
        transient=True,
        redirect_stdout=False,
    )


def _text(text: str, style: str = "") -> Text:
    return Text(plain(text), style=style, no_wrap=True, overflow="ellipsis")


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
