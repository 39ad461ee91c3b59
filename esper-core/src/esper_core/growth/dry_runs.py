"""Dry runs: run a model without leaving a trace, and observe what its modules return.

``observe_sites`` runs a model once in training and once in evaluation and reports the site at each given module.
Buffers, modes, gradients and random numbers are afterwards what they were.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from esper_core.growth.random_streams import RandomStream
from esper_core.leyline.errors import GraftError, Problem
from esper_core.leyline.specs import Site, SiteKind, SlotPlace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from esper_core.growth.examples import Example

HOME: Final = "_esper"
"""Name of the one child that a graft adds to the root."""

_KIND_BY_DIMENSIONS: Final[dict[int, SiteKind]] = {2: "vector", 3: "sequence", 4: "image"}
_DIMENSIONS: Final = {"vector": 2, "sequence": 3, "tokens": 3, "image": 4}

_FIXED_BUFFERS: Final = ("torch.nn.", "esper_core.")
"""Packages whose modules have all of their buffers from the beginning."""


class KeptBuffers:
    """The buffers of a model as they were when this was made, without those of the modules in ``without``.

    Some layers fill a buffer, some replace it by another tensor, and some have none until the first pass; ``put_back``
    undoes each of these.
    """

    def __init__(self, model: nn.Module, *, without: Iterable[nn.Module] = ()) -> None:
        left_out = {id(module) for part in without for module in part.modules()}
        modules = [module for module in model.modules() if id(module) not in left_out]
        self._kept = [
            (module, name, buffer, buffer.detach().clone())
            for module in modules
            for name, buffer in module.named_buffers(recurse=False)
        ]
        self._attributes = [
            (module, frozenset(dir(module)))
            for module in modules
            if not type(module).__module__.startswith(_FIXED_BUFFERS)
        ]

    def put_back(self) -> None:
        """Restore every buffer: the object and its value."""
        with torch.no_grad():
            for module, name, buffer, value in self._kept:
                buffer.copy_(value)
                if getattr(module, name) is not buffer:
                    setattr(module, name, buffer)
        kept = {(id(module), name) for module, name, _, _ in self._kept}
        for module, attributes in self._attributes:
            for name in [name for name, _ in module.named_buffers(recurse=False) if (id(module), name) not in kept]:
                if name in attributes:
                    setattr(module, name, None)  # it was registered without a value
                else:
                    delattr(module, name)


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Run a block without gradients; buffers and torch's default generators are restored after it."""
    kept = KeptBuffers(model)
    with torch.no_grad(), RandomStream(0, device_of(model)):
        try:
            yield
        finally:
            kept.put_back()


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Run a block with the whole model in training or evaluation mode; each module's mode is restored after it."""
    before = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's first parameter or buffer; the CPU if it has none."""
    tensor = next(iter(model.parameters()), next(iter(model.buffers()), None))
    return torch.device("cpu") if tensor is None else tensor.device


