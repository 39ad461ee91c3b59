"""Runtime settings of the process: torch's thread count, and glibc's allocator.

Each lane computes with one thread: another number of threads gives other bits, and small networks are no faster.
By default glibc returns large freed blocks to the kernel at once, so that a network which allocates the same blocks
with every batch waits for the kernel to clear them, page by page.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

M_TRIM_THRESHOLD: Final = -1
M_TOP_PAD: Final = -2
M_MMAP_THRESHOLD: Final = -3
"""Parameters of ``mallopt``, as malloc.h numbers them."""

KEPT_BYTES: Final = 1 << 30
"""Free bytes at the end of the heap above which some are returned."""

LARGE_BYTES: Final = 32 << 20
"""Size from which a block is mapped by itself and returned when it is freed: the most that glibc accepts."""

HEAP_BYTES: Final = 64 << 20
"""What a thread's heap takes from the kernel at once, and returns when it is empty unless this pad is set."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Make torch compute with one intra-op thread within the block, in this thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def tune_allocator(mallopt: Callable[[int, int], int] | None = None) -> bool:
    """Make glibc keep freed memory, for the whole process. Computed numbers do not change.

    Args:
        mallopt: What to call instead of glibc's own, for tests.

    Returns:
        Whether glibc accepted it; False on other systems.
    """
    if mallopt is None:
        mallopt = glibc_mallopt()
    if mallopt is None:
        return False
    bounds = {M_MMAP_THRESHOLD: LARGE_BYTES, M_TRIM_THRESHOLD: KEPT_BYTES, M_TOP_PAD: HEAP_BYTES}
    accepted = [mallopt(parameter, value) for parameter, value in bounds.items()]
    return accepted == [1] * len(bounds)


def glibc_mallopt() -> Callable[[int, int], int] | None:
    """Return ``mallopt`` of glibc; None if this process does not run on glibc."""
    if "CS_GNU_LIBC_VERSION" not in getattr(os, "confstr_names", {}):
        return None
    try:
        if not (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc"):
            return None
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, ValueError, AttributeError):
        return None
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    own: Callable[[int, int], int] = mallopt
    return own
