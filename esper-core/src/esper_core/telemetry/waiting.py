"""What does a sink still have to be told? A queue with so many places, into which the run puts without waiting."""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from threading import Condition
from typing import Final

from esper_core.leyline.constants import SINK_PLACES, SINK_PLACES_KEPT
from esper_core.leyline.events import Event, StepFinished


class Mark(Enum):
    """What stands in the queue between events."""

    SETTLED = auto()
    """A step is over."""
    END = auto()
    """No more will come."""


class Waiting:
    """Events in their order, and where among them a step was over.

    The flood of a run is its ``step-finished``: they find no place where ``places`` events wait. The others, which are
    few, have as many as ``kept`` places more.
    """

    def __init__(self, places: int = SINK_PLACES, kept: int = SINK_PLACES_KEPT) -> None:
        self._places: Final = places
        self._kept: Final = kept
        self._items: deque[Event | Mark] = deque()
        self._events = 0
        self._changed = Condition()
        self._ended = False

    def put(self, event: Event) -> bool:
        """Whether there was a place for the event, and none where it has ended."""
        with self._changed:
            places = self._places if isinstance(event, StepFinished) else self._places + self._kept
            if self._ended or self._events >= places:
                return False
            self._items.append(event)
            self._events += 1
            self._changed.notify()
            return True

    def settle(self) -> None:
        """A step is over. Said once, however often, until an event follows."""
        with self._changed:
            if not self._ended and not (self._items and self._items[-1] is Mark.SETTLED):
                self._items.append(Mark.SETTLED)
                self._changed.notify()

    def take(self) -> Event | Mark:
        """What is next, as soon as there is something."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._items) or self._ended)
            if not self._items:
                return Mark.END
            item = self._items.popleft()
            if not isinstance(item, Mark):
                self._events -= 1
            return item

    def end(self) -> None:
        """Nothing more is put in; what waits is still to be had."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def cut(self, keep: int) -> int:
        """How many events are given up: all that wait but the last ``keep``."""
        with self._changed:
            events = [item for item in self._items if not isinstance(item, Mark)]
            kept = events[len(events) - keep :] if keep else []
            self._items = deque([*kept, Mark.SETTLED] if kept else ())
            self._events = len(kept)
            return len(events) - len(kept)
