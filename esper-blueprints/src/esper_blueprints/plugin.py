"""Which blueprints does this package bring? They are imported when a run first uses them."""

from __future__ import annotations

from typing import Any

from esper_core import BlueprintSpec, PluginInfo, hookimpl


@hookimpl
def esper_plugin_info() -> PluginInfo:
    """What this plugin is."""
    return PluginInfo(summary="The standard blueprints.")


@hookimpl
def esper_register_blueprints(registry: Any) -> None:
    """Adds the blueprints."""
    registry.add(
        "conv_light",
        "esper_blueprints.conv_light:ConvLight",
        BlueprintSpec(
            accepts=("image", "sequence"),
            params="2*(5**n*c*c + c)",
            summary="Two convolutions of width 5: sees neighbours.",
            starts_as_identity=True,
        ),
    )
    registry.add(
        "pointwise",
        "esper_blueprints.pointwise:Pointwise",
        BlueprintSpec(
            accepts=("image", "sequence"),
            params="8*c*c + 5*c",
            summary="Two layers at each position by itself, four times as wide between them.",
            starts_as_identity=True,
        ),
    )
    registry.add(
        "mlp",
        "esper_blueprints.mlp:Mlp",
        BlueprintSpec(
            accepts=("vector", "tokens"),
            params="4*c*c + 3*c",
            summary="Two layers over the features, twice as wide between them.",
            starts_as_identity=True,
        ),
    )
