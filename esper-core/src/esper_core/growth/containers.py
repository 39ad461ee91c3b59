"""What of modules that hold others? A list of layers is as long as it was, and one that is never called is told."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NoReturn

from torch import nn

from esper_core.leyline.errors import GraftError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator


def container_face(plain: type[nn.Module], home: str) -> dict[str, Any]:
    """What the class of a grafted Sequential says in place of ``plain``; empty for every other class."""
    if not issubclass(plain, nn.Sequential):
        return {}

    def layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
        return [(name, layer) for name, layer in model.named_children() if name != home]

    def length(model: nn.Module) -> int:
        return len(layers(model))

    def iterate(model: nn.Module) -> Iterator[nn.Module]:
        return iter([layer for _, layer in layers(model)])

    def item(model: nn.Module, index: int | slice) -> nn.Module:
        if isinstance(index, slice):
            return nn.Sequential(OrderedDict(layers(model)[index]))
        return layers(model)[index][1]

    def refuse(model: nn.Module, *arguments: Any, **named: Any) -> NoReturn:
        hint = "Change its layers first, and graft then."
        raise GraftError(Problem("E319", "the layers of a grafted Sequential cannot be exchanged", hint=hint))

    mutators = ("__setitem__", "__delitem__", "append", "insert", "extend", "pop")
    return {"__len__": length, "__iter__": iterate, "__getitem__": item, **dict.fromkeys(mutators, refuse)}


def is_never_called(module: nn.Module) -> bool:
    """Whether the module only holds others: a ModuleList, a ModuleDict.

    >>> is_never_called(nn.ModuleList()), is_never_called(nn.Sequential())
    (True, False)
    """
    return getattr(module.forward, "__func__", None) is nn.Module.forward
