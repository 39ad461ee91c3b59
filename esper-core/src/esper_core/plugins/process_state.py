"""Process state: settings of torch and Python, and random generators, that plugin code finds and leaves as they were.

They belong to the process or to a thread, and decide the numbers of every environment that computes there. A ``Guard``
around a call into plugin code compares them before and after it, puts back what changed, and reports it once for each
component (E237). A component that draws from a global random generator has its own state of it from then on.

``Scope`` says what is compared: torch's settings for calls that are made for every batch, everything for the others.
Threads that compute at the same time see each other's changes until they are put back, and either component may be
named.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NoReturn

from esper_core.leyline.errors import Problem
from esper_core.plugins.process_settings import (
    Setting,
    fatal_settings,
    python_settings,
    rare_torch_settings,
    torch_generator,
    torch_settings,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

log = logging.getLogger("esper")


class Scope(IntEnum):
    """What a guard compares. Each scope contains those before it."""

    SETTINGS = 0
    """Torch's settings: a few microseconds, for calls that are made for every batch."""
    PROCESS = 1
    """Also Python's settings and the random generators of Python and NumPy."""
    RUN = 2
    """Also torch's default generator; not for calls that draw from a ``RandomStream``."""


@dataclass(slots=True)
class Memory:
    """What is remembered of a component: which changes were reported, and its own states of random generators."""

    told: set[str] = field(default_factory=set)
    generators: dict[str, Any] = field(default_factory=dict)


class _Settled:
    """Values of shared settings from before the guards that are open now.

    Where one differs when a guard opens beside those of other threads, a component may have changed it whose own guard
    will put it back, or code without a guard may have, for good. So the new guard leaves it alone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: Counter[int] = Counter()
        self._values: dict[str, Any] = {}

    def open(self, settings: tuple[Setting, ...]) -> list[Any]:
        """Open a guard of this thread, and return the values that its settings have to keep; None: any."""
        with self._lock:
            if not self._open:
                self._values.clear()
            own = threading.get_ident()
            beside_others = len(self._open) > (own in self._open)
            self._open[own] += 1
            return [self._settled(one) if beside_others and one.is_shared else self._read(one) for one in settings]

    def close(self) -> None:
        """Close a guard of this thread, which has put its settings back."""
        with self._lock:
            own = threading.get_ident()
            self._open[own] -= 1
            if not self._open[own]:
                del self._open[own]

    def _settled(self, one: Setting) -> Any:
        value = self._read(one)
        return value if value == self._values[one.name] else None

    def _read(self, one: Setting) -> Any:
        value = one.read()
        if one.is_shared:
            self._values.setdefault(one.name, value)
        return value


_SETTLED: Final = _Settled()
os.register_at_fork(after_in_child=_SETTLED.__init__)  # type: ignore[misc]  # a fork has no other thread


def log_change(problem: Problem) -> None:
    """Log what a component changed, as a warning."""
    log.warning("%s", problem)


class Guard:
    """A ``with`` block around a call into plugin code, after which the process's state is as it was before.

    Args:
        component: Names the component and its package in messages.
        memory: Of the component; None: that of its ``Label``, if it has one.
        report: Is called with each change that was not reported before.
        faults: Collects changes that make a seed fail, instead of reporting them: see ``restore_defaults``.
    """

    __slots__ = (
        "_before",
        "_component",
        "_faults",
        "_memory",
        "_pid",
        "_report",
        "_scope",
        "_settings",
        "_torch",
    )

    def __init__(
        self,
        component: str,
        scope: Scope = Scope.SETTINGS,
        *,
        memory: Memory | None = None,
        report: Callable[[Problem], None] = log_change,
        faults: list[str] | None = None,
    ) -> None:
        self._component = component
        self._scope = scope
        self._memory = memory
        self._report = report
        self._faults = faults

    def __enter__(self) -> Guard:
        self._pid, self._torch = os.getpid(), "torch" in sys.modules
        self._settings = _settings(self._scope, self._torch)
        self._before = _SETTLED.open(self._settings)
        if self._scope and (own := self._remembered().generators):
            for one in self._settings:
                if one.name in own:
                    one.write(own[one.name])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._pid:
            _end_fork(self._component)
        try:
            self._put_back()
        finally:
            _SETTLED.close()

    def _put_back(self) -> None:
        now = [one.read() for one in self._settings]
        if now != self._before:
            for one, before, after in zip(self._settings, self._before, now, strict=True):
                self._compare(one, before, after)
        if not self._torch and "torch" in sys.modules:
            for one in torch_settings():
                self._compare(one, one.default, one.read())

    def _compare(self, one: Setting, before: Any, after: Any) -> None:
        if before is None or after is None or before == after:
            return
        one.write(before)
        if self._faults is not None and one in fatal_settings():
            self._faults.append(one.change(before, after))
            return
        memory = self._remembered()
        if one.own_state:
            memory.generators[one.name] = after
        if (told := f"{self._component} {one.name}") not in memory.told:
            memory.told.add(told)
            self._report(_problem(self._component, one, before, after))

    def _remembered(self) -> Memory:
        if self._memory is None:
            self._memory = getattr(self._component, "memory", None) or Memory()
        return self._memory


def restore_defaults() -> str | None:
    """Restore inference mode, gradient mode and default dtype; return what had changed them, or None.

    A network cannot be trained without them, so a seed that leaves them changed is lost.
    """
    found = []
    for one in fatal_settings():
        if (now := one.read()) != one.default:
            one.write(one.default)
            found.append(one.change(one.default, now))
    return " and ".join(found) or None


def _end_fork(component: str) -> NoReturn:
    """End a fork of this process that a component made and let return: two processes would go on with one run."""
    with suppress(OSError, ValueError):
        print(f"warning: {component} forked the process, and its fork is ended", file=sys.stderr, flush=True)
    os._exit(1)


def _problem(component: str, one: Setting, before: Any, after: Any) -> Problem:
    if one.own_state:
        message = f"{component} {one.change(before, after)}; others do not see this, and no checkpoint holds it"
        return Problem("E237", message, hint="Draw from a generator of its own, such as random.Random(seed).")
    hint = "Code of a plugin leaves the settings of the process as it found them."
    return Problem("E237", f"{component} {one.change(before, after)}; it was put back", hint=hint)


@cache
def _settings(scope: Scope, has_torch: bool) -> tuple[Setting, ...]:
    own = torch_settings() if has_torch else ()
    if scope >= Scope.PROCESS:
        own = (*own, *(rare_torch_settings() if has_torch else ()), *python_settings())
    return (*own, torch_generator()) if scope >= Scope.RUN and has_torch else own
