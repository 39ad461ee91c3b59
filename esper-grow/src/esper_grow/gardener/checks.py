"""Checks of what a Gardener is given, and of its model between two calls."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from inspect import signature
from numbers import Integral
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch
from pydantic import BaseModel
from torch import nn

from esper_core.growth import Host
from esper_core.leyline.errors import GrowthError, Problem, plural, suggestion
from esper_grow.gardener.traces import HostAutocast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from esper_core.growth import Example, Variety

log = logging.getLogger("esper")

ModelT = TypeVar("ModelT", bound=nn.Module)

DEPTH: Final = 8
"""How deep in containers an optimizer's numbers are looked for; a container may hold itself."""


def refuse_ranks() -> None:
    """Raise GrowthError (E343) where several processes train the model together."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and (ranks := distributed.get_world_size()) > 1:
        message = f"a Gardener works in one process, and this training has {ranks} ranks"
        hint = "Each rank would grow different seeds. Grow in one process, then train the result on several."
        raise GrowthError(Problem("E343", message, hint=hint))


def refuse_open_gardener(model: nn.Module) -> None:
    """Raise GrowthError (E357) if a Gardener is at work on a model."""
    if Host(model).is_grafted and HostAutocast.is_on(model):
        hint = "Call close() of it first, or name all slots in one. If it is lost, build the model anew."
        raise GrowthError(Problem("E357", "the model has a Gardener already, which is not closed", hint=hint))


def prune(model: ModelT) -> ModelT:
    """Remove the seeds that are not kept, such as those of a state from the middle of a training, and return the model.

    No output changes, since they act on branches alone. The Gardener that still trains them does this in ``close``.

    Raises:
        GrowthError: a Gardener is at work on the model (E357).
    """
    refuse_open_gardener(model)
    Host(model).prune()
    return model


def kept_by(optimizers: Iterable[torch.optim.Optimizer]) -> list[set[Any]]:
    """Return what each optimizer keeps, in a form that can be compared: where each value is, and which it is."""
    return [set(_kept(vars(optimizer))) for optimizer in optimizers]


def refuse_shared_state(optimizers: Iterable[torch.optim.Optimizer], before: Iterable[set[Any]]) -> None:
    """Raise GrowthError (E340) if a step of a branch has changed what the loop's optimizers keep; more may be there."""
    for optimizer, kept in zip(optimizers, before, strict=True):
        if changed := kept.difference(_kept(vars(optimizer))):
            names = {".".join(part for part in place if isinstance(part, str)) for place, *_ in changed}
            where = f"elsewhere than in state[parameter]: in its {min(names)}"
            message = f"{type(optimizer).__name__} keeps numbers {where}"
            hint = "A branch has changed them for your loop, too. Build model and loop anew, with another optimizer."
            raise GrowthError(Problem("E340", message, hint=hint))


def _kept(value: Any, *place: Any) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, torch.Tensor):  # a parameter has the numbers of a branch for a while
        yield place, id(value), None if isinstance(value, nn.Parameter) else value._version
    elif isinstance(value, Mapping) and len(place) < DEPTH:
        for key, part in value.items():
            yield from _kept(part, *place, id(key) if isinstance(key, torch.Tensor) else key)
    elif isinstance(value, Sequence) and not isinstance(value, str) and len(place) < DEPTH:
        for number, part in enumerate(value):
            yield from _kept(part, *place, number)
    else:
        yield place, value if isinstance(value, int | float | str) else id(value)


def refuse_arguments(model: Any, steps: Any, clip_norm: Any) -> None:
    """Raise GrowthError for several ranks (E343), no module (E350), a second Gardener (E357), a wrong number (E347)."""
    refuse_ranks()
    if not isinstance(model, nn.Module):
        message = f"a Gardener needs a torch.nn.Module. Received: {type(model).__name__}"
        hint = "Pass the model itself, with its loss as a function beside it."
        raise GrowthError(Problem("E350", message, hint=hint))
    refuse_open_gardener(model)
    if not isinstance(steps, Integral) or steps < 1:
        hint = "It is the number of calls of tend() that the policy plans for, such as the epochs."
        raise GrowthError(Problem("E347", f"steps must be a whole number above 0. Received: {steps!r}", hint=hint))
    if clip_norm is not None and not (isinstance(clip_norm, int | float) and clip_norm > 0):
        message = f"clip_norm must be a number above 0, or None. Received: {clip_norm!r}"
        raise GrowthError(Problem("E347", message, hint="It is the norm to which the loop clips gradients."))


