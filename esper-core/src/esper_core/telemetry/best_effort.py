"""What if a sink fails? It is shut off after one clear message, and the run goes on: the truth is in events.jsonl."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

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
        try:
            act()
        except Exception as error:
            self._sink = None
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            log.warning("%s raised %s; it is shut off for the rest of the run", self._label, said)
            if act != sink.close:  # it may hold a file open
                with suppress(Exception):
                    sink.close()
