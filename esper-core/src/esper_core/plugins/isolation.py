"""Isolation: call plugin code and attribute what it raises to the package behind it.

* ``attempt(call)`` returns what the call raised as data.
* ``attributed_to(component, activity)`` raises it as a PluginError that names the component and its author's line.
* ``import_target(target, failure)`` imports code, and raises a PluginError that names its package if that fails.

The first two guard the process's state (``process_state``), ``attempt`` only where it is told the component.

Every exception counts as the plugin's fault, SystemExit and CancelledError included. Only a KeyboardInterrupt of the
user passes. ``fault_problem`` and ``component_problem`` build the messages. Nothing else in Esper decides which
package is at fault.
"""

from __future__ import annotations

import re
import signal
import sys
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from functools import partial, reduce
from importlib import import_module
from traceback import format_exception_only, walk_tb
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from esper_core.leyline.errors import EsperError, GrowthError, PluginError, Problem
from esper_core.plugins.process_state import Guard, Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    import pluggy

    from esper_core.plugins.process_state import Memory

T = TypeVar("T")

LOCAL_FILE: Final = "local file"
"""The package name of a plugin that is a single file of the user's own."""

_MAX_SUMMARY: Final = 400
"""Characters of an error that are shown."""

FRAMEWORK: Final = ("esper_core", "esper_run", "esper_grow", "esper_scale")
"""The project's packages that call plugins; none of them is one."""

_SHARED: Final = frozenset({"", *FRAMEWORK, "numpy", "pluggy", "pydantic", "torch", *sys.stdlib_module_names})
"""Packages whose lines are never reported as the place of a plugin's fault: plugins only call them."""


@dataclass(frozen=True, slots=True)
class Attempt(Generic[T]):
    """The outcome of a call into plugin code: its value, or what it raised."""

    value: T | None
    error: BaseException | None


def attempt(call: Callable[[], T], component: str | None = None, scope: Scope = Scope.SETTINGS) -> Attempt[T]:
    """Call plugin code, of ``component``, and return whatever it raises as data. What it prints goes to stderr."""
    try:
        with output_to_stderr(), nullcontext() if component is None else Guard(component, scope):
            return Attempt(call(), None)
    except BaseException as error:
        if is_interrupt(error):
            raise
        return Attempt(None, error)


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error is a KeyboardInterrupt of the user's. In a run Ctrl-C only sets a flag instead."""
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def output_to_stderr() -> AbstractContextManager[object]:
    """Return a context in which prints go to stderr, because stdout belongs to the result of the command."""
    return redirect_stdout(sys.stderr)


@contextmanager
def attributed_to(component: str, activity: str, guard: Guard | Scope = Scope.PROCESS) -> Iterator[None]:
    """Raise what the ``with`` block raises as PluginError E231, which names the component and its author's line.

    ``activity`` says for the message what it was doing: ``"when it computed losses"``. An EsperError passes unchanged.
    Only a GrowthError, such as that of an invalid action, does not: it says what is wrong, and not who did it.
    ``guard`` says what is compared of the process's state.
    """
    try:
        with Guard(component, guard) if isinstance(guard, Scope) else guard:
            yield
    except BaseException as error:
        if is_interrupt(error) or (isinstance(error, EsperError) and not isinstance(error, GrowthError)):
            raise
        received = str(error).strip().split("\n")[0][:300]
        message = f"{component} raised {type(error).__name__} {activity}: {received}"
        problem = component_problem("E231", message, error, component, "Fix it there, or report it to its author.")
        raise PluginError(problem) from error


def hook_callers(manager: pluggy.PluginManager, hook: str) -> dict[str, Callable[..., Any]]:
    """Return, by plugin id in loading order, a function that calls ``hook`` in that plugin alone.

    The function returns what pluggy does: a list of at most one value.
    """
    implementing = [implementation.plugin_name for implementation in getattr(manager.hook, hook).get_hookimpls()]
    plugins = manager.list_name_plugin()
    return {
        name: manager.subset_hook_caller(hook, remove_plugins=[plugin for other, plugin in plugins if other != name])
        for name, _ in plugins
        if name in implementing
    }


def import_target(
    target: str,
    failure: str,
    *,
    code: str = "E219",
    package: str = LOCAL_FILE,
    component: str | None = None,
    requires: Sequence[str] = (),
) -> Any:
    """Import and return ``"package.module"`` or ``"package.module:attribute"``.

    Args:
        target: What to import.
        failure: What the message of an error begins with: ``'host "my_package:build" cannot be imported'``.
        code: The code of that error.
        package: Whose code it is; by default the user's own.
        component: Names the component for messages about what it changes of the process's state; None: no guard.
        requires: What the package declares to require.

    Raises:
        PluginError: The import raised; the error names the author's line and what to do, and has the cause.
    """
    imported = attempt(lambda: resolve(target), component)
    if imported.error is None:
        return imported.value
    problem = fault_problem(code, failure, imported.error, target=target, package=package, requires=requires)
    raise PluginError(problem) from imported.error


def resolve(target: str) -> Any:
    """Import and return ``"package.module"`` or ``"package.module:attribute"``; raise what its code raises."""
    module, _, attributes = target.partition(":")
    return reduce(getattr, filter(None, attributes.split(".")), import_module(module))


