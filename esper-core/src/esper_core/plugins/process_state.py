"""Process state: settings of torch and Python, and random generators, that plugin code finds and leaves as they were.

They belong to the process or to a thread, and decide the numbers of every environment that computes there. A ``Guard``
around a call into plugin code compares them before and after it, puts back what changed, and reports it once for each
component (E237). A component that draws from a global random generator has its own state of it from then on.

``Scope`` says what is compared: torch's settings for calls that are made for every batch, everything for the others.
Threads that compute at the same time see each other's changes until they are put back, and either component may be
named.
"""

from __future__ import annotations

import locale
import logging
import os
import signal
import sys
import threading
import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache, partial, reduce
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from esper_core.leyline.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
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


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: how it is read and written. A value of None is unknown, and is not compared.

    Attributes:
        default: Its value in a new process; None: that depends on the machine.
        describe: Says in a message what changed, given the values before and after.
        own_state: Whether it is a random generator, of which a component keeps the state that it left.
        by_imports: Whether modules change it when they are imported, which is left alone.
        is_shared: Whether it belongs to the process, not to a thread, and Esper itself leaves it as it is.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    default: Any = None
    describe: Callable[[Any, Any], str] | None = None
    own_state: bool = False
    by_imports: bool = False
    is_shared: bool = False

    def change(self, before: Any, after: Any) -> str:
        """Return what a component did, for messages."""
        if self.describe is not None:
            return self.describe(before, after)
        return f"changed {self.name} from {before} to {after}"


@dataclass(slots=True)
class Memory:
    """What is remembered of a component: which changes were reported, and its own states of random generators."""

    told: set[str] = field(default_factory=set)
    generators: dict[str, Any] = field(default_factory=dict)


