"""Reads Esper's run directories, and nothing else, and shows what grew; brings a sink for TensorBoard.

Names are imported when they are first used: the plugin of this package is loaded with every command.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper_watch.drawing import draw, sparkline
    from esper_watch.story import Life, Story, read_story

_HOME = {"Life": "story", "Story": "story", "draw": "drawing", "read_story": "story", "sparkline": "drawing"}

__all__ = ["Life", "Story", "draw", "read_story", "sparkline"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(f"esper_watch.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
