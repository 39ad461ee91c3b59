"""Structures of tensors: one batch of inputs, how a model is run on it, and the part of an output that a slot acts on.

A batch is a tensor, or tensors in tuples, lists, mappings and dataclasses, in any depth. What else is in it is passed
on as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from esper_core.leyline.signals import RECORD

if TYPE_CHECKING:
    from collections.abc import Iterator

Run = Callable[[nn.Module, Any], Any]
"""Runs a model on a batch."""


def call(model: nn.Module, batch: Any) -> Any:
    """Call ``model`` on a batch: a tuple or a list are its arguments, a mapping its keyword arguments."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, list | tuple) and not hasattr(batch, "_fields"):
        return model(*batch)
    return model(batch)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in ``value``, in its own order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name))


@dataclass(frozen=True, slots=True)
class Example:
    """A batch of ``size`` examples, and ``run``, which runs a model on it."""

    batch: Any
    size: int
    run: Run = call

    tensors_in = staticmethod(tensors_in)

    @classmethod
    def of(cls, batch: Any) -> Example:
        """Return a batch for a model that is called with it; its size is that of its first tensor."""
        first = next((tensor for tensor in tensors_in(batch) if tensor.ndim), None)
        return cls(batch, 0 if first is None else len(first))

    def map(self, change: Callable[[Tensor], Any]) -> Any:
        """Return the batch with every tensor in it changed."""
        return map_tensors(self.batch, change)

    def items(self) -> dict[Any, Any] | None:
        """Return its parts by index, key or field; None if it has no known structure."""
        structure = items_of(self.batch)
        return None if structure is None else structure[1]

    def to(self, device: torch.device) -> Any:
        """Return the batch with its tensors on a device."""
        return self.map(lambda tensor: tensor.to(device))

    def copy(self) -> Any:
        """Return the batch with copies of its tensors."""
        return self.map(torch.clone)

    def without_last(self) -> Example:
        """Return the batch with one example less: each tensor that has a row for each example loses the last one."""

        def shortened(tensor: Tensor) -> Tensor:
            return tensor[:-1] if tensor.ndim and len(tensor) == self.size else tensor

        return Example(self.map(shortened), self.size - 1, self.run)

    def equals(self, other: Any) -> bool:
        """Return whether the tensors of ``other``, a batch of the same structure, are those of this one; NaN is NaN."""
        return all(
            torch.equal(own_tensor, other_tensor)
            or (own_tensor.shape == other_tensor.shape and own_tensor.isclose(other_tensor, 0, 0, equal_nan=True).all())
            for own_tensor, other_tensor in zip(tensors_in(self.batch), tensors_in(other), strict=True)
        )


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Return ``value`` with every tensor in it changed; containers are copied, and keep their class.

    >>> map_tensors({"ids": torch.zeros(2), "name": "few"}, lambda tensor: tensor + 1)
    {'ids': tensor([1., 1.]), 'name': 'few'}
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        changed: Any = copy(value) if hasattr(value, "__setitem__") else dict(value)
        for key, part in value.items():
            changed[key] = map_tensors(part, change)
        return changed
    if isinstance(value, list | tuple):
        parts = [map_tensors(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if is_dataclass(value) and not isinstance(value, type):
        changed = copy(value)
        for field in fields(value):
            # Not by assignment, which a frozen dataclass refuses.
            object.__setattr__(changed, field.name, map_tensors(getattr(value, field.name), change))
        return changed
    return value


Container = Literal["tuple", "list", "named tuple", "mapping", "dataclass"]


@dataclass(frozen=True, slots=True)
class OutputPart:
    """The item of a module's output on which a slot acts; the others pass through."""

    __pydantic_config__ = RECORD
    container: Container
    key: str | int

    def of(self, output: Any) -> Any:
        """Return the item."""
        return output[self.key] if self.container in ("tuple", "list", "mapping") else getattr(output, str(self.key))

    def replaced(self, output: Any, replacement: Any) -> Any:
        """Return the output, of the same class, with another item in its place."""
        if self.container in ("tuple", "list"):
            items = [*output[: self.key], replacement, *output[int(self.key) + 1 :]]
            return tuple(items) if self.container == "tuple" else items
        if self.container == "named tuple":
            return output._replace(**{str(self.key): replacement})
        if self.container == "dataclass":
            return replace(output, **{str(self.key): replacement})
        changed = {**output} if type(output) is dict else copy(output)  # a compiler knows the copy of a dict so
        changed[self.key] = replacement
        return changed


def items_of(output: Any) -> tuple[Container, dict[Any, Any]] | None:
    """Return the kind of a structured output, and its items by index, key or field; None if it has no known structure.

    >>> items_of((torch.zeros(2), None))
    ('tuple', {0: tensor([0., 0.]), 1: None})
    """
    if type(output) in (tuple, list):
        return ("tuple" if isinstance(output, tuple) else "list"), dict(enumerate(output))
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return "named tuple", dict(zip(output._fields, output, strict=True))
    if isinstance(output, Mapping) and hasattr(output, "__setitem__"):
        return "mapping", dict(output.items())
    if is_dataclass(output) and not isinstance(output, type):
        # ``dataclasses.replace``, by which a part is put back, takes no others.
        return "dataclass", {field.name: getattr(output, field.name) for field in fields(output) if field.init}
    return None