def dtype_of(model: nn.Module) -> torch.dtype:
    """Return the dtype of the model's first floating-point parameter, or torch's default."""
    kinds = (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    return next(kinds, torch.get_default_dtype())


def observe_sites(
    model: nn.Module, places: Mapping[str, SlotPlace], example: Example
) -> list[tuple[Site, torch.dtype]]:
    """Run ``model`` on one batch in both modes and return the site and dtype at each of ``places``, by slot name.

    Raises:
        GraftError: a module is not called exactly once in each mode, or returns something else than one batch of
            numbers, or another shape in one mode than in the other.
    """
    problems: dict[str, Problem] = {}
    sites: dict[str, Site] = {}
    dtypes: dict[str, torch.dtype] = {}
    for training in (True, False):
        outputs = _outputs_at(model, places, example, training=training)
        for name, place in places.items():
            site = _site(name, place, outputs[name], training=training, batch=example.size)
            if isinstance(site, Problem):
                problems.setdefault(name, site)
                continue
            dtypes[name] = outputs[name][0].dtype
            if sites.setdefault(name, site) != site:
                why = "returns another shape in training than in evaluation"
                problems.setdefault(name, _refusal(name, place, why))
    if not problems:
        problems = _batch_elsewhere(model, places, sites, example)
    if problems:
        ordered = [(name, problems[name]) for name in places if name in problems]
        fitting = _fitting_modules(model, example)
        raise GraftError([_with_nearest(own, places[name].at, model, fitting) for name, own in ordered])
    return [(sites[name], dtypes[name]) for name in places]


def _fitting_modules(model: nn.Module, example: Example) -> list[str]:
    """Return the names of the modules that can have a slot, as far as one pass in evaluation shows."""
    called = {name: SlotPlace(name) for name, module in model.named_modules() if name and not name.startswith(HOME)}
    try:
        outputs = _outputs_at(model, called, example, training=False)
    except Exception:
        return []  # a hook on every module can break one that calls another by itself
    sites = {name: _site(name, called[name], outputs[name], training=False, batch=example.size) for name in called}
    return [name for name, site in sites.items() if isinstance(site, Site)]


def _with_nearest(problem: Problem, at: str, model: nn.Module, fitting: list[str]) -> Problem:
    """Add to the hint the modules beside the one at ``at`` that can have a slot."""
    order = [name for name, _ in model.named_modules()]
    nearest = sorted(fitting, key=lambda name: abs(order.index(name) - order.index(at)))[:3]
    beside = f"Modules near it that can have a slot: {', '.join(nearest)}" if nearest else None
    return replace(problem, hint="\n".join(filter(None, [problem.hint, beside])) or None)


def _outputs_at(
    model: nn.Module, places: Mapping[str, SlotPlace], example: Example, *, training: bool
) -> dict[str, list[Any]]:
    """Return what the modules returned in one pass. Others get no hook: some layers run other code if they have one."""
    outputs: dict[str, list[Any]] = {name: [] for name in places}

    def record(name: str, module: nn.Module, args: Any, output: Any) -> None:
        outputs[name].append(output)

    with untouched(model), in_mode(model, training=training), ExitStack() as stack:
        for name, place in places.items():
            handle = model.get_submodule(place.at).register_forward_hook(partial(record, name), prepend=True)
            stack.callback(handle.remove)
        given = example.copy()
        example.run(model, given)
    if not example.equals(given):
        raise GraftError(Problem("E318", "the model modifies its input", hint="Copy it first: x = x.clone()"))
    return outputs


def _batch_elsewhere(
    model: nn.Module, places: Mapping[str, SlotPlace], sites: Mapping[str, Site], example: Example
) -> dict[str, Problem]:
    """Find places whose first dimension only happened to be as long as the batch, by a pass with one example less."""
    fewer = example.size - 1
    doubtful = {name: place for name, place in places.items() if example.size in sites[name].example_shape}
    if not doubtful or not fewer:
        return {}
    outputs = _outputs_at(model, doubtful, example.without_last(), training=False)
    found = {name: _site(name, place, outputs[name], training=False, batch=fewer) for name, place in doubtful.items()}
    return {name: outcome for name, outcome in found.items() if isinstance(outcome, Problem)}


def _site(name: str, place: SlotPlace, outputs: list[Any], *, training: bool, batch: int) -> Site | Problem:
    mode = "training" if training else "evaluation"
    if not outputs:
        return _refusal(name, place, f"is not called in {mode}")
    if len(outputs) > 1:
        hint = "A seed would act several times; put the slot behind a module that is called once."
        return _refusal(name, place, f"is called {len(outputs)} times in one pass", hint)
    (output,) = outputs
    if not isinstance(output, Tensor):
        return _refusal(name, place, f"returns a {type(output).__name__}, not one tensor")
    if output.is_nested:
        hint = "A TransformerEncoder packs padded batches in evaluation: build it with enable_nested_tensor=False."
        return _refusal(name, place, "returns a nested tensor, not rows of one length", hint)
    received = f"Received: {output.dtype}, shape {tuple(output.shape)} for a batch of {batch}"
    if not output.is_floating_point() or output.ndim < 2 or output.shape[0] != batch:
        return _refusal(
            name, place, "does not return one row of numbers per example", f"Put the batch first. {received}"
        )
    kind = place.kind or _KIND_BY_DIMENSIONS.get(output.ndim)
    if kind is None or output.ndim != _DIMENSIONS[kind]:
        received = f"Received: shape {tuple(output.shape)}"
        return _refusal(name, place, f"does not return a {kind or 'vector, sequence or image'}", received)
    return Site.of(kind, tuple(output.shape[1:]))


def _refusal(name: str, place: SlotPlace, why: str, hint: str | None = None) -> Problem:
    return Problem("E317", f'slot "{name}": module "{place.at}" {why}', path=name, hint=hint)
