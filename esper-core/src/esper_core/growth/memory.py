"""How is what something remembers, whatever its shape, written as plain data and tensors, and read again?

Numbers, text, tuples, mappings with any keys, tensors, in any depth. Each mapping keeps its order, and a tensor that
stands in two places is one again. What comes out of it is a copy: it stays what it is, whatever is trained later.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from esper_core.leyline.errors import GrowthError, Problem
from esper_core.leyline.protocols import State

if TYPE_CHECKING:
    from collections.abc import Mapping

STORED: Final = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8),
        torch.bool,
    }
)
"""What a file of numbers takes and gives back."""

_TOLD: Final = "told"


def told(value: Any) -> State:
    """``value`` as a state: ``heard`` makes it of that again. GrowthError where something in it cannot be written.

    >>> heard(told({7: (0.5, float("nan")), "best": None}))
    {7: (0.5, nan), 'best': None}
    """
    pen = _Pen()
    return State({_TOLD: pen.write(value, "")}, pen.tensors)


def heard(state: State, device: torch.device | str = "cpu") -> Any:
    """What ``told`` was given. A tensor that was on the CPU is there again; others are on ``device``.

    GrowthError where the state is none of ``told``, or was changed.
    """
    eye = _Eye(state.tensors, torch.device(device))
    try:
        return eye.read(state.plain[_TOLD])
    except (KeyError, TypeError, ValueError) as error:
        why = f"it cannot be read: {type(error).__name__}: {error}"
        raise unfit(why) from error


def kept(name: str, tensor: Tensor) -> Tensor:
    """A copy of ``tensor`` as a checkpoint keeps it: by itself, on the CPU, contiguous."""
    why = "on no device" if tensor.is_meta else None
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.dtype not in STORED:
        why = f"{str(tensor.dtype).removeprefix('torch.')}, {str(tensor.layout).removeprefix('torch.')}"
    if why is not None:
        message = f'what is to be kept of this network holds what no file of numbers takes: "{name}", {why}'
        raise GrowthError(Problem("E335", message, hint="Keep plain real numbers in it."))
    return tensor.detach().to("cpu", copy=True).contiguous()


def unfit(why: str) -> GrowthError:
    """What is said of a state that is not for what it is loaded into."""
    hint = f"{why}\nA state goes into what was built with the same settings, by the same versions of every package."
    return GrowthError(Problem("E334", "the state does not fit what it is loaded into", hint=hint))


def form_of(tensor: Tensor) -> str:
    """Shape and kind of numbers: what must agree for a tensor to come back as it was."""
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


class _Pen:
    """Writes values down; the tensors in them by names that say where they stood."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}

    def write(self, value: Any, place: str) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return str(value)
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"float": str(float(value))}
        if isinstance(value, Tensor):
            return {"tensor": self._name(value, place), "form": form_of(value), "cpu": value.device.type == "cpu"}
        if isinstance(value, list | tuple):
            parts = [self.write(one, f"{place}.{number}") for number, one in enumerate(value)]
            return parts if isinstance(value, list) else {"tuple": parts}
        if isinstance(value, dict):
            return {"map": [[self.write(key, ""), self.write(one, f"{place}.{key}")] for key, one in value.items()]}
        message = (
            f'what is to be kept of this network holds what no file takes: "{place[1:]}", a {type(value).__name__}'
        )
        raise GrowthError(Problem("E335", message, hint="Keep plain numbers, text and tensors in it."))

    def _name(self, tensor: Tensor, place: str) -> str:
        if id(tensor) not in self._names:
            name = place[1:] or "whole"
            while name in self.tensors:
                name += "'"  # 1 and "1" are two keys of a mapping, and one name
            self._names[id(tensor)] = name
            self.tensors[name] = kept(name, tensor)
        return self._names[id(tensor)]


class _Eye:
    """Reads what a pen wrote."""

    def __init__(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        self._tensors = tensors
        self._device = device
        self._read: dict[str, Tensor] = {}

    def read(self, plain: Any) -> Any:
        if isinstance(plain, list):
            return [self.read(one) for one in plain]
        if not isinstance(plain, dict):
            return plain
        if "tensor" in plain:
            return self._tensor(plain["tensor"], plain["form"], on_cpu=plain["cpu"])
        if "map" in plain:
            return {self.read(key): self.read(one) for key, one in plain["map"]}
        if "tuple" in plain:
            return tuple(self.read(one) for one in plain["tuple"])
        return float(plain["float"])

    def _tensor(self, name: str, form: str, *, on_cpu: bool) -> Tensor:
        if name not in self._tensors:
            why = f"it lacks the tensor {name}"
            raise unfit(why)
        if (found := form_of(self._tensors[name])) != form:
            why = f"its tensor {name} is {found}, and was {form}"
            raise unfit(why)
        if name not in self._read:
            self._read[name] = self._tensors[name].to("cpu" if on_cpu else self._device, copy=True)
        return self._read[name]
