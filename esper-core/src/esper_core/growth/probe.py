"""Does a slot fire, and what does it see? One pass in training and one in evaluation, which leave no trace."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from esper_core.growth.keeping import KeptBuffers
from esper_core.growth.randomness import RandomStream
from esper_core.leyline.errors import GraftError, Problem
from esper_core.leyline.specs import Site, SiteKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from esper_core.growth.slot import Slot

_KIND_BY_DIMENSIONS: dict[int, SiteKind] = {2: "vector", 3: "sequence", 4: "image"}


def observe(model: nn.Module, slots: Sequence[Slot], example: Tensor) -> None:
    """Run ``model`` on one batch in both modes and write down in each slot the site that it saw.

    Parameters, buffers, modes and random numbers are afterwards what they were. GraftError where a slot does not fire
    in both modes, fires more than once in a pass, or sees something else than one batch of numbers.
    """
    problems: list[Problem] = []
    sites: dict[str, Site] = {}
    for training in (True, False):
        with untouched(model), _modes(model, training=training), ExitStack() as stack:
            records = {slot.name: stack.enter_context(slot.watched()) for slot in slots}
            fired = stack.enter_context(_tensor_modules(model))
            given = example.clone()
            model(given)
            if not torch.equal(given, example):
                raise GraftError(
                    Problem("E318", "the model writes into its input", hint="Copy it first: x = x.clone()")
                )
            for slot in slots:
                outcome = _site(slot, records[slot.name], training=training, batch=len(example), fired=fired)
                if isinstance(outcome, Problem):
                    problems.append(outcome)
                elif sites.setdefault(slot.name, outcome) != outcome:
                    problems.append(_refusal(slot, "puts out another shape in training than in evaluation"))
    if problems:
        first_of_each = {problem.path: problem for problem in reversed(problems)}
        raise GraftError([first_of_each[slot.name] for slot in slots if slot.name in first_of_each])
    for slot in slots:
        slot.site = sites[slot.name]


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


def dtype_of(model: nn.Module) -> torch.dtype:
    """The kind of numbers that the model computes with: that of its first floating parameter, or torch's default."""
    kinds = (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    return next(kinds, torch.get_default_dtype())


@contextmanager
def _modes(model: nn.Module, *, training: bool) -> Iterator[None]:
    before = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode


@contextmanager
def _tensor_modules(model: nn.Module) -> Iterator[list[str]]:
    """Names of the modules that were called and put out one tensor."""
    fired: list[str] = []

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                fired.append(name)

        return hook

    handles = [
        module.register_forward_hook(note(name))
        for name, module in model.named_modules()
        if name and not name.startswith("_esper") and not isinstance(module, torch.jit.ScriptModule)
    ]
    try:
        yield fired
    finally:
        for handle in handles:
            handle.remove()


def _site(slot: Slot, outputs: list[Any], *, training: bool, batch: int, fired: list[str]) -> Site | Problem:
    mode = "training" if training else "evaluation"
    if not outputs:
        others = [name for name in dict.fromkeys(fired) if fired.count(name) == 1 and name != slot.at]
        shown = ", ".join(others[:12]) + (", …" if len(others) > 12 else "")
        return _refusal(slot, f"is not called in {mode}", f"These are, once: {shown or 'none'}")
    if len(outputs) > 1:
        return _refusal(
            slot,
            f"is called {len(outputs)} times in one pass",
            "A seed would act several times; put the slot behind a module that is called once.",
        )
    (output,) = outputs
    if not isinstance(output, Tensor):
        return _refusal(slot, f"puts out a {type(output).__name__}, not one tensor")
    if not output.is_floating_point() or output.ndim < 2 or output.shape[0] != batch:
        received = f"Received: {output.dtype}, shape {tuple(output.shape)} for a batch of {batch}"
        return _refusal(slot, "does not put out one row of numbers for each example", received)
    kind = slot.kind or _KIND_BY_DIMENSIONS.get(output.ndim)
    expected = {"vector": 2, "sequence": 3, "tokens": 3, "image": 4}.get(kind or "")
    if kind is None or output.ndim != expected:
        received = f"Received: shape {tuple(output.shape)}"
        return _refusal(slot, f"does not put out a {kind or 'vector, sequence or image'}", received)
    return Site.of(kind, tuple(output.shape[1:]))


def _refusal(slot: Slot, why: str, hint: str | None = None) -> Problem:
    return Problem("E317", f'slot "{slot.name}": module "{slot.at}" {why}', path=slot.name, hint=hint)
