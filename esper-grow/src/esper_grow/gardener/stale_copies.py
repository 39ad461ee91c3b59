"""Lists, averages and copies of the parameters of a model, in which what grew later is missing.

A loop may hold the parameters in a list that it clips, or average them by their places. The model knows neither, so
the objects of the process are searched when a seed is kept, and what is from before is logged (E349).
"""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from esper_core.growth import Host
from esper_core.leyline.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from esper_grow.gardener.checks import ModelForm

log = logging.getLogger("esper")

RENEWED: Final = "_esper_renewed"
"""An attribute of the averages that a callback renews as soon as something grows."""

_COMPARED = 1024
"""Values of a tensor by which an average is seen to change."""

_BOXES = frozenset({list, tuple, dict})
_CLASSES = (nn.Module, Optimizer)


class StaleCopies:
    """Logs each list, average or copy of a model's parameters that was made before a seed was kept, once."""

    def __init__(self, model: nn.Module, form: ModelForm) -> None:
        self._model, self._form = model, form
        self._reported: set[int] = set()
        """The ids of lists that were logged."""
        self._watched: list[tuple[str, str, Tensor, Tensor]] = []
        """Copies of the parameters as they were when a seed was kept: its name, their kind, a tensor, its values."""

    def check(self, changed: Sequence[str], kept: Sequence[str]) -> None:
        """Look for them after a ``tend``, with what it ``changed``, in words, and the seeds that it ``kept``."""
        for name, kind, tensor, values in self._watched:
            if not torch.equal(_start_of(tensor), values):  # so it is an average, and no copy of the best
                self._log(f"an average of the weights ({kind}) was made before {name}, and does not include it")
        self._watched = []
        if not changed:
            return
        gc.collect()  # a list in a dead cycle, as of a caught exception, would be found, too
        # The shapes of all parameters of the host, and of those that are trained, by their number.
        host = [*self._form.of_host.values()] if kept else []
        trained = [parameter for parameter in host if parameter.requires_grad]
        shapes = {len(group): [parameter.shape for parameter in group] for group in (host, trained) if group}
        del host, trained  # which would be found, too
        # One pass in one expression, which leaves a hundredth of some hundred thousand objects.
        objects = [
            candidate
            for candidate in gc.get_objects()
            if (len(candidate) in shapes if type(candidate) in _BOXES else issubclass(type(candidate), _CLASSES))
        ]
        _warn_of_averages(self._model, ", ".join(dict.fromkeys(changed)), objects)
        if kept:
            self._find(f"{', '.join(dict.fromkeys(kept))} was kept", objects, shapes)

    def _find(self, name: str, objects: list[Any], shapes: Mapping[int, list[torch.Size]]) -> None:
        """Log lists without what was kept, and watch copies without it until the next call."""
        host = self._form.of_host
        trained = {key: parameter for key, parameter in host.items() if parameter.requires_grad}
        first = next(iter(trained), "")
        optimizers = [candidate for candidate in objects if _is(candidate, Optimizer)]
        groups = [getattr(optimizer, "param_groups", []) for optimizer in optimizers]  # missing while one is being made
        of_optimizers = [group["params"] for listed in groups for group in listed]
        skipped = {id(host), *map(id, of_optimizers)}
        skipped |= {id(average.get_submodule("module")) for average in objects if _is_average(average)}
        skipped |= {id(vars(module).get("_parameters")) for module in objects if _is(module, nn.Module)}
        holders = [
            (candidate, tensors)
            for candidate in objects
            if (tensors := _tensors_in(candidate, self._model, host, shapes)) and id(candidate) not in skipped
        ]
        if not holders:
            return
        internal = _held_internally([candidate for candidate, _ in holders])
        optimized = {id(parameter) for parameters in of_optimizers for parameter in parameters}
        ids = {id(parameter) for parameter in trained.values()}
        for candidate, tensors in holders:
            kind, held = type(candidate).__name__, {id(tensor) for tensor in tensors}
            if id(candidate) in internal or id(candidate) in self._reported:
                continue
            if held == ids:
                self._reported.add(id(candidate))
                self._log(f"a {kind} of {len(held)} parameters was made before {name}, and does not include it")
            elif trained and held.isdisjoint(optimized):
                # A frozen one is the same in an average.
                place = [*host].index(first) if len(tensors) == len(host) else 0
                self._watched.append((name, kind, tensors[place], _start_of(tensors[place])))

    def _log(self, message: str) -> None:
        hint = "Make it anew from the model whenever  tended.kept  is not empty."
        log.warning("%s", Problem("E349", message, hint=hint))


