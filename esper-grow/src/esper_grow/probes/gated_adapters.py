"""Adapters with gates: what each brings a trained model beside those that act, by the gradients of its gate."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from esper_core.growth import Example, Host
from esper_core.leyline.errors import GrowthError, Problem
from esper_grow.gardener.validation import each_loss

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import nn

    from esper_core.growth import Seed
    from esper_grow.gardener.validation import Loss
    from esper_grow.probes.plans import PlaceKey


class GatedAdapters:
    """The adapters of a model, and the validation examples by which they are measured.

    Args:
        seeds: The adapters by their places.
        batches: Validation batches.
        loss: Returns one loss for each example.
    """

    def __init__(self, seeds: Mapping[PlaceKey, Seed], batches: Sequence[Any], loss: Loss) -> None:
        self._seeds, self._batches, self._loss = seeds, batches, loss
        self._rows: list[int] = []
        """The losses of each batch."""
        self._has_whole = False
        """Whether a batch of several examples has a single loss."""

    def noted_losses(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the losses of a batch; in the first pass note how many they are."""
        losses = self._loss(model, batch)
        if len(self._rows) < len(self._batches):
            self._rows.append(len(each_loss(losses)))
            self._has_whole |= self._rows[-1] == 1 < Example.of(batch).size
            if self._has_whole and max(self._rows) > 1:
                message = "the loss function returns one loss for a whole batch, and for each example of another one"
                hint = "As where a mask selects tokens: return the mean over the tokens of each example."
                raise GrowthError(Problem("E342", message, hint=hint))
        return losses

    @contextmanager
    def _gates(self, values: Mapping[PlaceKey, float | Tensor]) -> Iterator[None]:
        """Multiply what each adapter puts out by its gate in the ``with`` block: a number, or one for each example."""

        def multiply(key: PlaceKey, _module: nn.Module, _inputs: Any, outputs: Tensor) -> Tensor:
            gate = values[key]
            if isinstance(gate, Tensor):
                gate = gate.view(-1, *[1] * (outputs.ndim - 1)).to(outputs.dtype)
            return outputs * gate

        with ExitStack() as hooks:
            for key in values:
                hook = partial(multiply, key)
                hooks.callback(self._seeds[key].block.register_forward_hook(hook).remove)
            yield

    def losses(self, model: nn.Module, acting: Sequence[PlaceKey]) -> Tensor:
        """Return the loss of each example where these adapters alone act."""
        host = Host(model)
        with torch.no_grad(), host.evaluating(), self._gates({key: float(key in acting) for key in self._seeds}):
            moved = (Example.of(batch).to(host.device) for batch in self._batches)
            return torch.cat([each_loss(self._loss(model, batch)).float() for batch in moved])

    def gains(self, model: nn.Module, acting: Sequence[PlaceKey]) -> tuple[dict[PlaceKey, Tensor], Tensor]:
        """Return what other adapters bring each example beside those that act, to first order, and its loss with these.

        The notes of a first pass say how many losses a batch has.
        """
        host = Host(model)
        gains: dict[PlaceKey, list[Tensor]] = {key: [] for key in self._seeds if key not in acting}
        seen: list[Tensor] = []
        with host.evaluating():
            for batch, rows in zip(self._batches, self._rows, strict=True):
                gates = {
                    key: torch.full((rows,), float(key in acting), device=host.device, requires_grad=True)
                    for key in self._seeds
                }
                with self._gates(gates):
                    losses = each_loss(self._loss(model, Example.of(batch).to(host.device)))
                    # With the gates in place, since checkpointing runs layers again. Some need not act on every batch.
                    others = [gates[key] for key in gains]
                    gradients = torch.autograd.grad(losses.sum(), others, materialize_grads=True)
                seen.append(losses.detach().float())
                for key, gradient in zip(gains, gradients, strict=True):
                    gains[key].append(-gradient.detach().float().cpu())
        return {key: torch.cat(parts) for key, parts in gains.items()}, torch.cat(seen)


def pooled(gains: Mapping[PlaceKey, Tensor]) -> dict[PlaceKey, Tensor]:
    """Return the gains of places, drawn halfway to the sum of what their block and their kind bring, by least squares.

    A layer is of the kind that its name within a numbered block says. One that shares neither stays as it is.

    >>> places = ("0.up", 1), ("0.down", 1), ("1.up", 1), ("1.down", 1)
    >>> [round(float(gain), 3) for gain in pooled(dict(zip(places, torch.tensor([[4.0], [0], [0], [0]])))).values()]
    [3.5, 0.5, 0.5, -0.5]
    """
    kinds = [_block_and_kind(slot) for slot, _ in gains]
    groups = sorted({group for kind in kinds for group in enumerate(kind)})
    members = torch.tensor([[float(kind[place] == group) for place, group in groups] for kind in kinds])
    stacked = torch.stack(list(gains.values()))
    fitted = members @ torch.linalg.pinv(members) @ stacked
    return dict(zip(gains, (stacked + fitted) / 2, strict=True))


def _block_and_kind(layer: str) -> tuple[str, str]:
    """Return the numbered block of a layer, and its name in there.

    >>> _block_and_kind("encoder.layer.3.output.dense"), _block_and_kind("head")
    (('encoder.layer.3', 'output.dense'), ('', 'head'))
    """
    parts = layer.split(".")
    end = next((place for place, part in enumerate(parts, 1) if part.isdecimal()), 0)
    return ".".join(parts[:end]), ".".join(parts[end:])
