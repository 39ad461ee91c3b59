"""Random streams: random numbers of one's own, and checks of torch's global state.

Layers such as dropout draw from torch's default generators. A RandomStream lends its own state to them while a block
runs and takes it back, so whoever runs next finds them untouched. The default generators belong to the process, and so
does the turn to use them: another thread's block waits for it.
"""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from types import TracebackType


class _Turn:
    """Whose turn it is to use the default generators: one thread's, as often as it took it.

    Each of ``take`` and ``give`` is one line, which an exception out of the blue comes before, or behind.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._takers: list[int] = []

    def take(self) -> None:
        """Wait for it, unless this thread has it."""
        self._lock.acquire() and self._takers.append(threading.get_ident())  # type: ignore[func-returns-value]

    def give(self) -> None:
        """Give it back, once."""
        self._takers.pop() and self._lock.release()  # type: ignore[func-returns-value]

    def taken(self) -> int:
        """How often this thread took it."""
        return self._takers.count(threading.get_ident())

    def give_back(self, taken: int) -> None:
        """Let it be as when this thread had taken it so often, whatever went wrong since."""
        while self.taken() > taken:
            self.give()


TURN: Final = _Turn()
"""That of the process: torch's default generators are the process's, too."""


def derive_seed(*parts: int | str) -> int:
    """A seed for each purpose out of what names the purpose: ``derive_seed(7, "order")``. Stable over versions.

    >>> derive_seed(7, "order") == derive_seed(7, "order") != derive_seed(7, "host")
    True
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


class RandomStream:
    """A stream of random numbers that a ``with`` block draws from through torch's default generators.

    idle: it is known that its blocks draw nothing (``growth.trials``): nothing is lent, and nobody waits.
    """

    def __init__(self, seed: int, device: torch.device | str = "cpu", *, idle: bool = False) -> None:
        self.device = torch.device(device)
        self.idle = idle
        self._cpu = torch.Generator().manual_seed(seed).get_state()
        self._cuda = torch.Generator(self.device).manual_seed(seed).get_state() if self.device.type == "cuda" else None
        self._lender: tuple[torch.Tensor, torch.Tensor | None] | None = None

    def __enter__(self) -> RandomStream:
        if self.idle:
            return self
        TURN.take()
        try:
            self._lend()
        except BaseException:
            TURN.give()  # or every other thread would wait for ever
            raise
        return self

    def _lend(self) -> None:
        if self._lender is not None:
            msg = "this stream is in use already; a stream feeds one block at a time"
            raise RuntimeError(msg)
        lender = torch.get_rng_state(), torch.cuda.get_rng_state(self.device) if self._cuda is not None else None
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda, self.device)
        self._lender = lender

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.idle:
            return
        assert self._lender is not None
        cpu, cuda = self._lender
        self._lender = None
        try:
            self._cpu = torch.get_rng_state()
            torch.set_rng_state(cpu)
            if cuda is not None:
                self._cuda = torch.cuda.get_rng_state(self.device)
                torch.cuda.set_rng_state(cuda, self.device)
        finally:
            TURN.give()

    def load_state_dict(self, state: tuple[torch.Tensor, torch.Tensor | None]) -> None:
        """Stand where another stream stood: ``state`` is what it gave."""
        cpu, cuda = state
        self._cpu, self._cuda = cpu, self._cuda if cuda is None else cuda

    def state_dict(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Where the stream stands: copies of the CPU's and the device's generator state."""
        return self._cpu.clone(), None if self._cuda is None else self._cuda.clone()


DTYPE = torch.float32


def restore_torch_defaults() -> str | None:
    """Restore gradient mode and default dtype; return what had changed, in words, or None."""
    found = []
    if not torch.is_grad_enabled():
        torch.set_grad_enabled(True)
        found.append("turned gradients off")
    if torch.get_default_dtype() is not DTYPE:
        found.append(f"made {torch.get_default_dtype()} torch's default")
        torch.set_default_dtype(DTYPE)
    return " and ".join(found) or None
