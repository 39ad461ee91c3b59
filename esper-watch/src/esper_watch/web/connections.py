"""Connections: those that ask for nothing are closed, so that nobody keeps the server's owner out.

Any user of the machine can connect without a token, and a process can have only so many connections open.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

MOST_WAITING: Final = 64
"""Connections without a request, at most: far fewer than the files that a process may have open, which often are 1,024.
A browser opens six."""

SECONDS_TO_WAIT: Final = 10.0
"""How long a connection may be without a whole request."""

BACKLOG: Final = 128
"""Connections that are accepted at once."""


class LimitedConnection(H11Protocol):
    """A connection that is closed if it waits for long, or if it waits for longest among many."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.waits_since = time.monotonic()

    @property
    def is_waiting(self) -> bool:
        """Whether it is open, and no request is being answered."""
        return not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, in place of the one that waits for longest if there are too many."""
        super().connection_made(transport)
        waiting = [other for other in self.connections if isinstance(other, LimitedConnection) and other.is_waiting]
        if len(waiting) > MOST_WAITING:
            min(waiting, key=lambda other: other.waits_since).transport.abort()
        self.loop.call_later(SECONDS_TO_WAIT, self._look)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self.waits_since = time.monotonic()
        super().on_response_complete()

    def _look(self) -> None:
        if self.is_waiting and time.monotonic() - self.waits_since >= SECONDS_TO_WAIT:
            self.transport.abort()
        elif not self.transport.is_closing():
            self.loop.call_later(SECONDS_TO_WAIT, self._look)
