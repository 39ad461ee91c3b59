"""Run the sinks of plugins on threads of their own, so that none of them can delay or stop a run.

The run hands each event over without waiting. What does not fit into the queue is dropped and counted, a sink that
raises is shut off after one message, and a sink that does not close in time is left behind. events.jsonl, which the
core writes itself, has every event.
"""

from __future__ import annotations

import logging
import sys
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline.constants import SINK_CLOSING_SECONDS, SINK_DRAIN_SECONDS, SINK_PLACES, SINK_PLACES_KEPT
from esper_core.leyline.errors import Problem
from esper_core.leyline.events import Event, StepFinished
from esper_core.plugins.isolation import component_problem, summarise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

    from esper_core.leyline.protocols import Sink

log = logging.getLogger("esper")

_SETTLED: Final = "settled"
_END: Final = "end"


class SinkThread:
    """A listener that passes events on to a sink on another thread.

    The thread starts with the first event. All messages come from the run's own thread.

    Args:
        sink: the plugin's sink. Its ``hear``, ``settle`` and ``close`` are called on the thread only.
        label: names the sink and its package in messages.
        places: number of events that may wait. ``step-finished`` events, which make up most of a run, are dropped
            beyond this number.
        kept: number of further places for all other events.
        drain: seconds at the end of a run in which the sink may work off what is waiting.
        closing: seconds after that until the sink is left behind.
    """

    def __init__(
        self,
        sink: Sink,
        label: str,
        *,
        places: int = SINK_PLACES,
        kept: int = SINK_PLACES_KEPT,
        drain: float = SINK_DRAIN_SECONDS,
        closing: float = SINK_CLOSING_SECONDS,
    ) -> None:
        self._sink = sink
        self._label = label
        self._places = (places, places + kept)
        self._seconds = (drain, closing)
        self._queue: SimpleQueue[Event | str] = SimpleQueue()
        self._last_put: Event | str | None = None
        self._heard = self._queued = self._dropped = 0
        self._taken = 0  # written by the sink's thread only
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._streams: list[ThreadStream] = []
        self._closed = self._shut_off = False

    def hear(self, event: Event) -> None:
        """Queue an event, or drop it if there is no place for it."""
        if not self._is_working():
            return
        self._heard += 1
        if self._queued - self._taken < self._places[not isinstance(event, StepFinished)]:
            self._queued += 1
            self._put(event)
        elif self._error is None:
            self._dropped += 1
            if self._dropped == 1:
                self._warn("is slower than the run: events that do not fit into its queue are dropped")

    def settle(self) -> None:
        """Queue the end of a step, once until another event follows."""
        if self._is_working() and self._last_put != _SETTLED:
            self._put(_SETTLED)

    def close(self) -> None:
        """Give the sink time to finish and to close, and report what became of it."""
        if self._closed:
            return
        thread = self._started()
        self._closed = True
        drain, closing = self._seconds
        self._put(_END)
        thread.join(drain)
        if thread.is_alive():
            self._discard(keep_last=True)  # the last event tells the sink how the run ended
            thread.join(closing)
        for stream in self._streams:
            stream.release(thread)
        self._report_error()
        if left := thread.is_alive():
            self._discard(keep_last=False)
        share = f"{self._dropped:,} of {self._heard:,} events were dropped"
        if left:
            self._warn(f"did not close within {drain + closing:g} seconds and is left behind: {share}")
        elif self._dropped and self._error is None:
            self._warn(f"is slower than the run: {share}")

    def _put(self, item: Event | str) -> None:
        self._last_put = item
        self._queue.put(item)

    def _is_working(self) -> bool:
        if self._closed or self._shut_off:
            return False
        self._started()
        self._report_error()
        return not self._shut_off

    def _started(self) -> threading.Thread:
        if self._thread is None:
            # A daemon: a sink that hangs must not keep the process alive.
            self._thread = threading.Thread(target=self._work, name=f"esper {self._label}", daemon=True)
            self._thread.start()
            self._streams = [ThreadStream.redirect(name, self._thread) for name in ("stdout", "stderr")]
        return self._thread

    def _work(self) -> None:
        sink = self._sink
        while self._error is None and (item := self._queue.get()) != _END:
            if isinstance(item, str):
                self._error = _error_in(sink.settle)
            else:
                self._taken += 1
                self._error = _error_in(lambda event=item: sink.hear(event))  # type: ignore[misc]
        closing = _error_in(sink.close)
        self._error = self._error or closing  # an error in closing a broken sink adds nothing

    def _discard(self, *, keep_last: bool) -> None:
        """Take back the events that still wait, except the last one where it is to be kept."""
        events: list[Event] = []
        try:
            while True:
                item = self._queue.get_nowait()
                if not isinstance(item, str):
                    events.append(item)
        except Empty:
            pass
        kept = events[-1:] if keep_last else []
        self._dropped += len(events) - len(kept)
        for last in (*kept, *([_SETTLED] if kept else []), _END):
            self._queue.put(last)

    def _report_error(self) -> None:
        if self._error is not None and not self._shut_off:
            self._shut_off = True
            message = f"{self._label} raised {summarise(self._error)}; it is shut off for the rest of the run"
            log.warning("%s", component_problem("E228", message, self._error, self._label))

    def _warn(self, what: str) -> None:
        hint = "events.jsonl has all of them: esper_core.read_events reads it when the run is over."
        log.warning("%s", Problem("E228", f"{self._label} {what}", hint=hint))


