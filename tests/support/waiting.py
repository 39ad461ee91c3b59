"""Waiting for what another thread or process does, however slow the machine is."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], seconds: float = 60) -> T:
    """Return what the condition returns once it holds; fail if it does not within a time that no working test needs."""
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end
        time.sleep(0.005)
    return result
