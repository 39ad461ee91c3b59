"""Places in a model at which a probe tries blueprints, found by watching one batch pass through it.

A place is the output of a module that is called once in a pass and returns one row of numbers for each example. Left
out are: what the model returns; layers without parameters, except activations; and a layer whose output only enters a
normalisation or an activation, since the place behind that is the better one. Of the rest the outermost modules are
taken, or those inside of them where these are fewer than ``FEW``. If more than ``MANY`` remain, the first, the last and
evenly spaced ones between are tried: of repeated blocks, too.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from esper_core.growth import HOME, graft, in_mode, is_grafted, observe, slots_of, tensors_in, ungraft, untouched
from esper_core.leyline.errors import GraftError, GrowthError, Problem
from esper_core.leyline.specs import SlotPlace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from esper_core.growth import Example
    from esper_core.leyline.specs import SiteKind

Slots = str | list[str] | dict[str, str | SlotPlace]

FEW: Final = 2
"""Outermost places that are enough; otherwise those inside of them are taken, too."""

MANY: Final = 4
"""Places that are tried at most."""

_FOLLOWERS: Final = ("torch.nn.modules.activation", "torch.nn.modules.batchnorm", "torch.nn.modules.instancenorm")
_NORMS: Final = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def attach_slots(model: nn.Module, slots: Any, example: Example) -> None:
    """Graft ``model``, a copy, at the places that ``slots`` names, or at automatic ones; keep the slots that it has.

    Raises:
        GraftError: A place cannot have a slot.
        GrowthError: No place was found (E351).
    """
    if is_grafted(model):
        if slots != "auto":
            hint = 'Leave out slots: those of the model are tried. Or probe what "ungraft" returns.'
            raise GraftError(Problem("E310", "this model has slots already", hint=hint))
        observe(model, slots_of(model).each(), example)
        return
    if slots != "auto":
        graft(model, [slots] if isinstance(slots, str) else slots, example=example)
        return
    found = automatic_places(model, example)
    while found:
        try:
            graft(model, found, example=example)
            break
        except GraftError as error:
            refused = {problem.path for problem in error.problems}
            if not refused & found.keys():
                raise
            found = {name: place for name, place in found.items() if name not in refused}
    if not found:
        message = "no place for a slot was found"
        hint = 'Name modules that return one row of numbers for each example:  slots=["layer2", "blocks.*.mlp"]'
        raise GrowthError(Problem("E351", message, hint=hint))
    chosen = spread(list(found))
    if len(chosen) < len(found):
        ungraft(model)
        graft(model, {name: found[name] for name in chosen}, example=example)


def spread(names: Sequence[str], most: int = MANY) -> list[str]:
    """Return ``most`` of the names: the first, the last, and evenly spaced ones between.

    >>> spread(["a", "b", "c", "d", "e", "f", "g"], 4)
    ['a', 'c', 'e', 'g']
    """
    if len(names) <= most:
        return list(names)
    return [names[round(place * (len(names) - 1) / (most - 1))] for place in range(most)]


@dataclass(slots=True)
class _Seen:
    """What one module did in a pass."""

    name: str
    module: nn.Module
    calls: int
    output: Any
    layer: nn.Module | None
    """The layer with parameters that ended last before it: it tells where the features are."""
    enters: bool = False
    """Whether the output only enters a normalisation or an activation."""


def automatic_places(model: nn.Module, example: Example) -> dict[str, SlotPlace]:
    """Return the places of ``model`` by the name of their module, in the order of the pass."""
    seen, returned = _watch(model, example)
    ends = {id(tensor) for tensor in tensors_in(returned)}
    places: dict[int, tuple[_Seen, SiteKind]] = {}
    for one in seen:
        kind = _kind(one, example.size)
        if kind is None or id(one.output) in ends or one.enters or not _computes(one.module):
            continue
        before = places.get(id(one.output))
        if before is None or one.name.count(".") < before[0].name.count("."):  # the block rather than its last layer
            places[id(one.output)] = (one, kind)
    return {one.name: SlotPlace(one.name, kind) for one, kind in _outermost(list(places.values()))}


def _outermost(places: list[tuple[_Seen, SiteKind]]) -> list[tuple[_Seen, SiteKind]]:
    """Return the places inside of no other, or also those in the next depth, until there are a few."""
    depth = 0
    while True:
        names = [one.name for one, _ in places]
        outer = [own for own in places if sum(own[0].name.startswith(f"{name}.") for name in names if name) <= depth]
        if len(outer) >= FEW or len(outer) == len(places):
            return outer
        depth += 1


def _watch(model: nn.Module, example: Example) -> tuple[list[_Seen], Any]:
    """Return what each module did in a pass in evaluation, in the order in which they ended, and what was returned."""
    seen: dict[str, _Seen] = {}
    readers: dict[int, list[bool]] = {}
    last: list[nn.Module | None] = [None]
    returned: list[Any] = []
    held: list[Any] = []  # a tensor that is freed may lend its id to the next one

    def enter(module: nn.Module, args: Any) -> None:
        held.append(args)
        if not any(module.children()):
            for tensor in tensors_in(args):
                readers.setdefault(id(tensor), []).append(_follows(module))

    def leave(name: str, module: nn.Module, args: Any, output: Any) -> None:
        if not any(module.children()) and next(module.parameters(), None) is not None:
            last[0] = module
        calls = seen.pop(name).calls + 1 if name in seen else 1
        seen[name] = _Seen(name, module, calls, output, last[0])

    with untouched(model), in_mode(model, training=False), ExitStack() as hooks:
        hooks.callback(model.register_forward_hook(lambda *own: returned.append(own[-1])).remove)
        for name, module in model.named_modules():
            if name and not name.startswith(HOME):
                hooks.callback(module.register_forward_pre_hook(enter).remove)
                hooks.callback(module.register_forward_hook(partial(leave, name)).remove)
        example.run(model, example.copy())
    for one in seen.values():
        by = readers.get(id(one.output), [])
        one.enters = not any(one.module.children()) and bool(by) and all(by) and not _activates(one.module)
    return list(seen.values()), returned


def _follows(module: nn.Module) -> bool:
    """Return whether the module completes the layer before it."""
    return type(module).__module__ in _FOLLOWERS or isinstance(module, _NORMS)


def _activates(module: nn.Module) -> bool:
    return type(module).__module__ == _FOLLOWERS[0]


def _computes(module: nn.Module) -> bool:
    """Return whether there is something to learn behind the module: it has parameters, or is an activation."""
    return _activates(module) or next(module.parameters(), None) is not None


def _kind(one: _Seen, size: int) -> SiteKind | None:
    """Return the kind of site at a module's output; None if it can have no slot.

    The features of three dimensions are last where a layer over the last dimension was the latest, and second after a
    convolution. Images with features last are left out, since no blueprint takes them.
    """
    output = one.output
    if one.calls > 1 or not isinstance(output, Tensor) or output.is_nested or not output.is_floating_point():
        return None
    if output.ndim not in (2, 3, 4) or output.shape[0] != size or output.shape[1:].numel() == 0:
        return None
    if output.ndim == 2:
        return "vector"
    second = _features_second(one.layer, output)
    if output.ndim == 4:
        return "image" if second else None
    return "sequence" if second else "tokens"


def _features_second(layer: nn.Module | None, output: Tensor) -> bool:
    """Return whether the features are in the second dimension, judged by the shape of the latest layer's weights."""
    shapes = [own.shape for own in layer.parameters(recurse=False)] if layer is not None else []
    weight = max(shapes, key=len, default=torch.Size())
    if len(weight) >= 3:
        return True
    if len(weight) == 1 and weight[0] == output.shape[1]:
        return True
    return len(weight) != 1 and isinstance(layer, nn.modules.batchnorm._BatchNorm)


def slot_sites(model: nn.Module) -> Mapping[str, str]:
    """Return what each slot of a model carries: ``sequence (8, 40)``."""
    sites = {slot.name: slot.site for slot in slots_of(model).each()}
    return {name: f"{site.kind} {site.example_shape}" for name, site in sites.items() if site is not None}
