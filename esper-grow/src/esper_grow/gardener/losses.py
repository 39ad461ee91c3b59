"""The losses of the examples of a batch, of which a loss function returns the mean.

Gates compare losses example by example, and most training code returns their mean. So the call that computed the mean
is looked up among torch's, and what it averaged is returned: the argument of ``mean``, or the losses that a function
of ``torch.nn.functional`` returns without reduction.
"""

from __future__ import annotations

from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

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
    if not isinstance(returned, Tensor) or returned.ndim:
        return returned
    rows = Example.of(batch).size
    for mean, compute in means.found_for(returned):
        parts: Tensor = torch.atleast_1d(compute())  # models of one output may drop all dimensions of one example
        if rows and parts.numel() and (len(parts) == rows or parts.ndim == 1) and not parts.numel() % rows:
            example_losses = parts.float().reshape(rows, -1).mean(1)
            return example_losses * _ratio(mean.float(), example_losses.mean())
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


def _ratio(mean: Tensor, unweighted: Tensor) -> Tensor:
    """Return by what to scale losses; exactly 1 where nothing was left out or weighted."""
    ratio = (mean / unweighted).detach()
    same = torch.isclose(mean, unweighted, rtol=1e-4) | ~ratio.isfinite()
    return torch.where(same, torch.ones_like(ratio), ratio)


class _Means(TorchFunctionMode):
    """Records calls of torch that return a mean over all elements."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Tensor, Callable[[], Tensor]]] = []

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        result = func(*args, **named)
        if isinstance(result, Tensor) and not result.ndim and (compute := _unreduced(func, args, named)) is not None:
            self._calls.append((result, compute))
        return result

    def found_for(self, returned: Tensor) -> list[tuple[Tensor, Callable[[], Tensor]]]:
        """Return the calls that returned a tensor, or one of the same value, such as that of another dtype."""
        latest = self._calls[::-1]
        exact = [call for call in latest if call[0] is returned]
        return exact or [call for call in latest if torch.equal(call[0].to(returned), returned)]


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
