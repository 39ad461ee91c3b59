"""Grafting: put slots behind modules of a model that was not written for it.

A slot is registered as a forward hook of its module and, so that whatever is done with the module is done with the
seeds, as its child ``_esper``. No number of the model changes, and with an example the outputs before and after are
compared.

The root and every module between it and a slot get a subclass of their class: a compiler caches what it traced by code
and class, and would run code traced for an ungrafted sibling. So does a container with a slot behind it, which keeps
its items (``GraftedContainer``).
"""

from __future__ import annotations

import copyreg
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, is_dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy

from esper_core.growth.dry_runs import HOME, in_mode, refuse_changes, untouched
from esper_core.growth.examples import Example, tensors_in
from esper_core.growth.journal import add_to_state_dict, take_from_state_dict
from esper_core.growth.slots import Slot, is_grafted, matches, observe, slots_of
from esper_core.leyline.errors import GraftError, GrowthError, Problem, suggestion
from esper_core.leyline.specs import SlotPlace

if TYPE_CHECKING:
    from collections.abc import ItemsView, Iterator, KeysView, ValuesView


def outputs(model: nn.Module, example: Example) -> dict[bool, Any]:
    """Return the outputs of the model in training (True) and in evaluation, with the same random numbers each time."""
    seen: dict[bool, Any] = {}
    for training in (True, False):
        with untouched(model), in_mode(model, training=training):
            seen[training] = example.run(model, example.copy())
    return seen


def refuse_unlike(model: nn.Module, example: Example, plain: Mapping[bool, Any]) -> None:
    """Raise GraftError if the model, now grafted, has other outputs than ``plain``.

    A model whose outputs vary, because it draws random numbers from elsewhere, is not checked.
    """
    grafted = outputs(model, example)
    unlike = [training for training in (True, False) if not alike(plain[training], grafted[training])]
    if not unlike:
        return
    again = outputs(model, example)
    if any(alike(grafted[training], again[training]) for training in unlike):
        mode = "training" if unlike[0] else "evaluation"
        message = f"the outputs of the model in {mode} change once it has slots"
        hint = f'A module with a slot may iterate over its children, and now has one more, "{HOME}". {_WRAP} '
        hint += "Or the model remembers earlier passes in attributes: register those as buffers."
        raise GraftError(Problem("E318", message, hint=hint))


