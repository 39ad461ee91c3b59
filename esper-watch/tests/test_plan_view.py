"""What a plan of adapters shows: the layers in their order, coloured by what an adapter brings there."""

from typing import Any

import pytest

from esper_watch.probe_view import layers_of, plan_html, plan_page


def place(slot: str, alone: float | None, order: int | None = None) -> dict[str, Any]:
    beside = None if order is None else alone
    return {"slot": slot, "alone": alone, "error": 0.002, "order": order, "beside": beside, "parameters": 3840}


PLACES = [
    place("layer.2.mlp.up", 0.02, 1),
    place("layer.10.mlp.up", 0.01),
    place("layer.2.attention.query", -0.003),
    place("<pooler>", None),
]
ORDER = ["<pooler>", "layer.2.attention.query", "layer.2.mlp.up", "layer.10.mlp.up"]
PLAN = {
    "model": "Bert<i>",
    "verdict": "pays",
    "reason": "1 adapter with 3,840 parameters: it brings 40 %.",
    "places": PLACES,
    "layers": ORDER,
    "blueprint": "lora(rank=2)",
    "host_loss": 0.6,
    "all_loss": 0.5,
    "plan_loss": None,
    "steps": 94,
    "examples": 300,
    "seconds": 80.0,
    "remarks": ["It ranks what to place."],
}


def test_layers_are_rows_by_kind_and_columns_by_number_darker_where_an_adapter_brings_more() -> None:
    layers = layers_of(PLACES, ORDER)
    assert layers["blocks"] == ["", "2", "10"]
    rows = {row["kind"]: row["cells"] for row in layers["rows"]}
    assert list(rows) == ["<pooler>", "attention.query", "mlp.up"]
    first, best, weak = rows["mlp.up"]
    assert first is None
    assert (best["text"], best["share"]) == ("1", 1.0)
    assert weak["text"] == ""
    assert rows["attention.query"][1]["share"] < weak["share"] < best["share"]


@pytest.mark.parametrize("view", [plan_html, plan_page])
def test_a_view_shows_verdict_losses_and_places_and_escapes_names(view: Any) -> None:
    page = view(PLAN)
    assert "<i>" not in page.replace("<i>In the plan</i>", "")
    assert "<script" not in page
    assert "Adapters in Bert&lt;i&gt;: pays" in page
    assert "0.6 without, 0.5 at all places" in page
    assert "layer.10.mlp.up" in page
