"""Where is an environment's work ordered? On its lane: the pool alone knows of lanes, and there is one code path.

On a CPU a lane is a worker thread with one intra-op thread, which takes whatever environment is next; work is done
when a call returns. On a GPU it is a stream, on which an environment launches all that it does. What one lane made and
another reads goes through ``hand``; the host waits for lanes in ``drain``, once a step.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor

T = TypeVar("T")

STREAMS_PER_GPU = 4
"""Lanes on each GPU where nobody says how many."""


class Stream(Protocol):
    """What orders the work of a device."""

    def current(self) -> AbstractContextManager[Any]:
        """A block whose work is launched here."""
        ...

    def mark(self) -> Any:
        """A mark behind all that was launched here so far."""
        ...

    def wait(self, mark: Any) -> None:
        """What is launched here from now on begins when the work before ``mark`` is done."""
        ...

    def keep(self, tensor: Tensor) -> None:
        """The memory of ``tensor``, made elsewhere, is not given away before the work here is done with it."""
        ...

    def drain(self) -> None:
        """The host waits until all that was launched here is done."""
        ...


class NullStream:
    """That of a CPU, where a call returns when its work is done."""

    def current(self) -> AbstractContextManager[Any]:
        """Nothing changes."""
        return nullcontext()

    def mark(self) -> None:
        """Nothing is left to be done."""

    def wait(self, mark: None) -> None:
        """Nothing is left to be done."""

    def keep(self, tensor: Tensor) -> None:
        """Memory is given away when nobody refers to it."""

    def drain(self) -> None:
        """Nothing is left to be done."""


class CudaStream:
    """A stream of a GPU. Work that was launched on the default stream before it was made comes first."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))

    def current(self) -> AbstractContextManager[Any]:
        """A block whose work is launched on this stream."""
        return torch.cuda.stream(self._stream)

    def mark(self) -> torch.cuda.Event:
        """An event, recorded here."""
        mark: torch.cuda.Event = self._stream.record_event()
        return mark

    def wait(self, mark: torch.cuda.Event) -> None:
        """Order this stream behind an event."""
        self._stream.wait_event(mark)

    def keep(self, tensor: Tensor) -> None:
        """Tell the allocator that this stream uses the tensor."""
        tensor.record_stream(self._stream)

    def drain(self) -> None:
        """Wait for this stream, and for no other."""
        self._stream.synchronize()


class Lanes:
    """The lanes of a pool.

    streams: for each place in the pool that of its environment. workers: threads that run at once; 1: the caller's own.
    """

    def __init__(self, streams: Sequence[Stream], workers: int = 1) -> None:
        self._streams = streams
        self._workers = ThreadPoolExecutor(workers, "lane", torch.set_num_threads, (1,)) if workers > 1 else None

    def run(self, places: Sequence[int], act: Callable[[int], T]) -> list[T]:
        """What ``act`` gives for each place, each on its lane, in the order of ``places``.

        Where one raises the others are finished first; then what the first of ``places`` raised is raised.
        """

        def on_its_lane(place: int) -> T:
            with self.on(place):
                return act(place)

        if self._workers is None:
            return [on_its_lane(place) for place in places]
        futures = [self._workers.submit(on_its_lane, place) for place in places]
        wait(futures)
        return [future.result() for future in futures]

    def on(self, place: int) -> AbstractContextManager[Any]:
        """A block whose work is that of the environment at ``place``."""
        return self._streams[place].current()

    def hand(self, tensors: Iterable[Tensor], giver: int, taker: int) -> None:
        """What the environment at ``giver`` made is read by the one at ``taker`` from now on.

        The one place where a tensor goes from lane to lane.
        """
        own, other = self._streams[giver], self._streams[taker]
        if own is other:
            return
        other.wait(own.mark())
        for tensor in tensors:
            other.keep(tensor)

    def drain(self, places: Iterable[int]) -> None:
        """The host waits for the lanes of these places, each once."""
        for stream in dict.fromkeys(self._streams[place] for place in places):
            stream.drain()

    def close(self) -> None:
        """Let the threads go."""
        if self._workers is not None:
            self._workers.shutdown()


def lanes_for(devices_E: Sequence[torch.device], lanes: int | None = None) -> Lanes:
    """Lanes for environments on these devices: ``lanes`` threads, or streams on each GPU; None: as many as fit."""
    if all(device.type == "cpu" for device in devices_E):
        return Lanes([NullStream()] * len(devices_E), min(lanes or usable_cores(), len(devices_E)))
    return Lanes(assigned(devices_E, lanes or STREAMS_PER_GPU, CudaStream))


def assigned(devices_E: Sequence[torch.device], lanes: int, make: Callable[[torch.device], Stream]) -> list[Stream]:
    """A stream for each environment: ``lanes`` of each device, which its environments take in turn."""
    turns = {device: count() for device in devices_E}
    made: dict[tuple[torch.device, int], Stream] = {}
    streams: list[Stream] = []
    for device in devices_E:
        lane = (device, next(turns[device]) % lanes)
        if lane not in made:
            made[lane] = make(device)
        streams.append(made[lane])
    return streams


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