class _Settled:
    """Values of shared settings from before the guards that are open now.

    A guard that opens while a component on another thread has changed a setting must not take that for its value.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: Counter[int] = Counter()
        self._values: dict[str, Any] = {}

    def open(self, settings: tuple[Setting, ...]) -> list[Any]:
        """Open a guard of this thread, and return the values that its settings have to keep."""
        with self._lock:
            if not self._open:
                self._values.clear()
            own = threading.get_ident()
            beside_others = len(self._open) > (own in self._open)
            self._open[own] += 1
            return [self._value(one) if beside_others and one.is_shared else self._read(one) for one in settings]

    def close(self) -> None:
        """Close a guard of this thread, which has put its settings back."""
        with self._lock:
            own = threading.get_ident()
            self._open[own] -= 1
            if not self._open[own]:
                del self._open[own]

    def keep(self, one: Setting, value: Any) -> None:
        """Take a value that a setting has now for its own."""
        with self._lock:
            self._values[one.name] = value

    def _value(self, one: Setting) -> Any:
        return self._values[one.name] if one.name in self._values else self._read(one)

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
        "_imported",
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
        self._pid, self._torch, self._imported = os.getpid(), "torch" in sys.modules, len(sys.modules)
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
            imported = len(sys.modules) != self._imported
            for one, before, after in zip(self._settings, self._before, now, strict=True):
                if not (imported and one.by_imports):
                    self._compare(one, before, after)
                elif one.is_shared:
                    _SETTLED.keep(one, after)
        if not self._torch and "torch" in sys.modules:
            for one in _torch_settings():
                self._compare(one, one.default, one.read())

    def _compare(self, one: Setting, before: Any, after: Any) -> None:
        if before is None or after is None or before == after:
            return
        one.write(before)
        if self._faults is not None and one in _fatal():
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
    for one in _fatal():
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
    own = _torch_settings() if has_torch else ()
    if scope >= Scope.PROCESS:
        own = (*own, *(_rare_torch_settings() if has_torch else ()), *_python_settings())
    return (*own, _torch_generator()) if scope >= Scope.RUN and has_torch else own


# Torch


@cache
def _fatal() -> tuple[Setting, ...]:
    """Return the settings without which no network can be trained."""
    return _torch_settings()[:3]


@cache
def _torch_settings() -> tuple[Setting, ...]:
    """Return the settings of torch that are compared after every call."""
    import torch

    return (
        Setting(
            "torch's inference mode",
            torch.is_inference_mode_enabled,
            _set_inference_mode,
            False,
            lambda before, after: f"left torch in {'inference' if after else 'training'} mode",
        ),
        Setting(
            "torch's gradient mode",
            torch.is_grad_enabled,
            torch.set_grad_enabled,
            True,
            lambda before, after: f"turned gradients {'on' if after else 'off'}",
        ),
        Setting(
            "torch's default dtype",
            torch.get_default_dtype,
            torch.set_default_dtype,
            torch.float32,
            lambda before, after: f"made {after} torch's default",
            is_shared=True,
        ),
        Setting("torch's thread count", torch.get_num_threads, torch.set_num_threads),
        Setting("torch's default device", lambda: torch.empty(0).device, _set_device, torch.device("cpu")),
        Setting("torch's flushing of denormal numbers", _flushes_denormal, torch.set_flush_denormal, False),
        Setting(
            "torch's deterministic mode",
            torch.get_deterministic_debug_mode,
            _set_deterministic,
            0,
            is_shared=True,
        ),
        Setting(
            "torch's anomaly mode",
            lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            lambda values: torch.set_anomaly_enabled(*values),
            is_shared=True,
        ),
        Setting(
            "torch's autocast",
            lambda: (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
            _set_autocast,
        ),
        Setting("torch's precision of products", _precision, _set_precision, is_shared=True),
        _backend("mkldnn.enabled", True),
        *(_cudnn() if torch.backends.cuda.is_built() else ()),
    )


@cache
def _rare_torch_settings() -> tuple[Setting, ...]:
    """Return settings of torch that take longer to read."""
    names = ["mkldnn.conv.fp32_precision", "mkldnn.rnn.fp32_precision", "cudnn.allow_tf32"]
    return (*map(_backend, names), *_cudnn())


def _cudnn() -> tuple[Setting, ...]:
    defaults = {"cudnn.enabled": True, "cudnn.benchmark": False, "cudnn.deterministic": False}
    return tuple(_backend(name, default) for name, default in defaults.items())


def _backend(path: str, default: Any = None) -> Setting:
    """Return the setting ``torch.backends.PATH``; its value is None in a version of torch that does not have it."""
    from torch import backends

    *parts, name = path.split(".")
    module = reduce(lambda module, part: getattr(module, part, None), parts, cast("Any", backends))

    def read() -> Any:
        try:
            return getattr(module, name, None)
        except RuntimeError:  # it was set through two interfaces that contradict each other
            return "mixed"

    return Setting(f"torch.backends.{path}", read, partial(setattr, module, name), default, is_shared=True)


_TINY: Final = [sys.float_info.min]


def _flushes_denormal() -> bool:
    """Return whether this thread's processor flushes denormal numbers to zero; torch does not say."""
    return _TINY[0] * 0.5 == 0.0


def _set_inference_mode(enabled: bool) -> None:
    import torch

    _INFERENCE.append(torch.inference_mode(enabled))
    _INFERENCE[-1].__enter__()


_INFERENCE: Final[list[Any]] = []
"""Contexts of inference mode that nobody leaves: torch ends the mode of one that is collected."""


def _set_autocast(values: tuple[bool, Any]) -> None:
    import torch

    torch.set_autocast_enabled("cpu", values[0])
    torch.set_autocast_dtype("cpu", values[1])


def _set_device(device: Any) -> None:
    import torch

    torch.set_default_device(None if device.type == "cpu" else device)


def _set_deterministic(level: int) -> None:
    import torch

    torch.use_deterministic_algorithms(level > 0, warn_only=level == 1)


def _precision() -> str:
    import torch

    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "mixed"


def _set_precision(precision: str) -> None:
    """Set the precision of products, and take back what the newer interface says of them."""
    import torch

    if precision != "mixed":
        torch.set_float32_matmul_precision(precision)
    backends = cast("Any", torch.backends)
    modules: list[Any] = [backends, getattr(backends.mkldnn, "matmul", None), backends.cuda.matmul]
    for module in modules:
        if hasattr(module, "fp32_precision"):
            module.fp32_precision = "none"


