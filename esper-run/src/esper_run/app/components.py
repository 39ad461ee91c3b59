"""Components of a run: build one with its settings, check what it builds, and find hosts by an import path.

A host named ``my_package.my_module:build`` is code of the user's own, without a plugin. It is called as the target of a
plugin's host is, with the shape of the data and its settings, and is imported when it is first built. Nothing here
imports torch before a host is built.
"""

from __future__ import annotations

import inspect
import logging
import sys
from dataclasses import dataclass, field
from inspect import isfunction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from esper_core.leyline.errors import ConfigError, PluginError, Problem, suggestion
from esper_core.leyline.protocols import DataShape, Policy, Reward, Schedule, Sink, Task
from esper_core.leyline.signals import Metric
from esper_core.leyline.specs import SITE_KINDS, HostSpec
from esper_core.plugins import Component, attributed_to, import_target
from esper_core.telemetry import SinkThread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import ExitStack

    from esper_core.leyline.specs import ComponentKind
    from esper_run.config.values import KeyPath

log = logging.getLogger("esper")

_PROTOCOLS: Final[Mapping[ComponentKind, type]] = {
    "policy": Policy,
    "reward": Reward,
    "schedule": Schedule,
    "sink": Sink,
    "task": Task,
}

_ATTRIBUTES: Final[Mapping[ComponentKind, Mapping[str, type]]] = {"task": {"metric": Metric, "shape": DataShape}}
"""The attributes that a component of a kind must have beside its methods, and their types."""


@dataclass(frozen=True, slots=True)
class ConfiguredComponent:
    """A component, the settings that it is built with, and the path in the configuration that names it."""

    component: Component
    settings: Mapping[str, Any]
    path: KeyPath
    label: str = field(init=False, repr=False, compare=False)
    """The component in messages, always the same object: ``policy "policies/schedule" (esper-policies 0.1.0)``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.component.title)

    def build(self, *arguments: Any, **runtime: Any) -> Any:
        """Build the component and check it; PluginError names its package if it raises or lacks a method.

        What the methods of tasks and schedules raise later is attributed to their package, too.
        """
        factory = self.component.load()
        with attributed_to(self.label, "while it was built"):
            built = factory(*arguments, **runtime, **self.settings)
            check_component(self.component, built)
        return Component.attributed(self.component.kind, built, self.label)


def check_component(component: Component, built: Any) -> None:
    """Raise PluginError (E231) if ``built`` lacks what a component of this kind needs."""
    kind, title, defect, hint = component.kind, component.title, "", ""
    if kind == "host":
        from torch import nn

        if not isinstance(built, nn.Module):
            defect, hint = ", not a torch.nn.Module", "Return the network, an nn.Module, from there."
    if (protocol := _PROTOCOLS.get(kind)) is not None:
        methods = [name for name, member in vars(protocol).items() if isfunction(member) and not name.startswith("_")]
        if missing := [name for name in methods if not callable(getattr(built, name, None))]:
            defect = f" without the method {' and '.join(missing)}"
            hint = f"A {kind} has {', '.join(methods)}: see esper_core.leyline.{protocol.__name__}."
    for name, expected_type in _ATTRIBUTES.get(kind, {}).items():
        if not defect and not isinstance(attribute := getattr(built, name, None), expected_type):
            defect = f", whose {name} is of type {type(attribute).__name__}"
            hint = f"The {name} of a {kind} is a {expected_type.__name__}."
    if kind == "task" and not defect and (wrong := _wrong_attribute(built.metric, built.shape)):
        possible = f'A metric has a name, and "up" or "down". A shape has one of the kinds {", ".join(SITE_KINDS)},'
        defect, hint = f", whose {wrong}", f"{possible} a tuple of sizes from 1 on as example, and 1 output or more."
    if defect:
        message = f"{title} builds {type(built).__name__}{defect}"
        raise PluginError(Problem("E231", message, path=title.target, hint=hint))


def _wrong_attribute(metric: Metric, shape: DataShape) -> str | None:
    """Return which attribute of a task has an impossible value; hosts would fail on it, and be blamed."""

    def is_count(value: object) -> bool:
        return type(value) is int and value > 0

    example = shape.example
    fits = {
        f"metric.name is {metric.name!r}": isinstance(metric.name, str) and bool(metric.name),
        f"metric.direction is {metric.direction!r}": metric.direction in ("up", "down"),
        f"shape.kind is {shape.kind!r}": shape.kind in SITE_KINDS,
        f"shape.example is {example!r}": isinstance(example, tuple) and all(map(is_count, example)),
        f"shape.outputs is {shape.outputs!r}": is_count(shape.outputs),
    }
    return next((wrong for wrong, fit in fits.items() if not fit), None)


def open_sinks(chosen: Sequence[ConfiguredComponent], run: Path, closing: ExitStack) -> list[SinkThread]:
    """Build the sinks of a run. One that cannot be built stops the run before it starts."""
    sinks = []
    for sink in chosen:
        sinks.append(SinkThread(sink.build(run), sink.label))
        closing.callback(sinks[-1].close)
    return sinks


def host_at(target: str) -> Component:
    """Return the host with this import path (``my_package.my_module:build``), as a component.

    It is imported when it is first built. Modules are looked up where Python finds them, then in the current folder.

    Raises:
        ConfigError: ``target`` is not an import path (E202).
    """
    module, colon, attribute = target.partition(":")
    if not (colon and all(part.isidentifier() for part in (*module.split("."), *attribute.split(".")))):
        hint = f"An import path is written as  my_package.my_module:build\nReceived: {target}"
        raise ConfigError(Problem("E202", f'"{target}" is not an import path of a host', hint=hint))
    folder = str(Path.cwd())

    def build(*arguments: Any, **settings: Any) -> Any:
        if folder not in sys.path:
            sys.path.append(folder)
        host = _import_host(target, folder)
        try:
            inspect.signature(host).bind(*arguments, **settings)
        except TypeError as error:
            received = ", ".join(["shape", *(f"{name}={value!r}" for name, value in settings.items())])
            hint = f"A host is called with the shape of the data and its settings. Received: {received}"
            message = f'"{target}" cannot be called with these arguments: {error}'
            refused = next((name for name in settings if f"'{name}'" in str(error)), None)
            raise ConfigError(Problem("E120", message, path=refused, hint=hint)) from None
        return host(*arguments, **settings)

    build.__module__, _, build.__qualname__ = target.partition(":")  # faults are attributed to it by its name
    spec = HostSpec(summary="A host of your own, by its import path.")
    return Component(target, target, "host", plugin="", package="your own", version="code", target=build, spec=spec)


def _import_host(target: str, folder: str) -> Callable[..., Any]:
    """Return what the target names. Raises E202 if it does not exist, E219 if the code behind it raises."""
    module = target.partition(":")[0]
    try:
        return cast("Callable[..., Any]", import_target(target, f'host "{target}" cannot be imported'))
    except PluginError as failure:
        error = failure.__cause__
        if isinstance(error, AttributeError) and module in sys.modules:
            hint = suggestion(str(error.name), [name for name in dir(error.obj) if not name.startswith("_")])
            raise ConfigError(Problem("E202", f'{module} has no "{error.name}"', hint=hint)) from error
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            hint = f"Call esper from the folder that has it, or install it. The current folder: {folder}"
            raise ConfigError(Problem("E202", f'there is no module "{error.name}"', hint=hint)) from error
        raise
