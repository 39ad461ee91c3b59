"""The hooks that a plugin can implement (``spec``), and the markers for them."""

from esper_core.hooks.spec import PROJECT, hookimpl, hookspec

__all__ = ["PROJECT", "hookimpl", "hookspec"]
