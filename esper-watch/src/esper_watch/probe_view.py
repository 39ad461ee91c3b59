"""Views of a probe and of a plan of adapters, from their JSON: a picture for a notebook, and a page that loads nothing.

The core finds them by the entry points of the group ``esper.notebook``. The picture of a plan has the network's layers,
coloured by what an adapter brings there.
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
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    Json = Mapping[str, Any]

WIDTH: Final = 220
"""Width of the drawing of a gain."""

NOTEBOOK_ROWS: Final = 12
"""Candidates, or places, that a notebook shows."""

FAINTEST: Final = 0.06
"""Opacity of a cell whose adapter brings nothing."""


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


def plan_html(plan: Json) -> str:
    """Return a plan as HTML with inline styles only: the verdict, the layers, and the best places."""
    return render("plan.html", **_shown(plan, NOTEBOOK_ROWS))


def plan_page(plan: Json) -> str:
    """Return a plan as one HTML page that loads nothing: the layers, all places, and how to read them."""
    return render("plan_page.html", version=__version__, remarks=plan["remarks"], **_shown(plan, len(plan["places"])))


def _shown(plan: Json, rows: int) -> dict[str, Any]:
    losses = [format_number(as_number(plan[name])) for name in ("host_loss", "all_loss", "plan_loss")]
    facts = (
        f"{plan['blueprint']} at {plural(len(plan['places']), 'place')}",
        f"validation loss after {plural(plan['steps'], 'step')}: {losses[0]} without, {losses[1]} at all places, "
        f"{losses[2]} as planned",
        plural(plan["examples"], "validation example"),
        format_seconds(plan["seconds"]),
    )
    return {
        "title": f"Adapters in {plan['model']}: {plan['verdict']}",
        "reason": plan["reason"],
        "facts": " · ".join(facts),
        "layers": layers_of(plan["places"], plan["layers"]),
        "places": [_texts_of_place(place) for place in plan["places"][:rows]],
        "more": max(0, len(plan["places"]) - rows),
    }


def layers_of(places: Sequence[Json], order: Sequence[str]) -> dict[str, Any]:
    """Return the places as a table: a row for each kind of layer, and a column for each block that has a number.

    ``order`` names the layers as they come in the model.

    >>> place = {"slot": "h.1.mlp.up", "alone": 0.2, "error": 0.01, "order": 1, "beside": 0.2, "parameters": 8}
    >>> table = layers_of([place, {**place, "order": 3, "block": 2}], ["h.1.mlp.up"])
    >>> table["blocks"], table["rows"][0]["kind"], table["rows"][0]["cells"][0]["text"]
    (['1'], 'mlp.up', '1 ×2')
    """
    by_slot: dict[str, list[Json]] = {}
    for place in places:
        by_slot.setdefault(place["slot"], []).append(place)
    gains = {slot: sum(as_number(place["alone"]) or 0.0 for place in blocks) for slot, blocks in by_slot.items()}
    largest = max(gains.values(), default=0.0)
    cells: dict[str, dict[str, dict[str, Any]]] = {}
    numbers: dict[str, None] = {}
    for slot in (slot for slot in order if slot in by_slot):
        number, kind = _block_and_kind(slot)
        numbers[number] = None
        planned = [str(place["order"]) for place in by_slot[slot] if place["order"] is not None]
        share = FAINTEST + (1 - FAINTEST) * max(0.0, gains[slot]) / largest if largest > 0 else FAINTEST
        cells.setdefault(kind, {})[number] = {
            "text": "".join(planned[:1]) + (f" ×{len(planned)}" if len(planned) > 1 else ""),
            "share": round(share, 3),
            "title": f"{slot}: {', '.join(_texts_of_place(place)['alone'] for place in by_slot[slot])} nats alone",
        }
    rows = [{"kind": kind, "cells": [of_kind.get(number) for number in numbers]} for kind, of_kind in cells.items()]
    return {"blocks": list(numbers), "rows": rows}


def _block_and_kind(slot: str) -> tuple[str, str]:
    """Return the number of a layer's block, empty if it has none, and its name there."""
    parts = slot.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdecimal()), None)
    if number is None:
        return "", slot
    return parts[number], ".".join(parts[number + 1 :]) or ".".join(parts[:number])


def _texts_of_place(place: Json) -> dict[str, str]:
    decimals = decimals_of(as_number(place["error"]) or 0.0)
    alone, error = (format_number(as_number(place[name]), decimals=decimals) for name in ("alone", "error"))
    beside = place["beside"]
    return {
        "slot": place["slot"] if place.get("block", 1) == 1 else f"{place['slot']}, block {place['block']}",
        "order": "" if place["order"] is None else str(place["order"]),
        "alone": f"{alone} ± {error}",
        "beside": "" if beside is None else format_number(as_number(beside), decimals=4),
        "parameters": f"{place['parameters']:,}",
    }
