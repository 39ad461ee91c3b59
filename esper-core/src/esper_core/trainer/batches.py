"""Which examples come next? An endless sequence of shuffled passes over the training data, drawn from a seed.

Where do batches come from? From data on the device, by index; or from the host, gathered and sent ahead.

What is streamed is gathered by a thread that lives as long as its environment, one batch ahead. Which examples come
next is the order's word alone: a batch that was gathered for an order that is no more is not used, and nothing is
handed out for having been gathered. So the numbers are those of resident data, and there is nothing to be remembered.
"""

from __future__ import annotations

import threading
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

import torch

from esper_core.growth import decode_state, encode_state
from esper_core.trainer.lanes import CudaStream, NullStream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from esper_core.leyline.protocols import Split, State
    from esper_core.trainer.lanes import Stream


class BatchOrder:
    """Hands out indices of ``batch_size`` examples; each example comes once in a pass, and no batch is short."""

    def __init__(self, examples: int, batch_size: int, seed: int) -> None:
        self._examples = examples
        self._batch_size = batch_size
        self._generator = torch.Generator().manual_seed(seed)
        self._rest = torch.empty(0, dtype=torch.int64)

    def next(self) -> torch.Tensor:
        """The indices of the next batch, on the CPU."""
        batch = self.peek()
        self._rest = self._rest[self._batch_size :]
        return batch

    def peek(self) -> torch.Tensor:
        """The same, and it is still to be handed out: whoever goes on from the state as it is now gets it, too."""
        while len(self._rest) < self._batch_size:
            self._rest = torch.cat([self._rest, torch.randperm(self._examples, generator=self._generator)])
        return self._rest[: self._batch_size]

    def state(self) -> State:
        """What is left of the pass, and where the generator stands."""
        return encode_state({"rest": self._rest, "generator": self._generator.get_state()})

    def load(self, state: State) -> None:
        """Hand out what another order would have, of as many examples and as large batches."""
        known = decode_state(state)
        self._rest = known["rest"]
        self._generator.set_state(known["generator"])


IMAGES = 4
"""Dimensions of a batch of them. Those that are taken out of it with brackets lie in memory as it does; those that
``index_select`` takes out, which is quicker, do not."""

CHUNK = 500
"""Examples that are evaluated at once."""


class Feed(Protocol):
    """Gives an environment what it trains on."""

    def next(self, order: BatchOrder) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the next batch, on the device."""
        ...

    def close(self) -> None:
        """Let everything go. May be called twice."""
        ...


class Resident:
    """Data that lies on the device."""

    def __init__(self, split: Split, device: torch.device) -> None:
        self._split = split
        self._device = device

    def next(self, order: BatchOrder) -> tuple[Tensor, Tensor]:
        """The batch, by index."""
        indices = order.next().to(self._device)
        inputs, targets = self._split.inputs, self._split.targets
        taken = inputs[indices] if inputs.dim() == IMAGES else inputs.index_select(0, indices)
        return taken, targets.index_select(0, indices)

    def close(self) -> None:
        """Nothing: the data is its task's."""


class _Asked:
    """A batch that was asked for: what came of it, when it is done."""

    def __init__(self, indices: Tensor) -> None:
        self.indices = indices
        self.done = threading.Event()
        self.batch: tuple[Tensor, Tensor] | None = None
        self.mark: Any = None
        self.error: BaseException | None = None


class Streamed:
    """Data that stays on the host, in memory or mapped from a file.

    stream: on which batches are sent; what reads one waits for it there. The thread ends with the feed, or when it is
    forgotten.
    """

    def __init__(self, split: Split, device: torch.device, stream: Stream | None = None) -> None:
        self._device = device
        self._stream = _stream_of(device) if stream is None else stream
        self._requests: SimpleQueue[_Asked | None] = SimpleQueue()
        work = (self._requests, split, device, self._stream)
        self._thread = threading.Thread(target=_work, args=work, name="feed", daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, self._requests.put, None)
        self._ahead: _Asked | None = None

    def next(self, order: BatchOrder) -> tuple[Tensor, Tensor]:
        """The batch, gathered while the one before was trained on; what went wrong on the way is raised here."""
        if not self._end.alive:
            msg = "this feed is closed"
            raise RuntimeError(msg)
        indices, asked = order.next(), self._ahead
        if asked is None or not torch.equal(asked.indices, indices):
            asked = self._ask(indices)
        self._ahead = self._ask(order.peek())
        asked.done.wait()
        if asked.error is not None:
            raise asked.error
        assert asked.batch is not None
        return self._received(asked.batch, asked.mark)

    def close(self) -> None:
        """End the thread, and wait for it."""
        self._end()
        self._ahead = None
        self._thread.join()

    def _ask(self, indices: Tensor) -> _Asked:
        asked = _Asked(indices)
        self._requests.put(asked)
        return asked

    def _received(self, batch: tuple[Tensor, Tensor], mark: Any) -> tuple[Tensor, Tensor]:
        """The batch, for whoever launches work on the current stream."""
        if mark is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(mark)
            for tensor in batch:
                tensor.record_stream(current)
        return batch


def _stream_of(device: torch.device) -> Stream:
    return CudaStream(device) if device.type == "cuda" else NullStream()


def _work(requests: SimpleQueue[_Asked | None], split: Split, device: torch.device, stream: Stream) -> None:
    """What the thread does until it is told to end."""
    torch.set_num_threads(1)
    while (asked := requests.get()) is not None:
        try:
            with stream.current():
                asked.batch = tuple(
                    sent(own.index_select(0, asked.indices), device) for own in (split.inputs, split.targets)
                )  # type: ignore[assignment]
                asked.mark = stream.mark()
        except BaseException as error:  # it is raised where the batch is asked for
            asked.error = error
        finally:
            asked.done.set()


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor`` on ``device``; to a GPU it goes without anybody waiting for it."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def chunks(split: Split, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """A whole split in its order, ``CHUNK`` examples at once, on ``device``."""
    for inputs, targets in zip(split.inputs.split(CHUNK), split.targets.split(CHUNK), strict=True):
        yield sent(inputs, device), sent(targets, device)


def feed_for(data: str, split: Split, device: torch.device) -> Feed:
    """The feed that the file asks for: ``resident`` or ``streamed``."""
    return Streamed(split, device) if data == "streamed" else Resident(split, device)
