"""Components of a run: build one with its settings, check what it builds, and find hosts by an import path.

A host named ``my_package.my_module:build`` is code of the user's own, without a plugin. It is called as the target of a
plugin's host is, with the shape of the data and its settings, and is imported when it is first built. Nothing here
imports torch before a host is built.
"""

from __future__ import annotations

import inspect
import logging
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from inspect import isfunction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline.errors import ConfigError, PluginError, Problem, SettingError, nearest, suggestion
from esper_core.leyline.protocols import DataShape, Policy, Reward, Schedule, Sink, Task
from esper_core.leyline.signals import Metric
from esper_core.leyline.specs import HostSpec
from esper_core.plugins import Component
from esper_core.plugins.isolation import attempt, attributed_to, fault_problem, is_target
from esper_core.telemetry import SinkGuard, SinkThread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import ExitStack

    from esper_core.config.values import KeyPath
    from esper_core.leyline.specs import ComponentKind
    from esper_core.plugins.isolation import Label

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

    @property
    def label(self) -> Label:
        """The component in messages: ``policy "policies/schedule" (esper-policies 0.1.0)``."""
        return self.component.title

    def build(self, *arguments: Any, **runtime: Any) -> Any:
        """Build the component and check it; PluginError names its package if it raises or lacks a method."""
        factory = self.component.load()
        with attributed_to(self.label, "while it was built"):
            built = factory(*arguments, **runtime, **self.settings)
            check_component(self.component.kind, built, self.label)
        return built


def check_component(kind: ComponentKind, built: Any, label: Label) -> None:
    """Raise PluginError (E231) if ``built`` lacks what a component of this kind needs."""

    def refuse(what: str, hint: str) -> PluginError:
        return PluginError(Problem("E231", f"{label} builds {what}", path=label.target, hint=hint))

    if kind == "host":
        from torch import nn

        if not isinstance(built, nn.Module):
            what = f"{_with_article(built)}, not a torch.nn.Module"
            raise refuse(what, "Its target returns the network.")
    if (protocol := _PROTOCOLS.get(kind)) is None:
        return
    methods = [name for name, own in vars(protocol).items() if isfunction(own) and not name.startswith("_")]
    if missing := [name for name in methods if not callable(getattr(built, name, None))]:
        what = f"{_with_article(built)} without the method {' and '.join(missing)}"
        raise refuse(what, f"A {kind} has {', '.join(methods)}: see esper_core.leyline.{protocol.__name__}.")
    for name, wanted in _ATTRIBUTES.get(kind, {}).items():
        if not isinstance(found := getattr(built, name, None), wanted):
            what = f"{_with_article(built)} whose {name} is {_with_article(found)}"
            raise refuse(what, f"The {name} of a {kind} is a {wanted.__name__}.")


def _with_article(thing: object) -> str:
    name = type(thing).__name__
    return "None" if thing is None else f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def open_sinks(chosen: Sequence[ConfiguredComponent], run: Path, closing: ExitStack) -> list[SinkThread]:
    """Build the sinks of a run. One that cannot be built stops the run before it starts."""
    sinks = []
    for sink in chosen:
        sinks.append(SinkThread(sink.build(run), sink.label))
        closing.callback(sinks[-1].close)
    return sinks


def open_display(display: Component | None, run: Path, closing: ExitStack) -> list[SinkGuard]:
    """Build the terminal display, if there is one. One that cannot be built is reported, and left out."""
    if display is None:
        return []
    try:
        guard = SinkGuard(ConfiguredComponent(display, {}, ()).build(run), display.title)
    except PluginError as error:
        log.warning("%s", error)
        return []
    closing.callback(guard.close)
    return [guard]


