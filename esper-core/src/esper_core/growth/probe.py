"""Does a slot fire, and what does it see? One pass in training and one in evaluation, which leave no trace."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from esper_core.growth.keeping import KeptBuffers
from esper_core.growth.randomness import RandomStream
from esper_core.growth.state_keys import HOME
from esper_core.leyline.errors import GraftError, Problem
from esper_core.leyline.specs import Site, SiteKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from esper_core.growth.slot import Slot

_SHOWN: Final = 12
"""Names of modules in a hint."""

_KIND_BY_DIMENSIONS: dict[int, SiteKind] = {2: "vector", 3: "sequence", 4: "image"}


def observe(model: nn.Module, slots: Sequence[Slot], example: Tensor) -> None:
    """Run ``model`` on one batch in both modes and write down in each slot the site that it saw.

    Parameters, buffers, modes and random numbers are afterwards what they were. GraftError where a slot does not fire
    in both modes, fires more than once in a pass, or sees something else than one batch of numbers.
    """
    refused: dict[str, Problem] = {}
    sites: dict[str, Site] = {}
    dtypes: dict[str, torch.dtype] = {}
    for training in (True, False):
        records = _records(model, slots, example, training=training)
        problems: dict[str, Problem] = {}
        for slot in slots:
            outcome = _site(model, slot, records[slot.name], training=training, batch=len(example))
            if isinstance(outcome, Problem):
                problems[slot.name] = outcome
                continue
            dtypes[slot.name] = records[slot.name][0].dtype
            if sites.setdefault(slot.name, outcome) != outcome:
                problems[slot.name] = _refusal(slot, "puts out another shape in training than in evaluation")
        if new := {name: problem for name, problem in problems.items() if name not in refused}:
            refused |= _with_names(model, slots, new, example, training=training)
    if not refused:
        refused = _batch_elsewhere(model, slots, sites, example)
    if refused:
        raise GraftError([refused[slot.name] for slot in slots if slot.name in refused])
    for slot in slots:
        slot.site, slot.dtypes = sites[slot.name], (dtypes[slot.name], dtype_of(model))


def _records(model: nn.Module, slots: Sequence[Slot], example: Tensor, *, training: bool) -> dict[str, list[Any]]:
    """What each slot saw in one pass. The model has no other hook then: some layers take another way for any hook."""
    with untouched(model), in_mode(model, training=training), ExitStack() as stack:
        records = {slot.name: stack.enter_context(slot.watched()) for slot in slots}
        given = example.clone()
        model(given)
    if not torch.equal(given, example):
        raise GraftError(Problem("E318", "the model writes into its input", hint="Copy it first: x = x.clone()"))
    return records


def _batch_elsewhere(
    model: nn.Module, slots: Sequence[Slot], sites: Mapping[str, Site], example: Tensor
) -> dict[str, Problem]:
    """The slots whose first dimension was as long as the batch by chance: with one example less, it is no longer."""
    fewer = len(example) - 1
    doubtful = [slot for slot in slots if len(example) in sites[slot.name].example_shape]
    if not doubtful or not fewer:
        return {}
    records = _records(model, doubtful, example[:fewer], training=False)
    outcomes = {slot.name: _site(model, slot, records[slot.name], training=False, batch=fewer) for slot in doubtful}
    return {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Problem)}


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """A block without gradients after which buffers and the default random generators are what they were."""
    kept = KeptBuffers(model)
    with torch.no_grad(), RandomStream(0, device_of(model)):
        try:
            yield
        finally:
            kept.put_back()


def device_of(model: nn.Module) -> torch.device:
    """Where the model's numbers live; the CPU if it has none."""
    tensor = next(iter(model.parameters()), next(iter(model.buffers()), None))
    return torch.device("cpu") if tensor is None else tensor.device


def dtype_at(slot: Slot, model: nn.Module) -> torch.dtype:
    """The kind of numbers that a seed in ``slot`` computes with: what was seen there, unless it was changed since."""
    own = dtype_of(model)
    return slot.dtypes[0] if slot.dtypes is not None and slot.dtypes[1] is own else own


