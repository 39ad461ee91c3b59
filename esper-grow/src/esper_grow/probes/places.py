"""Places in a model at which a probe tries blueprints, found by watching one batch pass through it.

A place is behind a module that can have a slot: it is called once in a pass, and returns one row of numbers for each
example. Left out are: what the model returns; layers without parameters, except activations; and a layer whose output
only enters a normalisation or an activation, since the place behind that is the better one. Of the rest the outermost
modules are taken, or those inside of them, too, where these are fewer than ``FEW``. If more than ``MANY`` remain, the
first, the last and evenly spaced ones between are tried: of repeated blocks, too.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from esper_blueprints.dora import Dora
from esper_blueprints.lora import Lora
from esper_core.growth import Example, Host, RandomStream, graft
from esper_core.leyline.errors import GraftError, GrowthError, Problem
from esper_grow.adaptation import refused_by_peft, with_several_names
from esper_grow.peft_growth import has_adapters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    if Host(model).is_grafted:
        if slots != "auto":
            hint = 'Leave out slots: those of the model are tried. Or probe what "ungraft" returns.'
            raise GraftError(Problem("E310", "this model has slots already", hint=hint))
        Host(model).observe(example)
        return
    if slots != "auto":
        graft(model, [slots] if isinstance(slots, str) else slots, example=example)
        return
    places = automatic_places(model, example)
    if not places:
        message = "no place for a slot was found"
        hint = 'Name modules that return one row of numbers for each example:  slots=["layer2", "blocks.*.mlp"]'
        raise GrowthError(Problem("E351", message, hint=hint))
    graft(model, places, example=example)


def spread(names: Sequence[str], most: int = MANY) -> list[str]:
    """Return ``most`` of the names: the first, the last, and evenly spaced ones between.

    >>> spread(["a", "b", "c", "d", "e", "f", "g"], 4)
    ['a', 'c', 'e', 'g']
    """
    if len(names) <= most:
        return list(names)
    return [names[round(place * (len(names) - 1) / (most - 1))] for place in range(most)]


def automatic_places(model: nn.Module, example: Example) -> list[str]:
    """Return the modules of ``model`` behind which a probe tries, in the order of the pass."""
    seen, ends = _watch(model, example)
    places: dict[int, str] = {}
    for record in seen.values():
        # There is something to learn behind parameters, and behind an activation.
        computes = _activates(record.module) or next(record.module.parameters(), None) is not None
        if id(record.output) in ends or record.enters or not computes or _has_features_last(record):
            continue
        before = places.get(id(record.output))
        if before is None or record.name.count(".") < before.count("."):  # the block rather than its last layer
            places[id(record.output)] = record.name
    return spread(_outermost(fitting_places(model, list(places.values()), example)[0]))


def fitting_places(model: nn.Module, names: list[str], example: Example) -> tuple[list[str], list[Problem]]:
    """Return the modules that can have a slot, and why the others cannot."""
    refused: list[Problem] = []
    while names:
        try:
            Host(model).try_places(names, example)
            break
        except GraftError as error:
            unfit = {problem.path for problem in error.problems}
            if not unfit.intersection(names):
                raise
            names, refused = [name for name in names if name not in unfit], [*refused, *error.problems]
    return names, refused


def lora_in_peft(
    model: nn.Module, modules: Sequence[str], layers: Sequence[str], block: nn.Module
) -> tuple[dict[str, Any] | None, tuple[str, str] | None]:
    """Return the settings of PEFT's LoRA for such blocks, and why PEFT cannot train what was measured, with a remedy.

    There are no settings for a block that is no LoRA. ``modules`` are the names of all of the model.
    """
    if not isinstance(block, Lora):
        return None, ("PEFT has no adapter that computes what was placed", "Place LoRA")
    saved = _trained_modules(model, layers)
    settings: dict[str, Any] = {"r": block.rank, "lora_alpha": block.alpha, "use_rslora": block.rslora}
    settings["lora_dropout"] = 0.0 if block.dropout is None else block.dropout.p
    more = {"use_dora": isinstance(block, Dora), "modules_to_save": saved}
    settings |= {name: value for name, value in more.items() if value}
    return settings, _obstacle_in_peft(model, modules, layers, saved)


def _obstacle_in_peft(
    model: nn.Module, modules: Sequence[str], layers: Sequence[str], saved: Sequence[str]
) -> tuple[str, str] | None:
    """Return why PEFT would train something else than these layers' adapters and saved modules, and what to do."""
    if refused := refused_by_peft(model, layers):
        return f"PEFT refuses LoRA beside {', '.join(refused)}", "Leave that out of where=…"
    if several := with_several_names(model, [*layers, *saved]):
        why = f"PEFT adapts a layer under its first name alone, and that is not the only one of {', '.join(several)}"
        return why, "Give it one name"
    parameters = {} if has_adapters(model) else Host(model).parameters()
    whole = tuple(f"{module}." for module in saved)
    frozen = [name for name, values in parameters.items() if values.requires_grad and not name.startswith(whole)]
    if frozen:
        what = "all weights of the model" if len(frozen) == len(parameters) else ", ".join(frozen[:3])
        return f"PEFT freezes {what}, which trained in the measurement", "Freeze all but a head before placing"
    uses = Counter(id(values) for module in model.modules() for values in module.parameters(recurse=False))
    if any(uses[id(values)] > 1 for name in saved for values in model.get_submodule(name).parameters()):
        return f"PEFT trains a copy of {', '.join(saved)}, and weights in it are tied", "Untie or freeze them"
    # PEFT compares the ends of names, those that it gives to parts of an adapted layer too, without regard to dots.
    names = [name for name in modules if any(True for _ in model.get_submodule(name).parameters())]
    names += ["base_layer", "default", "lora_A", "lora_B", "lora_dropout", "lora_magnitude_vector"]
    if taken := [name for name in names if name.endswith(tuple(saved)) and name not in saved]:
        why = f'PEFT takes {", ".join(taken[:3])} for the trained "{", ".join(saved)}", since the names end alike'
        return why, "Rename one of them, or train both"
    return None


