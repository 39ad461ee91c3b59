"""What if a sink fails? It is shut off after one clear message, and the run goes on: the truth is in events.jsonl."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from esper_core.leyline.errors import Problem
from esper_core.plugins.faults import Label, attempt, place_in, summary_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from esper_core.leyline.events import Event
    from esper_core.leyline.protocols import Sink

log = logging.getLogger("esper")


class BestEffort:
    """A listener that keeps a sink's faults from the run. ``label`` says whose sink it is."""

    def __init__(self, sink: Sink, label: str) -> None:
        self._sink: Sink | None = sink
        self._label = label

    def hear(self, event: Event) -> None:
        """Pass the event on, while the sink works."""
        if (sink := self._sink) is not None:
            self._attempt(sink, partial(sink.hear, event))

    def settle(self) -> None:
        """Pass on that a step is over."""
        if (sink := self._sink) is not None:
            self._attempt(sink, sink.settle)

    def close(self) -> None:
        """Close the sink."""
        if (sink := self._sink) is not None:
            self._attempt(sink, sink.close)
            self._sink = None

    def _attempt(self, sink: Sink, act: Callable[[], None]) -> None:
        tried = attempt(act)
        if tried.error is None:
            return
        self._sink = None
        log.warning("%s", self._problem(tried.error))
        if act != sink.close:  # it may hold a file open; what goes wrong with that, too, adds nothing
            attempt(sink.close)

    def _problem(self, error: BaseException) -> Problem:
        target = self._label.target if isinstance(self._label, Label) else None
        file, line = place_in(error, target)
        message = f"{self._label} raised {summary_of(error)}; it is shut off for the rest of the run"
        return Problem("E228", message, file=file, line=line, path=None if file else target)
