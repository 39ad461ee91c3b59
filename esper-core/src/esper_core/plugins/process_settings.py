"""The settings of torch and Python, and the random generators, that guards compare: see ``process_state``.

Each is a ``Setting``: a name, how it is read and written, and what a message says of its change. Reading decides what a
guard costs, so those that are read around every call (``torch_settings``) are apart from the rest.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial, reduce
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: how it is read and written. A value of None is unknown, and is not compared.

    Attributes:
        default: Its value in a new process; None: that depends on the machine.
        describe: Says in a message what changed, given the values before and after.
        own_state: Whether it is a random generator, of which a component keeps the state that it left.
        is_shared: Whether it belongs to the process, not to a thread, and Esper itself leaves it as it is.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    default: Any = None
    describe: Callable[[Any, Any], str] | None = None
    own_state: bool = False
    is_shared: bool = False

    def change(self, before: Any, after: Any) -> str:
        """Return what a component did, for messages."""
        if self.describe is not None:
            return self.describe(before, after)
        return f"changed {self.name} from {before} to {after}"


# Torch


@cache
def fatal_settings() -> tuple[Setting, ...]:
    """Return the settings without which no network can be trained."""
    return torch_settings()[:3]


@cache
def torch_settings() -> tuple[Setting, ...]:
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
            "torch's autocast",
            lambda: (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
            _set_autocast,
        ),
        Setting("torch's precision of products", _precision, _set_precision, is_shared=True),
        _backend("mkldnn.enabled", True),
        *(_cudnn() if torch.backends.cuda.is_built() else ()),
    )


@cache
def rare_torch_settings() -> tuple[Setting, ...]:
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
def torch_generator() -> Setting:
    """Return torch's default generator."""
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


@dataclass(frozen=True, slots=True)
class _NumpyState:
    """The state of NumPy's global generator: its bytes, which are compared, and what NumPy restores it from."""

    raw: bytes
    whole: Any = field(compare=False)


_MERSENNE_BYTES: Final = 625 * 4


def _numpy_generator() -> Setting:
    """Return NumPy's global generator, read from memory because NumPy itself takes 90 µs.

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

    return _generator("NumPy's random generator", read, lambda own: sys.modules["numpy.random"].set_state(own.whole))


@cache
def python_settings() -> tuple[Setting, ...]:
    """Return Python's settings, and the random generators of Python and NumPy."""
    import random

    return (
        _generator("Python's random generator", random.getstate, random.setstate),
        _numpy_generator(),
        Setting("the current folder", _folder, os.chdir, is_shared=True),
        Setting("signal handlers", _handlers, _set_handlers, describe=lambda *_: "changed signal handlers"),
    )