def refuse_unknown_options(callee: Callable[..., Any], received: Iterable[str], options: type) -> None:
    """Raise TypeError for a keyword argument that is neither a parameter of ``callee`` nor one of its options."""
    accepted = [name for name in signature(callee).parameters if name != "options"] + list(options.__annotations__)
    for name in received:
        if name not in accepted:
            message = f"{callee.__name__}() got an unexpected keyword argument '{name}'. {suggestion(name, accepted)}"
            raise TypeError(message)


def refuse_no_settings(settings: Any, section: str) -> None:
    """Raise GrowthError (E347) if the settings of a section are no mapping."""
    if settings is not None and not isinstance(settings, Mapping | BaseModel):
        message = f"{section} takes a mapping of settings. Received: {settings!r}"
        hint = f'As in a configuration, such as  {section}={{"{_USUAL[section]}": …}}'
        if section == "governor":
            hint += ', or governor="off"'
        raise GrowthError(Problem("E347", message, hint=hint))


_USUAL: Final = {"growth": "gates", "governor": "rollbacks"}
"""A setting of each section, as an example."""


def warn_of_attributes(model: nn.Module, example: Example) -> None:
    """Log a warning if equal passes change what modules keep in attributes, as a count of passes does (E377)."""
    Host(model).observe(example)  # ends with fewer examples where a size is that of the batch, as the next does
    before = _attributes(model)
    Host(model).observe(example)
    after = _attributes(model)
    changed = [place for place in before | after if not _same(before.get(place), after.get(place))]
    if names := [*dict.fromkeys(f"{module}.{name}".strip(".") for module, name, _ in changed)]:
        message = f"each pass changes attributes of the model: {', '.join(names[:5])}"
        hint = "Passes for branches and gains change them, too. Register what is counted or remembered as buffers."
        log.warning("%s", Problem("E377", message, hint=hint))


def _attributes(model: nn.Module) -> dict[tuple[str, str, int], Any]:
    """Return what is a number or a plain tensor among attributes of the host's modules, or first in lists there."""
    attributes: dict[tuple[str, str, int], Any] = {}
    for at, module in Host.split_state(dict(model.named_modules()))[0].items():
        for name, value in vars(module).items():
            for number, part in enumerate(value[:DEPTH] if isinstance(value, tuple | list) else [value]):
                if _is_plain(part):
                    attributes[at, name, number] = part.detach().to("cpu", torch.float64, copy=True)
                elif isinstance(part, int | float):
                    attributes[at, name, number] = part
    return attributes


def _is_plain(value: Any) -> bool:
    unreadable = type(value) is not torch.Tensor or value.layout is not torch.strided or value.is_complex()
    return not (unreadable or value.is_nested or value.is_meta or value.is_quantized)


def _same(value: Any, other: Any) -> bool:
    if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
        return Host.alike(value, other)
    return type(value) is type(other) and bool(value == other or value != value)  # NaN differs from itself


