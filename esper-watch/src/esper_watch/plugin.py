"""Which sinks does this package bring? They are imported when a run first uses them."""

from __future__ import annotations

from typing import Any

from esper_core import PluginInfo, SinkSpec, hookimpl


@hookimpl
def esper_plugin_info() -> PluginInfo:
    """What this plugin is."""
    return PluginInfo(summary="Shows how a run goes, to people and to other programs.")


@hookimpl
def esper_register_sinks(registry: Any) -> None:
    """Adds the sinks."""
    registry.add(
        "tensorboard",
        "esper_watch.curves:tensorboard",
        SinkSpec(
            summary="Curves of every environment for TensorBoard: pip install esper-watch[tensorboard].",
            settings="esper_watch.settings:TensorboardSettings",
        ),
    )
