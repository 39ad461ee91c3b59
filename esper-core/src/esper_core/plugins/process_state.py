"""Process state: restore what plugin code changes of the settings and random generators that decide a run's numbers.

They belong to the process or to a thread, so one component that changes them changes what every other computes. A
``Guard`` around a call into plugin code compares them before and after it, restores what changed, and reports it once
for each component (E237). A component that draws from a global random generator has its own state of it from then on.

``_torch_settings`` and ``_python_settings`` are the tables of what is compared. ``Scope`` says which part of them: what
can be read quickly for calls that are made for every batch, everything for the others. Threads that compute at the same
time see each other's changes until they are restored, and either component may be named.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache, partial, reduce
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from esper_core.leyline.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

log = logging.getLogger("esper")


class Scope(IntEnum):
    """What a guard compares. Each scope contains those before it."""

    SETTINGS = 0
    """Torch's settings: a few microseconds, for calls that are made for every batch."""
    PROCESS = 1
    """Also what takes longer to read, Python's settings and the random generators of Python and NumPy."""
    RUN = 2
    """Also torch's default generator; not for calls that draw from a ``RandomStream``."""


# Guards


@dataclass(slots=True)
class Memory:
    """What is remembered of a component: which changes were reported, and its own states of random generators."""

    reported: set[str] = field(default_factory=set)
    generators: dict[str, Any] = field(default_factory=dict)


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
        self._before = _BASELINE.open(self._settings)
        if self._scope and (generator_states := self._remembered().generators):
            for setting in self._settings:
                if setting.name in generator_states:
                    setting.write(generator_states[setting.name])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._pid:
            _end_fork(self._component)
        try:
            now = [setting.read() for setting in self._settings]
            if now != self._before:
                for setting, before, after in zip(self._settings, self._before, now, strict=True):
                    self._compare(setting, before, after)
            if not self._torch and "torch" in sys.modules:
                for setting in _torch_settings():
                    self._compare(setting, setting.default, setting.read())
        finally:
            _BASELINE.close()

    def _compare(self, setting: Setting, before: Any, after: Any) -> None:
        if before is None or after is None or before == after:
            return
        setting.write(before)
        if self._faults is not None and setting in _fatal_settings():
            self._faults.append(setting.change(before, after))
            return
        memory = self._remembered()
        if setting.is_generator:
            memory.generators[setting.name] = after
        if (change := f"{self._component} {setting.name}") not in memory.reported:
            memory.reported.add(change)
            self._report(_problem(self._component, setting, before, after))

    def _remembered(self) -> Memory:
        if self._memory is None:
            self._memory = getattr(self._component, "memory", None) or Memory()
        return self._memory


def restore_defaults() -> str | None:
    """Restore inference mode, gradient mode and default dtype; return what had changed them, or None.

    A network cannot be trained without them, so a seed that leaves them changed is lost.
    """
    changes = []
    for setting in _fatal_settings():
        if (now := setting.read()) != setting.default:
            setting.write(setting.default)
            changes.append(setting.change(setting.default, now))
    return " and ".join(changes) or None


def _problem(component: str, setting: Setting, before: Any, after: Any) -> Problem:
    if setting.is_generator:
        message = f"{component} {setting.change(before, after)}; others do not see this, and no checkpoint holds it"
        return Problem("E237", message, hint="Draw from a generator of its own, such as random.Random(seed).")
    hint = "Code of a plugin leaves the settings of the process as it found them."
    return Problem("E237", f"{component} {setting.change(before, after)}; it was put back", hint=hint)


def _end_fork(component: str) -> NoReturn:
    """End a fork of this process that a component made and let return: two processes would go on with one run."""
    with suppress(OSError, ValueError):
        print(f"warning: {component} forked the process, and its fork is ended", file=sys.stderr, flush=True)
    os._exit(1)


