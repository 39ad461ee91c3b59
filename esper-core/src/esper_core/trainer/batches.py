"""Batches: their order, and where they come from.

The order is an endless sequence of shuffled passes over the training data, drawn from a seed. Resident data lies on the
device and is indexed there. Streamed data stays on the host, in memory or mapped from a file: a thread gathers and
sends each batch while the one before is trained on. The order alone says which examples come next, so the numbers are
those of resident data.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from esper_core.growth import decode_state, encode_state
from esper_core.trainer.lanes import CudaStream

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from concurrent.futures import Future

    from torch import Tensor

    from esper_core.leyline import Split, State


CPU = torch.device("cpu")

IMAGES = 4
"""Dimensions of a batch of images. Indexing with brackets keeps their memory layout; ``index_select``, which is faster,
does not."""

CHUNK = 500
"""Examples that are evaluated at once."""


class BatchOrder:
    """Indices of ``batch_size`` examples at a time; each example comes once in a pass, and no batch is short.

    They are drawn on the CPU, and sent to ``device`` once a pass.
    """

    def __init__(self, examples: int, batch_size: int, seed: int, device: torch.device = CPU) -> None:
        self._examples = examples
        self._batch_size = batch_size
        self._device = device
        # Of the CPU, whatever the device: a run on a GPU gets the same batches.
        self._generator = torch.Generator().manual_seed(seed)
        self._remaining = torch.empty(0, dtype=torch.int64, device=device)

    def next(self) -> torch.Tensor:
        """Return the indices of the next batch."""
        batch = self.peek()
        self._remaining = self._remaining[self._batch_size :]
        return batch

    def peek(self) -> torch.Tensor:
        """Return what ``next`` will return. In a saved state it is still to come."""
        # A batch may be larger than the data, and so span several passes.
        while len(self._remaining) < self._batch_size:
            drawn = torch.randperm(self._examples, generator=self._generator)
            self._remaining = torch.cat([self._remaining, sent(drawn, self._device)])
        return self._remaining[: self._batch_size]

    def state_dict(self) -> State:
        """Return what is left of the pass, and the generator's state."""
        return encode_state(
            {"remaining": self._remaining.to("cpu", torch.int32), "generator": self._generator.get_state()}
        )

    def load_state_dict(self, state: State) -> None:
        """Restore what ``state_dict`` returned, for the same numbers of examples and batch size."""
        saved = decode_state(state)
        self._remaining = sent(saved["remaining"].long(), self._device)
        self._generator.set_state(saved["generator"])


@dataclass(frozen=True, slots=True)
class Resident:
    """Batches of data on the device."""

    split: Split

    def next(self, order: BatchOrder) -> tuple[Tensor, Tensor]:
        """Return the next batch; ``order`` is on the device of the data."""
        return self.take(order.next())

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of these examples."""
        inputs, targets = self.split.inputs, self.split.targets
        taken = inputs[indices] if inputs.dim() == IMAGES else inputs.index_select(0, indices)
        return taken, targets.index_select(0, indices)

    def close(self) -> None:
        """Do nothing: the data belongs to the task."""


class Streamed:
    """Batches of data on the host, gathered one ahead by a thread that ends with the feed.

    On a GPU they are sent on ``stream``, and readers of a batch wait for it there.
    """

    def __init__(self, split: Split, device: torch.device, stream: CudaStream | None = None) -> None:
        self._split = split
        self._device = device
        self._stream = stream
        # With one intra-op thread, since more would take cores from the training that runs meanwhile.
        self._thread = ThreadPoolExecutor(1, "feed", torch.set_num_threads, (1,))
        self._ahead: tuple[Tensor, Future[Any]] | None = None

    def next(self, order: BatchOrder) -> tuple[Tensor, Tensor]:
        """Return the next batch; raise here what went wrong in the thread."""
        indices, ahead = order.next(), self._ahead
        # A new episode, or a state that was loaded, goes on with other batches than the one gathered.
        if ahead is None or not torch.equal(ahead[0], indices):
            ahead = self._gather_ahead(indices)
        self._ahead = self._gather_ahead(order.peek())
        (inputs, targets), sent_mark = ahead[1].result()
        if sent_mark is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(sent_mark)
            for tensor in (inputs, targets):
                # The memory belongs to the feed's stream, and would be reused there while this one still reads it.
                tensor.record_stream(current)
        return inputs, targets

    def close(self) -> None:
        """End the thread, and wait for it."""
        self._ahead = None
        self._thread.shutdown()

    def _gather_ahead(self, indices: Tensor) -> tuple[Tensor, Future[Any]]:
        return indices, self._thread.submit(self._gather, indices)

    def _gather(self, indices: Tensor) -> tuple[list[Tensor], torch.cuda.Event | None]:
        """Gather and send a batch, and return it with a mark behind its work on the stream."""
        split = self._split
        with nullcontext() if self._stream is None else self._stream.current():
            batch = [sent(tensor.index_select(0, indices), self._device) for tensor in (split.inputs, split.targets)]
            return batch, None if self._stream is None else self._stream.mark()


def next_batches(sources: Sequence[tuple[Resident | Streamed, BatchOrder]]) -> tuple[Tensor, Tensor]:
    """Return the next batches of several feeds, stacked; those that share their data are gathered at once."""
    first, _ = sources[0]
    if isinstance(first, Resident) and all(
        isinstance(feed, Resident) and feed.split is first.split for feed, _ in sources
    ):
        batches = first.take(torch.cat([order.next() for _, order in sources]))
        return batches[0].unflatten(0, (len(sources), -1)), batches[1].unflatten(0, (len(sources), -1))
    inputs, targets = zip(*(feed.next(order) for feed, order in sources), strict=True)
    return torch.stack(inputs), torch.stack(targets)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Return ``tensor`` on ``device``; to a GPU it is sent without waiting for it."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        # From memory that is not pinned a copy blocks, even with ``non_blocking``.
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def chunks(split: Split, device: torch.device) -> Iterable[tuple[Tensor, Tensor]]:
    """Return a whole split in its order, ``CHUNK`` examples at a time, on ``device``."""
    parts = zip(split.inputs.split(CHUNK), split.targets.split(CHUNK), strict=True)
    if split.inputs.device == split.targets.device == device:
        return parts
    return ((sent(inputs, device), sent(targets, device)) for inputs, targets in parts)


def feed_for(data: str, split: Split, device: torch.device) -> Resident | Streamed:
    """Return the feed that ``compute.data`` asks for: ``resident`` or ``streamed``."""
    if data == "resident":
        return Resident(split)
    return Streamed(split, device, CudaStream(device) if device.type == "cuda" else None)
