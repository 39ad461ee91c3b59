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
            params="2*(c*c + c)",
            summary="Shifts channels by one position, then mixes: neighbours for few parameters.",
            starts_as_identity=True,
            traits=("deterministic", "bf16", "dynamic_spatial"),
        ),
    )
    registry.add(
        "haar",
        "esper_blueprints_extra.haar:Haar",
        BlueprintSpec(
            accepts=("image", "sequence"),
            params="2**n*c + c*c + c",
            summary="Gains on the bands of a wavelet split, then a mix.",
            starts_as_identity=True,
            traits=("deterministic", "bf16", "dynamic_spatial"),
        ),
    )
    registry.add(
        "poly",
        "esper_blueprints_extra.poly:Poly",
        BlueprintSpec(
            accepts=("vector", "tokens"),
            params="3*(c*c + c)",
            summary="The product of two linear maps of the features.",
            starts_as_identity=True,
            traits=("deterministic", "bf16"),
        ),
    )
