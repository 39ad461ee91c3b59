"""Networks: their tensors, the seeds that act on single ones, and which are equal but for their numbers.

Two networks have one signature if their modules have the same classes, names, attributes and forms of tensors, and the
same seeds were fossilised in the same slots. Living seeds do not count, unless they act on the host: they are trained
apart from it. One that is trained on a branch is the ``Guest`` of a network, and acts on it and not on the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from logging import Logger
from pathlib import PurePath
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from esper_core.fused.rows import refuse
from esper_core.growth import Alpha, Seed, Slot, plain_class

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

OF_SEEDS = ("blueprint", "version", "blend", "identity", "adapts", "alpha", "acts")
"""Attributes of a fossilised seed that say what it computes; the others say where it came from."""

REGISTERED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
"""Attributes in which torch keeps what is looked at by itself."""


CONSTANT = (bool, int, float, complex, str, bytes, type, type(None), range, Enum, PurePath)
CONSTANT_OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Values that do not change."""

STATELESS = (BuiltinFunctionType, ModuleType, Logger, nn.Module)
"""Values that are equal to themselves alone: what modules compute with is looked at by itself."""

DATA = (bool, int, float, list, dict, set, SimpleNamespace)
"""What the code of a module may count with, in its class or its file."""


def host_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of a network by name, without living seeds."""
    living = {
        id(part)
        for slot in model.modules()
        if isinstance(slot, Slot)
        for seed in slot.nursery
        for part in seed.modules()
    }
    for path, module in model.named_modules():
        if id(module) not in living:
            yield path, module


def signature_of(model: nn.Module) -> Hashable:
    """Return what networks that are trained as one have in common.

    Raises:
        NotFusedError: The network has something that several networks cannot share, such as a hook.
    """
    numbers: dict[int, int] = {}

    def forms(module: nn.Module) -> Iterator[Hashable]:
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            # A tensor that is registered twice has the same number in both places.
            number = numbers.setdefault(id(tensor), len(numbers))
            if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer):
                refuse(f'"{name}" is not a tensor of torch\'s own class')
            if not tensor.is_contiguous():
                refuse(f'"{name}" is laid out for images, or in another unusual way')
            yield name, number, isinstance(tensor, nn.Parameter), tensor.shape, tensor.dtype, tensor.requires_grad

    return tuple(
        (path, plain_class(module), attributes_of(path, module), tuple(forms(module)))
        for path, module in host_modules(model)
    )


def attributes_of(path: str, module: nn.Module) -> Hashable:
    """Return the attributes of a module that say what it computes."""
    if isinstance(module, Slot):
        return module.name, module.part is None
    if isinstance(module, Seed):
        if module.reads_layer:
            refuse(f"{module.title} reads the weights of its layer")
        return tuple(frozen(path, getattr(module, name)) for name in (*OF_SEEDS, "training"))
    attributes = dict(vars(module))
    for name in REGISTERED:
        attributes.pop(name, None)
    for name in [
        name for name in attributes if name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called"))
    ]:
        hooks = attributes.pop(name)
        # Of the slots there is one for all networks; hooks of others would see tensors that are none of theirs.
        if hooks and not all(isinstance(hook, Slot) for hook in getattr(hooks, "values", tuple)()):
            refuse(f'hook on module "{path}"')
    return tuple((name, frozen(path, value)) for name, value in sorted(attributes.items()))


def frozen(path: str, value: Any, within: tuple[Any, ...] = ()) -> Hashable:
    """Return a value that is equal for what computes equally, and is another one once its state has changed.

    A program repeats what a module computed once, and would miss the state of an object that it does not know.
    """
    if isinstance(value, CONSTANT + CONSTANT_OF_TORCH + STATELESS):
        return type(value), value
    if isinstance(value, Tensor):
        refuse(f'module "{path}" has a tensor that is neither a parameter nor a buffer')
    if any(value is other for other in within):
        return "one of the objects around it"
    within = (*within, value)
    if isinstance(value, tuple | list):
        return tuple(frozen(path, member, within) for member in value)
    if isinstance(value, set | frozenset):
        return frozenset(frozen(path, member, within) for member in value)
    if isinstance(value, dict):
        return tuple((repr(name), frozen(path, member, within)) for name, member in value.items())
    if isinstance(value, Alpha):
        return value.value
    return type(value), frozen(path, _state_of(path, value), within)


def _state_of(path: str, value: Any) -> dict[str, Any]:
    """Return all that an object remembers, by name."""
    if isinstance(value, FunctionType):
        return {"code": (repr(value.__code__), value.__defaults__), "cells": _contents(value)}
    if isinstance(value, MethodType):
        return {"function": value.__func__, "of": value.__self__}
    if isinstance(value, partial):
        return {"function": value.func, "arguments": value.args, "named": value.keywords}
    kind: Any = type(value)
    if kind.__new__ is not object.__new__ and kind is not SimpleNamespace:  # it is not written in Python alone
        refuse(f'module "{path}" has an attribute of the type {kind.__name__}, whose state cannot be seen')
    slots = {name for base in kind.__mro__ for name in getattr(base, "__slots__", ())}
    return {**getattr(value, "__dict__", {}), **{name: getattr(value, name, None) for name in sorted(slots)}}


def _contents(function: FunctionType) -> list[Any]:
    return [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]


def surroundings_of(model: nn.Module) -> Hashable:
    """Return the data in classes and files of a network's modules that their code may change in a pass."""
    seen: dict[tuple[type, str], Hashable] = {}
    for path, module in host_modules(model):
        kind: Any = plain_class(module)
        code = getattr(kind.forward, "__code__", None)
        if code is None or kind.__module__.startswith(("torch.", "esper_")):
            continue
        outside = {name: kind.forward.__globals__[name] for name in code.co_names if name in kind.forward.__globals__}
        for name, value in {**outside, **vars(kind)}.items():
            if isinstance(value, Iterator):
                refuse(f'the code of module "{path}" takes numbers from {name}, whose state cannot be seen')
            if isinstance(value, DATA) and not name.startswith("__"):
                seen[kind, name] = frozen(path, value)
    return tuple(seen.items())


