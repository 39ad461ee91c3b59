"""Isolation: call plugin code and attribute what it raises, prints or interrupts to the package behind it.

Every call into plugin code goes through one of these:

* ``attempt(call)`` returns what the call raised as data.
* ``contained()`` is the same for a block.
* ``attributed_to(component, activity)`` raises it as a PluginError that names the component and its author's line.

``fault_problem`` and ``component_problem`` build the messages. Nothing else in Esper decides which package is at fault.
"""

from __future__ import annotations

import math
import re
import signal
import sys
import threading
import time
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from esper_core.leyline.errors import EsperError, PluginError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType, TracebackType
    from typing import TextIO

    import pluggy
    from torch import Tensor

    from esper_core.leyline.protocols import Schedule, Split, SplitName, Task

T = TypeVar("T")

LOCAL_FILE: Final = "local file"
"""The package name of a plugin that is a single file of the user's own."""

_MAX_SUMMARY: Final = 400
"""Characters of an error that are shown."""

_SHARED: Final = frozenset({"", "esper_core", "numpy", "pluggy", "pydantic", "torch", *sys.stdlib_module_names})
"""Packages whose lines are never reported as the place of a plugin's fault: plugins only call them."""


# Calls into plugin code


@dataclass(frozen=True, slots=True)
class Attempt(Generic[T]):
    """The outcome of a call into plugin code: its value or what it raised, and how long it took."""

    value: T | None
    error: BaseException | None
    milliseconds: float


class Caught:
    """What a block raised; ``error`` is None if it raised nothing."""

    error: BaseException | None = None


def attempt(call: Callable[[], T]) -> Attempt[T]:
    """Call plugin code and return whatever it raises as data; see ``contained``."""
    started = time.perf_counter()
    value: T | None = None
    with contained() as caught:
        value = call()
    return Attempt(value, caught.error, (time.perf_counter() - started) * 1000)


@contextmanager
def contained() -> Iterator[Caught]:
    """Run a block of plugin code and catch whatever it raises, SystemExit and CancelledError included.

    Its output goes to stderr, because stdout belongs to the result of the command. Ctrl-C still stops the program:
    a KeyboardInterrupt that came with the signal is raised again, even if the plugin caught it. A KeyboardInterrupt
    that the plugin raised itself is caught like any other error.
    """
    caught = Caught()
    with _watched_ctrl_c() as watch, output_to_stderr():
        try:
            yield caught
        except BaseException as error:  # every kind becomes a record that names the package
            caught.error = error
    if watch.pressed:
        raise KeyboardInterrupt


@contextmanager
def attributed_to(component: str, activity: str, *, contain: bool = True) -> Iterator[None]:
    """Raise what a block raises as PluginError E231, which names the component and its author's line.

    An EsperError passes unchanged.

    Args:
        component: how messages name it; a ``Label`` also knows where its code is.
        activity: what it was doing, for the message: ``"when it computed losses"``.
        contain: whether its output is redirected and Ctrl-C watched, as ``contained`` does. That takes a dozen
            microseconds; pass False for code that runs with every batch.
    """
    error: BaseException | None = None
    if contain:
        with contained() as caught:
            yield
        error = caught.error
    else:
        try:
            yield
        except BaseException as raised:
            if is_ctrl_c(raised):
                raise
            error = raised
    if error is None:
        return
    if isinstance(error, EsperError):
        raise error
    received = str(error).strip().split("\n")[0][:300]
    message = f"{component} raised {type(error).__name__} {activity}: {received}"
    problem = component_problem("E231", message, error, component, "This is a fault of its package.")
    raise PluginError(problem) from error


class AttributedSchedule:
    """A schedule whose errors, and factors that are not numbers of 0 or more, are attributed to its package."""

    def __init__(self, schedule: Schedule, label: str) -> None:
        self._schedule = schedule
        self._label = label

    def factor(self, step: int, steps: int | None) -> float:
        """Return the schedule's factor on the learning rate."""
        with attributed_to(self._label, f"in step {step} of {steps}", contain=False):
            factor = float(self._schedule.factor(step, steps))
        if not math.isfinite(factor) or factor < 0.0:
            message = f"{self._label} gave the factor {factor} for step {step} of {steps}"
            raise PluginError(Problem("E231", message, hint="A factor on the learning rate is a number, 0 or more."))
        return factor


