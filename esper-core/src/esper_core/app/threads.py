"""How many threads compute? One in each lane: another number gives other bits, and small networks are no faster."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def one_thread() -> Iterator[None]:
    """A block in which torch computes with one intra-op thread in this thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
