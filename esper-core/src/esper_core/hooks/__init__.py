"""The hooks: what a plugin can implement (``spec``), and the markers to do it with."""

from esper_core.hooks.spec import PROJECT, hookimpl, hookspec

__all__ = ["PROJECT", "hookimpl", "hookspec"]
