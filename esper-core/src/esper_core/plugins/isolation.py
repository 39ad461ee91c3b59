"""What did plugin code do wrong, and on which of its author's lines?

Every call into plugin code goes through ``attempt`` or ``contained``, so nothing that it raises, prints or swallows
reaches the core. Only where a network computes, many times a second, ``is_ctrl_c`` is asked instead, once it raised.

Whose fault is it? What a plugin's component raises stops the run with the component and its package named.

Whose fault is it when a task, or a schedule, fails in training? Its own: it is wrapped, and its package named.
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

_LONGEST_SUMMARY = 400

_LENDERS: Final = frozenset({"", "esper_core", "numpy", "pluggy", "pydantic", "torch", *sys.stdlib_module_names})
"""Whose lines are never the place of a plugin's fault, where it is not known which package the plugin lives in."""


@dataclass(frozen=True, slots=True)
class Attempt(Generic[T]):
    """What became of a call into plugin code: its value, or what it raised; and how long it took."""

    value: T | None
    error: BaseException | None
    milliseconds: float


@dataclass(frozen=True, slots=True)
class Fault:
    """What was raised, in one line, and the innermost line of the plugin's own that it passed through."""

    summary: str
    file: str | None
    line: int | None
    missing: str | None
    """The module that was not found, where that was the fault."""


class Label(str):
    """How messages name a component, and the ``target`` ("module:attribute") that its code stands behind."""

    target: str

    def __new__(cls, text: str, target: str) -> Label:
        """The text with its target."""
        label = super().__new__(cls, text)
        label.target = target
        return label


class Caught:
    """What a block raised; None where it raised nothing."""

    error: BaseException | None = None


def attempt(call: Callable[[], T]) -> Attempt[T]:
    """Calls plugin code. Whatever it raises comes back as data; see ``contained``."""
    started = time.perf_counter()
    value: T | None = None
    with contained() as caught:
        value = call()
    return Attempt(value, caught.error, (time.perf_counter() - started) * 1000)


@contextmanager
def contained() -> Iterator[Caught]:
    """A block in which plugin code is at work. Whatever it raises is caught: SystemExit and CancelledError, too.

    What it prints goes to stderr: stdout belongs to the command's result. Neither stream can be closed. Ctrl-C still
    stops us: a KeyboardInterrupt that came with the signal is raised again, even where the plugin caught it; one that
    came without the signal is the plugin's own, and a fault like any other.
    """
    caught = Caught()
    with _watching_for_ctrl_c() as watch, lent_streams():
        try:
            yield caught
        except BaseException as raised:  # whatever it is, it becomes a record that names the package
            caught.error = raised
    if watch.pressed:
        raise KeyboardInterrupt


def is_ctrl_c(error: BaseException) -> bool:
    """Whether this is the user's wish to stop, and nobody's fault. For places that are too busy for ``contained``.

    What the handler in charge saw decides; one that says nothing of it, as Python's own, is taken to have raised it.
    """
    if not isinstance(error, KeyboardInterrupt) or threading.current_thread() is not threading.main_thread():
        return False
    handler = signal.getsignal(signal.SIGINT)
    return bool(getattr(handler, "pressed", callable(handler)))


class _Watch:
    """A handler of SIGINT that notes whether the one before it, which it calls, raised KeyboardInterrupt."""

    def __init__(self, handler: Any) -> None:
        self.handler = handler
        self.pressed = False
        self.asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        try:
            self.handler(number, frame)
        except KeyboardInterrupt:
            self.pressed = True
            raise


@contextmanager
def _watching_for_ctrl_c() -> Iterator[_Watch]:
    """Notes whether SIGINT interrupts what is done within. Outside of the main thread Python delivers no signals."""
    handler = signal.getsignal(signal.SIGINT)
    watch = _Watch(handler)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield watch
        return
    signal.signal(signal.SIGINT, watch)
    try:
        yield watch
    finally:
        if not watch.asked or signal.getsignal(signal.SIGINT) is watch:  # a handler that ran may have left for another
            signal.signal(signal.SIGINT, handler)


@contextmanager
def lent_streams() -> Iterator[None]:
    """stderr for both, lent: nobody within can close it."""
    lent: Any = _Lent(sys.stderr)
    with redirect_stdout(lent), redirect_stderr(lent):
        yield


