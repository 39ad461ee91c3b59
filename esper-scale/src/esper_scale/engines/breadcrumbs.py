"""Breadcrumbs: whose code a worker runs, noted where the run can read it after the worker is lost.

A worker has one breadcrumb. It names the environment at work, and the seed while code of a seed runs.
"""

from __future__ import annotations

import json
import mmap
import struct
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE: Final = 4096
"""Bytes of a breadcrumb at most: names are short, and a memory map takes a page at least."""


@dataclass(frozen=True, slots=True)
class Breadcrumb:
    """Whose code runs.

    Attributes:
        pool_index: The environment, by its pool index.
        component: How messages name the component: with its package, and the environment.
        slot: The slot of the seed; empty where no seed is at work that could be taken out.
        number: The number of the seed; None: it is being built.
    """

    pool_index: int
    component: str
    slot: str = ""
    blueprint: str = ""
    number: int | None = None


class BreadcrumbMemory:
    """The breadcrumb of a worker, in memory that it shares with its parent. It must be made before the fork."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, SIZE)
        self._current = b""

    def leave(self, breadcrumb: Breadcrumb) -> None:
        """Note whose code runs from now on."""
        self._write(json.dumps(astuple(breadcrumb)).encode())

    @contextmanager
    def left(self, breadcrumb: Breadcrumb) -> Iterator[None]:
        """Note whose code runs in the block, and afterwards that of before.

        After an error it stays: a seed may have broken the interpreter so that the worker ends soon afterwards.
        """
        before = self._current
        self.leave(breadcrumb)
        yield
        self._write(before)

    def read(self) -> Breadcrumb | None:
        """Return the breadcrumb; None: there is none yet, or the worker was ended while it was written."""
        (length,) = struct.unpack_from("q", self._shared)
        try:
            return Breadcrumb(*json.loads(self._shared[8 : 8 + length]))
        except ValueError:
            return None

    def close(self) -> None:
        """Release the memory."""
        self._shared.close()

    def _write(self, encoded: bytes) -> None:
        self._current = encoded = encoded[: SIZE - 8]
        struct.pack_into("q", self._shared, 0, 0)  # until all of it is written, there is none
        self._shared[8 : 8 + len(encoded)] = encoded
        struct.pack_into("q", self._shared, 0, len(encoded))
