"""Which rewards does this package bring?"""

from __future__ import annotations

from typing import Any

from esper_core import PluginInfo, RewardSpec, hookimpl


@hookimpl
def esper_plugin_info() -> PluginInfo:
    """What this plugin is."""
    return PluginInfo(summary="Reward terms and the named rewards made of them.")


@hookimpl
def esper_register_rewards(registry: Any) -> None:
    """Adds the rewards."""
    registry.add(
        "team",
        "esper_rewards.team:Team",
        RewardSpec(
            summary="Gain over the twin, less a price for what was added; adds up to its value at the end.",
            settings="esper_rewards.settings:TeamSettings",
        ),
    )
