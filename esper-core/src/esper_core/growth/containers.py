"""What of modules that hold others? They are as long as they were, and one that is never called is told.

A root that is itself a Sequential, a ModuleList or a ModuleDict would count the child that a graft adds among its own.
Its class therefore derives from one of those below, which stand behind the host's class and before torch's: what the
host's class says of itself counts first, and what it asks ``super()`` is answered here.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NoReturn

from torch import nn

from esper_core.growth.state_keys import HOME
from esper_core.leyline.errors import GraftError, Problem

if TYPE_CHECKING:
    from collections.abc import ItemsView, Iterator, KeysView, ValuesView


def _own(module: nn.Module) -> dict[str, nn.Module]:
    """The children that the module had before."""
    return {name: child for name, child in module.named_children() if name != HOME}


def _refuse(module: nn.Module, kind: str) -> NoReturn:
    hint = "Change its layers first, and graft then."
    raise GraftError(Problem("E319", f"the layers of a grafted {kind} cannot be exchanged", hint=hint))


class GraftedSequential(nn.Sequential):
    """A Sequential with slots in it."""

    def __len__(self) -> int:
        return len(_own(self))

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(_own(self).values())

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return nn.Sequential(OrderedDict(list(_own(self).items())[index]))
        return list(_own(self).values())[index]

    def _exchange(self, *arguments: Any, **named: Any) -> NoReturn:
        _refuse(self, "Sequential")

    __setitem__ = __delitem__ = append = insert = extend = pop = __iadd__ = __imul__ = _exchange


class GraftedList(nn.ModuleList):
    """A ModuleList with slots in it. One of this class that is built anew is filled as any other."""

    def __len__(self) -> int:
        return len(_own(self))

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(_own(self).values())

    def __getitem__(self, index: Any) -> Any:
        layers = list(_own(self).values())
        return self.__class__(layers[index]) if isinstance(index, slice) else layers[index]

    def extend(self, modules: Any) -> Any:
        """Refused, but for one that is built anew."""
        return _refuse(self, "ModuleList") if len(self) else super().extend(modules)

    def _exchange(self, *arguments: Any, **named: Any) -> NoReturn:
        _refuse(self, "ModuleList")

    __setitem__ = __delitem__ = append = insert = pop = _exchange


class GraftedDict(nn.ModuleDict):
    """A ModuleDict with slots in it. One of this class that is built anew is filled as any other."""

    def __len__(self) -> int:
        return len(_own(self))

    def __iter__(self) -> Iterator[str]:
        return iter(_own(self))

    def __contains__(self, key: str) -> bool:
        return key in _own(self)

    def keys(self) -> KeysView[str]:
        """The host's own."""
        return _own(self).keys()

    def items(self) -> ItemsView[str, nn.Module]:
        """The host's own."""
        return _own(self).items()

    def values(self) -> ValuesView[nn.Module]:
        """The host's own."""
        return _own(self).values()

    def update(self, modules: Any) -> None:
        """Refused, but for one that is built anew."""
        if len(self):
            _refuse(self, "ModuleDict")
        for name, module in dict(modules).items():
            self.add_module(name, module)

    def _exchange(self, *arguments: Any, **named: Any) -> NoReturn:
        _refuse(self, "ModuleDict")

    __setitem__ = __delitem__ = clear = pop = _exchange


_FACES: tuple[tuple[type[nn.Module], type[nn.Module]], ...] = (
    (nn.Sequential, GraftedSequential),
    (nn.ModuleList, GraftedList),
    (nn.ModuleDict, GraftedDict),
)


def parents_of(plain: type[nn.Module]) -> tuple[type[nn.Module], ...]:
    """What the class of a module of class ``plain`` with slots in it derives from.

    >>> [parent.__name__ for parent in parents_of(nn.Sequential)], [parent.__name__ for parent in parents_of(nn.Linear)]
    (['GraftedSequential'], ['Linear'])
    """
    for kind, face in _FACES:
        if plain is kind:
            return (face,)
        if issubclass(plain, kind):
            return (plain, face)
    return (plain,)


def is_never_called(module: nn.Module) -> bool:
    """Whether the module only holds others: a ModuleList, a ModuleDict.

    >>> is_never_called(nn.ModuleList()), is_never_called(nn.Sequential())
    (True, False)
    """
    return getattr(module.forward, "__func__", None) is nn.Module.forward
