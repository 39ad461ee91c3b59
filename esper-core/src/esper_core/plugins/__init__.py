"""The plugin system: find, load and call packages that extend Esper. Nothing in it imports torch.

Begin with ``load_plugins`` in ``loader``: it is the whole sequence. The modules, from the bottom up:

* ``isolation``: call plugin code, and attribute what it raises or prints to its package.
* ``formula``: evaluate the formulas in which blueprints declare their numbers of parameters.
* ``records``: what is known of a plugin (``PluginRecord``) and of what it provides (``Component``).
* ``discovery``: entry points and one-file plugins; ids, versions, pins and safe mode.
* ``lookup_errors``: messages and suggestions for names that cannot be found.
* ``registry``: take and check the components that plugins add; find them by name.
* ``validation``: hook names and arguments, API level, settings model.
* ``loader``: the sequence from discovery to the registry.
* ``dispatch``: call the hooks of a run: observers, health checks, report sections, ``esper_run``.

The hooks themselves are specified in ``esper_core.hooks.spec``. Names below are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper_core.plugins.formula import FormulaError, evaluate_formula
    from esper_core.plugins.loader import Plugins, load_plugins
    from esper_core.plugins.lookup_errors import UnknownComponent, UnusableComponent
    from esper_core.plugins.records import Component, PluginRecord
    from esper_core.plugins.registry import ComponentRegistrar, Registry

_HOME = {
    "Component": "records",
    "FormulaError": "formula",
    "PluginRecord": "records",
    "Plugins": "loader",
    "ComponentRegistrar": "registry",
    "Registry": "registry",
    "UnknownComponent": "lookup_errors",
    "UnusableComponent": "lookup_errors",
    "evaluate_formula": "formula",
    "load_plugins": "loader",
}

__all__ = [
    "Component",
    "ComponentRegistrar",
    "FormulaError",
    "PluginRecord",
    "Plugins",
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
    return sorted(__all__)
