"""Which tasks and hosts does this package bring? They are imported when a run first uses them."""

from __future__ import annotations

from typing import Any

from esper_core import HostSpec, PluginInfo, SlotPlace, TaskSpec, hookimpl


@hookimpl
def esper_plugin_info() -> PluginInfo:
    """What this plugin is."""
    return PluginInfo(summary="Hosts and data, all of it offline.")


@hookimpl
def esper_register_tasks(registry: Any) -> None:
    """Adds the tasks."""
    registry.add(
        "mnist1d",
        "esper_tasks.mnist1d:mnist1d",
        TaskSpec(summary="Ten digits as signals of 40 numbers.", settings="esper_tasks.settings:Mnist1dSettings"),
    )
    registry.add(
        "mnist1d-shuffled",
        "esper_tasks.mnist1d:mnist1d_shuffled",
        TaskSpec(
            summary="The same with the positions permuted: the negative control.",
            settings="esper_tasks.settings:Mnist1dSettings",
        ),
    )
    registry.add(
        "stripes",
        "esper_tasks.stripes:stripes",
        TaskSpec(
            summary="Four short patterns in noise; made in milliseconds, for tests.",
            settings="esper_tasks.settings:StripesSettings",
        ),
    )


@hookimpl
def esper_register_hosts(registry: Any) -> None:
    """Adds the hosts."""
    registry.add(
        "pointwise-mlp",
        "esper_tasks.pointwise_mlp:PointwiseMlp",
        HostSpec(
            summary="Looks at each position by itself, so it cannot see a shape.",
            slots={"early": SlotPlace("stem", "sequence"), "late": SlotPlace("hidden", "vector")},
            settings="esper_tasks.settings:PointwiseMlpSettings",
        ),
    )
