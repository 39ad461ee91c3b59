"""Views of Esper runs: a report, a terminal view, and a sink for TensorBoard.

Names are imported when first used: the plugin of this package is loaded with every command.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper_watch.history import History, SeedLife, Step, read_history
    from esper_watch.report import write_picture, write_report

_MODULES = {
    "History": "history",
    "SeedLife": "history",
    "Step": "history",
    "read_history": "history",
    "write_picture": "report",
    "write_report": "report",
}

__all__ = ["History", "SeedLife", "Step", "read_history", "write_picture", "write_report"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(f"esper_watch.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
