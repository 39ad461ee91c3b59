"""How do slots get into a model that knows nothing of them?

``graft`` finds modules by name, puts a slot behind each, and leaves every number of the model what it was. A slot is
registered as forward hook of its module and, so that ``.to()``, ``state_dict()`` and deep copies know of its seeds, as
a child of one module ``_esper`` in the root. The root gets a class of its own, a subclass of what it was: a compiler
caches what it traced by class, and would otherwise run the code of an ungrafted sibling and skip the hooks.
"""

from __future__ import annotations

import copyreg
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import nn

from esper_core.growth.containers import container_face
from esper_core.growth.probe import observe
from esper_core.growth.slot import Slot, Slots, key_of
from esper_core.leyline.errors import GraftError, Problem
from esper_core.leyline.nearest import suggestion
from esper_core.leyline.specs import SlotPlace

if TYPE_CHECKING:
    from torch import Tensor

HOME = "_esper"
"""Name of the one child that a graft adds to the root."""

MATCH_LIMIT = 256
"""Modules that one pattern may match; more is taken for a slip."""

ModelT = TypeVar("ModelT", bound=nn.Module)


def graft(
    model: ModelT,
    slots: Sequence[str] | Mapping[str, str | SlotPlace],
    *,
    example: Tensor | None = None,
) -> ModelT:
    """Put slots behind modules of ``model``, in place, and return it.

    Args:
        model: any module. It is changed in its class and by one child, ``_esper``; not in any number.
        slots: names of modules, ``*`` for any part of a name (``"blocks.*.mlp"``), or a mapping from names of slots
            to such patterns or to SlotPlace. Without names of their own slots are called after their modules.
        example: one batch of inputs. With it each slot is seen firing, in training and in evaluation, or refused;
            without it that is done by the first ``observe``.

    Raises:
        GraftError: nothing matches, too much matches, or a module cannot carry a slot. The model is as it was.

    >>> from torch import nn
    >>> model = graft(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), ["0"])
    >>> [slot.name for slot in slots_of(model).each()]
    ['0']
    """
    _refuse_unfit(model)
    planned = [Slot(name, place.at, kind=place.kind, limit=place.stack) for name, place in _places(model, slots)]
    home = Slots({key_of(slot.name): slot for slot in planned})
    plain_class = type(model)
    with ExitStack() as undo:
        _change_class(model, plain_class)
        undo.callback(setattr, model, "__class__", plain_class)
        model.add_module(HOME, home)
        undo.callback(delattr, model, HOME)
        for slot in planned:
            undo.callback(model.get_submodule(slot.at).register_forward_hook(slot).remove)
        if example is not None:
            observe(model, home.each(), example)
        undo.pop_all()
    return model


def _refuse_unfit(model: nn.Module) -> None:
    if any(isinstance(module, Slots) for module in model.modules()):
        hint = "Graft all slots in one call, on a fresh model."
        raise GraftError(Problem("E310", "this model has slots already", hint=hint))
    if any(name == "_orig_mod" for name, _ in model.named_children()):
        raise GraftError(Problem("E318", "this model is compiled already", hint="Graft first, and compile then."))


def _change_class(model: nn.Module, plain: type[nn.Module]) -> None:
    try:
        model.__class__ = _grafted_class(plain)
    except Exception as error:
        message = f"the class {plain.__name__} cannot be derived from: {error}"
        hint = "Put the model into a module of your own, and graft that."
        raise GraftError(Problem("E318", message, hint=hint)) from error


def is_grafted(model: nn.Module) -> bool:
    """Whether ``model`` has slots."""
    return any(name == HOME and isinstance(child, Slots) for name, child in model.named_children())


def slots_of(model: nn.Module) -> Slots:
    """The slots of a grafted model."""
    if not is_grafted(model):
        raise GraftError(Problem("E311", f"{type(model).__name__} has no slots", hint="Call esper_core.graft first."))
    return cast("Slots", getattr(model, HOME))


