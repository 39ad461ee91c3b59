"""Checks of sinks: they accept events of every type in any order, on any thread, and raise nothing.

Each check takes what builds the sink for the directory of a run.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from esper_testing.checks import demand_no_error
from esper_testing.fakes import recorded_events, sick_events

if TYPE_CHECKING:
    from collections.abc import Iterator

    from esper_core.leyline import Sink
    from esper_core.leyline.events import Event

Maker = Callable[[Path], Any]


def takes_every_event(make: Maker) -> None:
    """Check that the sink accepts events of every type in the order of a run."""
    with _opened(make) as sink:
        for event in recorded_events():
            _send(sink, event)


def takes_numbers_that_are_none(make: Maker) -> None:
    """Check that the sink accepts NaN and infinity in measurements."""
    with _opened(make) as sink:
        for event in sick_events():
            _send(sink, event, " with NaN in it")


def closes_twice(make: Maker) -> None:
    """Check that closing twice raises nothing."""
    with _opened(make) as sink:
        for when in ("when it is closed", "when it is closed twice"):
            with demand_no_error(when):
                sink.close()


def takes_any_order(make: Maker) -> None:
    """Check that the sink accepts the end of a step before any event, and events in reverse order."""
    with _opened(make) as sink:
        with demand_no_error("when it settles before any event"):
            sink.settle()
        for event in reversed(recorded_events()):
            _send(sink, event, " out of order")


def works_on_another_thread(make: Maker) -> None:
    """Check that the sink can be built on one thread, and called and closed on another."""
    with _opened(make) as sink, ThreadPoolExecutor(max_workers=1) as executor:
        for event in recorded_events():
            executor.submit(_send, sink, event, " on another thread").result()
        with demand_no_error("when it is closed on another thread"):
            executor.submit(sink.close).result()


def says_nothing_once_closed(make: Maker) -> None:
    """Check that events after closing raise nothing."""
    with _opened(make) as sink:
        with demand_no_error("when it is closed"):
            sink.close()
        for event in recorded_events():
            _send(sink, event, " once it is closed")


CHECKS: Final = (
    takes_every_event,
    takes_numbers_that_are_none,
    closes_twice,
    takes_any_order,
    works_on_another_thread,
    says_nothing_once_closed,
)


@contextlib.contextmanager
def _opened(make: Maker) -> Iterator[Sink]:
    """Build a sink in an empty folder, and close it at the end."""
    with tempfile.TemporaryDirectory() as folder:
        sink = cast("Sink", make(Path(folder)))
        try:
            yield sink
        finally:
            with contextlib.suppress(Exception):  # closing has checks of its own
                sink.close()


def _send(sink: Sink, event: Event, how: str = "") -> None:
    with demand_no_error(f'at a "{event.type}"{how}'):
        sink.hear(event)
    with demand_no_error(f'when it settles after a "{event.type}"{how}'):
        sink.settle()
