"""Which hooks are called, with what, and how long do they take? ``ESPER_TRACE_HOOKS=1`` tells each call on stderr."""

from __future__ import annotations

import os
import sys
import time
from reprlib import Repr
from typing import TYPE_CHECKING, Any

from esper_core.plugins.discovery import is_off

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pluggy

_SHORT = Repr()
_SHORT.maxother = _SHORT.maxstring = 60
_SHORT.maxtuple = _SHORT.maxlist = _SHORT.maxdict = 2
_SHORT.maxlevel = 2


def tracing_from_environment() -> bool:
    """Whether ``ESPER_TRACE_HOOKS`` asks for it: any value but 0, false, no, off."""
    return not is_off(os.environ.get("ESPER_TRACE_HOOKS", ""))


def trace_hooks(manager: pluggy.PluginManager) -> None:
    """From now on tells every call: ``hook esper_run_started(run=RunInfo(...))  extra  -> []  0.12 ms``.

    Not those that are asked of a plugin before pluggy knows it: ``esper_plugin_info``, ``esper_settings_model``.
    """
    began: list[float] = []

    def before(hook: str, implementations: Sequence[pluggy.HookImpl], arguments: Mapping[str, Any]) -> None:
        began.append(time.perf_counter())

    def after(
        outcome: pluggy.Result[Any], hook: str, implementations: Sequence[pluggy.HookImpl], arguments: Mapping[str, Any]
    ) -> None:
        milliseconds = (time.perf_counter() - began.pop()) * 1000
        if not implementations:
            return
        error = outcome.exception
        given = ", ".join(f"{name}={_SHORT.repr(value)}" for name, value in arguments.items())
        plugins = ", ".join(dict.fromkeys(_owner(one) for one in implementations))
        result = _SHORT.repr(outcome.get_result()) if error is None else f"raised {type(error).__name__}"
        line = f"hook {hook}({given})  {plugins}  -> {result}  {milliseconds:.2f} ms"
        sys.stderr.write(line.encode("ascii", "backslashreplace").decode() + "\n")

    manager.add_hookcall_monitoring(before, after)


def _owner(implementation: pluggy.HookImpl) -> str:
    """The plugin's id; the core's own part in a call has no name with pluggy."""
    return "esper-core" if implementation.plugin_name == "<temp>" else implementation.plugin_name
