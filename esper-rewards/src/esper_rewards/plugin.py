"""Hooks of the plugin: the named rewards."""

from __future__ import annotations

from typing import Any, Final

from esper_core import PluginInfo, RewardSpec, hookimpl

REWARDS: Final = {
    "basic": ("dense:Basic", "Improvement per step, less rent, and a bonus for each fossil."),
    "basic_plus": ("dense:BasicPlus", "As basic; a part of the bonus is paid later, while the gain lasts."),
    "escrow": ("potentials:Escrow", "As team; the gain counts by the share of what acts that is fossilised."),
    "loss": ("potentials:Loss", "As team, in nats of validation loss."),
    "minimal": ("terminal:Minimal", "As sparse, with a price for pruning young seeds."),
    "shaped": ("dense:Shaped", "Contributions of all seeds per step, less rent; shaping, and the final gain."),
    "simplified": ("terminal:Simplified", "As sparse, with shaping and a price for germinations and prunes."),
    "sparse": ("terminal:Sparse", "Nothing until the end, then the sum of team."),
    "team": (
        "potentials:Team",
        "Gain over the twin, less a price for size: the default.",
    ),
}
"""Module and class of each reward by its name, and its summary. Its settings model is named after the class."""

FAMILIES: Final = {"loss": "loss"}
"""The family of rewards that are not in units of the metric; a run cannot mix families."""


@hookimpl
def esper_plugin_info() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(summary="Reward terms and the named rewards made of them.")


@hookimpl
def esper_register_rewards(registry: Any) -> None:
    """Register the rewards."""
    for name, (place, summary) in REWARDS.items():
        settings = f"esper_rewards.settings:{place.partition(':')[2]}Settings"
        family = FAMILIES.get(name, "metric")
        registry.add(name, f"esper_rewards.{place}", RewardSpec(summary=summary, settings=settings, family=family))