def dtype_of(model: nn.Module) -> torch.dtype:
    """The kind of numbers that the model computes with: that of its first floating parameter, or torch's default."""
    kinds = (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    return next(kinds, torch.get_default_dtype())


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """A block in which the whole model trains or does not; its parts' modes are afterwards what they were."""
    before = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode


def _with_names(
    model: nn.Module, slots: Sequence[Slot], problems: dict[str, Problem], example: Tensor, *, training: bool
) -> dict[str, Problem]:
    """``problems`` with the names of modules that would do, the nearest first, where nothing better was to be said."""
    names = _called_once(model, example, training=training)
    named: dict[str, Problem] = {}
    for slot in (slot for slot in slots if slot.name in problems):
        problem = problems[slot.name]
        near = sorted((name for name in names if name != slot.at), key=lambda name: -_shared(name, slot.at))
        shown = ", ".join(near[:_SHOWN]) + (", …" if len(near) > _SHOWN else "")
        hint = problem.hint or f"These are, once: {shown or 'none'}"
        named[slot.name] = replace(problem, hint=hint)
    return named


def _called_once(model: nn.Module, example: Tensor, *, training: bool) -> list[str]:
    """Names of the modules that are called once in a pass and put out one tensor."""
    called: Counter[str] = Counter()
    fit: list[str] = []

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            called[name] += 1
            if isinstance(output, Tensor) and output.is_floating_point() and output.shape[:1] == example.shape[:1]:
                fit.append(name)

        return hook

    with untouched(model), in_mode(model, training=training), ExitStack() as stack:
        for name, module in model.named_modules():
            if name and name.split(".")[0] != HOME and not isinstance(module, torch.jit.ScriptModule):
                stack.callback(module.register_forward_hook(note(name)).remove)
        try:
            model(example.clone())
        except Exception:  # it ran with the slots' hooks and does not with one everywhere: then no name is known
            return []
    return [name for name in fit if called[name] == 1]


def _shared(name: str, other: str) -> int:
    """How many parts two dotted names share from the left."""
    pairs = zip(name.split("."), other.split("."), strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


def _site(model: nn.Module, slot: Slot, outputs: list[Any], *, training: bool, batch: int) -> Site | Problem:
    mode = "training" if training else "evaluation"
    if not outputs:
        return _refusal(slot, f"is not called in {mode}")
    if len(outputs) > 1:
        return _refusal(
            slot,
            f"is called {len(outputs)} times in one pass",
            "A seed would act several times; put the slot behind a module that is called once.",
        )
    (output,) = outputs
    if not isinstance(output, Tensor):
        return _refusal(slot, f"puts out a {type(output).__name__}, not one tensor")
    if output.is_nested:
        return _packed(model, slot)
    received = f"Received: {output.dtype}, shape {tuple(output.shape)} for a batch of {batch}"
    if output.ndim > 1 and output.shape[0] != batch and output.shape[1] == batch:
        hint = f"Have the batch first, or turn it in a module of your own. {received}"
        return _refusal(slot, "puts out the batch in its second dimension", hint)
    if not output.is_floating_point() or output.ndim < 2 or output.shape[0] != batch:
        return _refusal(slot, "does not put out one row of numbers for each example", received)
    kind = slot.kind or _KIND_BY_DIMENSIONS.get(output.ndim)
    expected = {"vector": 2, "sequence": 3, "tokens": 3, "image": 4}.get(kind or "")
    if kind is None or output.ndim != expected:
        received = f"Received: shape {tuple(output.shape)}"
        return _refusal(slot, f"does not put out a {kind or 'vector, sequence or image'}", received)
    return Site.of(kind, tuple(output.shape[1:]))


def _packed(model: nn.Module, slot: Slot) -> Problem:
    """What is said of a nested tensor, most likely that of an encoder that was given a padding mask."""
    parts = slot.at.split(".")
    for depth in range(len(parts)):
        encoder = model.get_submodule(name := ".".join(parts[:depth]))
        if isinstance(encoder, nn.TransformerEncoder) and getattr(encoder, "use_nested_tensor", False):
            hint = f'Build it with enable_nested_tensor=False, or put the slot behind "{name}" as a whole.'
            return _refusal(slot, "lies in a TransformerEncoder that packs padded batches in evaluation", hint)
    return _refusal(slot, "puts out a nested tensor, not rows of one length")


def _refusal(slot: Slot, why: str, hint: str | None = None) -> Problem:
    return Problem("E317", f'slot "{slot.name}": module "{slot.at}" {why}', path=slot.name, hint=hint)
