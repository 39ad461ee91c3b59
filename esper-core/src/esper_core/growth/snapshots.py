"""Snapshots: copy what trains in a host, and restore it in place.

Copied are parameters that require gradients, buffers, and frozen parameters that were seen to change; snapshots share
copies of buffers that did not change. Of other frozen parameters a snapshot keeps a checksum: it is restored only while
they are as they were. Tensors of another class than torch's own, such as quantised weights, are neither copied nor
checked unless they require gradients.

The memory of a copy is allocated once, and pinned if the host is on a GPU. Taking a snapshot waits for nothing, unless
parameters are frozen; restoring one waits for the current stream only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from esper_core.growth.dry_runs import checksum_of, device_of, is_plain
from esper_core.growth.serialization import decode_state, encode_state, form_of
from esper_core.leyline.errors import GrowthError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import nn

    from esper_core.growth.garden import Garden
    from esper_core.leyline.protocols import State


@dataclass(frozen=True, slots=True)
class _Cell:
    """One parameter or buffer, where it is registered, and its copy.

    Attributes:
        copy: None: the tensor is shared with the model, since it is not expected to change.
        checksum: None: the tensor is of a class whose bits cannot be read.
    """

    module: nn.Module
    attribute: str
    name: str
    tensor: Tensor
    is_buffer: bool
    copy: Tensor | None
    checksum: Tensor | None


class Snapshot:
    """A copy of the parameters and buffers that change in a model, without those of its living seeds."""

    def __init__(self, garden: Garden, others: Sequence[Snapshot] = ()) -> None:
        self._cells: list[_Cell] = []
        self.take(garden, others)

    def take(self, garden: Garden, others: Sequence[Snapshot] = ()) -> None:
        """Copy the model as it is now, into the memory of the previous copy if it fits.

        ``others`` are older snapshots, the newest first, with which buffers are shared that did not change.
        """
        before = {id(cell.tensor): cell for cell in self._cells}
        # Of buffers on a CPU: to compare them on a GPU the host would have to wait.
        latest = {
            (cell.name, id(cell.tensor)): cell.copy
            for other in others[:1]
            for cell in other._cells
            if cell.is_buffer and cell.tensor.is_cpu
        }
        # Copies that another snapshot shares must not be overwritten with this one's values.
        in_use = {id(cell.copy) for other in others for cell in other._cells}
        spare = iter([cell.copy for cell in self._cells if cell.copy is not None and id(cell.copy) not in in_use])
        self._cells = []
        self._fossils = _fossils(garden)
        self._device = device_of(garden.model)
        with torch.no_grad():
            for module, attribute, name, tensor, is_buffer in _host_tensors(garden):
                is_trained, copy = tensor.requires_grad, None
                checksum = checksum_of(tensor) if is_trained or is_plain(tensor) else None
                changes = is_buffer or _has_changed(before.get(id(tensor)), checksum)
                if is_trained or (checksum is not None and changes):
                    copy = latest.get((name, id(tensor)))
                    # Equal as numbers, 0 and -0 have other bits, and so another checksum.
                    if copy is None or not (torch.equal(copy, tensor) and checksum_of(copy) == checksum):
                        copy = _room(tensor, next(spare, None))
                        # Whatever reads the copies waits for the stream first, so training need not.
                        copy.copy_(tensor, non_blocking=True)
                self._cells.append(_Cell(module, attribute, name, tensor, is_buffer, copy, checksum))

    @property
    def is_outdated(self) -> bool:
        """Whether a parameter requires gradients that did not when the snapshot was taken."""
        return any(cell.copy is None and cell.tensor.requires_grad for cell in self._cells)

    def flaw(self, garden: Garden) -> str | None:
        """Return why it cannot be restored, because it is outdated, damaged or not finite; None if it can."""
        if _fossils(garden) != self._fossils:
            return "a seed was fossilised since it was taken"
        _wait_for_stream(self._device)
        for cell, checksum in self._checked():
            if cell.copy is None:
                if checksum_of(cell.tensor).item() != checksum:
                    return f'"{cell.name}" was not trained when it was taken, and has changed since'
                continue
            if checksum_of(cell.copy).item() != checksum:
                return f'its copy of "{cell.name}" is damaged'
            if not _is_finite(cell.tensor, cell.copy):
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
                if cell.copy is not None:
                    cell.tensor.copy_(cell.copy)
                # Some layers do not fill a buffer but put another tensor in its place.
                if cell.is_buffer and getattr(cell.module, cell.attribute) is not cell.tensor:
                    setattr(cell.module, cell.attribute, cell.tensor)
        garden.keeper.zero_grad()
        # That of now may hold what went wrong, such as NaN, and that of then was not copied.
        garden.keeper.forget_host_state()
        _wait_for_stream(self._device)

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the copies by the names of the parameters and buffers; what is shared has none."""
        _wait_for_stream(self._device)
        return {cell.name: cell.copy for cell in self._cells if cell.copy is not None}

    def state_dict(self) -> State:
        """Return the copies, and the checksums that reveal damage to them and changes of what is shared."""
        checksums = {cell.name: checksum for cell, checksum in self._checked()}
        return encode_state({"copies": dict(self.tensors()), "checksums": checksums})

    def load_state_dict(self, state: State) -> None:
        """Load the copies of another snapshot, of a network with the same seeds. Later buffers are left out.

        Raises:
            GrowthError: it is of another network; then nothing was changed.
        """
        saved = decode_state(state)
        copies, checksums, cells = saved["copies"], saved["checksums"], {cell.name: cell for cell in self._cells}
        parameters = {name for name, cell in cells.items() if cell.checksum is not None and not cell.is_buffer}
        strange = (parameters - checksums.keys()) | (checksums.keys() - cells.keys())
        strange |= {name for name in parameters & copies.keys() if form_of(cells[name].tensor) != form_of(copies[name])}
        if strange:
            hint = f"Received tensors that differ from the network's in: {', '.join(sorted(strange)[:5])}"
            raise GrowthError(Problem("E308", "the snapshot is of another network", hint=hint))
        self._cells = [
            _loaded(cell, copies.get(cell.name), checksums[cell.name]) if cell.name in checksums else cell
            for cell in self._cells
            if cell.name in checksums or cell.checksum is None
        ]

    def _checked(self) -> list[tuple[_Cell, int]]:
        """Return each cell that has a checksum with it, read from the device at once."""
        cells = [cell for cell in self._cells if cell.checksum is not None]
        checksums = [cell.checksum for cell in cells if cell.checksum is not None]
        return list(zip(cells, torch.stack(checksums).tolist(), strict=True)) if cells else []


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


