"""The plugin's hooks. The blueprints are imported when a run first uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_core import BlueprintSpec, hookimpl

if TYPE_CHECKING:
    from esper_core.leyline import Registrar


@hookimpl
def esper_register_blueprints(registry: Registrar[BlueprintSpec]) -> None:
    """Register the blueprints."""
    registry.add(
        "shift-mix",
        "esper_blueprints_extra.shift_mix:ShiftMix",
        BlueprintSpec(
            accepts=("image", "sequence"),
            summary="Shifts channels by one position, then mixes: neighbours for few parameters.",
            starts_as_identity=True,
        ),
    )
    registry.add(
        "haar",
        "esper_blueprints_extra.haar:Haar",
        BlueprintSpec(
            accepts=("image", "sequence"),
            summary="Gains on the bands of a wavelet split, then a mix.",
            starts_as_identity=True,
        ),
    )
    registry.add(
        "poly",
        "esper_blueprints_extra.poly:Poly",
        BlueprintSpec(
            accepts=("vector", "tokens"),
            summary="The product of two linear maps of the features.",
            starts_as_identity=True,
        ),
    )
