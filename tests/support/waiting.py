"""Waiting for what another thread or process does, however slow the machine is."""

import time
from collections.abc import Callable


def until(condition: Callable[[], object]) -> None:
    """Return when the condition holds; fail if it does not within a time that no working test needs."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)