@dataclass(frozen=True, slots=True)
class HostTensors:
    """The tensors of one network, without those of living seeds: each once, in the order of its modules.

    Buffers of floats, which have running averages, come before the others. ``guest`` is the seed that acts on it, if
    one does.
    """

    trained: Sequence[Tensor]
    frozen: Sequence[Tensor]
    buffers: Sequence[Tensor]
    guest: Guest | None = None

    @classmethod
    def of(cls, model: nn.Module) -> HostTensors:
        """Return the tensors of a network, or of a seed, as they are registered now."""
        modules = [module for _, module in host_modules(model)]
        parameters = list(
            dict.fromkeys(parameter for module in modules for parameter in module.parameters(recurse=False))
        )
        buffers = {id(buffer): buffer for module in modules for buffer in module.buffers(recurse=False)}
        return cls(
            [parameter for parameter in parameters if parameter.requires_grad],
            [parameter for parameter in parameters if not parameter.requires_grad],
            sorted(buffers.values(), key=lambda buffer: not buffer.is_floating_point()),
        )

    @property
    def parameter_count(self) -> int:
        """How many numbers its parameters have."""
        return sum(parameter.numel() for parameter in (*self.trained, *self.frozen))

    @property
    def varying(self) -> list[Tensor]:
        """What trains, and the buffers of floats."""
        return [*self.trained, *(buffer for buffer in self.buffers if buffer.is_floating_point())]

    @property
    def counts(self) -> list[Tensor]:
        """The other buffers."""
        return [buffer for buffer in self.buffers if not buffer.is_floating_point()]

    def every(self) -> list[Tensor]:
        """Return all of them, without those of the guest."""
        return [*self.trained, *self.frozen, *self.buffers]

    def replaced(self, tensors: Mapping[int, Tensor]) -> HostTensors:
        """Return these tensors with others in the places of some, given by their identities."""
        trained, frozen, buffers = (
            [tensors.get(id(tensor), tensor) for tensor in part] for part in (self.trained, self.frozen, self.buffers)
        )
        return HostTensors(trained, frozen, buffers)

    def with_guest(self) -> tuple[HostTensors, ...]:
        """Return the tensors of the network, and those of its guest."""
        return (self,) if self.guest is None else (self, self.guest.tensors)


@dataclass(frozen=True, slots=True)
class Guest:
    """A seed that acts at a constant strength on one network of a pass.

    Attributes:
        kind: What guests that are computed at once have in common.
    """

    kind: Hashable
    slot: Slot
    seed: Seed
    strength: float
    tensors: HostTensors

    @classmethod
    def of(cls, slot: Slot, seed: Seed, strength: float) -> Guest:
        """Return a seed as a guest; NotFusedError if it has something that several cannot share."""
        return cls((slot.name, strength, signature_of(seed)), slot, seed, strength, HostTensors.of(seed))

    def replaced(self, tensors: Mapping[int, Tensor]) -> Guest:
        """Return the guest with other tensors in the places of some, given by their identities."""
        return replace(self, tensors=self.tensors.replaced(tensors))
