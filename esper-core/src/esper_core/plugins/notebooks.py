"""Notebooks: find the functions of installed packages that show objects as HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

NOTEBOOK_GROUP: Final = "esper.notebook"
"""Entry-point group of functions from an object, or its data, to HTML."""


def viewer(kind: str) -> Callable[[Any], str] | None:
    """Return the function of an installed package that shows objects of a kind as HTML; None if there is none.

    Args:
        kind: ``run`` takes a Run; ``probe`` and ``probe-page`` take the JSON of a probe; ``network`` takes
            layers with slots and seeds, and ``components`` a list of components, as data.
    """
    from importlib.metadata import entry_points

    for entry_point in entry_points(group=NOTEBOOK_GROUP, name=kind):
        draw: Callable[[Any], str] = entry_point.load()
        return draw
    return None


def html_of(kind: str, data: Any) -> str | None:
    """Return what a notebook shows; None, and the notebook shows plain text, if no installed package draws it."""
    draw = viewer(kind)
    return None if draw is None else draw(data)
