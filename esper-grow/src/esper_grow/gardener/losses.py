"""The losses of the examples of a batch, of which a loss function returns the mean.

Gates compare losses example by example, and most training code returns their mean. So the call that computed the mean
is looked up among torch's, and what it averaged is returned: the argument of ``mean``, or the losses that a function
of ``torch.nn.functional`` returns without reduction.
"""

from __future__ import annotations

from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from esper_core.growth import Example

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn


def each_example(loss: Callable[[nn.Module, Any], Tensor], model: nn.Module, batch: Any) -> Tensor:
    """Return one loss for each example of a batch if ``loss`` returns their mean; else what it returns.

    Where the mean leaves out tokens, or weighs classes, the losses are scaled so that their mean is that of ``loss``.
    """
    means = _Means()
    with means:
        returned = loss(model, batch)
    _, call = means.calls.get(id(returned), (returned, None))
    if call is None:
        return returned
    (mean, compute), rows = call, Example.of(batch).size
    parts: Tensor = torch.atleast_1d(compute())  # models of one output may drop all dimensions of one example
    if rows and parts.numel() and (len(parts) == rows or parts.ndim == 1) and not parts.numel() % rows:
        example_losses = parts.float().reshape(rows, -1).mean(1)
        unweighted = example_losses.mean()
        ratio = (mean.float() / unweighted).detach()
        is_plain = torch.isclose(mean.float(), unweighted, rtol=1e-4) | ~ratio.isfinite()
        return example_losses * torch.where(is_plain, torch.ones_like(ratio), ratio)
    return returned


def are_of_examples(losses: Tensor, loss: Callable[[nn.Module, Any], Tensor], model: nn.Module, batch: Any) -> bool:
    """Return whether the losses behind a mean are those of examples: without the last one the others keep theirs.

    Where tokens are in time-major order, or two views of a batch are joined, each is that of several examples.
    """
    size, shorter = len(losses), Example.of(batch).without_last().batch
    integers = [part for part in Example.tensors_in(batch) if part.dtype is torch.int64 and part.ndim]
    if size == 1 or any(len(part) != size for part in integers):
        return True  # edges of a graph may point to an example that is left out, which ends a process on a GPU
    try:
        with torch.no_grad():
            again, fewer = (torch.atleast_1d(each_example(loss, model, part)) for part in (batch, shorter))
    except Exception:  # it takes no other number of examples
        return True
    if len(fewer) != size - 1:
        return False
    before, after = losses.detach()[:-1], again[:-1]
    # Losses that leave out tokens are scaled by batch; those of a model that draws random numbers vary.
    apart = torch.dist(fewer * (fewer @ before / (fewer @ fewer)), before)
    varying = 0.1 * torch.dist(before, before.mean()) + 2 * torch.dist(before, after)
    return not bool(apart > varying + 1e-5 * before.norm())


_CASTS: Final = ("to", "type", "float", "double", "half", "bfloat16", "cpu", "cuda", "clone", "mean", "squeeze")
"""Functions that return a single number as it is, but for its dtype or device."""


class _Means(TorchFunctionMode):
    """Records calls of torch that return a mean over all elements, and casts of what they returned."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[int, tuple[Tensor, tuple[Tensor, Callable[[], Tensor]] | None]] = {}
        """Single numbers by their identity, each with the mean that it is, and how to compute what was averaged."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        result = func(*args, **named)
        if isinstance(result, Tensor) and not result.ndim:
            source = args[0] if args and getattr(func, "__name__", None) in _CASTS else None
            _, call = self.calls.get(id(source), (result, None))
            if call is None and (compute := _unreduced(func, args, named)) is not None:
                call = result, compute
            # In any case: what changes a mean in place, as ``loss += penalty`` does, returns it, too.
            self.calls[id(result)] = result, call
        return result


def _unreduced(func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Callable[[], Tensor] | None:
    """Return how to compute what a call has averaged; None if it is no such call."""
    if func in (torch.mean, Tensor.mean):
        (averaged,) = args[:1] or (named["input"],)
        return lambda: averaged
    if getattr(func, "__module__", None) != "torch.nn.functional":
        return None
    call_signature = signature(func)
    if "reduction" not in call_signature.parameters:
        return None
    bound = call_signature.bind(*args, **named)
    bound.apply_defaults()
    if bound.arguments["reduction"] != "mean":
        return None
    return partial(func, **{**bound.arguments, "reduction": "none"})