class _Baseline:
    """Values of shared settings from before the guards that are open now.

    Where one differs when another guard opens, a component may have changed it whose own guard will restore it, or code
    without a guard may have, for good. So the new guard leaves it alone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._values: dict[str, Any] = {}

    def open(self, settings: tuple[Setting, ...]) -> list[Any]:
        """Open a guard, and return the values that its settings have to keep; None: any."""
        with self._lock:
            if not self._open:
                self._values.clear()
            self._open += 1
            return [self._read(setting) for setting in settings]

    def close(self) -> None:
        """Close a guard, which has restored its settings."""
        with self._lock:
            self._open -= 1

    def _read(self, setting: Setting) -> Any:
        value = setting.read()
        if setting.is_shared and value != self._values.setdefault(setting.name, value):
            return None
        return value


_BASELINE: Final = _Baseline()
os.register_at_fork(after_in_child=_BASELINE.__init__)  # type: ignore[misc]  # a fork has no other thread


# Settings


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, or random generator: how it is read and written. A value of None is unknown, and is not compared.

    Attributes:
        default: Its value in a new process; None: that depends on the machine.
        scope: The smallest scope in which it is compared.
        is_shared: Whether it belongs to the process, not to a thread, and Esper itself leaves it as it is.
        is_generator: Whether it is a random generator, of which a component keeps the state that it left.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    default: Any = None
    scope: Scope = Scope.SETTINGS
    is_shared: bool = False
    is_generator: bool = False

    def change(self, before: Any, after: Any) -> str:
        """Return what a component did, for messages."""
        if self.is_generator:
            return f"uses {self.name}"
        return f"changed {self.name} from {before!r} to {after!r}"


@cache
def _settings(scope: Scope, has_torch: bool) -> tuple[Setting, ...]:
    settings = (*(_torch_settings() if has_torch else ()), *_python_settings())
    return tuple(setting for setting in settings if setting.scope <= scope)


@cache
def _fatal_settings() -> tuple[Setting, ...]:
    """Return the settings without which no network can be trained."""
    return _torch_settings()[:3]


@cache
def _torch_settings() -> tuple[Setting, ...]:
    import torch

    return (
        Setting("torch's inference mode", torch.is_inference_mode_enabled, _set_inference_mode, False),
        Setting("torch's gradient mode", torch.is_grad_enabled, torch.set_grad_enabled, True),
        Setting(
            "torch's default dtype", torch.get_default_dtype, torch.set_default_dtype, torch.float32, is_shared=True
        ),
        Setting("torch's thread count", torch.get_num_threads, torch.set_num_threads),
        Setting("torch's default device", lambda: str(torch.empty(0).device), _set_device, "cpu"),
        Setting("torch's flushing of denormal numbers", _flushes_denormal, torch.set_flush_denormal, False),
        Setting(
            "torch's deterministic mode", torch.get_deterministic_debug_mode, _set_deterministic, 0, is_shared=True
        ),
        Setting(
            "torch's autocast",
            lambda: (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
            _set_autocast,
        ),
        Setting("torch's precision of products", _precision, _set_precision, is_shared=True),
        _backend("mkldnn.enabled", True),
        _backend("cudnn.enabled", True),
        _backend("cudnn.benchmark", False),
        _backend("cudnn.deterministic", False),
        _backend("cudnn.allow_tf32", scope=Scope.PROCESS),
        _backend("mkldnn.conv.fp32_precision", scope=Scope.PROCESS),
        _backend("mkldnn.rnn.fp32_precision", scope=Scope.PROCESS),
        Setting("torch's default generator", _torch_state, _set_torch_state, scope=Scope.RUN, is_generator=True),
    )


@cache
def _python_settings() -> tuple[Setting, ...]:
    return (
        Setting("Python's random generator", random.getstate, random.setstate, scope=Scope.PROCESS, is_generator=True),
        _numpy_generator(),
        Setting("the current folder", _folder, os.chdir, scope=Scope.PROCESS, is_shared=True),
        *(_signal_handler(name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGCHLD") if hasattr(signal, name)),
    )


def _backend(path: str, default: Any = None, scope: Scope = Scope.SETTINGS) -> Setting:
    """Return the setting ``torch.backends.PATH``; its value is None in a version of torch that does not have it."""
    from torch import backends

    *parts, name = path.split(".")
    module = reduce(lambda module, part: getattr(module, part, None), parts, cast("Any", backends))

    def read() -> Any:
        try:
            return getattr(module, name, None)
        except RuntimeError:  # it was set through two interfaces that contradict each other
            return "mixed"

    return Setting(f"torch.backends.{path}", read, partial(setattr, module, name), default, scope, is_shared=True)


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


def _set_device(device: str) -> None:
    import torch

    torch.set_default_device(None if device == "cpu" else device)


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


def _torch_state() -> bytes:
    import torch

    state = torch.get_rng_state()
    try:
        return state.numpy().tobytes()
    except RuntimeError:  # NumPy is not installed: torch does not require it, and this takes 40 times as long
        return bytes(state.tolist())


def _set_torch_state(state: bytes) -> None:
    import torch

    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


@dataclass(frozen=True, slots=True)
class _NumpyState:
    """The state of NumPy's global generator: its bytes, which are compared, and what NumPy restores it from."""

    raw: bytes
    parts: Any = field(compare=False)


_MERSENNE_BYTES: Final = 625 * 4


def _numpy_generator() -> Setting:
    """Return NumPy's global generator, read from memory because NumPy itself takes 70 µs.

    Its value is None until NumPy is imported, which another thread may be doing, and for generators of other kinds.
    """
    import ctypes

    latest = _NumpyState(b"", None)

    def read() -> _NumpyState | None:
        nonlocal latest
        module: Any = sys.modules.get("numpy.random")
        ready = hasattr(module, "get_bit_generator") and hasattr(module, "get_state")
        generator: Any = module.get_bit_generator() if ready else None
        if type(generator).__name__ != "MT19937":
            return None
        raw = ctypes.string_at(generator.ctypes.state_address, _MERSENNE_BYTES)
        if raw != latest.raw:
            latest = _NumpyState(raw, module.get_state())
        return latest

    def write(state: _NumpyState) -> None:
        sys.modules["numpy.random"].set_state(state.parts)

    return Setting("NumPy's random generator", read, write, scope=Scope.PROCESS, is_generator=True)


def _folder() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109  a third of the time of Path.cwd
    except OSError:
        return None


def _signal_handler(name: str) -> Setting:
    number = signal.Signals[name]
    read, write = partial(signal.getsignal, number), partial(_set_handler, number)
    return Setting(f"the handler of {name}", read, write, scope=Scope.PROCESS)


def _set_handler(number: signal.Signals, handler: Any) -> None:
    with suppress(ValueError):  # on a thread, where the component could not set it either
        signal.signal(number, handler)
