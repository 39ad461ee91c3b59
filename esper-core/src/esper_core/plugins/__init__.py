"""Which plugins are there, and what do they bring? Loaded with their faults contained; nothing here imports torch.

The names below are imported when they are first used: the command line looks for commands, and a quick answer to
``esper --help`` should not wait for what loads plugins.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper_core.plugins.formula import FormulaError, evaluate_formula
    from esper_core.plugins.loader import Plugins, load_plugins
    from esper_core.plugins.lookup_errors import UnknownComponent, UnusableComponent
    from esper_core.plugins.records import Component, PluginRecord
    from esper_core.plugins.registry import Registrar, Registry

_HOME = {
    "Component": "records",
    "FormulaError": "formula",
    "PluginRecord": "records",
    "Plugins": "loader",
    "Registrar": "registry",
    "Registry": "registry",
    "UnknownComponent": "lookup_errors",
    "UnusableComponent": "lookup_errors",
    "evaluate_formula": "formula",
    "load_plugins": "loader",
}

__all__ = [
    "Component",
    "FormulaError",
    "PluginRecord",
    "Plugins",
    "Registrar",
    "Registry",
    "UnknownComponent",
    "UnusableComponent",
    "evaluate_formula",
    "load_plugins",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
