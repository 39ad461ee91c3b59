"""What if a sink is slow, hangs or fails? The run goes on at its own pace: the truth is in events.jsonl.

A sink works on a thread of its own, and the run hands over what happens without waiting. What finds no place is
dropped and counted; a sink that raises is shut off after one clear message; one that does not come to an end is left
behind. The run's own thread tells of all this, and reads for it what the other thread has noted.

What does a sink still have to be told? A queue with so many places, into which the run puts without waiting.

Where does it go what a thread beside the run prints? To stderr: stdout belongs to the command's result.

``contextlib.redirect_stdout`` turns the streams of every thread, and two threads that use it at once may leave them
turned. Here one stream stands before the real one and looks who writes.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from enum import Enum, auto
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline.constants import SINK_CLOSING_SECONDS, SINK_DRAIN_SECONDS, SINK_PLACES, SINK_PLACES_KEPT
from esper_core.leyline.errors import Problem
from esper_core.leyline.events import Event, StepFinished
from esper_core.plugins.faults import Label, place_in, summary_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

    from esper_core.leyline.protocols import Sink


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


class Parted:
    """``sys.stdout`` or ``sys.stderr`` for all threads but its guests: what these print goes to stderr.

    A guest cannot close it. It is put in place, and taken away, by the thread that the run is on.
    """

    def __init__(self, name: str, own: TextIO) -> None:
        self._name = name
        self._own = own
        self._guests: set[int] = set()

    def take_in(self, thread: int) -> None:
        """From now on this thread, by its number, is a guest."""
        self._guests.add(thread)

    def let_go(self, thread: int) -> None:
        """It is none any more; the last one that goes leaves things as they were."""
        self._guests.discard(thread)
        if not self._guests and getattr(sys, self._name) is self:
            setattr(sys, self._name, self._own)

    @property
    def _stream(self) -> Any:
        return sys.stderr if self._name == "stdout" and self._has_guest else self._own

    @property
    def _has_guest(self) -> bool:
        return threading.get_ident() in self._guests

    def close(self) -> None:
        """Close it; a guest only has written what is waiting."""
        if self._has_guest:
            self._stream.flush()
        else:
            self._own.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)


def parted_streams(thread: int) -> list[Parted]:
    """Both streams, with this thread as a guest; ``let_go`` ends it."""
    parted = []
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, Parted):
            stream = Parted(name, stream)
            setattr(sys, name, stream)
        stream.take_in(thread)
        parted.append(stream)
    return parted


log = logging.getLogger("esper")


class BestEffort:
    """A listener that keeps a sink's faults, and the time that it takes, from the run. ``label`` says whose it is.

    The thread begins with the first event. ``drain`` and ``closing`` are seconds: until what waits is given up at the
    end, and from then on until the sink is.
    """

    def __init__(
        self,
        sink: Sink,
        label: str,
        *,
        waiting: Waiting | None = None,
        drain: float = SINK_DRAIN_SECONDS,
        closing: float = SINK_CLOSING_SECONDS,
    ) -> None:
        self._sink = sink
        self._label = label
        self._waiting = waiting or Waiting()
        self._seconds = (drain, closing)
        self._thread: Thread | None = None
        self._streams: list[Parted] = []
        self._closed = False
        self._error: BaseException | None = None
        self._shut_off = False
        self._heard = 0
        self._dropped = 0

    def hear(self, event: Event) -> None:
        """Hand the event over, while the sink works."""
        if self._works():
            self._heard += 1
            if not self._waiting.put(event) and self._error is None:
                self._drop()

    def settle(self) -> None:
        """Hand over that a step is over."""
        if self._works():
            self._waiting.settle()

    def close(self) -> None:
        """Give the sink time to take what waits and to close; tell what came of it."""
        if self._closed:
            return
        thread = self._begun()
        self._closed = True
        drain, closing = self._seconds
        self._waiting.end()
        thread.join(drain)
        if thread.is_alive():
            self._dropped += self._waiting.cut(keep=1)  # that which says how the run ended
            thread.join(closing)
        for stream in self._streams:
            stream.let_go(thread.ident or 0)
        self._tell_error()
        if left := thread.is_alive():
            self._dropped += self._waiting.cut(keep=0)
        share = f"{self._dropped:,} of {self._heard:,} events were dropped"
        if left:
            self._warn(f"did not close within {drain + closing:g} seconds, and is left behind: {share}")
        elif self._dropped and self._error is None:
            self._warn(f"is slower than the run: {share}")

    def _works(self) -> bool:
        """Whether there is somebody to be told; who is not, is told of once."""
        if self._closed or self._shut_off:
            return False
        self._begun()
        self._tell_error()
        return not self._shut_off

    def _begun(self) -> Thread:
        if self._thread is None:
            name = f"esper {self._label}"
            self._thread = Thread(target=self._work, name=name, daemon=True)  # it may hang, and the program may end
            self._thread.start()
            self._streams = parted_streams(self._thread.ident or 0)
        return self._thread

    def _work(self) -> None:
        """The life of the sink, on its own thread: told all that comes, then closed."""
        sink = self._sink
        while self._error is None and (item := self._waiting.take()) is not Mark.END:
            if isinstance(item, Mark):
                self._error = _error_in(sink.settle)
            else:
                self._error = _error_in(lambda event=item: sink.hear(event))  # type: ignore[misc]
        self._waiting.end()
        closing = _error_in(sink.close)
        self._error = self._error or closing  # what goes wrong with closing what went wrong adds nothing

    def _drop(self) -> None:
        self._dropped += 1
        if self._dropped == 1:
            self._warn("is slower than the run: events for which there is no place are dropped until it has caught up")

    def _tell_error(self) -> None:
        if self._error is not None and not self._shut_off:
            self._shut_off = True
            target = self._label.target if isinstance(self._label, Label) else None
            file, line = place_in(self._error, target)
            message = f"{self._label} raised {summary_of(self._error)}; it is shut off for the rest of the run"
            log.warning("%s", Problem("E228", message, file=file, line=line, path=None if file else target))

    def _warn(self, what: str) -> None:
        hint = "events.jsonl has all of them: esper_core.read_events reads it when the run is over."
        log.warning("%s", Problem("E228", f"{self._label} {what}", hint=hint))


def _error_in(act: Callable[[], None]) -> BaseException | None:
    """What is raised, whatever it is. No signal comes to this thread: a KeyboardInterrupt, too, is the sink's own."""
    try:
        act()
    except BaseException as error:
        return error
    return None
