"""Snapshots: copy a host's parameters and buffers, and restore them in place.

The memory of a copy is allocated once, and pinned if the host is on a GPU. Taking a snapshot waits for nothing;
restoring one waits for the current stream only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from esper_core.growth.dry_runs import device_of
from esper_core.growth.serialization import decode_state, encode_state, form_of
from esper_core.leyline.errors import GrowthError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor, nn

    from esper_core.growth.garden import Garden
    from esper_core.leyline.protocols import State


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""The dtype as which values of so many bytes are summed up; larger ones as int64."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """One parameter or buffer, where it is registered, and its copy."""

    module: nn.Module
    attribute: str
    name: str
    tensor: Tensor
    copy: Tensor
    is_buffer: bool


class Snapshot:
    """A copy of the parameters and buffers of a model, without those of its living seeds."""

    def __init__(self, garden: Garden) -> None:
        self._cells: list[_Cell] = []
        self.take(garden)

    def take(self, garden: Garden) -> None:
        """Copy the model as it is now, into the memory of the previous copy if it fits."""
        spare = [cell.copy for cell in self._cells]
        self._cells = []
        self._fossils = _fossils(garden)
        self._device = device_of(garden.model)
        checksums: list[Tensor] = []
        with torch.no_grad():
            for place, (module, attribute, name, tensor, is_buffer) in enumerate(_host_tensors(garden)):
                copy = _room(tensor, spare[place] if place < len(spare) else None)
                copy.copy_(tensor, non_blocking=True)
                checksums.append(_checksum(tensor))
                self._cells.append(_Cell(module, attribute, name, tensor, copy, is_buffer))
            self._checksums = torch.stack(checksums) if checksums else torch.zeros(0, dtype=torch.int64)

    def flaw(self, garden: Garden) -> str | None:
        """Return why it cannot be restored, because it is outdated, damaged or not finite; None if it can."""
        if _fossils(garden) != self._fossils:
            return "a seed was fossilised since it was taken"
        _wait_for_stream(self._device)
        for cell, checksum in zip(self._cells, self._checksums.tolist(), strict=True):
            if _checksum(cell.copy).item() != checksum:
                return f'its copy of "{cell.name}" is damaged'
            if not _is_finite(cell):
                return f'"{cell.name}" was not finite when it was taken'
        return None

    def restore(self, garden: Garden) -> None:
        """Restore parameters and buffers in place, and reset the state of the host's optimizers.

        Raises:
            GrowthError: there is a flaw; then nothing was changed.
        """
        if why := self.flaw(garden):
            hint = "Use an intact, finite snapshot of the same network."
            raise GrowthError(Problem("E308", f"the snapshot cannot be restored: {why}", hint=hint))
        with torch.no_grad():
            for cell in self._cells:
                cell.tensor.copy_(cell.copy)
                if cell.is_buffer and getattr(cell.module, cell.attribute) is not cell.tensor:
                    setattr(cell.module, cell.attribute, cell.tensor)
        garden.keeper.zero_grad()
        garden.keeper.forget_host_state()
        _wait_for_stream(self._device)

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the copies by the names of the parameters and buffers."""
        _wait_for_stream(self._device)
        return {cell.name: cell.copy for cell in self._cells}

    def state_dict(self) -> State:
        """Return the copies, and the checksums that reveal damage to them."""
        checksums = dict(zip((cell.name for cell in self._cells), self._checksums.tolist(), strict=True))
        return encode_state({"copies": dict(self.tensors()), "checksums": checksums})

    def load_state_dict(self, state: State) -> None:
        """Load the copies of another snapshot, of a network with the same seeds. Later buffers are left out.

        Raises:
            GrowthError: it is of another network; then nothing was changed.
        """
        saved = decode_state(state)
        copies, cells = saved["copies"], {cell.name: cell for cell in self._cells}
        strange = {name for name, cell in cells.items() if name not in copies and not cell.is_buffer}
        strange |= copies.keys() - cells.keys()
        strange |= {name for name, copy in copies.items() if name in cells and not _fits(cells[name], copy)}
        if strange:
            hint = f"Received tensors that differ from the network's in: {', '.join(sorted(strange)[:5])}"
            raise GrowthError(Problem("E308", "the snapshot is of another network", hint=hint))
        self._cells = [_of_form(cell, copies[cell.name]) for cell in self._cells if cell.name in copies]
        with torch.no_grad():
            for cell in self._cells:
                cell.copy.copy_(copies[cell.name])
        checksums = [saved["checksums"][cell.name] for cell in self._cells]
        self._checksums = torch.tensor(checksums, dtype=torch.int64)


def _host_tensors(garden: Garden) -> Iterator[tuple[nn.Module, str, str, Tensor, bool]]:
    """Yield each parameter once, and each module's buffers, without those of living seeds."""
    living = garden.living_seeds()
    excluded = {id(parameter) for seed in living for parameter in seed.parameters()}
    left_out = {id(module) for seed in living for module in seed.modules()}
    for path, module in garden.model.named_modules():
        prefix = f"{path}." if path else ""
        for attribute, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in excluded:
                excluded.add(id(parameter))
                yield module, attribute, prefix + attribute, parameter, False
        if id(module) not in left_out:
            for attribute, buffer in module.named_buffers(recurse=False):
                yield module, attribute, prefix + attribute, buffer, True


def _room(tensor: Tensor, spare: Tensor | None) -> Tensor:
    """Return memory for a copy: ``spare`` if it fits."""
    pinned = tensor.is_cuda
    if spare is not None and (spare.shape, spare.dtype, spare.is_pinned()) == (tensor.shape, tensor.dtype, pinned):
        return spare
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pinned)


def _fits(cell: _Cell, copy: Tensor) -> bool:
    """Return whether ``copy`` can be a copy of the cell. A buffer may have had another shape."""
    return cell.is_buffer or form_of(cell.copy) == form_of(copy)


def _of_form(cell: _Cell, copy: Tensor) -> _Cell:
    """Return the cell with room for ``copy``."""
    if form_of(cell.tensor) == form_of(copy):
        return cell
    tensor = torch.empty(copy.shape, dtype=copy.dtype, device=cell.tensor.device)
    return replace(cell, tensor=tensor, copy=_room(tensor, cell.copy))


def _checksum(tensor: Tensor) -> Tensor:
    """Return the sum of its bits read as integers: the same on every device, and other after any single change."""
    flat = tensor.contiguous().reshape(-1)
    return flat.view(_BITS.get(flat.element_size(), torch.int64)).sum(dtype=torch.int64)


def _is_finite(cell: _Cell) -> bool:
    """Return whether trained values are finite, and others not NaN: a mask may hold infinities."""
    if not (cell.copy.is_floating_point() or cell.copy.is_complex()):
        return True
    return bool(cell.copy.isfinite().all() if cell.tensor.requires_grad else not cell.copy.isnan().any())


def _fossils(garden: Garden) -> tuple[tuple[str, int], ...]:
    return tuple((slot.name, seed.number) for slot in garden.slots.values() for seed in slot.fossils)


def _wait_for_stream(device: torch.device) -> None:
    """Wait for the current stream of the device; others continue."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