class _Lent:
    """A stream as others may use it: everything but close it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def close(self) -> None:
        """Writes what is waiting; the stream stays open, for it is not the caller's."""
        self._stream.flush()

    detach = close

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)

    def __enter__(self) -> _Lent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def fault_in(error: BaseException, package: str) -> Fault:
    """The fault that ``error`` is, seen from the import package ``package`` that the plugin's code lives in."""
    file, line = _own_frame(error.__traceback__, package)
    if isinstance(error, SyntaxError) and error.filename is not None:
        file, line = error.filename, error.lineno
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return Fault(summary_of(error), file, line, missing)


def place_in(error: BaseException, target: str | None = None) -> tuple[str | None, int | None]:
    """The innermost line that an error passed through and that its author wrote, in the package of ``target``.

    Where no target is known, or it is a class of torch's, the line is nobody's that only lends code: not Esper's, not
    torch's, not Python's own. Nothing where there is no such line.
    """
    own = root_of(target) if target is not None and is_authors(target) else None
    return _own_frame(error.__traceback__, own)


def summary_of(error: BaseException) -> str:
    """Type and message in one line. A ``__str__`` that raises does no harm."""
    import traceback  # only here, where something failed: it costs a start that went well nothing

    told = traceback.format_exception_only(type(error), error)
    line = " ".join(told[-1].split()) if told else type(error).__name__
    return line if len(line) <= _LONGEST_SUMMARY else line[:_LONGEST_SUMMARY] + "…"


def root_of(module: str) -> str:
    """The top package of a dotted module name, or of a target in it.

    >>> root_of("esper_extra.blocks:TinyConv"), root_of("esper_extra:plugin")
    ('esper_extra', 'esper_extra')
    """
    return module.partition(":")[0].partition(".")[0].strip()


def place_of(thing: Any) -> tuple[str | None, int | None]:
    """File and line where a function stands, where that can be told."""
    code = getattr(getattr(thing, "__func__", thing), "__code__", None)
    return (None, None) if code is None else (code.co_filename, code.co_firstlineno)


def target_of(thing: Any) -> str:
    """Where something callable stands, as ``"module:attribute"``: the class of an object that has no name."""
    thing = thing.func if isinstance(thing, partial) else thing
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}:{named.__qualname__}"


def is_authors(target: str) -> bool:
    """Whether a target is an author's own: not Esper's, not torch's, not Python's."""
    return root_of(target) not in _LENDERS


def _own_frame(traceback: TracebackType | None, package: str | None) -> tuple[str | None, int | None]:
    place: tuple[str | None, int | None] = (None, None)
    while traceback is not None:
        frame = traceback.tb_frame
        root, file = root_of(str(frame.f_globals.get("__name__", ""))), frame.f_code.co_filename
        if root == package or (package is None and root not in _LENDERS and not file.startswith("<")):
            place = (file, traceback.tb_lineno)
        traceback = traceback.tb_next
    return place


@contextmanager
def answerable(component: str, doing: str) -> Iterator[None]:
    """A block in which ``component`` ("policy policies/schedule (esper-policies 0.1.0)") is at work.

    Where it is a ``Label`` the fault is told at the author's own line, or else by the name of the target.
    """
    with contained() as caught:
        yield
    if isinstance(caught.error, EsperError):
        raise caught.error
    if caught.error is not None:
        raise _told(component, doing, caught.error) from caught.error


@contextmanager
def busily_answerable(component: str, doing: str) -> Iterator[None]:
    """The same for what is called with every batch: nobody looks after its output, which takes a dozen microseconds."""
    try:
        yield
    except EsperError:
        raise
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        raise _told(component, doing, error) from error


def _told(component: str, doing: str, error: BaseException) -> PluginError:
    target = component.target if isinstance(component, Label) else None
    file, line = place_in(error, target)
    received = str(error).strip().split("\n")[0][:300]
    message = f"{component} raised {type(error).__name__} {doing}: {received}"
    hint = "This is a fault of its package."
    return PluginError(Problem("E231", message, file=file, line=line, path=None if file else target, hint=hint))


