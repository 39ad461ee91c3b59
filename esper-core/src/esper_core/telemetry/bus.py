"""Who hears what happened? Everybody who listens, in the order in which they came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from esper_core.leyline.events import Event


class Listener(Protocol):
    """Hears events. The core's own listeners may raise; then the run stops."""

    def hear(self, event: Event) -> None:
        """Take one event."""
        ...

    def settle(self) -> None:
        """A step is over: whatever must not be lost goes where it is safe."""
        ...


class Bus:
    """Passes each event on to every listener at once."""

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self._listeners = list(listeners)

    def publish(self, *events: Event) -> None:
        """Tell everybody."""
        for event in events:
            for listener in self._listeners:
                listener.hear(event)

    def settle(self) -> None:
        """A step is over."""
        for listener in self._listeners:
            listener.settle()
