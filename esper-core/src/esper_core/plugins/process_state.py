"""Process state: restore what plugin code changes of torch's settings and of global random generators.

They belong to the process or to a thread, so one component that changes them changes what every other computes. A
``Guard`` around a call into plugin code compares them before and after it, restores what changed, and reports it once
for each component (E237). A component that draws from a global random generator has its own state of it from then on.

``_settings`` is the table of what is compared. Threads that compute at the same time see each other's changes until
they are restored, and either component may be named.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from esper_core.leyline.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

log = logging.getLogger("esper")


class Scope(IntEnum):
    """What a guard compares. Each scope contains those before it."""

    SETTINGS = 0
    """Torch's settings: a few microseconds, for calls that are made for every batch."""
    PROCESS = 1
    """Also the random generators of Python and NumPy, which take tenths of a millisecond to read."""
    RUN = 2
    """Also torch's default generator; not for calls that draw from a ``RandomStream``."""


class Setting(NamedTuple):
    """One setting, or random generator: how it is read and written.

    Attributes:
        default: Its value in a new process; None: that depends on the machine.
        is_shared: Whether it belongs to the process, not to a thread, and Esper itself leaves it as it is.
        scope: The smallest scope in which it is compared: only random generators have one beyond SETTINGS.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    default: Any = None
    is_shared: bool = False
    scope: Scope = Scope.SETTINGS


Memory: TypeAlias = dict[Setting, Any]
"""What is remembered of a component: the settings whose change was reported, and how it left them."""


def log_change(problem: Problem) -> None:
    """Log what a component changed, as a warning."""
    log.warning("%s", problem)


@dataclass(slots=True)
class Guard:
    """A ``with`` block around a call into plugin code, after which the process's state is as it was before.

    Args:
        component: Names the component and its package in messages.
        memory: Of the component, unless it is a ``Label``, which has its own.
        report: Is called with each change that was not reported before.
        faults: Collects changes that make a seed fail, instead of reporting them: see ``restore_defaults``.
    """

    component: str
    scope: Scope = Scope.SETTINGS
    memory: Memory = field(default_factory=dict)
    report: Callable[[Problem], None] = log_change
    faults: list[str] | None = None
    _before: list[Any] = field(default_factory=list, init=False)

    def __enter__(self) -> Guard:
        self.memory = getattr(self.component, "memory", self.memory)
        # Torch is not imported for a guard: commands that only look at plugins would become slow.
        settings = _settings()[self.scope] if "torch" in sys.modules else ()
        self._before = _OPEN.open(settings)
        for setting in settings:
            if setting.scope and setting in self.memory:
                setting.write(self.memory[setting])
        return self

    def __exit__(self, *error: object) -> None:
        try:
            settings = _settings()[self.scope] if "torch" in sys.modules else ()
            # Without values from before, the component has imported torch, which had its defaults until then.
            before = self._before or [setting.default for setting in settings]
            # One comparison for the usual case, in which nothing changed: a guard is around each batch.
            if [setting.read() for setting in settings] != before:
                for setting, after, change in _restored(settings, before):
                    self._note(setting, after, change)
        finally:
            _OPEN.close()

    def _note(self, setting: Setting, after: Any, change: str) -> None:
        """Note a change that was put back."""
        if self.faults is not None and setting in _fatal_settings():
            self.faults.append(change)
            return
        message = f"{change}; it was put back"
        hint = "Plugins leave the settings of the process as they were."
        if setting.scope:
            message = f"uses {setting.name}; others do not see this, and no checkpoint holds it"
            hint = "Draw from torch in hosts and blueprints, elsewhere from random.Random(seed)."
        if setting not in self.memory:
            self.report(Problem("E237", f"{self.component} {message}", hint=hint))
        self.memory[setting] = after


class _GeneratorOfThread(threading.local):
    """Torch's default generator; on a thread to which ``lend_generator`` gave one, that one."""

    def __init__(self, default: Any) -> None:  # called on each thread
        self.current = default

    def __getattr__(self, name: str) -> Any:
        return getattr(self.current, name)


def lend_generator() -> None:
    """Let ``torch.manual_seed``, and the other functions of ``torch.random``, change a generator of this thread alone.

    A guard cannot do that for a thread beside the run: what it puts back may be what the run has set meanwhile.
    """
    import torch

    functions: Any = torch.random
    # Torch has one default generator for all threads, which its functions look up in their module.
    if not isinstance(functions.default_generator, _GeneratorOfThread):
        functions.default_generator = _GeneratorOfThread(functions.default_generator)
    functions.default_generator.current = torch.Generator()


def restore_defaults() -> str | None:
    """Restore inference mode, gradient mode and default dtype; return what had changed them, or None.

    A network cannot be trained without them, so a seed that leaves them changed is lost.
    """
    settings = _fatal_settings()
    changes = [change for _, _, change in _restored(settings, [setting.default for setting in settings])]
    return " and ".join(changes) or None


def _restored(settings: Sequence[Setting], before: Sequence[Any]) -> Iterator[tuple[Setting, Any, str]]:
    """Restore settings to their values from ``before``; yield each that was changed, to what, and that in words.

    A value of None stands for any.
    """
    for setting, value in zip(settings, before, strict=True):
        # Only now, because restoring inference mode sets the gradient mode, too.
        if (after := setting.read()) != value and value is not None:
            setting.write(value)
            yield setting, after, f"changed {setting.name} from {value!r} to {after!r}"


