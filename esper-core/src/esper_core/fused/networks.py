"""Networks: their tensors, the seeds that act on single ones, and which are equal but for their numbers.

Two networks have one signature if their modules have the same classes, names, attributes and forms of tensors, and the
same seeds were fossilised in the same slots. Living seeds do not count, unless they act on the host: they are trained
apart from it. One that is trained on a branch is the ``Guest`` of a network, and acts on it and not on the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from logging import Logger
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    NoneType,
    SimpleNamespace,
)
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from esper_core.fused.rows import refuse
from esper_core.growth import Alpha, Seed, Slot, plain_class

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

OF_SEEDS = ("blueprint", "version", "blend", "identity", "adapts", "alpha", "acts")
"""Attributes of a fossilised seed that say what it computes; the others say where it came from."""

REGISTERED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
"""Attributes in which torch keeps what is looked at by itself."""

GRADIENT_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""Attributes in which a tensor keeps hooks on its gradient: no copy of it has them, so that no trial shows them."""

CONSTANT = (
    *(int, float, complex, str, bytes, type, NoneType, range, Enum, PurePath, CodeType),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, ModuleType, Logger, nn.Module),
)
"""Values that do not change here. The modules of a network are looked at by themselves."""


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
    numbers, memory = dict[int, int](), dict[int, int]()

    def forms(module: nn.Module) -> Iterator[Hashable]:
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            # A tensor that is registered twice has the same number in both places.
            number = numbers.setdefault(id(tensor), len(numbers))
            if type(tensor) not in (Tensor, nn.Parameter):
                refuse(f'"{name}" is not a tensor of torch\'s own class')
            if memory.setdefault(tensor.untyped_storage().data_ptr(), number) != number and tensor.numel():
                refuse(f'"{name}" lies in the memory of another tensor')
            if any(getattr(tensor, hooks) for hooks in GRADIENT_HOOKS):
                refuse(f'hook on the gradient of "{name}"')
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
    attributes = {name: value for name, value in vars(module).items() if name not in REGISTERED}
    for name in [
        name for name in attributes if name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called"))
    ]:
        hooks = attributes.pop(name)
        # Of the slots there is one for all networks; hooks of others would see tensors that are none of theirs.
        if hooks and not all(isinstance(hook, Slot) for hook in getattr(hooks, "values", tuple)()):
            refuse(f'hook on module "{path}"')
    return tuple((name, frozen(path, value)) for name, value in sorted(attributes.items()))


def frozen(path: str, value: Any, seen: dict[int, tuple[int, Any]] | None = None) -> Hashable:
    """Return a value that is equal for what computes equally, and is another one once its state has changed.

    A program repeats what a module computed once, and would miss the state of an object that it does not know.
    """
    seen = {} if seen is None else seen
    if isinstance(value, CONSTANT):
        return type(value), value
    if isinstance(value, Tensor):
        refuse(f'module "{path}" has a tensor that is neither a parameter nor a buffer')
    if isinstance(value, Alpha):
        return value.value
    if isinstance(value, tuple):
        return type(value), tuple(frozen(path, member, seen) for member in value)
    if id(value) in seen:  # each object once: it may refer to itself
        return seen[id(value)][0]
    seen[id(value)] = len(seen), value  # kept, so that no other object gets its identity
    members: Hashable = ()
    if isinstance(value, dict | list | set | frozenset):
        parts = (frozen(path, part, seen) for part in (value.items() if isinstance(value, dict) else value))
        members = tuple(parts) if isinstance(value, dict | list) else frozenset(parts)
    return type(value), members, frozen(path, _memory_of(path, value), seen)


def _memory_of(path: str, value: Any) -> Any:
    """Return what an object remembers beside its members."""
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, BuiltinFunctionType):  # of a module or a class, unless it is the method of an object
        return value.__qualname__, value.__self__
    attributes = object.__getstate__(value)
    if isinstance(value, FunctionType):
        # A cell is empty until the function around it sets its variable.
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
        return attributes, cells, value.__code__, value.__defaults__, value.__kwdefaults__
    if isinstance(value, partial):
        return attributes, value.func, value.args, value.keywords
    if not isinstance(value, dict | list | set | frozenset | SimpleNamespace) and not _is_plain(value):
        refuse(f'module "{path}" uses an object of the type {type(value).__name__}, whose state cannot be seen')
    return attributes


def _is_plain(value: Any) -> bool:
    """Return whether an object has all its state in attributes, as those of classes that are written in Python."""
    kind: Any = type(value)
    return kind.__new__ is object.__new__ and (hasattr(value, "__dict__") or "__slots__" in vars(kind))


def surroundings_of(model: nn.Module) -> Hashable:
    """Return the data that the code of a network's modules names in their classes and files, and may change."""
    data: list[Hashable] = []
    for path, module in host_modules(model):
        # That of a grafted module, to which ``type(self).count += 1`` writes, and the classes that it stands for.
        for kind in dict.fromkeys((type(module), *plain_class(module).__mro__)):
            if kind.__module__.partition(".")[0] in ("builtins", "torch", "esper_core"):
                continue
            in_file = [
                (name, function.__globals__[name])
                for function in vars(kind).values()
                if isinstance(function, FunctionType)
                for name in function.__code__.co_names
                if name in function.__globals__
            ]
            for name, value in (*vars(kind).items(), *in_file):
                if not name.startswith(("__", "_abc_")) and _may_count(value):
                    data.append((kind, name, frozen(path, value)))
    return tuple(data)


def _may_count(value: object) -> bool:
    # An object whose state cannot be seen, such as a generator of random numbers, is refused by ``frozen``.
    return isinstance(value, int | float) or not (
        isinstance(value, CONSTANT) or callable(value) or hasattr(value, "__get__")
    )


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
