"""Lists, averages and copies of the parameters of a model, in which what grew later is missing.

A loop may hold the parameters in a list that it clips, or average them by their places. The model knows neither, so
the objects of the process are searched when a seed is kept, and what is from before is logged (E349).
"""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from esper_core.growth import Host
from esper_core.leyline.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

log = logging.getLogger("esper")

_COMPARED = 1024
"""Values of a tensor by which an average is seen to change."""


class StaleCopies:
    """Logs each list, average or copy of a model's parameters that was made before a seed was kept, once."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._reported: set[int] = set()
        """The ids of lists that were logged."""
        self._watched: list[tuple[str, str, Tensor, Tensor]] = []
        """Copies of the parameters as they were when a seed was kept: its name, their kind, a tensor, its values."""

    def check(self, changed: Iterable[str], kept: Iterable[str]) -> None:
        """Look for them after a ``tend``, with what it ``changed``, in words, and the seeds that it ``kept``."""
        for name, kind, tensor, values in self._watched:
            if not tensor.detach().flatten()[:_COMPARED].equal(values):  # so it is an average, and no copy of the best
                self._log(f"an average of the weights ({kind}) was made before {name}, and does not include it")
        self._watched = []
        if description := ", ".join(changed):
            _warn_of_averages(self._model, description)
        if name := ", ".join(kept):
            self._find(f"{name} was kept")

    def _find(self, name: str) -> None:
        """Log lists without what was kept, and watch copies without it until the next call."""
        host = Host(self._model).parameters()
        trained = [parameter for parameter in host.values() if parameter.requires_grad]
        if not trained:
            return
        for holder in _lists_of(trained, {id(host), id(trained)}):
            if id(holder) not in self._reported:
                self._reported.add(id(holder))
                kind, size = type(holder).__name__, len(holder)
                self._log(f"a {kind} of {size} parameters was made before {name}, and does not include it")
        for kind, tensor in _copies_of(self._model, host, trained):
            self._watched.append((name, kind, tensor, tensor.detach().flatten()[:_COMPARED].clone()))

    def _log(self, message: str) -> None:
        hint = "Make it anew from the model whenever  tended.kept  is not empty."
        log.warning("%s", Problem("E349", message, hint=hint))


def _lists_of(trained: list[nn.Parameter], excluded: set[int]) -> Iterator[Any]:
    """Yield the lists, tuples and dicts of the process that hold just these parameters."""
    ids = {id(parameter) for parameter in trained}
    for holder in gc.get_referrers(trained[0]):
        values = holder.values() if type(holder) is dict else holder if type(holder) in (list, tuple) else ()
        if len(values) != len(ids) or {id(value) for value in values} != ids:
            continue
        if id(holder) not in excluded and not _is_internal(holder):
            yield holder


def _is_internal(holder: Any) -> bool:
    """Return whether Esper holds it, or an optimizer does, as the parameters of a group."""
    for owner in gc.get_referrers(holder):
        if type(owner) is dict and owner.get("params") is holder:
            return True
        # The attributes of an object are candidate in it, or in a dict of its own.
        owners = [owner, *(gc.get_referrers(owner) if type(owner) is dict else ())]
        if any(type(holding).__module__.startswith("esper_") for holding in owners):
            return True
    return False


def _copies_of(
    model: nn.Module, host: dict[str, nn.Parameter], trained: list[nn.Parameter]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the kind and a tensor of each copy of the host that no optimizer trains: a module, or tensors in order."""
    shapes = {
        len(parameters): [parameter.shape for parameter in parameters] for parameters in (trained, [*host.values()])
    }
    objects = gc.get_objects()
    averaged = {id(candidate.get_submodule("module")) for candidate in objects if _is_average(candidate)}
    optimizers = [candidate for candidate in objects if issubclass(type(candidate), torch.optim.Optimizer)]
    elsewhere = {id(parameter) for parameter in host.values()}
    elsewhere |= {
        id(member)
        for optimizer in optimizers
        for group in getattr(optimizer, "param_groups", ())
        for member in group["params"]
    }
    for candidate in objects:
        if type(candidate) in (list, dict):
            tensors = [*candidate.values()] if type(candidate) is dict else candidate
            expected = shapes.get(len(tensors))
            if expected is None or not all(isinstance(tensor, Tensor) for tensor in tensors):
                continue
            if [tensor.shape for tensor in tensors] != expected:
                continue
        elif issubclass(type(candidate), nn.Module) and issubclass(type(model), type(candidate)):
            named = dict(candidate.named_parameters()) if vars(candidate).get("_modules") else {}  # or it is being made
            if id(candidate) in averaged or named.keys() != host.keys():
                continue
            tensors = [*named.values()]
        else:
            continue
        if elsewhere.isdisjoint(map(id, tensors)) and not _is_internal(candidate):
            yield type(candidate).__name__, tensors[0]


def _warn_of_averages(model: nn.Module, changed: str) -> None:
    """Log a warning for each average of the weights that no longer fits the model, which has ``changed`` (E349).

    An average is a copy that the model does not know, so the objects of the process are searched for modules with
    ``module`` and a decay, as torch's and timm's have. Averages pair tensors by their place: one that was made before a
    seed was kept omits it, and one of another order, or with buffers behind other parameters, mixes tensors.
    """
    model_names = [name for name, _ in model.named_parameters()]
    host = Host(model).parameters().keys()
    kept = set(kept_parameters(model))
    for average in [candidate for candidate in gc.get_objects() if _is_average(candidate)]:
        names = [name for name, _ in average.get_submodule("module").named_parameters()]
        kind = type(average).__name__
        if not host <= set(names):
            continue
        hint = f"Make a new one:  {kind}(model)"
        if vars(average).get("use_buffers") and names != model_names:
            defect = f"averages buffers, too, and pairs tensors wrongly since {changed}"
            hint = f"Leave out use_buffers, and make a new one when a seed is kept:  {kind}(model)"
        elif names != model_names[: len(names)]:
            defect = f"was made before {changed}, and pairs tensors wrongly"
        elif not kept.issubset(names):
            defect = f"was made before {changed}, and does not include it"
        else:
            continue
        log.warning("%s", Problem("E349", f"an average of the weights ({kind}) {defect}", hint=hint))


def kept_parameters(model: nn.Module) -> Iterator[str]:
    """Yield the names of the parameters of fossils."""
    fossils = [seed for slot in Host(model).slots.each() for seed in slot.fossils]
    kept = {id(parameter) for seed in fossils for parameter in seed.parameters()}
    yield from (name for name, parameter in model.named_parameters() if id(parameter) in kept)


def _is_average(candidate: Any) -> bool:
    if not issubclass(type(candidate), nn.Module):  # isinstance() would ask proxies for their class
        return False
    attributes = vars(candidate)
    return "module" in attributes.get("_modules", ()) and (
        isinstance(candidate, AveragedModel) or "decay" in attributes
    )
