"""Views of a probe: a picture for a notebook, and one HTML page that loads nothing, both from the probe's JSON.

The core finds ``probe_html`` and ``probe_page`` by the entry points ``probe`` and ``probe-page`` of the group
``esper.notebook``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from esper_core import __version__
from esper_core.leyline.errors import plural
from esper_run.formats import decimals_of
from esper_watch.figures import Scale, scale_around
from esper_watch.formats import as_number, format_flops, format_number, format_seconds, short_name, with_unit
from esper_watch.pages import render

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Json = Mapping[str, Any]

WIDTH: Final = 220
"""Width of the drawing of a gain."""

NOTEBOOK_ROWS: Final = 12
"""Candidates that a notebook shows."""


def probe_html(result: Json) -> str:
    """Return a probe as HTML with inline styles only: the verdict, and the first candidates with their gains drawn."""
    drawn = _drawn(result["rows"][:NOTEBOOK_ROWS])
    return render("probe.html", remarks=[*_remarks(result)], **drawn, **_head(result))


def probe_page(result: Json) -> str:
    """Return a probe as one HTML page: all candidates, what failed, the slots, and how to read them."""
    return render(
        "probe_page.html",
        **_drawn(result["rows"]),
        failed=[(failure["slot"], short_name(failure["blueprint"]), failure["what"]) for failure in result["failed"]],
        slots=list(result["slots"].items()),
        remarks=result["remarks"],
        version=__version__,
        **_head(result),
    )


def _head(result: Json) -> dict[str, Any]:
    loss = _number(result["host_loss"])
    facts = (
        plural(result["parameters"], "parameter"),
        f"host trained for {plural(result['host_steps'], 'step')} to a loss of {loss}",
        plural(result["examples"], "validation example"),
        f"{format_seconds(result['seconds'])} of {format_seconds(result['budget'])}",
    )
    return {
        "title": f"Probe of {result['model']}: {result['verdict']}",
        "reason": result["reason"],
        "facts": " · ".join(facts),
        "width": WIDTH,
    }


def _drawn(rows: Iterable[Json]) -> dict[str, Any]:
    """Return what each row shows: texts, and the positions of its gain, its bound, its price and of 0; and an axis."""
    candidates = list(rows)
    numbers = [
        number
        for row in candidates
        for key in ("gain", "at_least", "price")
        if (number := as_number(row[key])) is not None
    ]
    axis = scale_around([0.0, *numbers], start=20, end=WIDTH - 20)
    ticks = [(axis(tick), format_number(tick)) for tick in axis.ticks(3)]
    return {"rows": [{**_texts(row), **_positions(row, axis)} for row in candidates], "ticks": ticks}


def _texts(row: Json) -> dict[str, Any]:
    decimals = decimals_of(as_number(row["error"]) or 0.0)
    gain = f"{_number(row['gain'], decimals)} ± {_number(row['error'], decimals)}"
    cells = (
        {True: "yes", False: "no", None: "undecided"}[row["pays"]],
        gain,
        _number(row["at_least"], decimals),
        _number(row["price"], 3),
        f"{row['parameters']:,}",
        format_flops(as_number(row["flops"])),
        with_unit(_number(1e3 * (as_number(row["seconds"]) or 0.0), 1), "ms"),
        f"{row['steps']:,}",
    )
    name = f"{short_name(row['blueprint'])} in {row['slot']}"
    return {"name": name, "cells": cells, "pays": bool(row["pays"]), "text": f"{name}: gain {gain}, price {cells[3]}"}


def _positions(row: Json, axis: Scale) -> dict[str, float | None]:
    numbers = {key: as_number(row[key]) for key in ("gain", "at_least", "price")}
    return {"zero": axis(0.0), **{key: None if number is None else axis(number) for key, number in numbers.items()}}


def _number(value: Any, decimals: int | None = None) -> str:
    return format_number(as_number(value), decimals=decimals)


def _remarks(result: Json) -> Iterator[str]:
    yield from result["remarks"]
    if (more := len(result["rows"]) - NOTEBOOK_ROWS) > 0:
        yield f"… and {plural(more, 'more candidate')}."
    for failure in result["failed"]:
        yield f"{short_name(failure['blueprint'])} in {failure['slot']} failed: the seed {failure['what']}"
