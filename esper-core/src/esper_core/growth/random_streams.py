"""Random streams: independent random numbers from torch's default generators.

Layers such as dropout draw from torch's default generators. A RandomStream lends its own state to them while a block
runs and takes it back, so the code that runs next finds them unchanged. The default generators belong to the process,
so another thread's block waits until this one ends.
"""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from types import TracebackType


class _GeneratorLock:
    """A reentrant lock on the default generators that can be released however deep it is held.

    Each of ``acquire`` and ``release`` is one line, so that a KeyboardInterrupt comes before or after it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holders: list[int] = []

    def acquire(self) -> None:
        """Wait for the lock, unless this thread holds it."""
        self._lock.acquire() and self._holders.append(threading.get_ident())  # type: ignore[func-returns-value]

    def release(self) -> None:
        """Release the lock once."""
        self._holders.pop() and self._lock.release()  # type: ignore[func-returns-value]

    def depth(self) -> int:
        """Return how often this thread holds the lock."""
        return self._holders.count(threading.get_ident())

    def release_to(self, depth: int) -> None:
        """Release the lock until this thread holds it ``depth`` times."""
        while self.depth() > depth:
            self.release()


GENERATOR_LOCK: Final = _GeneratorLock()
"""The lock of the process: torch's default generators are the process's, too."""


def derive_seed(*parts: int | str) -> int:
    """Return a seed for the purpose that ``parts`` name. It is the same in all versions.

    >>> derive_seed(7, "order") == derive_seed(7, "order") != derive_seed(7, "host")
    True
    """
    # ``hash`` of a text is another number in each process.
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


class RandomStream:
    """A stream of random numbers that a ``with`` block draws through torch's default generators.

    Args:
        seed: of the stream.
        device: of the numbers.
        idle: the blocks are known to draw nothing, so nothing is lent, and no thread waits.
    """

    derive_seed = staticmethod(derive_seed)

    def __init__(self, seed: int, device: torch.device | str = "cpu", *, idle: bool = False) -> None:
        self.device = torch.device(device)
        self.idle = idle
        self._cpu = torch.Generator().manual_seed(seed).get_state()
        self._cuda = torch.Generator(self.device).manual_seed(seed).get_state() if self.device.type == "cuda" else None
        self._lender: tuple[torch.Tensor, torch.Tensor | None] | None = None

    def __enter__(self) -> RandomStream:
        if self.idle:
            return self
        GENERATOR_LOCK.acquire()
        if self._lender is not None:
            GENERATOR_LOCK.release()
            msg = "this stream is in use; it can feed one block at a time"
            raise RuntimeError(msg)
        try:
            self._lender = self._present()
            self._set(self._cpu, self._cuda)
            return self
        except BaseException:
            self._take_back()
            GENERATOR_LOCK.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.idle:
            return
        try:
            try:
                self._cpu, self._cuda = self._present()
            finally:
                self._take_back()
        finally:  # an interrupt may have come in the middle of it
            self._take_back()
            GENERATOR_LOCK.release()

    def _present(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the states of the default generators."""
        return torch.get_rng_state(), None if self._cuda is None else torch.cuda.get_rng_state(self.device)

    def _set(self, cpu: torch.Tensor, cuda: torch.Tensor | None) -> None:
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, self.device)

    def _take_back(self) -> None:
        """Give the default generators back the states that they had, unless they have them."""
        if self._lender is not None:
            self._set(*self._lender)
            self._lender = None

    def load_state_dict(self, state: tuple[torch.Tensor | None, torch.Tensor | None]) -> None:
        """Continue from the state of another stream."""
        cpu, cuda = state
        self._cpu, self._cuda = self._cpu if cpu is None else cpu, self._cuda if cuda is None else cuda

    def state_dict(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return copies of the states of the CPU's and the device's generator; None of those that never change."""
        if self.idle:  # they would be a tenth of a checkpoint of small networks
            return None, None
        return self._cpu.clone(), None if self._cuda is None else self._cuda.clone()
