"""Esper grows neural networks while they train.

The names below are what plugins and programs may rely upon; they are imported when they are first used, so that
``import esper_core`` costs nothing. The contracts stand in ``esper_core.leyline``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from esper_core._version import __version__ as __version__

if TYPE_CHECKING:
    from esper_core.app.episode import Moment, Play
    from esper_core.config import GrowthConfig, OptimizerConfig
    from esper_core.growth import Course, Garden, OptimizerKeeper, Regimen, Seed, Variety
    from esper_core.growth.grafting import graft, slots_of
    from esper_core.growth.host_side import host_parameters
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
    from esper_core.plugins import Component, Plugins, evaluate_formula, load_plugins
    from esper_core.runs.networks import load, save
    from esper_core.runs.records import Run, load_run
    from esper_core.runs.statistics import mean_interval
    from esper_core.telemetry import EventFile, read_events

_HOME = {
    "BlueprintSpec": "esper_core.leyline",
    "Component": "esper_core.plugins",
    "Course": "esper_core.growth",
    "EsperError": "esper_core.leyline",
    "EventFile": "esper_core.telemetry",
    "Garden": "esper_core.growth",
    "GrowthConfig": "esper_core.config",
    "HostSpec": "esper_core.leyline",
    "Moment": "esper_core.app.episode",
    "OptimizerConfig": "esper_core.config",
    "OptimizerKeeper": "esper_core.growth",
    "Play": "esper_core.app.episode",
    "PluginInfo": "esper_core.leyline",
    "Plugins": "esper_core.plugins",
    "Policy": "esper_core.leyline",
    "PolicySpec": "esper_core.leyline",
    "Regimen": "esper_core.growth",
    "Reward": "esper_core.leyline",
    "RewardSpec": "esper_core.leyline",
    "Run": "esper_core.runs.records",
    "ScheduleSpec": "esper_core.leyline",
    "Seed": "esper_core.growth",
    "SinkSpec": "esper_core.leyline",
    "Site": "esper_core.leyline",
    "SlotPlace": "esper_core.leyline",
    "Task": "esper_core.leyline",
    "TaskSpec": "esper_core.leyline",
    "Variety": "esper_core.growth",
    "evaluate_formula": "esper_core.plugins",
    "graft": "esper_core.growth",
    "hookimpl": "esper_core.hooks",
    "host_parameters": "esper_core.growth",
    "load": "esper_core.runs.networks",
    "load_plugins": "esper_core.plugins",
    "load_run": "esper_core.runs.records",
    "mean_interval": "esper_core.runs.statistics",
    "read_events": "esper_core.telemetry",
    "save": "esper_core.runs.networks",
    "slots_of": "esper_core.growth",
}

__all__ = [
    "BlueprintSpec",
    "Component",
    "Course",
    "EsperError",
    "EventFile",
    "Garden",
    "GrowthConfig",
    "HostSpec",
    "Moment",
    "OptimizerConfig",
    "OptimizerKeeper",
    "Play",
    "PluginInfo",
    "Plugins",
    "Policy",
    "PolicySpec",
    "Regimen",
    "Reward",
    "RewardSpec",
    "Run",
    "ScheduleSpec",
    "Seed",
    "SinkSpec",
    "Site",
    "SlotPlace",
    "Task",
    "TaskSpec",
    "Variety",
    "evaluate_formula",
    "graft",
    "hookimpl",
    "host_parameters",
    "load",
    "load_plugins",
    "load_run",
    "mean_interval",
    "read_events",
    "save",
    "slots_of",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