class AttributedTask:
    """A task whose errors are attributed to its package."""

    def __init__(self, task: Task, label: str) -> None:
        self._task = task
        self._label = label
        with attributed_to(label, "when asked for its metric and shape"):
            self.metric = task.metric
            self.shape = task.shape

    def split(self, name: SplitName) -> Split:
        """Return a split of the task."""
        with attributed_to(self._label, f'when asked for its split "{name}"'):
            return self._task.split(name)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each example."""
        with attributed_to(self._label, "when it computed losses", contain=False):
            return self._task.losses(outputs, targets)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the score of each example."""
        with attributed_to(self._label, "when it computed scores", contain=False):
            return self._task.scores(outputs, targets)


def hook_callers(manager: pluggy.PluginManager, hook: str) -> dict[str, Callable[..., Any]]:
    """Return, by plugin id in loading order, a function that calls ``hook`` in that plugin alone.

    The function returns what pluggy does: a list of at most one value, or for a ``firstresult`` hook the value or None.
    """
    implementing = [one.plugin_name for one in getattr(manager.hook, hook).get_hookimpls()]
    plugins = manager.list_name_plugin()
    return {
        name: manager.subset_hook_caller(hook, remove_plugins=[plugin for other, plugin in plugins if other != name])
        for name, _ in plugins
        if name in implementing
    }


def import_target(target: str) -> Any:
    """Import ``"package.module"`` or the attribute ``"package.module:attribute"``; this runs the package's code."""
    module, _, attributes = target.partition(":")
    found: Any = import_module(module.strip())
    for attribute in filter(None, attributes.strip().split(".")):
        found = getattr(found, attribute)
    return found


# Ctrl-C and output


def is_ctrl_c(error: BaseException) -> bool:
    """Whether an error is the user's Ctrl-C rather than a fault; for code that runs too often for ``contained``.

    The signal handler in charge knows. One that keeps no record, such as Python's own, is assumed to have raised it.
    """
    if not isinstance(error, KeyboardInterrupt) or threading.current_thread() is not threading.main_thread():
        return False
    handler = signal.getsignal(signal.SIGINT)
    return bool(getattr(handler, "pressed", callable(handler)))


class _CtrlCWatch:
    """A SIGINT handler that calls the previous one and records whether that raised KeyboardInterrupt."""

    def __init__(self, handler: Any) -> None:
        self.handler = handler
        self.pressed = False
        self.called = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.called = True
        try:
            self.handler(number, frame)
        except KeyboardInterrupt:
            self.pressed = True
            raise


@contextmanager
def _watched_ctrl_c() -> Iterator[_CtrlCWatch]:
    """Record whether SIGINT interrupts the block. Python delivers signals to the main thread only."""
    handler = signal.getsignal(signal.SIGINT)
    watch = _CtrlCWatch(handler)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield watch
        return
    signal.signal(signal.SIGINT, watch)
    try:
        yield watch
    finally:
        # The previous handler may have installed another one when it was called; then that one stays.
        if not watch.called or signal.getsignal(signal.SIGINT) is watch:
            signal.signal(signal.SIGINT, handler)


@contextmanager
def output_to_stderr() -> Iterator[None]:
    """Redirect stdout and stderr of the block to stderr, which the block cannot close."""
    stream: Any = _UnclosableStream(sys.stderr)
    with redirect_stdout(stream), redirect_stderr(stream):
        yield


class _UnclosableStream:
    """A stream on which ``close`` and ``detach`` only flush."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def close(self) -> None:
        """Flush, and leave the stream open."""
        self._stream.flush()

    detach = close

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)

    def __enter__(self) -> _UnclosableStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# Attribution: the author's line, and what to do


class Label(str):
    """How messages name a component, with the ``target`` ("module:attribute") of its code."""

    target: str

    def __new__(cls, text: str, target: str) -> Label:
        """Return the text with its target."""
        label = super().__new__(cls, text)
        label.target = target
        return label


def fault_problem(
    code: str,
    message: str,
    error: BaseException,
    *,
    target: str,
    package: str,
    plugin: str | None = None,
    requires: Sequence[str] = (),
    path: str | None = None,
    consequence: str = "",
) -> Problem:
    """Describe an error that code behind an entry point raised: what, on which of the author's lines, what to do.

    Args:
        code: the error code.
        message: what failed; the error's own summary follows it.
        error: what was raised.
        target: "module:attribute" of the code; its top package is the author's.
        package: the installed package, for the hint.
        plugin: the plugin's id, if disabling it is a way out.
        requires: the package's declared requirements.
        path: the place to report if the error passed through none of the author's lines.
        consequence: what follows for the run.
    """
    file, line = _innermost_line(error.__traceback__, top_package(target))
    if isinstance(error, SyntaxError) and error.filename is not None:
        file, line = error.filename, error.lineno
    hint = _missing_module_hint(error, file, target, package, requires) or author_hint(package, plugin)
    message = f"{message}: {summarise(error)}{consequence and f'; {consequence}'}"
    return Problem(code, message, file=file, line=line, path=None if file else path, hint=hint)


def component_problem(
    code: str, message: str, error: BaseException, component: str, hint: str | None = None
) -> Problem:
    """Describe an error of a component in a run, at its author's line or else by its target."""
    target = component.target if isinstance(component, Label) else None
    file, line = location_of(error, target)
    return Problem(code, message, file=file, line=line, path=None if file else target, hint=hint)


