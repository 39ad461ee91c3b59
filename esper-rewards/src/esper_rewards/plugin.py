"""Hooks of the plugin: the named rewards."""

from __future__ import annotations

from typing import Any, Final

from esper_core import RewardSpec, hookimpl

REWARDS: Final = {
    "loss": ("Loss", "As team, in nats of validation loss."),
    "team": ("Team", "Gain over the twin, less a price for size: the default."),
}
"""Class of each reward by its name, and its summary. Its settings model is named after the class."""


@hookimpl
def esper_register_rewards(registry: Any) -> None:
    """Register the rewards."""
    for name, (class_name, summary) in REWARDS.items():
        spec = RewardSpec(summary=summary, settings=f"esper_rewards.settings:{class_name}Settings")
        registry.add(name, f"esper_rewards.potentials:{class_name}", spec)
