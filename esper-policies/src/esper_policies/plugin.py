"""Hooks of the plugin. Policies are imported when a run first uses them."""

from __future__ import annotations

from typing import Any

from esper_core import PluginInfo, PolicySpec, ScheduleSpec, hookimpl


@hookimpl
def esper_plugin_info() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(summary="Policies, which decide what grows, where and when, and schedules of learning rates.")


@hookimpl
def esper_register_policies(registry: Any) -> None:
    """Register the policies."""
    registry.add("static", "esper_policies.static:Static", PolicySpec(summary="Never grows."))
    registry.add(
        "schedule",
        "esper_policies.schedule:Schedule",
        PolicySpec(
            summary="Carries out a fixed plan.",
            settings="esper_policies.settings:ScheduleSettings",
        ),
    )
    registry.add(
        "heuristic",
        "esper_policies.heuristic:Heuristic",
        PolicySpec(
            summary="Tries what can grow, keeps what pays, and stops when nothing does.",
            settings="esper_policies.settings:HeuristicSettings",
        ),
    )
    registry.add(
        "random",
        "esper_policies.random_policy:Random",
        PolicySpec(
            summary="Takes any legal action: the control of every study.",
            settings="esper_policies.settings:RandomSettings",
        ),
    )
    registry.add(
        "ppo",
        "esper_policies.ppo.policy:Ppo",
        PolicySpec(
            summary="Learns what to grow where and when, by proximal policy optimisation.",
            settings="esper_policies.ppo.settings:PpoSettings",
        ),
    )


@hookimpl
def esper_register_schedules(registry: Any) -> None:
    """Register the schedules of learning rates."""
    registry.add(
        "warmup",
        "esper_policies.learning_rates:Warmup",
        ScheduleSpec(summary="Rises to 1 in a few steps.", settings="esper_policies.settings:WarmupSettings"),
    )
    registry.add(
        "cosine",
        "esper_policies.learning_rates:Cosine",
        ScheduleSpec(
            summary="Falls on half a cosine to the last step.", settings="esper_policies.settings:CosineSettings"
        ),
    )