class AnswerableSchedule:
    """A schedule that answers for what it raises, and for a factor that is none. ``label`` says whose it is."""

    def __init__(self, schedule: Schedule, label: str) -> None:
        self._schedule = schedule
        self._label = label

    def factor(self, step: int, steps: int | None) -> float:
        """The schedule's own factor."""
        with busily_answerable(self._label, f"in step {step} of {steps}"):
            factor = float(self._schedule.factor(step, steps))
        if not math.isfinite(factor) or factor < 0.0:
            message = f"{self._label} gave the factor {factor} for step {step} of {steps}"
            raise PluginError(Problem("E231", message, hint="A factor on the learning rate is a number, 0 or more."))
        return factor


class AnswerableTask:
    """A task that answers for what it raises. ``label`` says whose it is."""

    def __init__(self, task: Task, label: str) -> None:
        self._task = task
        self._label = label
        with answerable(label, "when asked for its metric and shape"):
            self.metric = task.metric
            self.shape = task.shape

    def split(self, name: SplitName) -> Split:
        """The task's own split."""
        with answerable(self._label, f'when asked for its split "{name}"'):
            return self._task.split(name)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The task's own losses."""
        with busily_answerable(self._label, "when it computed losses"):
            return self._task.losses(outputs, targets)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The task's own scores."""
        with busily_answerable(self._label, "when it computed scores"):
            return self._task.scores(outputs, targets)


LOCAL_FILE: Final = "local file"
"""What stands for the package of a plugin that is a file of the user's own."""


def normalised(package: str) -> str:
    """A package's name as indexes compare it.

    >>> normalised("Esper_Blueprints.Extra")
    'esper-blueprints-extra'
    """
    return re.sub(r"[-_.]+", "-", package).lower()


def is_target(text: str) -> bool:
    """Whether this text names an attribute of a module: ``"my_package.blocks:TinyConv"``."""
    module, colon, attribute = text.partition(":")
    parts = [*module.split("."), *attribute.split(".")]
    return bool(colon) and all(part.isidentifier() for part in parts)


def import_target(target: str) -> Any:
    """The module ``"package.module"``, or what ``"package.module:attribute"`` names in it. Runs the package's code."""
    module, _, attributes = target.partition(":")
    found: Any = import_module(module.strip())
    for attribute in filter(None, attributes.strip().split(".")):
        found = getattr(found, attribute)
    return found


def blame(package: str, plugin: str) -> str:
    """What to do about a fault that only the plugin's author can mend."""
    if package == LOCAL_FILE:
        return "Mend the file, or take it out of plugins.local."
    return f"Tell the author of {package}, or leave it out:  plugins.disable: [{plugin}]"


def author_of(package: str) -> str:
    """Who can mend a component that is at fault."""
    return "Mend the file." if package == LOCAL_FILE else f"Tell the author of {package}."


def remedy(fault: Fault, target: str, package: str, requires: Sequence[str] = ()) -> str | None:
    """What to install where a module was missing; None where that was not the fault."""
    if fault.missing is None:
        return None
    missing = root_of(fault.missing)
    if package == LOCAL_FILE and fault.file is not None and Path(fault.file).with_name(f"{missing}.py").is_file():
        return (
            f"{missing}.py stands beside it, but a one-file plugin is one file: move it in, or make a package of both."
        )
    if package == LOCAL_FILE:
        return f'Install the package that has the module "{missing}".'
    if missing == root_of(target):
        return f"A part of {package} itself is missing:  pip install --force-reinstall {package}"
    if missing == "esper_core":
        return f"It was written for another esper-core:  pip install --upgrade esper-core {package}"
    declared = [text for text in requires if _names(text, missing)]
    if declared:
        return f'Install what is missing:  pip install "{declared[0].partition(";")[0].strip()}"'
    return (
        f'Install the package that has the module "{missing}", and tell the author of {package}:'
        " it is not among its requirements"
    )


def _names(requirement: str, module: str) -> bool:
    name = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    return name is not None and normalised(name[1]) == normalised(module)


def callers(manager: pluggy.PluginManager, hook: str) -> dict[str, Callable[..., Any]]:
    """For each plugin that implements ``hook`` what calls it there alone, in the order in which they were loaded.

    What a caller gives is pluggy's: a list, empty or of one value; of a ``firstresult`` hook the value or None.
    """
    names = [one.plugin_name for one in getattr(manager.hook, hook).get_hookimpls()]
    plugins = manager.list_name_plugin()
    return {
        name: manager.subset_hook_caller(hook, remove_plugins=[plugin for other, plugin in plugins if other != name])
        for name, _ in plugins
        if name in names
    }
