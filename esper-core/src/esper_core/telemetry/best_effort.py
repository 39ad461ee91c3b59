"""What if a sink is slow, hangs or fails? The run goes on at its own pace: the truth is in events.jsonl.

A sink works on a thread of its own, and the run hands over what happens without waiting. What finds no place is
dropped and counted; a sink that raises is shut off after one clear message; one that does not come to an end is left
behind. The run's own thread tells of all this, and reads for it what the other thread has noted.
"""

from __future__ import annotations

import logging
from threading import Thread
from typing import TYPE_CHECKING

from esper_core.leyline.constants import SINK_CLOSING_SECONDS, SINK_DRAIN_SECONDS
from esper_core.leyline.errors import Problem
from esper_core.plugins.faults import Label, place_in, summary_of
from esper_core.telemetry.printing import Parted, parted_streams
from esper_core.telemetry.waiting import Mark, Waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from esper_core.leyline.events import Event
    from esper_core.leyline.protocols import Sink

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
