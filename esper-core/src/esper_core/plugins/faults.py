"""What did plugin code do wrong, and on which of its author's lines?

Every call into plugin code goes through ``attempt``, so nothing that it raises, prints or swallows reaches the core.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, TracebackType

T = TypeVar("T")

_LONGEST_SUMMARY = 400


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


def attempt(call: Callable[[], T]) -> Attempt[T]:
    """Calls plugin code. Whatever it raises comes back as data, SystemExit and RecursionError included.

    What it prints goes to stderr: stdout belongs to the command's result. Ctrl-C still stops us: a KeyboardInterrupt
    that came with the signal is raised again, even where the plugin caught it; one that came without the signal is the
    plugin's own, and a fault like any other.
    """
    started = time.perf_counter()
    value: T | None = None
    error: BaseException | None = None
    with _watching_for_ctrl_c() as ctrl_c, redirect_stdout(sys.stderr):
        try:
            value = call()
        except BaseException as raised:  # whatever it is, it becomes a record that names the package
            error = raised
    if ctrl_c.pressed:
        raise KeyboardInterrupt
    return Attempt(value, error, (time.perf_counter() - started) * 1000)


class _CtrlC:
    pressed = False


@contextmanager
def _watching_for_ctrl_c() -> Iterator[_CtrlC]:
    """Notes whether SIGINT interrupts what is done within. Outside of the main thread Python delivers no signals."""
    ctrl_c = _CtrlC()
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield ctrl_c
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except KeyboardInterrupt:
            ctrl_c.pressed = True
            raise

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield ctrl_c
    finally:
        signal.signal(signal.SIGINT, handler)


def fault_in(error: BaseException, package: str) -> Fault:
    """The fault that ``error`` is, seen from the import package ``package`` that the plugin's code lives in."""
    file, line = _own_frame(error.__traceback__, package)
    if isinstance(error, SyntaxError) and error.filename is not None:
        file, line = error.filename, error.lineno
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return Fault(summary_of(error), file, line, missing)


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


def _own_frame(traceback: TracebackType | None, package: str) -> tuple[str | None, int | None]:
    place: tuple[str | None, int | None] = (None, None)
    while traceback is not None:
        frame = traceback.tb_frame
        if root_of(str(frame.f_globals.get("__name__", ""))) == package:
            place = (frame.f_code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return place
