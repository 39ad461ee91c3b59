"""Can a host take these data? If not, it says what it takes and what it was given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_core.leyline import ConfigError, Problem

if TYPE_CHECKING:
    from esper_core.leyline import DataShape


def demand(fits: bool, takes: str, shape: DataShape) -> None:
    """ConfigError unless the data fit; ``takes`` is a sentence that begins with the host's name.

    >>> from esper_core.leyline import DataShape
    >>> demand(False, "cnn2d takes images", DataShape("vector", (4,), 2))
    Traceback (most recent call last):
    esper_core.leyline.errors.ConfigError: E120 cnn2d takes images
      Received: vector (4,)
    """
    if not fits:
        raise ConfigError(Problem("E120", takes, hint=f"Received: {shape.kind} {shape.example}"))