def location_of(error: BaseException, target: str | None = None) -> tuple[str | None, int | None]:
    """Return the innermost line of the author's that an error passed through, or two None.

    Without a target of a third party, the line is the innermost that belongs neither to Esper, nor to torch, nor to
    Python's library.
    """
    package = top_package(target) if target is not None and is_third_party(target) else None
    return _innermost_line(error.__traceback__, package)


def summarise(error: BaseException) -> str:
    """Return type and message of an error in one line, even if its ``__str__`` raises."""
    import traceback  # imported late: only failures need it

    lines = traceback.format_exception_only(type(error), error)
    line = " ".join(lines[-1].split()) if lines else type(error).__name__
    return line if len(line) <= _MAX_SUMMARY else line[:_MAX_SUMMARY] + "…"


def top_package(module: str) -> str:
    """Return the top package of a dotted module name or of a target.

    >>> top_package("esper_extra.blocks:TinyConv")
    'esper_extra'
    """
    return module.partition(":")[0].partition(".")[0].strip()


def definition_of(thing: Any) -> tuple[str | None, int | None]:
    """Return file and line of a function, or two None if they are unknown."""
    code = getattr(getattr(thing, "__func__", thing), "__code__", None)
    return (None, None) if code is None else (code.co_filename, code.co_firstlineno)


def target_of(thing: Any) -> str:
    """Return "module:attribute" of a callable, or of the class of an object without a name."""
    thing = thing.func if isinstance(thing, partial) else thing
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}:{named.__qualname__}"


def is_target(text: str) -> bool:
    """Whether a text names an attribute of a module: ``"my_package.blocks:TinyConv"``."""
    module, colon, attribute = text.partition(":")
    parts = [*module.split("."), *attribute.split(".")]
    return bool(colon) and all(part.isidentifier() for part in parts)


def is_third_party(target: str) -> bool:
    """Whether a target belongs neither to Esper, nor to torch, nor to Python's library."""
    return top_package(target) not in _SHARED


def normalise(package: str) -> str:
    """Return a package's name as package indexes compare it.

    >>> normalise("Esper_Blueprints.Extra")
    'esper-blueprints-extra'
    """
    return re.sub(r"[-_.]+", "-", package).lower()


def author_hint(package: str, plugin: str | None = None) -> str:
    """Say who can fix a fault; with a plugin's id also how to run without it."""
    if package == LOCAL_FILE:
        return "Fix the file." if plugin is None else "Fix the file, or take it out of plugins.local."
    leave_out = "." if plugin is None else f", or leave it out:  plugins.disable: [{plugin}]"
    return f"Tell the author of {package}{leave_out}"


def _missing_module_hint(
    error: BaseException, file: str | None, target: str, package: str, requires: Sequence[str]
) -> str | None:
    """Say what to install if the error is a missing module."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    missing = top_package(error.name)
    install = f'Install the package that has the module "{missing}"'
    if package == LOCAL_FILE:
        if file is not None and Path(file).with_name(f"{missing}.py").is_file():
            return f"A one-file plugin cannot import {missing}.py beside it: put both into one file or into a package."
        return f"{install}."
    if missing == top_package(target):
        return f"A part of {package} itself is missing:  pip install --force-reinstall {package}"
    if missing == "esper_core":
        return f"It was written for another esper-core:  pip install --upgrade esper-core {package}"
    for requirement in requires:
        name = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
        if name is not None and normalise(name[1]) == normalise(missing):
            return f'Install what is missing:  pip install "{requirement.partition(";")[0].strip()}"'
    return f"{install}, and tell the author of {package}: it is not among its requirements"


def _innermost_line(traceback: TracebackType | None, package: str | None) -> tuple[str | None, int | None]:
    """Return the innermost line of a package's own; with no package, of any that is not shared."""
    found: tuple[str | None, int | None] = (None, None)
    while traceback is not None:
        frame = traceback.tb_frame
        owner, file = top_package(str(frame.f_globals.get("__name__", ""))), frame.f_code.co_filename
        if owner == package or (package is None and owner not in _SHARED and not file.startswith("<")):
            found = (file, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found
