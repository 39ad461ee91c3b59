"""States that are compared or written down: of modules, of policies, and of the global random generators."""

from __future__ import annotations

import json
import math
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import torch as safetensors_torch
from torch import Tensor

from esper_core.leyline import State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def generator_states() -> dict[str, str]:
    """Return the states of the global generators that belong to others than torch, as text, by name."""
    of_numpy = [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()]
    return {"Python's global generator": repr(random.getstate()), "numpy's": repr(of_numpy)}


def through_safetensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors as a safetensors file gives them back. Tied weights are written twice."""
    own = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    read: dict[str, Tensor] = safetensors_torch.load(safetensors_torch.save(own))
    return {name: read[name] for name in own}


def written_and_read(state: Any) -> State:
    """Return the state as another process reads it, from JSON and safetensors.

    Raises:
        AssertionError: some of it would be lost.
    """
    if not isinstance(state, State):
        msg = f"state() must return an esper_core.leyline.State. Received: {type(state).__name__}"
        raise AssertionError(msg)
    if lost := [*_unrepresentable(dict(state.plain), "plain"), *_invalid_tensors(state.tensors)]:
        msg = f"its state cannot be saved: {'; '.join(lost[:3])}"
        raise AssertionError(msg)
    plain = json.loads(json.dumps(dict(state.plain), allow_nan=False))
    return State(plain, through_safetensors(state.tensors))


def same_state(one: State, other: State) -> bool:
    """Return whether two states are equal; NaN equals NaN."""
    return (
        dict(one.plain) == dict(other.plain)
        and list(one.tensors) == list(other.tensors)
        and all(_same(tensor, other.tensors[name]) for name, tensor in one.tensors.items())
    )


def _unrepresentable(value: Any, path: str) -> Iterator[str]:
    """Yield what JSON cannot represent or gives back as another type, with its path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(key, str):
                yield from _unrepresentable(inner, f"{path}[{key!r}]")
            else:
                yield f"{path} has the key {key!r}, but keys must be strings"
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _unrepresentable(inner, f"{path}[{place}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{path} is {value}"
    elif value is not None and not isinstance(value, str | int | float):
        yield f"{path} is a {type(value).__name__}"


def _invalid_tensors(tensors: Mapping[str, Any]) -> Iterator[str]:
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            yield f"tensors[{name!r}] is a {type(value).__name__}"
        elif not isinstance(name, str) or not name:
            yield f"tensors has the key {name!r}, but keys must be non-empty strings"


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    with torch.no_grad():
        return bool(((one == other) | ((one != one) & (other != other))).all())
