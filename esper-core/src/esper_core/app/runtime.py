"""How many threads compute? One in each lane: another number gives other bits, and small networks are no faster.

Does memory that was freed stay with the process? By default glibc gives large blocks back at once, and a network
that allocates the same ones with every batch waits for the kernel to clear them, page by page.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def one_thread() -> Iterator[None]:
    """A block in which torch computes with one intra-op thread in this thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


M_TRIM_THRESHOLD: Final = -1
M_TOP_PAD: Final = -2
M_MMAP_THRESHOLD: Final = -3
"""What ``mallopt`` calls them."""

KEPT_BYTES: Final = 1 << 30
"""Free bytes at the end of the heap above which some are given back."""

LARGE_BYTES: Final = 32 << 20
"""Bytes from which on a block is mapped by itself, and given back when it is freed: the most that glibc takes."""

HEAP_BYTES: Final = 64 << 20
"""What a thread takes from the kernel at once, and gives back when nothing lies in it, unless it is told to keep it
beside what it uses. (The first thread has another heap, to which the bound above applies.)"""


def tune_allocator(mallopt: Callable[[int, int], int] | None = None) -> bool:
    """Tell glibc to keep its memory, for the whole process; whether it does. Elsewhere nothing happens.

    Numbers that are computed stay what they are.
    """
    if mallopt is None:
        mallopt = glibc_mallopt()
    if mallopt is None:
        return False
    bounds = {M_MMAP_THRESHOLD: LARGE_BYTES, M_TRIM_THRESHOLD: KEPT_BYTES, M_TOP_PAD: HEAP_BYTES}
    taken = [mallopt(parameter, value) for parameter, value in bounds.items()]
    return taken == [1] * len(bounds)


def glibc_mallopt() -> Callable[[int, int], int] | None:
    """glibc's own, where this process runs on it."""
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
