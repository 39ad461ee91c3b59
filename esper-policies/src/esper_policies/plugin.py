"""Hooks of the plugin. Policies are imported when a run first uses them."""

from __future__ import annotations

from typing import Any, Final

from esper_core import PolicySpec, ScheduleSpec, hookimpl

POLICIES: Final = {
    "static": ("static:Static", None, "Never grows."),
    "schedule": ("schedule:Schedule", "settings:ScheduleSettings", "Carries out a fixed plan."),
    "heuristic": (
        "heuristic:Heuristic",
        "settings:HeuristicSettings",
        "Tries what can grow, keeps what pays, and stops when nothing does.",
    ),
    "random": (
        "random_policy:Random",
        "settings:RandomSettings",
        "Takes any legal action: the control of every study.",
    ),
    "ppo": (
        "ppo.policy:Ppo",
        "ppo.settings:PpoSettings",
        "Learns what to grow where and when, by proximal policy optimisation.",
    ),
}
"""Module and class of each policy by its name, those of its settings, and its summary."""

SCHEDULES: Final = {
    "warmup": ("Warmup", "Rises to 1 in a few steps."),
    "cosine": ("Cosine", "Falls on half a cosine to the last step."),
}
"""Class of each schedule in ``learning_rates`` by its name, and its summary."""


@hookimpl
def esper_register_policies(registry: Any) -> None:
    """Register the policies."""
    for name, (target, settings, summary) in POLICIES.items():
        spec = PolicySpec(summary=summary, settings=settings and f"esper_policies.{settings}")
        registry.add(name, f"esper_policies.{target}", spec)


@hookimpl
def esper_register_schedules(registry: Any) -> None:
    """Register the schedules of learning rates."""
    for name, (class_name, summary) in SCHEDULES.items():
        spec = ScheduleSpec(summary=summary, settings=f"esper_policies.settings:{class_name}Settings")
        registry.add(name, f"esper_policies.learning_rates:{class_name}", spec)
