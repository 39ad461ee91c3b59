"""Runtime settings of the process: torch's thread count, and glibc's allocator.

Each lane computes with one thread: another number of threads gives other bits, and small networks are no faster.
By default glibc returns large freed blocks to the kernel at once, so that a network which allocates the same blocks
with every batch waits for the kernel to clear them, page by page.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

M_TRIM_THRESHOLD: Final = -1
M_TOP_PAD: Final = -2
M_MMAP_THRESHOLD: Final = -3
"""Parameters of ``mallopt``, as malloc.h numbers them."""

BOUNDS: Final = {M_MMAP_THRESHOLD: 32 << 20, M_TRIM_THRESHOLD: 1 << 30, M_TOP_PAD: 64 << 20}
"""Bytes from which a block is mapped by itself and returned when it is freed (the most that glibc accepts); free bytes
at the end of the heap above which some are returned; and what a thread's heap takes from the kernel at once."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Make torch compute with one intra-op thread within the ``with`` block, in this thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def tune_allocator() -> None:
    """Make glibc keep freed memory, for the whole process; nothing on other systems. Computed numbers do not change."""
    if (mallopt := glibc_mallopt()) is not None:
        for bound in BOUNDS.items():
            mallopt(*bound)


def glibc_mallopt() -> Callable[[int, int], int] | None:
    """Return ``mallopt`` of glibc; None if this process does not run on glibc."""
    try:
        mallopt: Callable[[int, int], int] = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return None
    return mallopt