class _OpenGuards:
    """Values of shared settings from before the guards that are open now, on all threads.

    Where one differs when another guard opens, a component may have changed it whose own guard will restore it, or code
    without a guard may have, for good. So the new guard leaves it alone: to restore it would make the change permanent,
    or undo the program's.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._values: dict[str, Any] = {}

    def open(self, settings: tuple[Setting, ...]) -> list[Any]:
        """Open a guard, and return the values that its settings have to keep; None: any."""
        with self._lock:
            if not self._count:
                # While no guard is open no plugin is called, so what is set now was set by the program.
                self._values.clear()
            self._count += 1
            before = [setting.read() for setting in settings]
            for place, setting in enumerate(settings):
                if setting.is_shared and self._values.setdefault(setting.name, before[place]) != before[place]:
                    before[place] = None
            return before

    def close(self) -> None:
        """Close a guard, which has restored its settings."""
        with self._lock:
            self._count -= 1


_OPEN: Final = _OpenGuards()
# A thread that a fork does not have may hold the lock, and has guards open.
os.register_at_fork(after_in_child=_OPEN.__init__)  # type: ignore[misc]


@cache
def _settings() -> dict[Scope, tuple[Setting, ...]]:
    """Return what is compared, by scope."""
    import torch
    from torch.backends import cudnn

    settings = [
        # The first three are those of ``_fatal_settings``.
        Setting("torch's inference mode", torch.is_inference_mode_enabled, _set_inference_mode, False),
        Setting("torch's gradient mode", torch.is_grad_enabled, torch.set_grad_enabled, True),
        Setting("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype, torch.float32, True),
        Setting("torch's thread count", torch.get_num_threads, torch.set_num_threads),
        Setting(
            "torch's default device",
            lambda: str(torch.empty(0).device),
            # None, because a default device of "cpu" makes every later call into torch slower.
            lambda device: torch.set_default_device(None if device == "cpu" else device),
            "cpu",
        ),
        Setting(
            "torch's flushing of denormal numbers",
            # Torch does not say whether this thread's processor flushes them to zero, so one is computed.
            lambda: sys.float_info.min * 0.5 == 0.0,
            torch.set_flush_denormal,
            False,
        ),
        Setting("torch's autocast", _autocast, _set_autocast, (False, 0)),
        Setting(
            "torch's deterministic mode",
            torch.get_deterministic_debug_mode,
            lambda level: torch.use_deterministic_algorithms(level > 0, warn_only=level == 1),
            0,
            True,
        ),
        # Without them, a plugin could end the run at a line of Esper's.
        Setting("Python's recursion limit", sys.getrecursionlimit, sys.setrecursionlimit, is_shared=True),
        Setting("os.replace", lambda: os.replace, partial(setattr, os, "replace"), is_shared=True),
        Setting("torch's precision of products", _precision, torch.set_float32_matmul_precision, is_shared=True),
        *(
            Setting(
                f"torch.backends.cudnn.{flag}",
                partial(getattr, cudnn, flag),
                partial(setattr, cudnn, flag),
                False,
                True,
            )
            for flag in ("benchmark", "deterministic")
        ),
        *_generators(),
    ]
    return {scope: tuple(setting for setting in settings if setting.scope <= scope) for scope in Scope}


def _generators() -> Iterator[Setting]:
    """Yield random generators; their states are numbers, because tensors and arrays are not compared by ``==``."""
    import torch

    yield Setting("Python's random generator", random.getstate, random.setstate, scope=Scope.PROCESS)
    if numpy := sys.modules.get("numpy"):  # torch imports it, where it is installed

        def read() -> tuple[Any, ...]:
            kind, key, *others = numpy.random.get_state()
            return kind, key.tolist(), *others

        yield Setting("NumPy's random generator", read, numpy.random.set_state, scope=Scope.PROCESS)
    yield Setting(
        "torch's default generator",
        # As 64-bit numbers they are an eighth as many as bytes, and a guard reads them twice.
        lambda: torch.get_rng_state().view(torch.int64).tolist(),
        lambda state: torch.set_rng_state(torch.tensor(state, device="cpu").view(torch.uint8)),
        scope=Scope.RUN,
    )


def _fatal_settings() -> tuple[Setting, ...]:
    """Return the settings without which no network can be trained."""
    return _settings()[Scope.SETTINGS][:3]


_INFERENCE: Final[list[Any]] = []
"""Contexts of inference mode that nobody leaves: torch ends the mode of one that is collected."""


def _set_inference_mode(enabled: bool) -> None:
    import torch

    _INFERENCE.append(torch.inference_mode(enabled))
    _INFERENCE[-1].__enter__()


def _autocast() -> tuple[bool, int]:
    """Return whether autocast is on for CPUs, and in how many contexts of autocast this thread is."""
    import torch

    torch.autocast_increment_nesting()
    return torch.is_autocast_enabled("cpu"), torch.autocast_decrement_nesting()


def _set_autocast(state: tuple[bool, int]) -> None:
    import torch

    enabled, depth = state
    torch.set_autocast_enabled("cpu", enabled)
    # Until the outermost context is left, autocast keeps shortened weights, also of networks that train meanwhile.
    while _autocast()[1] > depth:
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()


def _precision() -> str | None:
    import torch

    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set through two interfaces that contradict each other
        return None