def _start_of(tensor: Tensor) -> Tensor:
    """Return some values of a tensor, which may be moved and cast until they are compared."""
    return tensor.detach().flatten()[:_COMPARED].to("cpu", torch.float64, copy=True)


def _is(candidate: Any, kind: type) -> bool:
    return issubclass(type(candidate), kind)  # isinstance() would ask proxies for their class


def _tensors_in(
    candidate: Any, model: nn.Module, host: Mapping[str, nn.Parameter], shapes: Mapping[int, list[torch.Size]]
) -> list[Tensor]:
    """Return the tensors of a list, tuple or dict with the shapes of the host's, or of a module with its names."""
    kind = type(candidate)
    if kind in _BOXES:
        expected = shapes.get(len(candidate))
        if expected is None:
            return []
        values = [*candidate.values()] if kind is dict else [*candidate]
        fit = (_is(value, Tensor) and value.shape == shape for value, shape in zip(values, expected, strict=True))
        return values if all(fit) else []
    # By name: a copy of a grafted model has another class of that name.
    if _is(candidate, nn.Module) and kind.__name__ == type(model).__name__ and vars(candidate).get("_modules"):
        named = dict(candidate.named_parameters())
        return [*named.values()] if named.keys() == host.keys() else []
    return []


def _held_internally(candidates: list[Any]) -> set[int]:
    """Return the ids of what objects of Esper hold as attributes, in the objects or in dicts of their own."""
    owners = gc.get_referrers(*candidates)
    tables = [owner for owner in owners if type(owner) is dict]
    owners += gc.get_referrers(*tables) if tables else []
    inside = [
        held for owner in owners if type(owner).__module__.startswith("esper_") for held in gc.get_referents(owner)
    ]
    of_dicts = [held for table in inside if type(table) is dict for held in table.values()]
    return {id(held) for held in (*inside, *of_dicts)}


def _warn_of_averages(model: nn.Module, changed: str, objects: Iterable[Any]) -> None:
    """Log a warning for each average of the weights that no longer fits the model, which has ``changed`` (E349).

    An average is a copy that the model does not know, so the objects of the process are searched for modules with
    ``module`` and a decay, as torch's and timm's have. Averages pair tensors by their place: one that was made before a
    seed was kept omits it, and one of another order, or with buffers behind other parameters, mixes tensors.
    """
    model_names = [name for name, _ in model.named_parameters()]
    host = Host(model).parameters().keys()
    kept = _kept(model)
    for average in [candidate for candidate in objects if _is_average(candidate)]:
        copy = average.get_submodule("module")
        names = [name for name, _ in copy.named_parameters()]
        kind = type(average).__name__
        if not host <= set(names) or hasattr(average, RENEWED):
            continue
        hint = f"Make a new one:  {kind}(model)"
        if vars(average).get("use_buffers") and names != model_names:
            defect = f"averages buffers, too, and pairs tensors wrongly since {changed}"
            hint = f"Leave out use_buffers, and make a new one when a seed is kept:  {kind}(model)"
        elif names != model_names[: len(names)]:
            defect = f"was made before {changed}, and pairs tensors wrongly"
        elif not kept <= _kept(copy):  # a copy of a seed that lived never acts
            defect = f"was made before {changed}, and does not include it"
        else:
            continue
        log.warning("%s", Problem("E349", f"an average of the weights ({kind}) {defect}", hint=hint))


def _kept(model: nn.Module) -> set[int]:
    slots = Host(model).slots if Host(model).is_grafted else ()
    return {seed.number for slot in slots for seed in slot.fossils}


def _is_average(candidate: Any) -> bool:
    if not _is(candidate, nn.Module):
        return False
    is_averaging = isinstance(candidate, AveragedModel) or "decay" in vars(candidate)
    return is_averaging and "module" in vars(candidate).get("_modules", ())