class Label(str):
    """How messages name a component, with the ``target`` ("module:attribute") of its code.

    ``memory`` holds what is remembered of the component as long as it is used.
    """

    target: str
    memory: Memory

    def __new__(cls, text: str, target: str) -> Label:
        """Return the text with its target."""
        label = super().__new__(cls, text)
        label.target = target
        label.memory = {}
        return label

    def __reduce__(self) -> tuple[type[Label], tuple[str, str]]:
        # Without the memory: its keys hold functions that cannot be pickled.
        return Label, (str(self), self.target)


def fault_problem(
    code: str,
    message: str,
    error: BaseException,
    *,
    target: str,
    package: str,
    plugin: str | None = None,
    requires: Sequence[str] = (),
) -> Problem:
    """Describe an error that code behind an entry point raised: what, on which of the author's lines, what to do.

    ``target`` is "module:attribute" of the code, and the place if the error passed through none of the author's lines.
    ``plugin`` is the plugin's id if the user can disable it, ``requires`` what the package declares.
    """
    hint = _missing_module_hint(error, target, package, requires) or author_hint(package, plugin)
    return _problem_at(code, f"{message}: {summarise(error)}", error, target, hint)


def component_problem(
    code: str, message: str, error: BaseException, component: str, hint: str | None = None
) -> Problem:
    """Describe an error of a component in a run, at its author's line or else by its target."""
    return _problem_at(code, message, error, component.target if isinstance(component, Label) else None, hint)


def _problem_at(code: str, message: str, error: BaseException, target: str | None, hint: str | None) -> Problem:
    file, line = location_of(error, target)
    return Problem(code, message, file=file, line=line, path=None if file else target, hint=hint)


def location_of(error: BaseException, target: str | None = None) -> tuple[str | None, int | None]:
    """Return the innermost line of the author's that an error passed through, or two None.

    The author's lines are those of the target's top package. Without a target of a third party, they are all lines that
    belong neither to Esper, nor to torch, nor to Python's library.
    """
    # A file that cannot be parsed has no frame in the traceback.
    if isinstance(error, SyntaxError) and error.filename is not None:
        return error.filename, error.lineno
    package = top_package(target) if target is not None and is_third_party(target) else None
    place: tuple[str | None, int | None] = (None, None)
    for frame, line in walk_tb(error.__traceback__):
        owner, file = top_package(str(frame.f_globals.get("__name__", ""))), frame.f_code.co_filename
        # "<string>" is generated code, as of dataclasses: there is no file with that line.
        if owner == package or (package is None and owner not in _SHARED and not file.startswith("<")):
            place = (file, line)
    return place


def summarise(error: BaseException) -> str:
    """Return type and message of an error in one line."""
    line = " ".join(format_exception_only(error)[-1].split())
    return line if len(line) <= _MAX_SUMMARY else line[:_MAX_SUMMARY] + "…"


def top_package(module: str) -> str:
    """Return the top package of a dotted module name or of a target."""
    return module.partition(":")[0].partition(".")[0]


def definition_of(function: Any) -> tuple[str | None, int | None]:
    """Return file and line of a function, or two None if they are unknown."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return (None, None) if code is None else (code.co_filename, code.co_firstlineno)


def target_of(target: Any) -> str:
    """Return "module:attribute" of a callable, or of the class of an object without a name."""
    target = target.func if isinstance(target, partial) else target
    named = target if hasattr(target, "__qualname__") else type(target)
    return f"{named.__module__}:{named.__qualname__}"


def is_target(text: str) -> bool:
    """Return whether a text names an attribute of a module: ``"my_package.blocks:TinyConv"``."""
    module, colon, attribute = text.partition(":")
    parts = [*module.split("."), *attribute.split(".")]
    return bool(colon) and all(part.isidentifier() for part in parts)


def is_third_party(target: str) -> bool:
    """Return whether a target belongs neither to Esper, nor to torch, nor to Python's library."""
    return top_package(target) not in _SHARED


def normalise(package: str) -> str:
    """Return a package's name as package indexes compare it: lower case, with single hyphens."""
    return re.sub(r"[-_.]+", "-", package).lower()


def author_hint(package: str, plugin: str | None = None) -> str:
    """Return a hint that names who can fix a fault; with a plugin's id also how to run without it."""
    if package == LOCAL_FILE:
        return "Fix the file." if plugin is None else "Fix the file, or take it out of plugins.local."
    leave_out = "." if plugin is None else f", or leave it out:  plugins.disable: [{plugin}]"
    return f"Tell the author of {package}{leave_out}"


def required_package(requirement: str) -> str:
    """Return the normalised name of the package that a requirement asks for."""
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    return normalise(match[1]) if match else ""


def _missing_module_hint(error: BaseException, target: str, package: str, requires: Sequence[str]) -> str | None:
    """Return what to install if the error is a missing module of another package."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    missing = top_package(error.name)
    if missing in (top_package(target), *FRAMEWORK):
        return None
    for requirement in requires:
        if required_package(requirement) == normalise(missing):
            return f'Install what is missing:  pip install "{requirement.partition(";")[0].strip()}"'
    alone = " A one-file plugin imports no file beside it: make a package." * (package == LOCAL_FILE)
    return f'Install the package that has the module "{missing}". {author_hint(package)}{alone}'
