"""Which rewards does this package bring?"""

from __future__ import annotations

from typing import Any, Final

from esper_core import PluginInfo, RewardSpec, hookimpl

REWARDS: Final = {
    "basic": ("dense:Basic", "Each improvement, rent in each step, and a bonus for what is kept."),
    "basic_plus": ("dense:BasicPlus", "As basic; a part of the bonus is paid later, as long as it is earned."),
    "escrow": ("potentials:Escrow", "As team; the gain is credited as far as what acts was kept."),
    "loss": ("potentials:Loss", "As team, in nats of validation loss: needs no accuracy."),
    "minimal": ("endings:Minimal", "As sparse, and a price for giving up on a young seed."),
    "shaped": ("dense:Shaped", "In each step what all seeds bring, less rent; shaping, and the gain at the end."),
    "simplified": ("endings:Simplified", "As sparse, with shaping and a price for being busy."),
    "sparse": ("endings:Sparse", "Nothing until the end, and there what team adds up to."),
    "team": ("team:Team", "Gain over the twin, less a price for what was added; adds up to its value at the end."),
}
"""By name where a reward stands, and what it says of itself. Its settings are called as it is."""

FAMILIES: Final = {"loss": "loss"}
"""The family of those that do not pay for the metric: no run mixes the two."""


@hookimpl
def esper_plugin_info() -> PluginInfo:
    """What this plugin is."""
    return PluginInfo(summary="Reward terms and the named rewards made of them.")


@hookimpl
def esper_register_rewards(registry: Any) -> None:
    """Adds the rewards."""
    for name, (place, summary) in REWARDS.items():
        settings = f"esper_rewards.settings:{place.partition(':')[2]}Settings"
        family = FAMILIES.get(name, "metric")
        registry.add(name, f"esper_rewards.{place}", RewardSpec(summary=summary, settings=settings, family=family))
