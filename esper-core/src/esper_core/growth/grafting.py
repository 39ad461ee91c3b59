"""How do slots get into a model that knows nothing of them?

``graft`` finds modules by name, puts a slot behind each, and leaves every number of the model what it was. A slot is
registered as forward hook of its module and, so that ``.to()``, ``state_dict()`` and deep copies know of its seeds, as
a child of one module ``_esper`` in the root. The root, and what lies between it and a slot, gets a class of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from esper_core.growth.classes import Family
from esper_core.growth.containers import is_never_called
from esper_core.growth.likeness import outputs, refuse_unlike
from esper_core.growth.probe import observe
from esper_core.growth.slot import Slot, Slots, key_of
from esper_core.growth.state_keys import HOME
from esper_core.leyline.errors import GraftError, Problem, suggestion
from esper_core.leyline.specs import SlotPlace

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
        example: one batch of inputs. With it each slot is seen firing, in training and in evaluation, or refused, and
            the model is seen to put out what it did; without it slots are seen by the first ``observe``.

    Raises:
        GraftError: nothing matches, too much matches, a module cannot carry a slot, or the model would put out
            something else. The model is as it was.

    >>> from torch import nn
    >>> model = graft(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), ["0"])
    >>> [slot.name for slot in slots_of(model).each()]
    ['0']
    """
    _refuse_unfit(model)
    if example is not None:
        _refuse_unseen(model, example)
    planned = [Slot(name, place.at, kind=place.kind, limit=place.stack) for name, place in _places(model, slots)]
    home, family = Slots({key_of(slot.name): slot for slot in planned}), Family()
    before = None if example is None else outputs(model, example)
    with ExitStack() as undo:
        for module, places in _ways(model, [slot.at for slot in planned]):
            undo.callback(setattr, module, "__class__", type(module))
            _change_class(module, family, places)
        model.add_module(HOME, home)
        undo.callback(delattr, model, HOME)
        for slot in planned:
            undo.callback(model.get_submodule(slot.at).register_forward_hook(slot).remove)
        if example is not None and before is not None:
            observe(model, home.each(), example)
            refuse_unlike(model, example, before)
        undo.pop_all()
    return model


def _refuse_unfit(model: nn.Module) -> None:
    if any(isinstance(module, Slots) for module in model.modules()):
        hint = "Graft all slots in one call, on a fresh model."
        raise GraftError(Problem("E310", "this model has slots already", hint=hint))
    if HOME in vars(model) or any(name == HOME for name, _ in model.named_children()):
        hint = "That is where its seeds would live. Give it another name."
        raise GraftError(Problem("E318", f'this model has a "{HOME}" of its own', hint=hint))
    if any(name == "_orig_mod" for name, _ in model.named_children()):
        raise GraftError(Problem("E318", "this model is compiled already", hint="Graft first, and compile then."))


def _refuse_unseen(model: nn.Module, example: Any) -> None:
    """GraftError where the model cannot be looked at with this example."""
    if not isinstance(example, Tensor) or not example.ndim:
        hint = "Put a model that takes more into a module of your own whose forward takes one tensor."
        received = (
            f"a tensor of shape {tuple(example.shape)}" if isinstance(example, Tensor) else type(example).__name__
        )
        message = "the example is not one tensor with a batch of inputs"
        raise GraftError(Problem("E318", message, hint=f"{hint} Received: {received}"))
    if is_never_called(model) and type(model).__call__ is nn.Module.__call__:
        called = [name for name, child in model.named_children() if not is_never_called(child)]
        hint = f"Graft its parts, each with an example of its own: {', '.join(called[:8]) or 'none'}"
        raise GraftError(Problem("E318", f"{type(model).__name__} has no forward to see slots at work in", hint=hint))
    unset = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if is_lazy(tensor)]
    if unset:
        message = f"the model has parameters without a shape: {', '.join(unset[:3])}{', …' if unset[3:] else ''}"
        raise GraftError(Problem("E318", message, hint="Let it see a batch first: model(example)"))


def _ways(model: nn.Module, slots: Sequence[str]) -> list[tuple[nn.Module, tuple[str, ...]]]:
    """The root and every module on the way to a slot that has code of its own; with the slots' places seen from it."""
    places: dict[str, list[str]] = {"": list(slots)}
    for at in slots:
        parts = at.split(".")
        for depth in range(1, len(parts)):
            places.setdefault(".".join(parts[:depth]), []).append(".".join(parts[depth:]))
    ways = [(model.get_submodule(name), tuple(below)) for name, below in places.items()]
    return [(module, below) for module, below in ways if not is_never_called(module)]


def _change_class(module: nn.Module, family: Family, places: tuple[str, ...]) -> None:
    plain = type(module)
    try:
        module.__class__ = family.class_of(plain, places)
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
        found = [place.at] if place.at in known else [module for module in known if matches(module, place.at)]
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
        message, hint = _nothing_found(model, pattern, known)
        return [Problem("E313", message, path=path, hint=hint)]
    if len(found) > MATCH_LIMIT:
        message = f'"{pattern}" matches {len(found)} modules, more than {MATCH_LIMIT}'
        return [Problem("E314", message, path=path, hint=f"The first are {', '.join(found[:3])}; name what you mean.")]
    outcomes = [_unfit(module, model.get_submodule(module), path) for module in found]
    return [problem for problem in outcomes if problem is not None]


def _nothing_found(model: nn.Module, pattern: str, known: list[str]) -> tuple[str, str | None]:
    """Message and hint for a pattern that no name fits."""
    if not pattern:
        return "a slot stands behind a part of a model, not behind the whole", "Put it into a module of your own."
    for alias, module in model.named_modules(remove_duplicate=False):
        if alias == pattern:
            first = next(name for name, other in model.named_modules() if other is module)
            return f'"{pattern}" is another name of the module "{first}"', f'Name it "{first}".'
    return f'no module of {type(model).__name__} is called "{pattern}"', suggestion(pattern, known)


def _unfit(name: str, module: nn.Module, path: str | None) -> Problem | None:
    """Why a slot could never stand behind the module; None where a probe will tell."""
    if isinstance(module, torch.jit.ScriptModule):
        hint = "Graft its plain twin; what comes out can be traced or exported, not scripted."
        return Problem("E315", f'"{name}" is a script module and takes no slot', path=path, hint=hint)
    if is_never_called(module):
        within = ", ".join(f"{name}.{child}" for child, _ in islice(module.named_children(), 8))
        message = f'"{name}" is a {type(module).__name__}, which is never called'
        return Problem("E317", message, path=path, hint=f"Within it are: {within or 'none'}")
    return None


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