def alike(first: Any, second: Any) -> bool:
    """Return whether two outputs have the same structure and, except for rounding, the same numbers.

    >>> alike({"a": torch.ones(2)}, {"a": torch.ones(2)}), alike([torch.ones(2)], [torch.ones(2), torch.ones(2)])
    (True, False)
    """
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return _tensors_alike(first, second)
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return list(first) == list(second) and all(alike(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(alike(mine, yours) for mine, yours in zip(first, second, strict=True))
    if is_dataclass(first) and type(first) is type(second):
        return all(alike(getattr(first, field.name), getattr(second, field.name)) for field in fields(first))
    return type(first) is type(second)


def _tensors_alike(first: Tensor, second: Tensor) -> bool:
    if first.is_nested or second.is_nested or first.layout != torch.strided or second.layout != torch.strided:
        return first.is_nested == second.is_nested and first.layout == second.layout
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if not (first.is_floating_point() or first.is_complex()) or not first.numel():
        return True  # counts and choices may depend on a last bit
    # Half of the digits: some layers leave a fast path once they have a hook, as a TransformerEncoderLayer does.
    few = torch.finfo(first.dtype).eps ** 0.5
    if first.dtype.itemsize < torch.float32.itemsize:
        first, second = first.float(), second.float()
    # Relative to the largest value, since those near 0 are differences of larger ones.
    scale = float(torch.nan_to_num(first.abs(), nan=0.0, posinf=0.0).max())
    return bool(torch.isclose(first, second, rtol=0.0, atol=few * scale, equal_nan=True).all())


def _own(module: nn.Module) -> dict[str, nn.Module]:
    """Return the children that the module had before the graft."""
    return {name: child for name, child in module.named_children() if name != HOME}


def _unless_slotted(method: str) -> Any:
    """Return a method that refuses what torch's own would do to the slot of a container: take it for an item."""

    def change(self: Any, *arguments: Any) -> Any:
        if hasattr(self, HOME):
            message = f"the layers of a {type(self).__name__} with a slot cannot be exchanged"
            raise GraftError(Problem("E319", message, hint="Change its layers before grafting."))
        return getattr(super(GraftedContainer, self), method)(*arguments)

    return change


class GraftedContainer:
    """A Sequential, ModuleList or ModuleDict with a slot behind it, which is not among its items."""

    __setitem__, __delitem__ = _unless_slotted("__setitem__"), _unless_slotted("__delitem__")
    insert, clear = _unless_slotted("insert"), _unless_slotted("clear")

    def __len__(self: Any) -> int:
        return len(_own(self))

    def __iter__(self: Any) -> Iterator[Any]:
        return iter(_own(self) if isinstance(self, nn.ModuleDict) else _own(self).values())


class GraftedSequential(GraftedContainer, nn.Sequential):
    """A Sequential with a slot behind it."""

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return nn.Sequential(OrderedDict(list(_own(self).items())[index]))
        return list(_own(self).values())[index]


class GraftedList(GraftedContainer, nn.ModuleList):
    """A ModuleList with a forward of its own, and a slot behind it."""

    def __getitem__(self, index: Any) -> Any:
        layers = list(_own(self).values())[index]
        return nn.ModuleList(layers) if isinstance(index, slice) else layers


class GraftedDict(GraftedContainer, nn.ModuleDict):
    """A ModuleDict with a forward of its own, and a slot behind it."""

    def __contains__(self, key: str) -> bool:
        return key in _own(self)

    def keys(self) -> KeysView[str]:
        """Return the names of its items."""
        return _own(self).keys()

    def items(self) -> ItemsView[str, nn.Module]:
        """Return its items with their names."""
        return _own(self).items()

    def values(self) -> ValuesView[nn.Module]:
        """Return its items."""
        return _own(self).values()


CONTAINERS: Final[dict[type[nn.Module], type[nn.Module]]] = {
    nn.Sequential: GraftedSequential,
    nn.ModuleList: GraftedList,
    nn.ModuleDict: GraftedDict,
}
"""Modules whose items are their children, and the class that keeps a slot out of these."""


def parents_of(plain: type[nn.Module], places: tuple[str, ...]) -> tuple[type[nn.Module], ...]:
    """Return the bases of the class of a module whose class was ``plain``, with slots at ``places``, "" for itself."""
    grafted = [kind for container, kind in CONTAINERS.items() if issubclass(plain, container) and "" in places]
    # The class of a user comes first: what it overrides of its container is its own.
    return (*grafted,) if plain in CONTAINERS and grafted else (plain, *grafted)


def is_never_called(module: nn.Module) -> bool:
    """Return whether the module only holds others, as a ModuleList or ModuleDict does."""
    return getattr(module.forward, "__func__", None) is nn.Module.forward


class Family:
    """The classes of one grafted model: one for each plain class and each set of places below it.

    Blocks of the same structure share a class, and so what is compiled for it. A copy of the model has its own family.
    """

    def __init__(self) -> None:
        self._classes: dict[tuple[type[nn.Module], tuple[str, ...]], type[nn.Module]] = {}

    def __reduce__(self) -> tuple[type[Family], tuple[()]]:
        return (Family, ())

    def class_of(self, plain: type[nn.Module], places: tuple[str, ...]) -> type[nn.Module]:
        """Return the subclass of ``plain``, under the same name, for modules with slots at ``places``."""
        existing = self._classes.get((plain, places))
        if existing is not None:
            return existing
        namespace = {
            "__module__": plain.__module__,
            "__qualname__": plain.__qualname__,
            "__doc__": plain.__doc__,
            "__reduce_ex__": _reduce_grafted,
            "__prepare_scriptable__": _refuse_scripting,
            "named_modules": _host_first,
            "_esper_class": (plain, self, places),
        }
        if "__firstlineno__" in vars(plain):  # by which inspect finds the source of a class since Python 3.13
            namespace["__firstlineno__"] = vars(plain)["__firstlineno__"]
        if issubclass(plain, fx.GraphModule):
            # Else recompile() would wrap the parent's wrapper.
            namespace["__call__"] = lambda module, *args, **named: nn.Module.__call__(module, *args, **named)
        return self._classes.setdefault((plain, places), type(plain.__name__, parents_of(plain, places), namespace))


def _reduce_grafted(module: nn.Module, protocol: Any) -> Any:
    plain, family, places = type(module)._esper_class  # type: ignore[attr-defined]
    # A class that was made at run time cannot be found by its name, so what is stored is how to make it again.
    reduced = plain.__reduce_ex__(module, protocol)
    if isinstance(reduced, tuple) and reduced[0] is getattr(copyreg, "__newobj__"):  # noqa: B009
        return (_new_grafted, (plain, family, places, *reduced[1][1:]), *reduced[2:])
    return reduced


def _new_grafted(plain: type[nn.Module], family: Family, places: tuple[str, ...], *args: Any) -> nn.Module:
    grafted = family.class_of(plain, places)
    return grafted.__new__(grafted, *args)


def _host_first(
    module: nn.Module, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
) -> Iterator[tuple[str, nn.Module]]:
    """Return the host's modules, then slots: averages of weights pair parameters with those from before growth."""
    plain = type(module)._esper_class[0]  # type: ignore[attr-defined]
    named = list(plain.named_modules(module, memo, prefix, remove_duplicate))
    # Loops ask for parameters in each step, so most names are seen to be the host's without splitting them.
    named.sort(key=lambda located: HOME in located[0] and HOME in located[0].split("."))
    return iter(named)


def _refuse_scripting(module: nn.Module) -> NoReturn:
    hint = "torch.jit.trace and torch.export.export take it as it is."
    raise GraftError(Problem("E315", f"a grafted {type(module).__name__} cannot be scripted", hint=hint))


ABSENT_LIMIT = 3
"""Slots without a module that a message names."""

MATCH_LIMIT = 256
"""Most modules that one pattern may match; more is probably a mistake."""

_WRAP = "Put that module into one of your own, such as nn.Sequential(module), and the slot behind that."

ModelT = TypeVar("ModelT", bound=nn.Module)


def graft(
    model: ModelT,
    slots: Sequence[str] | Mapping[str, str | SlotPlace],
    *,
    example: Any = None,
) -> ModelT:
    """Put slots behind modules of ``model``, in place, and return it.

    Args:
        model: any module. Its class changes, and each module with a slot gets a child ``_esper``; no number changes.
        slots: names of modules, ``*`` for any part of a name (``"blocks.*.mlp"``), or a mapping from slot names to such
            patterns or to SlotPlace. Without a mapping slots have the names of their modules.
        example: one batch of inputs: a tensor, a tuple of arguments, a mapping of keyword arguments, or one object.
            With it slots are observed at once, in training and evaluation, and the outputs are compared with those
            before; without it the first ``observe`` does so.

    Raises:
        GraftError: nothing matches, too much matches, a module cannot carry a slot, or the outputs would change. The
            model is unchanged.

    Examples:
        >>> from torch import nn
        >>> model = graft(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), ["0"])
        >>> [slot.name for slot in slots_of(model)]
        ['0']
    """
    _refuse_unfit(model)
    batch = example if isinstance(example, Example | None) else Example.of(example)
    if batch is not None:
        _refuse_example(model, batch)
    places = dict(_places(model, slots))
    with refuse_changes(model):
        before = None if batch is None else plain_outputs(model, batch)
    with ExitStack() as undo:
        attach_slots(model, places, undo)
        if batch is not None and before is not None:
            observe(model, batch)
            refuse_unlike(model, batch, before)
        undo.pop_all()
    return model


def attach_slots(model: nn.Module, places: Mapping[str, SlotPlace], undo: ExitStack) -> None:
    """Put slots into a model without looking at it; ``undo`` takes them off again."""
    family, inside = Family(), [place.at for place in places.values()]
    for module, below in _with_slots_below(model, inside):
        undo.callback(setattr, module, "__class__", type(module))
        plain = plain_class(module)
        try:
            module.__class__ = family.class_of(plain, below)
        except Exception as error:
            message = f"the class {plain.__name__} cannot be subclassed: {error}"
            raise GraftError(Problem("E318", message, hint=_WRAP)) from error
    for order, (name, place) in enumerate(places.items()):
        slot, module = Slot(name, place, order), model.get_submodule(place.at)
        slot.register_state_dict_post_hook(add_to_state_dict)  # type: ignore[no-untyped-call]
        slot.register_load_state_dict_pre_hook(take_from_state_dict)  # type: ignore[no-untyped-call]
        module.add_module(HOME, slot)
        undo.callback(delattr, module, HOME)
        slot.hook = module.register_forward_hook(slot)
        undo.callback(slot.hook.remove)


def ungraft(model: ModelT, *, discard: bool = False) -> ModelT:
    """Remove the slots from ``model``, in place, and return it as it was before ``graft``.

    Args:
        model: A grafted model.
        discard: Remove what has grown in it, too.

    Raises:
        GraftError: it has no slots.
        GrowthError: something has grown. ``esper_grow.export`` returns a copy that keeps it.

    Examples:
        >>> from torch import nn
        >>> ungraft(graft(nn.Sequential(nn.Linear(4, 4)), ["0"]))
        Sequential(
          (0): Linear(in_features=4, out_features=4, bias=True)
        )
    """
    grown = [f"{seed.blueprint} in {slot.name}" for slot in slots_of(model) for seed in slot.seeds]
    if grown and not discard:
        hint = "esper_grow.export(model) returns a copy that keeps what is fossilised, without Esper."
        raise GrowthError(Problem("E336", f"the model has grown: {', '.join(grown)}", hint=hint))
    for at, slot in slots_of(model).by_module.items():
        slot.hook.remove()
        delattr(model.get_submodule(at), HOME)
    for module in model.modules():
        module.__class__ = plain_class(module)
    return model


def plain_outputs(model: nn.Module, example: Example) -> dict[bool, Any]:
    """Return the outputs of a model as it is; GraftError if it raises."""
    try:
        return outputs(model, example)
    except Exception as error:
        reason = str(error).strip().split("\n")[0][:300]
        message = f"the model raised {type(error).__name__} on the example: {reason}"
        forms = [f"{tensor.dtype}, shape {tuple(tensor.shape)}" for tensor in islice(tensors_in(example.batch), 4)]
        hint = f"Pass a batch of inputs as in training, without targets. Received: {'; '.join(forms)}"
        raise GraftError(Problem("E318", message, path="example", hint=hint)) from error


def _refuse_unfit(model: Any) -> None:
    if not isinstance(model, nn.Module):
        message = f"only a torch.nn.Module can be grafted. Received: {type(model).__name__}"
        raise GraftError(Problem("E318", message, hint="Pass the model itself, not its class or its state dict."))
    if is_grafted(model):
        hint = "Graft all slots in one call, on a fresh model. A Gardener uses those of the model with slots=None."
        raise GraftError(Problem("E310", "this model already has slots", hint=hint))
    if any(hasattr(module, HOME) for module in model.modules()):
        hint = "Seeds are stored under that name. Rename it."
        raise GraftError(Problem("E318", f'this model already has an attribute "{HOME}"', hint=hint))
    if any(name == "_orig_mod" for name, _ in model.named_children()):
        raise GraftError(Problem("E318", "this model is already compiled", hint="Graft first, then compile."))


def _refuse_example(model: nn.Module, example: Example) -> None:
    """Raise GraftError if the model cannot be run on the example."""
    if not example.size:
        batch = example.batch
        received = tuple(batch.shape) if isinstance(batch, Tensor) else type(batch).__name__
        hint = f"Pass a tensor, a tuple of arguments, or a mapping of keyword arguments. Received: {received}"
        raise GraftError(Problem("E318", "the example has no tensor with a batch of inputs", hint=hint))
    if is_never_called(model) and type(model).__call__ is nn.Module.__call__:
        message = f"{type(model).__name__} has no forward to observe slots in"
        raise GraftError(Problem("E318", message, hint="Graft its parts, each with an example of its own."))
    unset = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if is_lazy(tensor)]
    if unset:
        message = f"the model has parameters without a shape: {', '.join(unset[:3])}{', …' if unset[3:] else ''}"
        raise GraftError(Problem("E318", message, hint="Run it on a batch first: model(example)"))


def _with_slots_below(model: nn.Module, slots: Sequence[str]) -> list[tuple[nn.Module, tuple[str, ...]]]:
    """Return the modules whose classes change: the root, every called module between it and a slot, and containers.

    Each is returned with the names of the slots below it, relative to it; "" is that of a container itself.
    """
    places: dict[str, list[str]] = {"": list(slots)}
    for at in slots:
        parts = at.split(".")
        for depth in range(1, len(parts)):
            places.setdefault(".".join(parts[:depth]), []).append(".".join(parts[depth:]))
        if at and isinstance(model.get_submodule(at), tuple(CONTAINERS)):
            places.setdefault(at, []).append("")
    modules = [(model.get_submodule(name), tuple(below)) for name, below in places.items()]
    return [(module, below) for module, below in modules if not is_never_called(module)]


def plain_class(module: nn.Module) -> type[nn.Module]:
    """Return the class before a graft; a new object of the class of a grafted one has another class than its host."""
    return getattr(type(module), "_esper_class", (type(module),))[0]


def _places(model: nn.Module, slots: Any) -> list[tuple[str, SlotPlace]]:
    """Return the name and place of each slot; GraftError with everything that is wrong."""
    if isinstance(slots, str) or not isinstance(slots, (Mapping, Sequence)):
        hint = f'For example ["layer2"]. Received: {slots!r}'
        raise GraftError(Problem("E312", "slots must be a list of names or a mapping", hint=hint))
    names = [name for name, _ in model.named_modules() if name]
    requested = list(slots.items()) if isinstance(slots, Mapping) else [(None, pattern) for pattern in slots]
    for name, pattern in requested:
        if not isinstance(pattern, (str, SlotPlace)) or not (name is None or (isinstance(name, str) and name)):
            received = repr(pattern) if name is None else f"{name!r}: {pattern!r}"
            raise GraftError(Problem("E312", "a slot needs a name and a pattern", hint=f"Received: {received}"))
    places: list[tuple[str, SlotPlace]] = []
    problems: list[Problem] = []
    absent: dict[str, Problem] = {}
    for name, pattern in requested:
        place = pattern if isinstance(pattern, SlotPlace) else SlotPlace(pattern)
        matching = [place.at] if place.at in names else [module for module in names if matches(module, place.at)]
        for problem in _match_problems(model, name, place.at, matching, names):
            if matching:
                problems.append(problem)
            else:
                absent[place.at] = problem
        for module in matching:
            slot_name = module if name is None else name if len(matching) == 1 else f"{name}:{module}"
            places.append((slot_name, replace(place, at=module)))
    problems = [*_joined(model, absent), *problems, *_collisions(places)]
    if not problems and not places:
        problems.append(Problem("E312", "the list of slots is empty", hint='For example slots=["layer2"].'))
    if problems:
        raise GraftError(problems)
    return places


def _match_problems(
    model: nn.Module, name: str | None, pattern: str, matching: list[str], names: list[str]
) -> list[Problem]:
    path = None if name is None else f"slots.{name}"
    if not matching:
        message = f'no module of {type(model).__name__} is called "{pattern}"'
        whole = "A slot is behind a part of a model, not behind the whole model."
        hint = suggestion(pattern, names) if pattern else whole
        return [Problem("E313", message, path=path, hint=hint)]
    if len(matching) > MATCH_LIMIT:
        message = f'"{pattern}" matches {len(matching)} modules, more than {MATCH_LIMIT}'
        return [
            Problem(
                "E314", message, path=path, hint=f"The first are {', '.join(matching[:3])}; use a narrower pattern."
            )
        ]
    outcomes = [_unfit(module, model.get_submodule(module), path) for module in matching]
    return [problem for problem in outcomes if problem is not None]


def _joined(model: nn.Module, absent: Mapping[str, Problem]) -> list[Problem]:
    """Return the problems of slots whose modules are missing: one for many, as a plan for another model has them."""
    if (more := len(absent) - ABSENT_LIMIT) <= 0:
        return list(absent.values())
    named = ", ".join(f'"{pattern}"' for pattern in islice(absent, ABSENT_LIMIT))
    message = f"{type(model).__name__} lacks the modules of {len(absent)} slots: {named} and {more} more"
    first = next(iter(absent.values()))
    return [replace(first, message=message, hint=f"{first.hint}\nA plan of slots is for the model it was made with.")]


def _unfit(name: str, module: nn.Module, path: str | None) -> Problem | None:
    """Return why no slot can be behind the module, as far as that can be known without running it."""
    if isinstance(module, torch.jit.ScriptModule):
        hint = "Graft the module that it was scripted from; the grafted one can be traced or exported."
        return Problem("E315", f'"{name}" is a script module and takes no slot', path=path, hint=hint)
    if hasattr(module, "_orig_mod"):
        hint = f'Name "{name}._orig_mod".'
        return Problem("E315", f'"{name}" is compiled, and copies of it lose its slot', path=path, hint=hint)
    if is_never_called(module):
        within = ", ".join(f"{name}.{child}" for child, _ in islice(module.named_children(), 8))
        message = f'"{name}" is a {type(module).__name__}, which is never called'
        return Problem("E317", message, path=path, hint=f"It contains: {within or 'nothing'}")
    return None


def _collisions(places: list[tuple[str, SlotPlace]]) -> list[Problem]:
    problems: list[Problem] = []
    seen: dict[str, str] = {}
    for name, module in ((name, place.at) for name, place in places):
        if module in seen:
            message = f'"{module}" would have two slots, "{seen[module]}" and "{name}"'
            problems.append(Problem("E316", message, hint="One slot can keep several seeds: stack."))
        seen[module] = name
    return problems
