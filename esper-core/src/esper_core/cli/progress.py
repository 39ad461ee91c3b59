"""What does a run show while it runs? What each slot is doing on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from threading import Event as Flag
from threading import RLock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from esper_core.cli.frame import acts_told, frame, pace_told, signs_for
from esper_core.cli.output import duration, wants_colour
from esper_core.cli.screen import Above, Screen, told_of_continuation
from esper_core.cli.tally import Tally
from esper_core.leyline.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from esper_core.leyline.events import Event
    from esper_core.telemetry import Listener

LINE_EVERY_SECONDS: Final = 5.0
"""Seconds between two plain lines, at first."""

LINE_AT_LEAST_EVERY_SECONDS: Final = 60.0
"""Seconds between two plain lines of a long run."""

DRAWN_EVERY_SECONDS: Final = 0.25
"""Seconds between two drawings."""


@contextmanager
def progress(*, quiet: bool) -> Iterator[list[Listener]]:
    """The listeners that show how a run goes, on stderr, as long as somebody reads there."""
    if quiet:
        yield []
    elif not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield [WhileRead(PlainLines())]
    else:
        with _live(sys.stderr) as live:
            yield [WhileRead(live)]


@contextmanager
def _live(stream: TextIO) -> Iterator[Live]:
    """A block in which a display stands on a terminal, and what is written to stderr above it."""
    with told_of_continuation() as continued:
        screen = Screen(stream, continued)
        live, above = Live(screen, stream), Above(screen, stream)
        turned: Any = above
        sys.stderr = turned
        drawing = Thread(target=live.keep_up, name="display", daemon=True)
        drawing.start()
        try:
            yield live
        finally:
            live.stop()
            drawing.join()
            if sys.stderr is turned:
                sys.stderr = stream
            with suppress(OSError):  # the terminal may be gone
                screen.close()


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


class Live:
    """Lines on a terminal that are drawn again as steps are done, as time goes by, and as the terminal changes."""

    def __init__(self, screen: Screen, stream: TextIO) -> None:
        self._screen = screen
        self._stream = stream
        self._colour = wants_colour(stream)
        self._tally = Tally()
        self._lock = RLock()
        self._over = Flag()
        self._drawn = float("-inf")
        self._shown: tuple[tuple[int, int], list[str]] | None = None

    def hear(self, event: Event) -> None:
        """Count."""
        with self._lock:
            self._tally.hear(event)

    def settle(self) -> None:
        """A step is over: show it, if nothing was shown just now."""
        with self._lock:
            self._tally.pace.look(self._tally.done)
            self.draw()

    def keep_up(self) -> None:
        """Draw again and again until it is over, or the terminal is gone."""
        with suppress(OSError):
            self.draw()
            while not self._over.wait(DRAWN_EVERY_SECONDS):
                self.draw()

    def stop(self) -> None:
        """Draw no more."""
        self._over.set()

    def draw(self) -> None:
        """Show how it stands, if that is another thing than what is there, and nothing was drawn just now."""
        with self._lock:
            if self._over.is_set() or monotonic() - self._drawn < 0.9 * DRAWN_EVERY_SECONDS:
                return
            columns, rows = size = self._screen.size
            lines = frame(self._tally, columns - 1, rows - 1, self._stream, colour=self._colour)
            self._drawn = monotonic()
            if (size, lines) != self._shown:
                self._screen.show(lines)
                self._shown = (size, lines)


class PlainLines:
    """A line at the start and every few seconds, for logs and pipes; of a long run every minute."""

    def __init__(self) -> None:
        self._tally = Tally()
        self._began = self._last = float("-inf")
        self._told = -1

    def hear(self, event: Event) -> None:
        """Count."""
        self._tally.hear(event)

    def settle(self) -> None:
        """Say how far it is, if that was not said just now."""
        tally, now = self._tally, monotonic()
        tally.pace.look(tally.done)
        if self._told < 0:
            self._began = now
        pause = min(LINE_AT_LEAST_EVERY_SECONDS, max(LINE_EVERY_SECONDS, (now - self._began) / 20))
        at_end = tally.done >= tally.total and tally.done != self._told
        if now - self._last < pause and not at_end:
            return
        if tally.done != self._told:
            self._last, self._told = now, tally.done
            print(signs_for(sys.stderr).between.join(_plain_parts(tally)), file=sys.stderr, flush=True)


def _plain_parts(tally: Tally) -> Iterator[str]:
    yield printable(f"{tally.run}: step {tally.step_of_all} of {tally.rounds * tally.steps}")
    if (rate := tally.pace.rate) is not None:
        yield pace_told(rate)
    left = tally.pace.left(tally.total)
    if left is not None and tally.done < tally.total:
        yield f"{duration(left)} left"
    if tally.stages:
        yield ", ".join(f"{count} {stage.value}" for stage, count in tally.stages.items())
    if tally.acts:
        yield f"governor: {acts_told(tally)}"
