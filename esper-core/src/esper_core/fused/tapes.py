"""Tapes: calls of torch that were recorded once and are made again for other tensors.

What several small networks compute in a pass takes as long as the Python code that asks for it. A pass of a structure
asks for the same calls in each batch: nothing in it can depend on numbers, which ``rows`` refuse to show. So a pass is
recorded below the rules, and each further one makes these calls alone. On a GPU what they launch is captured, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from esper_core.fused.rows import RULES, Rows, refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


@dataclass(slots=True)
class Call:
    """A call of torch.

    Attributes:
        fills: Where its arguments have tensors that differ from pass to pass, each with the register of that tensor.
        is_one: Whether it returns a tensor, rather than several.
        made: The registers of what it returns; none if that is no tensor.
        stays: Whether it changes one of its arguments.
        last: The registers that no later call reads.
    """

    func: Callable[..., Any]
    args: list[Any]
    named: dict[str, Any]
    result: Any
    fills: list[tuple[Any, Any, int]] = field(default_factory=list)
    is_one: bool = True
    made: range = range(0)
    stays: bool = False
    last: tuple[int, ...] = ()

    def connect(self, registers: dict[int, int], size: int) -> int:
        """Find the registers of its tensors, by their identities, and return how many registers there are now."""
        self.fills = [*_fills(self.args, registers), *_fills(self.named, registers)]
        result, self.result = self.result, None
        made = result if isinstance(result, tuple | list) else [result]
        if not any(isinstance(tensor, Tensor) for tensor in made):
            return size
        self.stays = any(result is argument for argument in self.args)
        self.is_one, self.made = isinstance(result, Tensor), range(size, size + len(made))
        registers.update({id(tensor): size + number for number, tensor in enumerate(made)})
        return size + len(made)

    def is_live(self, live: set[int]) -> bool:
        """Return whether a later call needs it."""
        return bool(self.made) and (self.stays or not live.isdisjoint(self.made))

    def release(self) -> None:
        """Drop the tensors of a pass."""
        for container, place, _ in self.fills:
            container[place] = None


class Tape(TorchFunctionMode):
    """Records, in a ``with`` block, what is computed from stacked tensors."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[Call] = []
        self._results: list[int] = []
        self._registers: list[Any] = []
        self._has_gradients = torch.is_grad_enabled()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Make a call, and record it; what is called with rows is recorded as its rule computes it."""
        named = dict(kwargs or {})
        # torch.as_tensor and its like do not ask their arguments, and without gradients nothing shows a dependence.
        if rows := [value for value in (*args, *named.values()) if isinstance(value, Rows)]:
            learned = self._has_gradients and any(value.stacked.requires_grad for value in rows)
            if not types or (learned and not torch.is_grad_enabled()):
                refuse(f'"{func.__name__}" takes what was computed as a constant')
        if any(issubclass(kind, Rows) for kind in types):
            if (rule := RULES.get(func)) is None:
                return func(*args, **named)
            with self:
                stacked = rule(func, *args, **named)
            return Rows.of(stacked)
        result = func(*args, **named)
        self._calls.append(Call(func, [_listed(value) for value in args], named, result))
        return result

    def finish(self, sources: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """End the recording: ``sources`` are the tensors that further passes replace, ``results`` those they return."""
        registers = {id(tensor): number for number, tensor in enumerate(sources)}
        size = len(sources)
        # All are kept until the last is connected, so that no tensor gets the identity of an earlier one.
        kept = [call.result for call in self._calls]
        for call in self._calls:
            size = call.connect(registers, size)
        del kept
        self._results = [registers[id(tensor)] for tensor in results]
        live, needed = set(self._results), []
        for call in reversed(self._calls):
            if call.is_live(live):
                touched = {*call.made, *(number for _, _, number in call.fills)}
                call.last = tuple(touched - live)
                live |= touched
                needed.append(call)
            call.release()
        self._calls, self._registers = needed[::-1], [None] * size

    def replay(self, sources: Sequence[Tensor]) -> list[Tensor]:
        """Make the calls again, from these tensors, and return the results."""
        registers = [*sources, *self._registers[len(sources) :]]
        for call in self._calls:
            for container, place, number in call.fills:
                container[place] = registers[number]
            result = call.func(*call.args, **call.named)
            call.release()
            registers[call.made.start : call.made.stop] = [result] if call.is_one else result
            # Else a pass would need the memory of all its steps at once, in evaluation, too.
            del result
            for number in call.last:
                registers[number] = None
        return [registers[number] for number in self._results]


class CudaGraph:
    """What a function launches on a GPU, to be launched again as a whole, with the same tensors."""

    def __init__(self, compute: Callable[[], Tensor]) -> None:
        self._graph = torch.cuda.CUDAGraph()
        # On a stream of this device, since torch's own belongs to the first. Other threads, which send batches, go on.
        with torch.cuda.graph(self._graph, stream=torch.cuda.Stream(), capture_error_mode="thread_local"):
            self.result = compute()

    def launch(self) -> None:
        """Do it again; its result is a tensor that the next launch overwrites."""
        self._graph.replay()


GRAPHS: Final[dict[str, Callable[[Callable[[], Tensor]], CudaGraph]]] = {"cuda": CudaGraph}
"""What captures a pass, by the type of the device. On a CPU there is nothing to launch."""


class CapturedPass:
    """A function of a batch that was captured with a batch of this shape; whatever else it reads keeps its place."""

    def __init__(self, compute: Callable[..., Tensor], batch: Sequence[Tensor]) -> None:
        self._batch = [tensor.clone() for tensor in batch]
        self._graph = GRAPHS[batch[0].device.type](lambda: compute(*self._batch))

    def __call__(self, batch: Sequence[Tensor]) -> Tensor:
        """Return what the function computes for a batch."""
        for place, tensor in zip(self._batch, batch, strict=True):
            place.copy_(tensor)
        self._graph.launch()
        return self._graph.result.clone()


def _listed(value: Any) -> Any:
    """Return a sequence of tensors as a list, in which they can be replaced."""
    return list(value) if isinstance(value, tuple) and any(isinstance(part, Tensor) for part in value) else value


def _fills(container: Any, registers: Mapping[int, int]) -> Iterator[tuple[Any, Any, int]]:
    """Yield where arguments have tensors that differ from pass to pass."""
    for place, value in container.items() if isinstance(container, dict) else enumerate(container):
        if isinstance(value, Tensor) and id(value) in registers:
            yield container, place, registers[id(value)]
        elif isinstance(value, list):
            yield from _fills(value, registers)
