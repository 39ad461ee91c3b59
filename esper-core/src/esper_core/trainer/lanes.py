"""Lanes: where the work of each environment runs, in threads on a CPU and in streams on a GPU.

On a CPU a lane is a worker thread with one intra-op thread, which takes whatever environment is next; work is done when
a call returns. On a GPU it is a stream, on which an environment launches everything. ``hand`` passes a tensor from one
lane to another, and ``drain`` waits for lanes, once a step. Only the pool knows of lanes, so there is one code path.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor

T = TypeVar("T")

STREAMS_PER_GPU = 4
"""Lanes on each GPU by default."""


class CudaStream:
    """A stream of a GPU, which begins after the work that the default stream had when it was made."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))

    def current(self) -> AbstractContextManager[Any]:
        """Return a context whose work is launched on this stream."""
        return torch.cuda.stream(self._stream)

    def mark(self) -> torch.cuda.Event:
        """Return an event behind all work that was launched here so far."""
        return self._stream.record_event()  # type: ignore[no-any-return]

    def wait(self, mark: torch.cuda.Event) -> None:
        """Make work that is launched here from now on begin after the work before ``mark``."""
        self._stream.wait_event(mark)

    def keep(self, tensor: Tensor) -> None:
        """Keep the memory of a tensor from elsewhere until the work here is done with it."""
        tensor.record_stream(self._stream)

    def drain(self) -> None:
        """Block the host until all work that was launched here is done."""
        self._stream.synchronize()


class Lanes:
    """The lanes of a pool.

    Args:
        streams: The stream of each environment, by its pool index; none on a CPU.
        workers: How many threads run at once; 1: the caller's own.
        on_turn: Called with the pool index of each environment whose work begins.
    """

    def __init__(
        self,
        streams: Sequence[CudaStream] = (),
        workers: int = 1,
        on_turn: Callable[[int], None] = lambda pool_index: None,
    ) -> None:
        self._streams = streams
        self._on_turn = on_turn
        self.width = workers
        """How many environments are computed at once on a CPU."""
        # With one intra-op thread each, as the run's own thread has: more would add sums in another order, to other
        # bits.
        self._workers = ThreadPoolExecutor(workers, "lane", torch.set_num_threads, (1,)) if workers > 1 else None

    def run(self, pool_indices: Iterable[int], act: Callable[[int], T]) -> list[T]:
        """Return what ``act`` gives for each index, each on its lane, in the order of ``pool_indices``.

        If some raise an error, the others are finished first. Then the error of the first of them is raised.
        """

        def on_its_lane(pool_index: int) -> T:
            with self.on(pool_index):
                return act(pool_index)

        if self._workers is None:
            return [on_its_lane(pool_index) for pool_index in pool_indices]
        futures = [self._workers.submit(on_its_lane, pool_index) for pool_index in pool_indices]
        # Whoever handles an error must not find other environments half trained, or still at work.
        wait(futures)
        return [future.result() for future in futures]

    def on(self, pool_index: int) -> AbstractContextManager[Any]:
        """Return a context whose work belongs to the environment at ``pool_index``."""
        self._on_turn(pool_index)
        return self._streams[pool_index].current() if self._streams else nullcontext()

    def hand(self, tensor: Tensor, giver: int, taker: int) -> None:
        """Make a tensor of ``giver`` readable for ``taker``; tensors pass from lane to lane nowhere else."""
        if self._streams and (giver_stream := self._streams[giver]) is not (taker_stream := self._streams[taker]):
            taker_stream.wait(giver_stream.mark())
            taker_stream.keep(tensor)

    def drain(self, pool_indices: Iterable[int]) -> None:
        """Block the host until the lanes of these indices are done, each once."""
        for stream in dict.fromkeys(self._streams[pool_index] for pool_index in pool_indices if self._streams):
            stream.drain()

    def close(self) -> None:
        """End the threads."""
        if self._workers is not None:
            self._workers.shutdown()


def lanes_for(devices_E: Sequence[torch.device], lanes: int | None, on_turn: Callable[[int], None]) -> Lanes:
    """Return lanes for environments: ``lanes`` threads on a CPU, or streams on each GPU; None: as many as fit."""
    if any(device.type == "cuda" for device in devices_E):
        return Lanes(assigned(devices_E, lanes or STREAMS_PER_GPU, CudaStream), on_turn=on_turn)
    return Lanes(workers=min(lanes or usable_cores(), len(devices_E)), on_turn=on_turn)


def assigned(
    devices_E: Sequence[torch.device], lanes: int, make: Callable[[torch.device], CudaStream]
) -> list[CudaStream]:
    """Return a stream for each environment: each device has ``lanes`` of them, which its environments take in turn."""
    turns = {device: count() for device in devices_E}
    stream_of = cache(lambda device, lane: make(device))
    return [stream_of(device, next(turns[device]) % lanes) for device in devices_E]


def usable_cores() -> int:
    """Return how many cores this process may use."""
    # A batch system, or taskset, may grant fewer cores than ``os.cpu_count`` tells.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