def host_at(target: str) -> Component:
    """Return the host with this import path (``my_package.my_module:build``), as a component.

    It is imported when it is first built. Modules are looked up where Python finds them, then in the current folder.

    Raises:
        ConfigError: ``target`` is not an import path (E202).
    """
    if not is_target(target):
        hint = f"An import path is written as  my_package.my_module:build\nReceived: {target}"
        raise ConfigError(Problem("E202", f'"{target}" is no import path of a host', hint=hint))
    return Component(
        id=target,
        short=target,
        kind="host",
        plugin="",
        package="your own",
        version="code",
        target=_host_builder(target, Path.cwd()),
        spec=HostSpec(summary="A host of your own, by its import path."),
    )


def _host_builder(target: str, folder: Path) -> Callable[..., Any]:
    """Return a function that imports and calls the target. Faults are attributed to it by its name."""

    def build(*arguments: Any, **settings: Any) -> Any:
        with _importable(folder):
            host = _import_host(target, folder)
            _check_call(target, host, arguments, settings)
            return host(*arguments, **settings)

    build.__module__, _, build.__qualname__ = target.partition(":")
    return build


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Append ``folder`` to ``sys.path`` within the block."""
    before = list(sys.path)
    if str(folder) not in before:
        sys.path = [*before, str(folder)]
    try:
        yield
    finally:
        if sys.path == [*before, str(folder)]:
            sys.path = before


def _import_host(target: str, folder: Path) -> Callable[..., Any]:
    name, _, attributes = target.partition(":")
    imported = attempt(lambda: import_module(name))
    if imported.error is not None:
        raise _import_error(target, imported.error, folder) from imported.error
    found: Any = imported.value
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            known = [other for other in vars(found) if not other.startswith("_") and callable(getattr(found, other))]
            file = getattr(imported.value, "__file__", None) or "a folder without code"
            hint = f"{suggestion(attribute, known)}\nIt was looked for in: {file}"
            raise ConfigError(Problem("E202", f'{name} has no "{attributes}"', hint=hint))
        found = getattr(found, attribute)
    if not callable(found):
        hint = f"A host is a class, or a function that returns a torch.nn.Module. Received: {type(found).__name__}"
        raise ConfigError(Problem("E202", f'"{target}" cannot be called', hint=hint))
    return found  # type: ignore[no-any-return]


def _import_error(target: str, error: BaseException, folder: Path) -> ConfigError | PluginError:
    """Return E202 if a part of the path does not exist, E219 if the code behind it raises."""
    name = target.partition(":")[0]
    if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
        *packages, last = error.name.split(".")
        parent = folder.joinpath(*packages)
        modules = (
            [one.stem for one in parent.iterdir() if one.suffix == ".py" or one.is_dir()] if parent.is_dir() else []
        )
        close = nearest(last, modules)
        hint = f'Did you mean "{".".join([*packages, close])}"?\n' if close else ""
        hint += f"Call esper from the folder that has it, or install it. The current folder: {folder}"
        return ConfigError(Problem("E202", f'there is no module "{error.name}"', hint=hint))
    hint = "This is your own code."
    if isinstance(error, ModuleNotFoundError):
        hint = f'Install the package that has the module "{error.name}".'
    message = f'host "{target}" cannot be imported'
    return PluginError(replace(fault_problem("E219", message, error, target=target, package="your own"), hint=hint))


def _check_call(target: str, host: Callable[..., Any], arguments: tuple[Any, ...], settings: Mapping[str, Any]) -> None:
    """Raise ConfigError (E120) if the host does not take these settings."""
    try:
        signature = inspect.signature(host)
    except (TypeError, ValueError):  # written in C, without a signature
        return
    parameters = signature.parameters.values()
    known = [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    if not any(one.kind is one.VAR_KEYWORD for one in parameters):
        for name in settings:
            if name not in known:
                raise SettingError(name, f'"{target}" takes no "{name}"', suggestion(name, known[len(arguments) :]))
    try:
        signature.bind(*arguments, **settings)
    except TypeError as error:
        received = ", ".join(["shape", *(f"{name}={value!r}" for name, value in settings.items())])
        hint = f"A host is called with the shape of the data and its settings. Received: {received}"
        hint = f"It is {target}{signature}.\n{hint}"
        raise ConfigError(Problem("E120", f'"{target}" cannot be called so: {error}', hint=hint)) from None
