"""Which class has a module that carries slots, or has one that does within it? A subclass of its own, told apart by it.

A compiler keeps what it traced by code and by class, and looks for no hooks where there were none. So code that was
traced for an ungrafted sibling would be run for a grafted module, and its slots would be skipped without a word. The
root and every module between it and a slot are therefore of a class that says where its slots are.
"""

from __future__ import annotations

import copyreg
from typing import Any, NoReturn

from torch import fx, nn

from esper_core.growth.containers import parents_of
from esper_core.leyline.errors import GraftError, Problem


class Family:
    """The classes of one grafted model: one for each plain class and each set of places below it.

    Blocks that are alike share one, so that they share what is compiled for it. A copy of the model has a family of
    its own.
    """

    def __init__(self) -> None:
        self._classes: dict[tuple[type[nn.Module], tuple[str, ...]], type[nn.Module]] = {}

    def __reduce__(self) -> tuple[type[Family], tuple[()]]:
        return (Family, ())

    def class_of(self, plain: type[nn.Module], places: tuple[str, ...]) -> type[nn.Module]:
        """The subclass of ``plain``, under the same name, of modules with slots at ``places``.

        An instance copies and pickles as one of ``plain`` with slots.
        """
        known = self._classes.get((plain, places))
        if known is not None:
            return known
        namespace = {
            "__module__": plain.__module__,
            "__qualname__": plain.__qualname__,
            "__doc__": plain.__doc__,
            "__reduce_ex__": _reduce_grafted,
            "__prepare_scriptable__": _refuse_scripting,
            "_esper_class": (plain, self, places),
        }
        if issubclass(plain, fx.GraphModule):
            namespace["__call__"] = _call  # recompile() wraps it, and would else wrap the parent's wrapper
        return self._classes.setdefault((plain, places), type(plain.__name__, parents_of(plain), namespace))


def _reduce_grafted(module: nn.Module, protocol: Any) -> Any:
    plain, family, places = type(module)._esper_class  # type: ignore[attr-defined]
    reduced = plain.__reduce_ex__(module, protocol)
    if isinstance(reduced, tuple) and reduced[0] is getattr(copyreg, "__newobj__"):  # noqa: B009
        return (_new_grafted, (plain, family, places, *reduced[1][1:]), *reduced[2:])
    return reduced


def _new_grafted(plain: type[nn.Module], family: Family, places: tuple[str, ...], *args: Any) -> nn.Module:
    grafted = family.class_of(plain, places)
    return grafted.__new__(grafted, *args)


def _refuse_scripting(module: nn.Module) -> NoReturn:
    hint = "torch.jit.trace and torch.export.export take it as it is."
    raise GraftError(Problem("E315", f"a grafted {type(module).__name__} cannot be scripted", hint=hint))


def _call(module: nn.Module, *args: Any, **named: Any) -> Any:
    return nn.Module.__call__(module, *args, **named)
