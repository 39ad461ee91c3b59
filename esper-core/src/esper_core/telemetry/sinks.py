"""Run the sinks of plugins on threads of their own: the run waits for none, and goes on without one that fails.

The run hands each event over without waiting. What does not fit into the queue is dropped and counted, a sink that
raises is shut off after one message, and a sink that does not close in time is abandoned. events.jsonl, which the
core writes itself, has every event.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from esper_core.leyline.constants import SINK_CLOSING_SECONDS, SINK_DRAIN_SECONDS, SINK_PLACES, SINK_PLACES_KEPT
from esper_core.leyline.errors import Problem
from esper_core.leyline.events import Event, StepFinished
from esper_core.plugins.isolation import component_problem, summarise
from esper_core.plugins.process_state import Guard, lend_generator, log_change

if TYPE_CHECKING:
    from collections.abc import Callable

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
        places: number of events and ends of steps that may wait. ``step-finished`` events, which make up most of a run,
            are dropped beyond this number.
        kept: number of further places for all other events.
        drain: seconds at the end of a run in which the sink may process waiting events.
        closing: seconds after that until the sink is abandoned.
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
        # Not one with a bound, which would wait or raise: there are two bounds, by the kind of event.
        self._queue: SimpleQueue[Event | str] = SimpleQueue()
        self._last_put: Event | str | None = None
        self._changes: SimpleQueue[Problem] = SimpleQueue()  # what the sink changed of the process's state
        self._heard = 0
        self._passed_on = 0  # written by the sink's thread only
        self._error: BaseException | None = None
        self._is_full = self._is_late = self._closed = self._shut_off = False
        # A daemon: a sink that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name=f"esper {label}", daemon=True)

    def hear(self, event: Event) -> None:
        """Queue an event, or drop it if there is no place for it."""
        if not self._is_working():
            return
        self._heard += 1
        if self._queue.qsize() < self._places[not isinstance(event, StepFinished)]:
            self._put(event)
        elif not self._is_full:
            self._is_full = True
            self._warn("is slower than the run: events that do not fit into its queue are dropped")

    def settle(self) -> None:
        """Queue the end of a step, once until another event follows."""
        if self._is_working() and self._last_put != _SETTLED:
            self._put(_SETTLED)

    def close(self) -> None:
        """Give the sink time to finish and to close, and report the outcome."""
        if self._closed:
            return
        # A sink that never got an event is closed, too, and on its own thread.
        self._start()
        self._closed = True
        drain, closing = self._seconds
        self._put(_END)
        self._thread.join(drain)
        self._is_late = True
        self._thread.join(closing)
        self._report_error()
        dropped = self._heard - self._passed_on
        share = f"{dropped:,} of {self._heard:,} events were dropped"
        if self._thread.is_alive():
            self._warn(f"did not close within {drain + closing:g} seconds and is abandoned: {share}")
        elif dropped and self._error is None:
            self._warn(f"is slower than the run: {share}")

    def _put(self, message: Event | str) -> None:
        self._last_put = message
        self._queue.put(message)

    def _is_working(self) -> bool:
        if not self._closed:
            self._start()
            self._report_error()
        return not (self._closed or self._shut_off)

    def _start(self) -> None:
        if self._thread.ident is None:
            self._thread.start()

    def _work(self) -> None:
        sink, guard = self._sink, Guard(self._label, report=self._changes.put)
        lend_generator()
        while self._error is None and (message := self._queue.get()) != _END:
            # Behind the last event wait the end of its step and that of the run: two messages.
            if self._is_late and self._queue.qsize() > 2:
                continue  # of what still waits, only the last event is passed on: it tells how the run ended
            if isinstance(message, str):
                self._error = _error_in(sink.settle, guard)
            else:
                self._passed_on += 1
                self._error = _error_in(partial(sink.hear, message), guard)
        closing = _error_in(sink.close, guard)
        self._error = self._error or closing  # an error in closing a broken sink adds nothing

    def _report_error(self) -> None:
        while not self._changes.empty():
            log_change(self._changes.get())
        if self._error is not None and not self._shut_off:
            self._shut_off = True
            message = f"{self._label} raised {summarise(self._error)}; it is shut off for the rest of the run"
            log.warning("%s", component_problem("E228", message, self._error, self._label))

    def _warn(self, failure: str) -> None:
        hint = "events.jsonl has all of them: esper_run.read_events reads it when the run is over."
        log.warning("%s", Problem("E228", f"{self._label} {failure}", hint=hint))


def _error_in(call: Callable[[], None], guard: Guard) -> BaseException | None:
    """Return what a call raises. A KeyboardInterrupt is the sink's own: in a run, Ctrl-C only sets a flag."""
    try:
        with guard:
            call()
    except BaseException as error:
        return error
    return None