def _trained_modules(model: nn.Module, layers: Sequence[str]) -> list[str]:
    """Return the modules beside these layers that train as a whole in a model of which a part is frozen."""
    names: list[str] = []
    if has_adapters(model) or all(parameter.requires_grad for parameter in model.parameters()):
        return names
    for name, module in model.named_modules():
        trains = [parameter.requires_grad for parameter in module.parameters()]
        has_layer = any(f"{layer}.".startswith(f"{name}.") for layer in layers)
        if trains and all(trains) and not has_layer and not name.startswith(tuple(f"{outer}." for outer in names)):
            names.append(name)
    return names


def _outermost(names: list[str]) -> list[str]:
    """Return the modules that are inside of no other, or also those in the next depth, until there are a few."""
    depths = {name: sum(name.startswith(f"{other}.") for other in names) for name in names}
    for depth in range(len(names)):
        outer = [name for name in names if depths[name] <= depth]
        if len(outer) >= FEW:
            return outer
    return names


@dataclass(slots=True)
class _Seen:
    """What one module did in a pass: the first tensor that it returned, and the layer with parameters before that."""

    name: str
    module: nn.Module
    output: Tensor
    layer: nn.Module | None
    enters: bool = False
    """Whether the output only enters a normalisation or an activation."""


def _watch(model: nn.Module, example: Example) -> tuple[dict[str, _Seen], set[int]]:
    """Return what each module did in a pass in evaluation, in their order, and the ids of what the model returned.

    All tensors are held until the end: one that is freed may lend its id to the next.
    """
    seen: dict[str, _Seen] = {}
    readers: dict[int, list[bool]] = {}
    held: list[Any] = []
    last: list[nn.Module | None] = [None]

    def enter(module: nn.Module, args: Any) -> None:
        held.append(args)
        if _is_layer(module):
            completes_the_layer_before = type(module).__module__ in _FOLLOWERS or isinstance(module, _NORMS)
            for tensor in Example.tensors_in(args):
                readers.setdefault(id(tensor), []).append(completes_the_layer_before)

    def leave(name: str, module: nn.Module, args: Any, output: Any) -> None:
        held.append(output)
        if _is_layer(module) and next(module.parameters(), None) is not None:
            last[0] = module
        tensor = next(Example.tensors_in(output), None)
        if tensor is not None and name:
            seen.pop(name, None)
            seen[name] = _Seen(name, module, tensor, last[0])

    host = Host(model)
    with torch.no_grad(), RandomStream(0, host.device), host.evaluating(), ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.callback(module.register_forward_pre_hook(enter).remove)
            hooks.callback(module.register_forward_hook(partial(leave, name)).remove)
        example.run(model, example.copy())
    for record in seen.values():
        by = readers.get(id(record.output), [])
        record.enters = _is_layer(record.module) and bool(by) and all(by) and not _activates(record.module)
    return seen, {id(tensor) for tensor in Example.tensors_in(held[-1])}


def _is_layer(module: nn.Module) -> bool:
    return next(module.children(), None) is None


def _activates(module: nn.Module) -> bool:
    return type(module).__module__ == _FOLLOWERS[0]


def _has_features_last(record: _Seen) -> bool:
    """Return whether the output is an image whose features are last: no blueprint takes that."""
    if record.output.ndim != 4 or record.layer is None:
        return False
    shapes = [parameter.shape for parameter in record.layer.parameters(recurse=False)]
    weight = max(shapes, key=len, default=torch.Size())
    second, last = record.output.shape[1], record.output.shape[-1]
    return len(weight) <= 2 and weight[:1] == (last,) and second != last


def slot_sites(model: nn.Module) -> Mapping[str, str]:
    """Return the kind and shape of the data at each slot of a model: ``sequence (8, 40)``."""
    sites = {slot.name: slot.site for slot in Host(model).slots}
    return {name: f"{site.kind} {site.example_shape}" for name, site in sites.items() if site is not None}
