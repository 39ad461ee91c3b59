"""What comes back of a state that was written into a checkpoint? The same, or an AssertionError that says why not."""

from __future__ import annotations

import json
import math
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from esper_core.leyline import State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def written_and_read(state: Any) -> State:
    """The state as another process would read it: from JSON, and from the bytes of safetensors where it is installed.

    AssertionError for all of it that would be lost.
    """
    if not isinstance(state, State):
        msg = f"state() gives an esper_core.leyline.State. Received: {type(state).__name__}"
        raise AssertionError(msg)
    if lost := [*_lost(dict(state.plain), "plain"), *_no_tensors(state.tensors)]:
        msg = f"its state cannot be written down: {'; '.join(lost[:3])}"
        raise AssertionError(msg)
    plain = json.loads(json.dumps(dict(state.plain), allow_nan=False))
    return State(plain, _through_bytes(state.tensors))


def same_state(one: State, other: State) -> bool:
    """Whether two states say the same. Something that is no number is what it is."""
    return (
        dict(one.plain) == dict(other.plain)
        and list(one.tensors) == list(other.tensors)
        and all(_same(tensor, other.tensors[name]) for name, tensor in one.tensors.items())
    )


def _lost(value: Any, path: str) -> Iterator[str]:
    """What JSON does not hold, or gives back as something else, and where it stands."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(key, str):
                yield from _lost(inner, f"{path}[{key!r}]")
            else:
                yield f"{path} has the key {key!r}, and only text can be one"
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _lost(inner, f"{path}[{place}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{path} is {value}"
    elif value is not None and not isinstance(value, str | int | float):
        yield f"{path} is a {type(value).__name__}"


def _no_tensors(tensors: Mapping[str, Any]) -> Iterator[str]:
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            yield f"tensors[{name!r}] is a {type(value).__name__}"
        elif not isinstance(name, str) or not name:
            yield f"tensors has the key {name!r}, and a tensor has a name"


def _through_bytes(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    own = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    if find_spec("safetensors") is None:
        return own
    safetensors = import_module("safetensors.torch")
    read: dict[str, Tensor] = safetensors.load(safetensors.save(own))
    return {name: read[name] for name in own}


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    with torch.no_grad():
        return bool(((one == other) | ((one != one) & (other != other))).all())
