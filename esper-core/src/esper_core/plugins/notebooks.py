"""Notebooks: find the functions of installed packages that show objects as HTML."""

from __future__ import annotations

from typing import Any, Final

NOTEBOOK_GROUP: Final = "esper.notebook"
"""Entry-point group of functions from an object, or its data, to HTML."""


def html_of(kind: str, data: Any) -> str | None:
    """Return what a notebook shows; None, and the notebook shows plain text, if no installed package draws it.

    Args:
        kind: ``run`` takes a Run; ``network`` a grafted model; ``probe`` and ``probe-page`` take the JSON of a probe.
        data: What to draw.
    """
    from importlib.metadata import entry_points

    for entry_point in entry_points(group=NOTEBOOK_GROUP, name=kind):
        html: str = entry_point.load()(data)
        return html
    return None
