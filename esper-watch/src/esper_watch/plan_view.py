"""Views of a plan of adapters: a picture of the network's layers, coloured by what an adapter brings there.

The core finds ``plan_html`` and ``plan_page`` by the entry points ``plan`` and ``plan-page`` of the group
``esper.notebook``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from esper_core import __version__
from esper_core.leyline.errors import plural
from esper_run.formats import decimals_of
from esper_watch.formats import as_number, format_number, format_seconds
from esper_watch.pages import render

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Json = Mapping[str, Any]

ROWS: Final = 16
"""Places that the table of a notebook shows."""

FAINTEST: Final = 0.06
"""Opacity of a cell whose adapter brings nothing."""


def plan_html(plan: Json) -> str:
    """Return a plan as HTML with inline styles only: the verdict, the layers, and the best places."""
    return render("plan.html", **_shown(plan, ROWS))


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
        "places": [_texts(place) for place in plan["places"][:rows]],
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
            "title": f"{slot}: {', '.join(_texts(place)['alone'] for place in by_slot[slot])} nats alone",
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


def _texts(place: Json) -> dict[str, str]:
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