def _places(model: nn.Module, slots: Any) -> list[tuple[str, SlotPlace]]:
    """Name and place of each slot to be, or a GraftError with everything that is wrong."""
    if isinstance(slots, str) or not isinstance(slots, (Mapping, Sequence)):
        raise GraftError(
            Problem("E312", "slots are a list of names or a mapping", hint=f'Write ["{slots}"]. Received: {slots!r}')
        )
    known = [name for name, _ in model.named_modules() if name]
    wanted = list(slots.items()) if isinstance(slots, Mapping) else [(None, pattern) for pattern in slots]
    for name, pattern in wanted:
        if not isinstance(pattern, (str, SlotPlace)) or not (name is None or (isinstance(name, str) and name)):
            received = repr(pattern) if name is None else f"{name!r}: {pattern!r}"
            raise GraftError(Problem("E312", "a slot is named by text", hint=f"Received: {received}"))
    places: list[tuple[str, SlotPlace]] = []
    problems: list[Problem] = []
    for name, pattern in wanted:
        place = pattern if isinstance(pattern, SlotPlace) else SlotPlace(pattern)
        found = [module for module in known if matches(module, place.at)]
        problems += _match_problems(model, name, place.at, found, known)
        for module in found:
            own = module if name is None else name if len(found) == 1 else f"{name}:{module}"
            places.append((own, replace(place, at=module)))
    problems += _collisions(places)
    if not problems and not places:
        problems.append(Problem("E312", "no slot was asked for", hint='For example slots=["layer2"].'))
    if problems:
        raise GraftError(problems)
    return places


def _match_problems(
    model: nn.Module, name: str | None, pattern: str, found: list[str], known: list[str]
) -> list[Problem]:
    path = None if name is None else f"slots.{name}"
    if not found:
        message = f'no module of {type(model).__name__} is called "{pattern}"'
        return [Problem("E313", message, path=path, hint=suggestion(pattern, known))]
    if len(found) > MATCH_LIMIT:
        message = f'"{pattern}" matches {len(found)} modules, more than {MATCH_LIMIT}'
        return [Problem("E314", message, path=path, hint=f"The first are {', '.join(found[:3])}; name what you mean.")]
    return [
        Problem("E315", f'"{module}" is a script module and takes no slot', path=path, hint="Graft before scripting.")
        for module in found
        if isinstance(model.get_submodule(module), torch.jit.ScriptModule)
    ]


def _collisions(places: list[tuple[str, SlotPlace]]) -> list[Problem]:
    problems: list[Problem] = []
    seen: dict[str, str] = {}
    keys: dict[str, str] = {}
    for name, module in ((name, place.at) for name, place in places):
        if (other := keys.setdefault(key_of(name), name)) != name:
            hint = "Give one of them another name."
            problems.append(Problem("E316", f'the slots "{other}" and "{name}" would have one key', hint=hint))
        if module in seen:
            message = f'"{module}" would carry two slots, "{seen[module]}" and "{name}"'
            problems.append(Problem("E316", message, hint="One slot takes several seeds, one behind the other: stack."))
        seen[module] = name
    return problems


def matches(module: str, pattern: str) -> bool:
    """Whether a module's dotted name fits a pattern, part by part.

    >>> matches("blocks.3.mlp", "blocks.*.mlp"), matches("blocks.3.mlp.fc", "blocks.*")
    (True, False)
    """
    parts, wanted = module.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(fnmatchcase(part, want) for part, want in zip(parts, wanted, strict=True))


def _grafted_class(plain: type[nn.Module]) -> type[nn.Module]:
    """A new subclass of ``plain`` under the same name, which copies and pickles as ``plain`` with slots."""
    namespace = {
        **container_face(plain, HOME),
        "__module__": plain.__module__,
        "__qualname__": plain.__qualname__,
        "__doc__": plain.__doc__,
        "__reduce_ex__": _reduce_grafted,
        "_esper_plain_class": plain,
    }
    return type(plain.__name__, (plain,), namespace)


def _reduce_grafted(model: nn.Module, protocol: Any) -> Any:
    plain: type[nn.Module] = model._esper_plain_class  # type: ignore[assignment]
    reduced = plain.__reduce_ex__(model, protocol)
    if isinstance(reduced, tuple) and reduced[0] is getattr(copyreg, "__newobj__"):  # noqa: B009
        return (_new_grafted, (plain, *reduced[1][1:]), *reduced[2:])
    return reduced


def _new_grafted(plain: type[nn.Module], *args: Any) -> nn.Module:
    grafted = _grafted_class(plain)
    return grafted.__new__(grafted, *args)
