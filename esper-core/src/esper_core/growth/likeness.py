"""Does a model with empty slots put out what it put out before? It must, and a host can be so that it does not.

A host that goes through its own children meets one more. What comes out is therefore compared, in both modes and with
the same random numbers. Last bits are let pass: some layers take a slower way where there is any hook.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from esper_core.growth.probe import in_mode, untouched
from esper_core.growth.state_keys import HOME
from esper_core.leyline.errors import GraftError, Problem


def outputs(model: nn.Module, example: Tensor) -> dict[bool, Any]:
    """What comes out in training (True) and in evaluation, with random numbers that are the same each time."""
    seen: dict[bool, Any] = {}
    for training in (True, False):
        with untouched(model), in_mode(model, training=training):
            seen[training] = model(example.clone())
    return seen


def refuse_unlike(model: nn.Module, example: Tensor, plain: Mapping[bool, Any]) -> None:
    """GraftError if the model, grafted by now, puts out something else than ``plain``.

    One that does not repeat itself, since it draws numbers from elsewhere, is not judged.
    """
    grafted = outputs(model, example)
    unlike = [training for training in (True, False) if not alike(plain[training], grafted[training])]
    if not unlike:
        return
    again = outputs(model, example)
    if any(alike(grafted[training], again[training]) for training in unlike):
        mode = "training" if unlike[0] else "evaluation"
        message = f"the model puts out something else in {mode} once it has slots"
        hint = f'Does it go through its own children? There is one more now, "{HOME}". '
        raise GraftError(
            Problem("E318", message, hint=f"{hint}Put the model into a module of your own, and graft that.")
        )


def alike(one: Any, other: Any) -> bool:
    """Whether two outputs are of one form and, but for last bits, of the same numbers.

    >>> alike({"a": torch.ones(2)}, {"a": torch.ones(2)}), alike([torch.ones(2)], [torch.ones(2), torch.ones(2)])
    (True, False)
    """
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return _numbers_alike(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(alike(mine, yours) for mine, yours in zip(one, other, strict=True))
    return type(one) is type(other)


def _numbers_alike(one: Tensor, other: Tensor) -> bool:
    if one.is_nested or other.is_nested or one.layout != torch.strided or other.layout != torch.strided:
        return one.is_nested == other.is_nested and one.layout == other.layout
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not (one.is_floating_point() or one.is_complex()) or not one.numel():
        return True  # what is counted or chosen may turn with a last bit
    few = torch.finfo(one.dtype).eps ** 0.5
    if one.dtype.itemsize < torch.float32.itemsize:
        one, other = one.float(), other.float()
    scale = float(torch.nan_to_num(one.abs(), nan=0.0, posinf=0.0).max())
    return bool(torch.isclose(one, other, rtol=0.0, atol=few * scale, equal_nan=True).all())
