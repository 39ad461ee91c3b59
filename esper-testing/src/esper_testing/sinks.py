"""Does a sink stay out of a run's way? It takes whatever is told, in whatever order, and does not raise.

Each check takes what builds the sink for the folder of a run; AssertionError where a promise is broken.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from esper_testing.event_samples import recorded_events, sick_events

if TYPE_CHECKING:
    from collections.abc import Iterator

    from esper_core.leyline import Sink
    from esper_core.leyline.events import Event

Maker = Callable[[Path], Any]


def takes_every_event(make: Maker) -> None:
    """Events of every kind, in the order of a run."""
    with _opened(make) as sink:
        for event in recorded_events():
            _hear(sink, event)


def takes_numbers_that_are_none(make: Maker) -> None:
    """NaN and infinities in what was measured."""
    with _opened(make) as sink:
        for event in sick_events():
            _hear(sink, event, " with NaN in it")


def closes_twice(make: Maker) -> None:
    """Closed once more, it says nothing."""
    with _opened(make) as sink:
        _tell("when it is closed", sink.close)
        _tell("when it is closed twice", sink.close)


def takes_any_order(make: Maker) -> None:
    """A step that is over before anything happened, and events from the last to the first."""
    with _opened(make) as sink:
        _tell("when it settles before any event", sink.settle)
        for event in reversed(recorded_events()):
            _hear(sink, event, " out of order")


def works_on_another_thread(make: Maker) -> None:
    """Built on the thread of the run, and told of it and closed on another, which is the same to its end."""
    with _opened(make) as sink, ThreadPoolExecutor(max_workers=1) as beside:
        for event in recorded_events():
            _hear(_There(sink, beside), event, " on another thread")
        _tell("when it is closed on another thread", _There(sink, beside).close)


def says_nothing_once_closed(make: Maker) -> None:
    """What is told after the end does not raise either."""
    with _opened(make) as sink:
        _tell("when it is closed", sink.close)
        for event in recorded_events():
            _hear(sink, event, " once it is closed")


PROMISES: Final[tuple[Callable[[Maker], None], ...]] = (
    takes_every_event,
    takes_numbers_that_are_none,
    closes_twice,
    takes_any_order,
    works_on_another_thread,
    says_nothing_once_closed,
)


class _There:
    """A sink whose methods are called on another thread; what they raise is raised here."""

    def __init__(self, sink: Sink, beside: ThreadPoolExecutor) -> None:
        self._sink = sink
        self._beside = beside

    def hear(self, event: Event) -> None:
        self._beside.submit(self._sink.hear, event).result()

    def settle(self) -> None:
        self._beside.submit(self._sink.settle).result()

    def close(self) -> None:
        self._beside.submit(self._sink.close).result()


@contextlib.contextmanager
def _opened(make: Maker) -> Iterator[Sink]:
    """A sink in an empty folder, closed at the end if it will be."""
    with tempfile.TemporaryDirectory() as folder:
        sink = cast("Sink", make(Path(folder)))
        try:
            yield sink
        finally:
            with contextlib.suppress(Exception):  # closing is judged by the checks that are about it
                sink.close()


def _hear(sink: Sink, event: Event, how: str = "") -> None:
    _tell(f'at a "{event.type}"{how}', lambda: sink.hear(event))
    _tell(f'when it settles after a "{event.type}"{how}', sink.settle)


def _tell(when: str, act: Callable[[], None]) -> None:
    try:
        act()
    except Exception as error:
        msg = f"raises {type(error).__name__} {when}: {error}"
        raise AssertionError(msg) from error
