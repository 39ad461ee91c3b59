"""Esper grows neural networks while they train.

These names are what programs and plugins may rely on. Each is imported when it is first used, so that
``import esper_core`` is cheap. More public names are in ``esper_core.leyline`` (the contracts of plugins),
``esper_core.growth`` (what a grown network consists of), ``esper_core.plugins``, ``esper_core.app.episode`` (stepping
through one episode manually) and ``esper_core.runs.statistics``. Everything else may change without notice.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from esper_core._version import __version__ as __version__

if TYPE_CHECKING:
    from esper_core.app.run import run
    from esper_core.growth import graft
    from esper_core.hooks import hookimpl
    from esper_core.leyline import (
        BlueprintSpec,
        EsperError,
        HostSpec,
        PluginInfo,
        Policy,
        PolicySpec,
        Reward,
        RewardSpec,
        ScheduleSpec,
        SinkSpec,
        Site,
        SlotPlace,
        Task,
        TaskSpec,
    )
    from esper_core.runs.networks import load, save
    from esper_core.runs.records import Run, load_run
    from esper_core.telemetry import read_events

_HOME = {
    "BlueprintSpec": "esper_core.leyline",
    "EsperError": "esper_core.leyline",
    "HostSpec": "esper_core.leyline",
    "PluginInfo": "esper_core.leyline",
    "Policy": "esper_core.leyline",
    "PolicySpec": "esper_core.leyline",
    "Reward": "esper_core.leyline",
    "RewardSpec": "esper_core.leyline",
    "Run": "esper_core.runs.records",
    "ScheduleSpec": "esper_core.leyline",
    "SinkSpec": "esper_core.leyline",
    "Site": "esper_core.leyline",
    "SlotPlace": "esper_core.leyline",
    "Task": "esper_core.leyline",
    "TaskSpec": "esper_core.leyline",
    "graft": "esper_core.growth",
    "hookimpl": "esper_core.hooks",
    "load": "esper_core.runs.networks",
    "load_run": "esper_core.runs.records",
    "read_events": "esper_core.telemetry",
    "run": "esper_core.app.run",
    "save": "esper_core.runs.networks",
}

__all__ = [
    "BlueprintSpec",
    "EsperError",
    "HostSpec",
    "PluginInfo",
    "Policy",
    "PolicySpec",
    "Reward",
    "RewardSpec",
    "Run",
    "ScheduleSpec",
    "SinkSpec",
    "Site",
    "SlotPlace",
    "Task",
    "TaskSpec",
    "graft",
    "hookimpl",
    "load",
    "load_run",
    "read_events",
    "run",
    "save",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
