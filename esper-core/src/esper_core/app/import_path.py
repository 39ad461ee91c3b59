"""What does a host's name with a colon stand for? Code of the user's own: ``my_package.my_module:build``.

It is imported when it is first built, as plugins are, and is called as their targets are: with the shape of the data
and its settings. No plugin has to be written, and nothing is known of it beforehand: neither slots nor settings.
"""

from __future__ import annotations

import inspect
import sys
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper_core.leyline.errors import ConfigError, PluginError, Problem, SettingError, nearest, suggestion
from esper_core.leyline.specs import HostSpec
from esper_core.plugins import Component
from esper_core.plugins.isolation import attempt, fault_in, is_target, root_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

CODE = "E202"


def host_at(target: str) -> Component:
    """The host that this import path names; ConfigError (E202) where it is none. Nothing is imported yet.

    Modules are looked for where Python finds them, and last in the current folder.
    """
    if not is_target(target):
        hint = f"An import path is written as  my_package.my_module:build\nReceived: {target}"
        raise ConfigError(Problem(CODE, f'"{target}" is no import path of a host', hint=hint))
    return Component(
        id=target,
        short=target,
        kind="host",
        plugin="",
        package="your own",
        version="code",
        target=_builder(target, Path.cwd()),
        spec=HostSpec(summary="A host of your own, by its import path."),
    )


def _builder(target: str, folder: Path) -> Callable[..., Any]:
    """What builds the host. It carries the name of the user's own, so that a fault is told on their line."""
    found: list[Callable[..., Any]] = []

    def build(*arguments: Any, **settings: Any) -> Any:
        with _importable(folder):
            if not found:
                found.append(_imported(target, folder))
            _demand_callable_with(target, found[0], arguments, settings)
            return found[0](*arguments, **settings)

    build.__module__, _, build.__qualname__ = target.partition(":")
    return build


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """A block in which modules are also looked for in ``folder``, after all other places."""
    before = list(sys.path)
    if str(folder) not in before:
        sys.path = [*before, str(folder)]
    try:
        yield
    finally:
        if sys.path == [*before, str(folder)]:
            sys.path = before


def _imported(target: str, folder: Path) -> Callable[..., Any]:
    name, _, attributes = target.partition(":")
    tried = attempt(lambda: import_module(name))
    if tried.error is not None:
        raise _not_imported(target, tried.error, folder) from tried.error
    found: Any = tried.value
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            place = getattr(tried.value, "__file__", None) or "a folder without code"
            known = [other for other in vars(found) if not other.startswith("_") and callable(getattr(found, other))]
            hint = f"{suggestion(attribute, known)}\nIt was looked for in: {place}"
            raise ConfigError(Problem(CODE, f'{name} has no "{attributes}"', hint=hint))
        found = getattr(found, attribute)
    if not callable(found):
        hint = f"A host is a class, or a function that gives a torch.nn.Module. Received: {type(found).__name__}"
        raise ConfigError(Problem(CODE, f'"{target}" cannot be called', hint=hint))
    return found  # type: ignore[no-any-return]


def _not_imported(target: str, error: BaseException, folder: Path) -> ConfigError | PluginError:
    """What is wrong: the path, or the code behind it."""
    name = target.partition(":")[0]
    if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
        *packages, last = error.name.split(".")
        there = folder.joinpath(*packages)
        own = [one.stem for one in there.iterdir() if one.suffix == ".py" or one.is_dir()] if there.is_dir() else []
        close = nearest(last, own)
        lines = [f'Did you mean "{".".join([*packages, close])}"?'] if close else []
        lines.append(f"Call esper from the folder that has it, or install it. The current folder: {folder}")
        return ConfigError(Problem(CODE, f'there is no module "{error.name}"', hint="\n".join(lines)))
    fault = fault_in(error, root_of(target))
    hint = None if fault.missing is None else f'Install the package that has the module "{fault.missing}".'
    message = f'host "{target}" cannot be imported: {fault.summary}'
    return PluginError(
        Problem("E219", message, file=fault.file, line=fault.line, hint=hint or "This is your own code.")
    )


def _demand_callable_with(
    target: str, build: Callable[..., Any], arguments: tuple[Any, ...], settings: Mapping[str, Any]
) -> None:
    """ConfigError where the settings are not those that it takes."""
    try:
        signature = inspect.signature(build)
    except (TypeError, ValueError):  # one that is written in C says nothing of itself
        return
    known = [
        one.name for one in signature.parameters.values() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    if not any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values()):
        for name in settings:
            if name not in known:
                raise SettingError(name, f'"{target}" takes no "{name}"', suggestion(name, known[len(arguments) :]))
    try:
        signature.bind(*arguments, **settings)
    except TypeError as error:
        hint = f"A host is called with the shape of the data and its settings. Received: {_called(settings)}"
        problem = Problem(
            "E120", f'"{target}" cannot be called so: {error}', hint=f"It is {target}{signature}.\n{hint}"
        )
        raise ConfigError(problem) from None


def _called(settings: Mapping[str, Any]) -> str:
    return ", ".join(["shape", *(f"{name}={value!r}" for name, value in settings.items())])
