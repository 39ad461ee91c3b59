"""Esper grows neural networks while they train.

The names below are what plugins and programs may rely upon; they are imported when they are first used, so that
``import esper_core`` costs nothing. The contracts stand in ``esper_core.leyline``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper_core.growth import export, graft
    from esper_core.hooks import hookimpl
    from esper_core.leyline import (
        BlueprintSpec,
        EsperError,
        HostSpec,
        PluginInfo,
        PolicySpec,
        RewardSpec,
        Site,
        SlotPlace,
        TaskSpec,
    )

__version__ = "0.1.0"

_HOME = {
    "BlueprintSpec": "esper_core.leyline",
    "EsperError": "esper_core.leyline",
    "HostSpec": "esper_core.leyline",
    "PluginInfo": "esper_core.leyline",
    "PolicySpec": "esper_core.leyline",
    "RewardSpec": "esper_core.leyline",
    "Site": "esper_core.leyline",
    "SlotPlace": "esper_core.leyline",
    "TaskSpec": "esper_core.leyline",
    "export": "esper_core.growth",
    "graft": "esper_core.growth",
    "hookimpl": "esper_core.hooks",
}

__all__ = [
    "BlueprintSpec",
    "EsperError",
    "HostSpec",
    "PluginInfo",
    "PolicySpec",
    "RewardSpec",
    "Site",
    "SlotPlace",
    "TaskSpec",
    "export",
    "graft",
    "hookimpl",
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
