"""Esper grows neural networks while they train.

The names below are what plugins and programs may rely upon; they are imported when they are first used, so that
``import esper_core`` costs nothing. The contracts stand in ``esper_core.leyline``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper_core.growth import graft
    from esper_core.hooks import hookimpl
    from esper_core.leyline import (
        BlueprintSpec,
        EsperError,
        HostSpec,
        PluginInfo,
        PolicySpec,
        RewardSpec,
        SinkSpec,
        Site,
        SlotPlace,
        TaskSpec,
    )
    from esper_core.plugins import evaluate_formula
    from esper_core.telemetry import read_events

__version__ = "0.1.0"

_HOME = {
    "BlueprintSpec": "esper_core.leyline",
    "EsperError": "esper_core.leyline",
    "HostSpec": "esper_core.leyline",
    "PluginInfo": "esper_core.leyline",
    "PolicySpec": "esper_core.leyline",
    "RewardSpec": "esper_core.leyline",
    "SinkSpec": "esper_core.leyline",
    "Site": "esper_core.leyline",
    "SlotPlace": "esper_core.leyline",
    "TaskSpec": "esper_core.leyline",
    "evaluate_formula": "esper_core.plugins",
    "graft": "esper_core.growth",
    "hookimpl": "esper_core.hooks",
    "read_events": "esper_core.telemetry",
}

__all__ = [
    "BlueprintSpec",
    "EsperError",
    "HostSpec",
    "PluginInfo",
    "PolicySpec",
    "RewardSpec",
    "SinkSpec",
    "Site",
    "SlotPlace",
    "TaskSpec",
    "evaluate_formula",
    "graft",
    "hookimpl",
    "read_events",
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