class _TorchState:
    """The state of torch's default generator, which can be compared."""

    def __init__(self) -> None:
        import torch

        self.state = torch.get_rng_state()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TorchState) and bool(self.state.equal(other.state))

    __hash__ = None  # type: ignore[assignment]


@cache
def _torch_generator() -> Setting:
    import torch

    return _generator("torch's default generator", _TorchState, lambda own: torch.set_rng_state(own.state))


# Python


def _generator(name: str, read: Callable[[], Any], write: Callable[[Any], object]) -> Setting:
    return Setting(name, read, write, describe=lambda before, after: f"uses {name}", own_state=True)


def _folder() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109  a third of the time of Path.cwd
    except OSError:
        return None


def _environment() -> dict[Any, Any]:
    """Return the environment as it is encoded, which takes a hundredth of the time of decoding it."""
    return dict(getattr(os.environ, "_data", os.environ))


def _differing(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> list[Any]:
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def _set_environment(before: Mapping[Any, Any]) -> None:
    for name in _differing(before, _environment()):
        if name in before:
            os.environ[os.fsdecode(name)] = os.fsdecode(before[name])
        else:
            del os.environ[os.fsdecode(name)]


def _describe_environment(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> str:
    return f"changed the environment variables {', '.join(map(os.fsdecode, _differing(before, after)))}"


_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGCHLD") if hasattr(signal, name)
)


def _handlers() -> list[Any]:
    return [signal.getsignal(one) for one in _SIGNALS]


def _set_handlers(handlers: list[Any]) -> None:
    for one, handler in zip(_SIGNALS, handlers, strict=True):
        if handler is not None and signal.getsignal(one) != handler:
            with suppress(ValueError):  # in a thread, where the component could not set it either
                signal.signal(one, handler)


def _set_filters(filters: list[Any]) -> None:
    warnings.filters[:] = filters  # type: ignore[index]  # a list, although annotated as a sequence
    with warnings.catch_warnings():  # makes Python forget what the other filters decided
        pass


@dataclass(frozen=True, slots=True)
class _NumpyState:
    """The state of NumPy's global generator: its bytes, which are compared, and what NumPy restores it from."""

    raw: bytes
    whole: Any = field(compare=False)


_MERSENNE_BYTES: Final = 625 * 4


def _numpy_generator() -> Setting:
    """Return NumPy's global generator, read from memory because NumPy itself takes 90 µs.

    Its value is None as long as NumPy is not imported, and for generators of other kinds.
    """
    import ctypes

    latest = _NumpyState(b"", None)

    def read() -> _NumpyState | None:
        nonlocal latest
        module = sys.modules.get("numpy.random")
        generator: Any = None if module is None else module.get_bit_generator()
        if module is None or type(generator).__name__ != "MT19937":
            return None
        raw = ctypes.string_at(generator.ctypes.state_address, _MERSENNE_BYTES)
        if raw != latest.raw:
            latest = _NumpyState(raw, module.get_state())
        return latest

    return _generator("NumPy's random generator", read, lambda own: sys.modules["numpy.random"].set_state(own.whole))


@cache
def _python_settings() -> tuple[Setting, ...]:
    import random

    return (
        _generator("Python's random generator", random.getstate, random.setstate),
        _numpy_generator(),
        Setting("the current folder", _folder, os.chdir, is_shared=True),
        Setting(
            "the environment",
            _environment,
            _set_environment,
            describe=_describe_environment,
            by_imports=True,
            is_shared=True,
        ),
        Setting("signal handlers", _handlers, _set_handlers, describe=lambda *_: "changed signal handlers"),
        Setting(
            "filters of warnings",
            lambda: list(warnings.filters),
            _set_filters,
            describe=lambda *_: "changed the filters of warnings",
            by_imports=True,
        ),
        Setting("Python's recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
        Setting(
            "the locale",
            partial(locale.setlocale, locale.LC_ALL),
            partial(locale.setlocale, locale.LC_ALL),
            by_imports=True,
        ),
    )