class SinkGuard:
    """A listener that passes events on to a sink on the run's own thread, and shuts it off at its first error.

    Args:
        sink: a sink that does little in ``hear`` and ``settle``, such as a terminal display.
        label: names the sink and its package in messages.
    """

    def __init__(self, sink: Sink, label: str) -> None:
        self._sink = sink
        self._label = label
        self._shut_off = False

    def hear(self, event: Event) -> None:
        """Pass on an event."""
        self._try(lambda: self._sink.hear(event))

    def settle(self) -> None:
        """Pass on the end of a step."""
        self._try(self._sink.settle)

    def close(self) -> None:
        """Close the sink, even if it was shut off."""
        error = _error_in(self._sink.close)
        if error is not None and not self._shut_off:
            self._report(error)

    def _try(self, call: Callable[[], None]) -> None:
        if not self._shut_off and (error := _error_in(call)) is not None:
            self._report(error)

    def _report(self, error: BaseException) -> None:
        self._shut_off = True
        message = f"{self._label} raised {summarise(error)}; it is shut off for the rest of the run"
        log.warning("%s", component_problem("E228", message, error, self._label))


class ThreadStream:
    """``sys.stdout`` or ``sys.stderr``, except that what some threads print goes to stderr.

    stdout belongs to the result of the command. ``contextlib.redirect_stdout`` does not help here: it redirects all
    threads, and two threads that use it at once may leave it redirected.
    """

    def __init__(self, name: str, original: TextIO) -> None:
        self._name = name
        self._original = original
        self._redirected: set[int | None] = set()

    @classmethod
    def redirect(cls, name: str, thread: threading.Thread) -> ThreadStream:
        """Redirect what a thread prints to ``sys.<name>``, until ``release``."""
        stream = getattr(sys, name)
        if not isinstance(stream, cls):
            stream = cls(name, stream)
            setattr(sys, name, stream)
        stream._redirected.add(thread.ident)
        return stream

    def release(self, thread: threading.Thread) -> None:
        """Stop redirecting a thread. The last one restores the original stream."""
        self._redirected.discard(thread.ident)
        if not self._redirected and getattr(sys, self._name) is self:
            setattr(sys, self._name, self._original)

    def close(self) -> None:
        """Close the original stream, or only flush it on a redirected thread."""
        if self._is_redirected:
            self._stream.flush()
        else:
            self._original.close()

    @property
    def _is_redirected(self) -> bool:
        return threading.get_ident() in self._redirected

    @property
    def _stream(self) -> Any:
        return sys.stderr if self._name == "stdout" and self._is_redirected else self._original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)


def _error_in(call: Callable[[], None]) -> BaseException | None:
    """Return what a call raises. Signals reach the main thread only, so a KeyboardInterrupt here is the sink's own."""
    try:
        call()
    except BaseException as error:
        return error
    return None
