"""Blocks: the numbers of several networks of one structure while they are trained as one program.

A network lies in one row of each tensor of a block: its parameters, their moments in Adam, and the running averages of
its weights. It is copied there when a step of the schedule begins, and back when that step ends, so that a batch copies
nothing, and takes one step of an optimizer and one of the averages for all networks. Between two steps each network has
tensors of its own, as in any other loop.

Each tensor takes a multiple of ``VECTOR`` numbers in its row, so that a row has the same bits in a block of any size.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from esper_core.fused.rows import VECTOR
from esper_core.growth import MOMENTS, take_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from esper_core.fused.networks import HostTensors
    from esper_core.growth import AdamSettings, GradientCollector

    Adam: TypeAlias = tuple[AdamSettings, dict[str, Any]]
    """The settings of an optimizer, and its state of a parameter, which is never empty."""

    Average: TypeAlias = tuple[Tensor, int]
    """A running average, and how many batches it has taken in."""

K = TypeVar("K")

AVERAGE: Final = "average"


@dataclass(frozen=True, slots=True)
class TrainingState:
    """How a network, or a seed that acts on it, is trained.

    Attributes:
        adams: Of each trained parameter.
        averages: Of each trained parameter, and then of each buffer of floats; None where there is none.
        clip_norm: Largest norm of its gradients in a batch; None: any.
        gradients: Collects the norm of each gradient; None: nobody asks for them.
    """

    adams: Sequence[Adam]
    averages: Sequence[Average | None]
    clip_norm: float | None = None
    gradients: GradientCollector | None = None


class Layout:
    """Where tensors of some shapes lie in a row."""

    def __init__(self, shapes: Sequence[torch.Size]) -> None:
        self._shapes = shapes
        self._sizes = [shape.numel() for shape in shapes]
        rooms = [-(-size // VECTOR) * VECTOR for size in self._sizes]
        self._ends = list(accumulate(rooms))
        self._starts = [end - room for end, room in zip(self._ends, rooms, strict=True)]
        self.width = sum(rooms)

    def views(self, rows: Tensor) -> list[Tensor]:
        """Return the tensors of a row, or of several rows, stacked."""
        places = zip(self._starts, self._sizes, self._shapes, strict=True)
        return [rows[..., start : start + size].view((*rows.shape[:-1], *shape)) for start, size, shape in places]

    def runs(self, keys: Sequence[Sequence[K | None]]) -> dict[K, list[Any]]:
        """Return the places of numbers with the same key, given that of each tensor of each row; None is no key."""
        complete = all(len(of_row) == len(self._shapes) for of_row in keys)
        if complete and len({key for of_row in keys for key in of_row}) == 1 and keys[0][0] is not None:
            return {keys[0][0]: [slice(None)]}
        runs: dict[K, list[Any]] = {}
        for row, of_row in enumerate(keys):
            for key, start, end in zip(of_row, self._starts, self._ends, strict=False):
                if key is None:
                    continue
                of_key = runs.setdefault(key, [])
                if of_key and of_key[-1][0] == row and of_key[-1][1].stop == start:
                    start = of_key.pop()[1].start
                of_key.append((row, slice(start, end)))
        return runs


class Block:
    """Networks of one structure, or guests of one kind: what trains, and buffers of floats, in ``values``.

    Attributes:
        leaves: The trained parameters, stacked, as leaves of autograd.
        gradients: Of the latest batch; ``of_leaves`` are parts of it, each for a leaf.
        after: The buffers after the latest batch, which are not taken in yet.
    """

    def __init__(self, networks: Sequence[HostTensors]) -> None:
        first, rows = networks[0], len(networks)
        self.layout = Layout([tensor.shape for tensor in first.varying])
        self.values, self.gradients = networks[0].varying[0].new_zeros(2, rows, self.layout.width).unbind()
        self.rows = [self.layout.views(row) for row in self.values]
        trained, stacks = len(first.trained), self.layout.views(self.values)
        self.leaves = [stack.requires_grad_() for stack in stacks[:trained]]
        self.of_leaves = self.layout.views(self.gradients)[:trained]
        self.frozen = [tensor.new_empty((rows, *tensor.shape)) for tensor in first.frozen]
        self.buffers = stacks[trained:] + [tensor.new_empty((rows, *tensor.shape)) for tensor in first.counts]
        self.after = self.buffers

    @torch.no_grad()
    def read(self, networks: Sequence[HostTensors]) -> None:
        """Take in the tensors of each network."""
        for row, network in enumerate(networks):
            for tensor, source in self._pairs(row, network):
                tensor.copy_(source)
            for stack, source in zip(self.frozen, network.frozen, strict=True):
                stack[row] = source

    @torch.no_grad()
    def write(self, row: int, network: HostTensors) -> None:
        """Copy the tensors of a network back."""
        for source, tensor in self._pairs(row, network):
            tensor.copy_(source)

    def _pairs(self, row: int, network: HostTensors) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(self.rows[row], network.varying, strict=True)
        for stack, tensor in zip(self.buffers[len(self.buffers) - len(network.counts) :], network.counts, strict=True):
            yield stack[row], tensor


class Updates:
    """Takes the steps of Adam of a block, and keeps its running averages; ``half_life`` is theirs, 0 where none are."""

    def __init__(self, block: Block, half_life: float) -> None:
        self._block, self._half_life = block, half_life
        self._kept = {name: torch.zeros_like(block.values) for name in (*MOMENTS, AVERAGE)}
        self._rows = {name: [block.layout.views(row) for row in rows] for name, rows in self._kept.items()}
        self._adams: list[tuple[AdamSettings, list[list[Tensor]]]] = []
        self._averages: list[tuple[int, list[Tensor], list[Tensor]]] = []
        self._limits: list[tuple[int, float]] = []
        self._norms: list[Tensor] | None = None
        self._batches = 0

    @torch.no_grad()
    def read(self, states: Sequence[TrainingState]) -> None:
        """Take in what each network has."""
        self._batches, self._norms = 0, None if states[0].gradients is None else []
        for row, state in enumerate(states):
            for tensor, source in self._pairs(row, state):
                tensor.copy_(source)
        self._limits = [(row, state.clip_norm) for row, state in enumerate(states) if state.clip_norm is not None]
        block, averages = self._block, self._kept[AVERAGE]
        # Read at once, since a GPU would be waited for each time.
        counts = iter(torch.stack([kept["step"] for state in states for _, kept in state.adams]).tolist())
        steps = [[(settings, next(counts)) for settings, _ in state.adams] for state in states]
        stepped = block.values, block.gradients, *(self._kept[name] for name in MOMENTS)
        self._adams = [
            (settings, [*([rows[run] for run in runs] for rows in stepped), [averages.new_tensor(count) for _ in runs]])
            for (settings, count), runs in block.layout.runs(steps).items()
        ]
        batches = [[None if average is None else average[1] for average in state.averages] for state in states]
        self._averages = [
            (count, [averages[run] for run in runs], [block.values[run] for run in runs])
            for count, runs in block.layout.runs(batches).items()
        ]

    @torch.no_grad()
    def step(self) -> None:
        """Take one step of each network, given the gradients of a batch, and keep its buffers."""
        block = self._block
        self._batches += 1
        if self._norms is not None:
            self._norms.append(norms_of(block))
        for row, limit in self._limits:
            norm = get_total_norm(block.layout.views(block.gradients[row]))
            block.gradients[row] *= (limit / (norm + 1e-6)).clamp(max=1.0)  # as torch's clip_grad_norm_
        for settings, tensors in self._adams:
            settings.step(*tensors)
        for buffer, after in zip(block.buffers, block.after, strict=True):
            buffer.copy_(after)
        for count, averages, values in self._averages if self._half_life else ():
            take_in(averages, values, self._half_life, count + self._batches)

    @torch.no_grad()
    def write(self, row: int, state: TrainingState) -> None:
        """Copy back what a network has now."""
        for source, tensor in self._pairs(row, state):
            tensor.copy_(source)
        for _, kept in state.adams:
            kept["step"] += self._batches
        for norms in self._norms or ():
            assert state.gradients is not None
            state.gradients.record(norms[row])

    def _pairs(self, row: int, state: TrainingState) -> Iterator[tuple[Tensor, Tensor]]:
        for name in MOMENTS:
            for tensor, (_, kept) in zip(self._rows[name][row], state.adams, strict=False):
                yield tensor, kept[name]
        for tensor, average in zip(self._rows[AVERAGE][row], state.averages, strict=True):
            if average is not None:
                yield tensor, average[0]


def norms_of(block: Block) -> Tensor:
    """Return the norm of each gradient of each row."""
    rows = len(block.gradients)
    # A single row would be summed in another order.
    gradients = block.gradients if rows > 1 else torch.cat([block.gradients, block.gradients])
    stacks = block.layout.views(gradients)[: len(block.leaves)]
    return torch.stack([torch.linalg.vector_norm(stack.view(len(stack), -1), dim=1) for stack in stacks], 1)[:rows]
