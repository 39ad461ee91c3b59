"""What does a run show while it runs? A bar with rate and time left on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING

from esper_core.leyline.events import RunStarted, StageChanged, StepFinished
from esper_core.leyline.lifecycle import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.progress import Progress

    from esper_core.leyline.events import Event
    from esper_core.telemetry import Listener

LINE_EVERY_SECONDS = 5.0
"""Seconds between two plain lines."""


@contextmanager
def progress(*, quiet: bool) -> Iterator[list[Listener]]:
    """The listeners that show how a run goes, on stderr, as long as somebody reads there."""
    if quiet:
        yield []
    elif not sys.stderr.isatty():
        yield [WhileRead(PlainLines())]
    else:
        from rich.console import Console

        bar = live_bar(Console(stderr=True))
        bar.start()
        try:
            yield [WhileRead(Bar(bar))]
        finally:
            with suppress(OSError):  # the terminal may be gone
                bar.stop()


def live_bar(console: Console) -> Progress:
    """The bar with its columns: what runs, how far, how fast, how long still, and what the seeds are doing."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[growing]}", style="dim", markup=False),
    )
    return Progress(*columns, console=console, transient=True)


class WhileRead:
    """A listener that is shut off when stderr takes no more: a run does not depend on who looks on."""

    def __init__(self, listener: Listener) -> None:
        self._listener: Listener | None = listener

    def hear(self, event: Event) -> None:
        """Pass the event on."""
        if self._listener is not None:
            self._listener.hear(event)

    def settle(self) -> None:
        """Pass on that a step is over, which shows something."""
        if self._listener is not None:
            try:
                self._listener.settle()
            except OSError:
                self._listener = None


class Tally:
    """Counts what passes: steps, environment steps, and the stages of the living seeds."""

    def __init__(self) -> None:
        self.run = ""
        self.total = 0
        self.per_step = 1
        self.heard = 0
        self.began = monotonic()
        self.stages: dict[tuple[str, int, int], Stage] = {}

    def hear(self, event: Event) -> None:
        """Count one event."""
        if isinstance(event, RunStarted):
            self.run = event.run
            self.total = event.rounds * event.steps
            self.per_step = max(1, len(event.arms) * event.environments)
            self.began = monotonic()
        elif isinstance(event, StageChanged):
            self.stages[event.arm, event.seed, event.seed_id] = event.now
        elif isinstance(event, StepFinished):
            self.heard += 1

    @property
    def step(self) -> int:
        """Decision steps that are done."""
        return self.heard // self.per_step

    @property
    def rate(self) -> str:
        """Environment steps in a second."""
        seconds = monotonic() - self.began
        return f"{self.heard / seconds:.0f} env steps/s" if seconds > 0 and self.heard else ""

    @property
    def growing(self) -> str:
        """How many seeds are where, in the order of their lives."""
        counts = {stage: sum(one is stage for one in self.stages.values()) for stage in Stage}
        return ", ".join(f"{count} {stage.value}" for stage, count in counts.items() if count)


class Bar:
    """A live bar on a terminal."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._tally = Tally()
        self._task = bar.add_task("starting", total=None, rate="", growing="")

    def hear(self, event: Event) -> None:
        """Count."""
        self._tally.hear(event)

    def settle(self) -> None:
        """Move the bar."""
        tally = self._tally
        self._bar.update(
            self._task,
            description=tally.run,
            total=tally.total,
            completed=tally.step,
            rate=tally.rate,
            growing=tally.growing,
        )


class PlainLines:
    """A line at the start and every few seconds, for logs and pipes."""

    def __init__(self) -> None:
        self._tally = Tally()
        self._last = float("-inf")

    def hear(self, event: Event) -> None:
        """Count."""
        self._tally.hear(event)

    def settle(self) -> None:
        """Say how far it is, if that was not said just now."""
        tally, now = self._tally, monotonic()
        if now - self._last < LINE_EVERY_SECONDS and tally.step < tally.total:
            return
        self._last = now
        parts = [f"{tally.run}: step {tally.step} of {tally.total}", tally.rate, tally.growing]
        print(" · ".join(part for part in parts if part), file=sys.stderr, flush=True)