def _has_changed(before: _Cell | None, checksum: Tensor | None) -> bool:
    """Return whether a tensor that is not trained was seen to change, now or earlier; a target network does."""
    if before is None or before.checksum is None or checksum is None:
        return False
    return before.copy is not None or before.checksum.item() != checksum.item()


def _room(tensor: Tensor, spare: Tensor | None) -> Tensor:
    """Return memory for a copy: ``spare`` if it fits."""
    pinned = tensor.is_cuda
    if spare is not None and (spare.shape, spare.dtype, spare.is_pinned()) == (tensor.shape, tensor.dtype, pinned):
        return spare
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pinned)


def _loaded(cell: _Cell, copy: Tensor | None, checksum: int) -> _Cell:
    """Return the cell with a copy that was saved; None: the tensor was shared."""
    bits = torch.tensor(checksum, dtype=torch.int64)
    if copy is None:
        return replace(cell, copy=None, checksum=bits)
    tensor = cell.tensor
    if form_of(tensor) != form_of(copy):
        tensor = torch.empty(copy.shape, dtype=copy.dtype, device=tensor.device)
    # In memory of its own: that of the cell may be shared with another snapshot.
    return replace(cell, tensor=tensor, copy=_room(tensor, None).copy_(copy), checksum=bits)


def _is_finite(tensor: Tensor, copy: Tensor) -> bool:
    """Return whether trained values are finite, and others not NaN: a mask may hold infinities."""
    if not (copy.is_floating_point() or copy.is_complex()):
        return True
    return bool(copy.isfinite().all() if tensor.requires_grad else not copy.isnan().any())


def _fossils(garden: Garden) -> tuple[tuple[str, int], ...]:
    return tuple((slot.name, seed.number) for slot in garden.slots.values() for seed in slot.fossils)


def _wait_for_stream(device: torch.device) -> None:
    """Wait for the current stream of the device; others continue."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