def refuse_grown_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Raise GrowthError (E348) for the state of an optimizer whose groups hold more than here; a hook."""
    saved = [len(group["params"]) for group in state["param_groups"]]
    current = [len(group["params"]) for group in optimizer.param_groups]
    if len(saved) == len(current) and any(
        received > expected for received, expected in zip(saved, current, strict=True)
    ):
        message = f"the optimizer's state is of a grown model: it has {sum(saved)} parameters, expected {sum(current)}"
        hint = "Load the growth first:  gardener.load_state_dict(checkpoint[…])"
        raise GrowthError(Problem("E348", message, hint=hint))


class ModelForm:
    """Where the host's parameters are, and of which dtype, as branches have copied them. Seeds may have others."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        varieties: Mapping[str, Sequence[Variety]],
    ) -> None:
        self._host, self._optimizers = Host(model), optimizers
        self.of_host = self._host.parameters()
        """The host's parameters by name, as they were at the latest thorough check."""
        self._recorded = self._now()
        self._layers = self._layers_now()
        self._frozen = {name for name, parameter in self.of_host.items() if not parameter.requires_grad}
        adapts = any(variety.spec.adapts for of_slot in varieties.values() for variety in of_slot)
        self._frozen_norms = frozen_norms(model) if adapts else {}

    def described(self, policy: str) -> dict[str, str]:
        """Return what the Gardener that loads a state must have in common with the one that it is of."""
        shapes = {name: str(tuple(parameter.shape)) for name, parameter in self._host.parameters().items()}
        groups = sum(len(optimizer.param_groups) for optimizer in self._optimizers)
        return {"policy": policy, "number of optimizer groups": str(groups), **shapes}

    def _now(self) -> set[tuple[torch.dtype, torch.device]]:
        return {(parameter.dtype, parameter.device) for parameter in self.of_host.values()}

    def _layers_now(self) -> dict[str, nn.Parameter | nn.Module]:
        modules, _ = self._host.split_state(dict(self._host.model.named_modules()))
        return {**self.of_host, **modules}

    def refuse_other(self, *, branched: bool, thorough: bool = False) -> None:
        """Raise GrowthError (E358) if the model was moved, cast, or got other layers while seeds live on branches.

        A move may replace parameters, which is seen if it is ``thorough``; so are other layers, and a process group
        that was made since.
        """
        if thorough:
            refuse_ranks()
            self.of_host = self._host.parameters()
            self._refuse_unfrozen()
        self._warn_of_statistics()
        now = self._now()
        if branched and now != self._recorded:
            message = f"the model was {_listed(self._recorded)} when seeds germinated, and is {_listed(now)}"
            hint = "Move or cast it before the Gardener is made, or after close(); for less precision use autocast."
            raise GrowthError(Problem("E358", message, hint=hint))
        self._recorded = now
        if thorough:
            self._refuse_other_layers(branched=branched)

    def _refuse_other_layers(self, *, branched: bool) -> None:
        """Raise GrowthError (E358) for new parameters and buffers, of which branches have no copies to train."""
        layers, recorded = self._layers_now(), {id(layer) for layer in self._layers.values()}
        other = [
            name
            for name, layer in layers.items()
            if id(layer) not in recorded
            # A wrapper around a layer, as of torch.compile, is new and has no tensors of its own.
            and (isinstance(layer, nn.Parameter) or next(layer.buffers(recurse=False), None) is not None)
        ]
        if branched and other:
            message = f"the model has other layers than when seeds germinated, such as {other[0]}"
            raise GrowthError(Problem("E358", message, hint=_CHANGE_BEFORE))
        self._layers = layers

    def _warn_of_statistics(self) -> None:
        """Log a warning, once, if batches move the statistics of frozen normalisations beside adapters (E375)."""
        if moving := [name for name, norm in self._frozen_norms.items() if norm.training]:
            message = f"{plural(len(moving), 'frozen BatchNorm layer')} in training mode, such as {moving[0]}"
            hint = "Each batch moves its statistics, by what grows, too. Keep frozen parts in evaluation mode."
            log.warning("%s", Problem("E375", message, hint=hint))
            self._frozen_norms = {}

    def _refuse_unfrozen(self) -> None:
        """Raise GrowthError (E358) if frozen parameters get gradients now, which no optimizer uses."""
        if not (unfrozen := [name for name in self._frozen & self.of_host.keys() if self.of_host[name].requires_grad]):
            return
        groups = (group for optimizer in self._optimizers for group in optimizer.param_groups)
        owned = {id(parameter) for group in groups for parameter in group["params"]}
        if unused := sorted(name for name in unfrozen if id(self.of_host[name]) not in owned):
            message = (
                f"{len(unused)} frozen parameters require gradients now, such as {unused[0]}, and no optimizer has them"
            )
            hint = "Freeze them again, which saves their time and memory, or give them to the optimizer."
            raise GrowthError(Problem("E358", message, hint=hint))


def frozen_norms(model: nn.Module) -> dict[str, nn.Module]:
    """Return the normalisations with statistics of batches whose weights are frozen, by name."""
    norms: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if getattr(module, "running_mean", None) is not None:
            weights = list(module.parameters())
            if weights and not any(weight.requires_grad for weight in weights):
                norms[name] = module
    return norms


def _listed(forms: set[tuple[torch.dtype, torch.device]]) -> str:
    return ", ".join(sorted(f"{dtype} on {device}".removeprefix("torch.") for dtype, device in forms))


_CHANGE_BEFORE: Final = "Change layers before the Gardener is made; weights can be copied into a layer."


def refuse_lost_slots(model: nn.Module, slots: Iterable[Any]) -> None:
    """Raise GrowthError (E358) if a module was replaced, so that its slot acts no more."""
    acting = {id(hook) for module in model.modules() for hook in vars(module)["_forward_hooks"].values()}
    for slot in slots:
        if id(slot) not in acting:
            message = f'slot "{slot.name}" acts no more, because its module was replaced'
            raise GrowthError(Problem("E358", message, hint=_CHANGE_BEFORE))


def warn_of_full_slots(model: nn.Module) -> None:
    """Log a warning if each slot keeps as many seeds as it may, so that nothing can germinate (E373)."""
    slots = Host(model).slots
    if all(len(slot.fossils) >= slot.limit for slot in slots):
        full = ", ".join(f"{slot.name} keeps {slot.limit}" for slot in slots)
        hint = "Give slots room from the start, with  SlotPlace(…, stack=2)  or  adapters(…, stack=2)."
        log.warning("%s", Problem("E373", f"no slot is free, and nothing can germinate: {full}", hint=hint))
