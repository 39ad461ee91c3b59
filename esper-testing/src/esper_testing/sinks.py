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

from esper_testing.fakes import recorded_events, sick_events

if TYPE_CHECKING:
    from collections.abc import Iterator

    from esper_core.leyline import Sink
    from esper_core.leyline.events import Event

Maker = Callable[[Path], Any]


def takes_every_event(make: Maker) -> None:
    """It accepts events of every type in the order of a run."""
    with _opened(make) as sink:
        for event in recorded_events():
            _send(sink, event)


def takes_numbers_that_are_none(make: Maker) -> None:
    """It accepts NaN and infinity in measurements."""
    with _opened(make) as sink:
        for event in sick_events():
            _send(sink, event, " with NaN in it")


def closes_twice(make: Maker) -> None:
    """Closing twice raises nothing."""
    with _opened(make) as sink:
        _demand_quiet("when it is closed", sink.close)
        _demand_quiet("when it is closed twice", sink.close)


def takes_any_order(make: Maker) -> None:
    """It accepts the end of a step before any event, and events in reverse order."""
    with _opened(make) as sink:
        _demand_quiet("when it settles before any event", sink.settle)
        for event in reversed(recorded_events()):
            _send(sink, event, " out of order")


def works_on_another_thread(make: Maker) -> None:
    """It can be built on one thread, and called and closed on another."""
    with _opened(make) as sink, ThreadPoolExecutor(max_workers=1) as executor:
        for event in recorded_events():
            _send(_OnThread(sink, executor), event, " on another thread")
        _demand_quiet("when it is closed on another thread", _OnThread(sink, executor).close)


def says_nothing_once_closed(make: Maker) -> None:
    """Events after closing raise nothing."""
    with _opened(make) as sink:
        _demand_quiet("when it is closed", sink.close)
        for event in recorded_events():
            _send(sink, event, " once it is closed")


CHECKS: Final[tuple[Callable[[Maker], None], ...]] = (
    takes_every_event,
    takes_numbers_that_are_none,
    closes_twice,
    takes_any_order,
    works_on_another_thread,
    says_nothing_once_closed,
)


class _OnThread:
    """A sink whose methods run on another thread; what they raise is raised here."""

    def __init__(self, sink: Sink, executor: ThreadPoolExecutor) -> None:
        self._sink = sink
        self._executor = executor

    def hear(self, event: Event) -> None:
        self._executor.submit(self._sink.hear, event).result()

    def settle(self) -> None:
        self._executor.submit(self._sink.settle).result()

    def close(self) -> None:
        self._executor.submit(self._sink.close).result()


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
    _demand_quiet(f'at a "{event.type}"{how}', lambda: sink.hear(event))
    _demand_quiet(f'when it settles after a "{event.type}"{how}', sink.settle)


def _demand_quiet(when: str, act: Callable[[], None]) -> None:
    try:
        act()
    except Exception as error:
        msg = f"raises {type(error).__name__} {when}: {error}"
        raise AssertionError(msg) from error
