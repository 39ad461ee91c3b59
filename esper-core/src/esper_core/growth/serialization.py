"""Serialization: nested values and all tensors of a model, as a State for a checkpoint and back.

``encode_state`` takes numbers, text, tuples, mappings with any keys, and tensors, in any depth; order is kept, and a
tensor that occurs twice is one again. ``model_state`` holds more than a state dict: buffers that do not persist, too. A
buffer that changed its shape, or that appeared only in the first pass, is restored.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from esper_core.growth.dry_runs import device_of
from esper_core.leyline.errors import GrowthError, Problem
from esper_core.leyline.protocols import State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


STORED: Final = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8),
        torch.bool,
    }
)
"""What a file of numbers takes and gives back."""

_TOLD: Final = "told"


def encode_state(value: Any) -> State:
    """Return ``value`` as a State that ``decode_state`` reads. GrowthError where something in it cannot be stored.

    >>> decode_state(encode_state({7: (0.5, float("nan")), "best": None}))
    {7: (0.5, nan), 'best': None}
    """
    pen = _Pen()
    return State({_TOLD: pen.write(value, "")}, pen.tensors)


def decode_state(state: State, device: torch.device | str = "cpu") -> Any:
    """What ``told`` was given. A tensor that was on the CPU is there again; others are on ``device``.

    GrowthError where the state is none of ``told``, or was changed.
    """
    eye = _Eye(state.tensors, torch.device(device))
    try:
        return eye.read(state.plain[_TOLD])
    except (KeyError, TypeError, ValueError) as error:
        why = f"it cannot be read: {type(error).__name__}: {error}"
        raise state_mismatch(why) from error


def stored_copy(name: str, tensor: Tensor) -> Tensor:
    """A copy of ``tensor`` as a checkpoint keeps it: by itself, on the CPU, contiguous."""
    why = "on no device" if tensor.is_meta else None
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.dtype not in STORED:
        why = f"{str(tensor.dtype).removeprefix('torch.')}, {str(tensor.layout).removeprefix('torch.')}"
    if why is not None:
        message = f'what is to be kept of this network holds what no file of numbers takes: "{name}", {why}'
        raise GrowthError(Problem("E335", message, hint="Keep plain real numbers in it."))
    return tensor.detach().to("cpu", copy=True).contiguous()


def state_mismatch(why: str) -> GrowthError:
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
            self.tensors[name] = stored_copy(name, tensor)
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
            raise state_mismatch(why)
        if (found := form_of(self._tensors[name])) != form:
            why = f"its tensor {name} is {found}, and was {form}"
            raise state_mismatch(why)
        if name not in self._read:
            self._read[name] = self._tensors[name].to("cpu" if on_cpu else self._device, copy=True)
        return self._read[name]


_SETTLED: Final = "torch.nn."
"""Where classes come from whose buffers are all there from the beginning, and keep their shape."""


def model_state(model: nn.Module) -> State:
    """All numbers of ``model``, as a state of copies."""
    persistent = model.state_dict(keep_vars=True).keys()
    buffers = _buffers(model)
    return encode_state(
        {
            "parameters": dict(model.named_parameters()),
            "buffers": buffers,
            "passing": [name for name in buffers if name not in persistent],
            "extra": {name: module.get_extra_state() for name, module in _with_extra_state(model)},
        }
    )


def load_model_state(model: nn.Module, state: State) -> None:
    """Give ``model``, built like the one whose ``model_state`` these are, its numbers.

    Parameters stay the objects that they are. GrowthError where something does not fit; then nothing was changed.
    """
    numbers = decode_state(state, device_of(model))
    if misfits := list(_misfits(model, numbers)):
        more = [f"… and {len(misfits) - 5} more"] if len(misfits) > 5 else []
        raise state_mismatch("\n".join([*misfits[:5], *more]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(numbers["parameters"][name])
        _put_buffers(model, numbers["buffers"], passing=numbers["passing"])
    for name, module in _with_extra_state(model):
        module.set_extra_state(numbers["extra"][name])


def _misfits(model: nn.Module, numbers: dict[str, Any]) -> Iterator[str]:
    """What of the numbers has no place, and what has no number."""
    here, there = dict(model.named_parameters()), numbers["parameters"]
    buffers, modules = _buffers(model), dict(model.named_modules())
    for name in sorted((here.keys() - there.keys()) | (buffers.keys() - numbers["buffers"].keys())):
        yield f"it has no numbers for {name}"
    for name in sorted(there.keys() - here.keys()):
        yield f"there is no place for {name}"
    for name in sorted(here.keys() & there.keys()):
        if form_of(there[name]) != form_of(here[name]):
            yield f"{name} is {form_of(there[name])}, and here {form_of(here[name])}"
    for name in sorted(numbers["buffers"]):
        if (module := modules.get(name.rpartition(".")[0])) is None:
            yield f"there is no place for {name}"
        elif type(module).__module__.startswith(_SETTLED) and name in buffers:
            there_, here_ = form_of(numbers["buffers"][name]), form_of(buffers[name])
            if there_ != here_:
                yield f"{name} is {there_}, and here {here_}"
    for name, _ in _with_extra_state(model):
        if name not in numbers["extra"]:
            yield f"it has no extra state for {name or 'the model'}"


def _put_buffers(model: nn.Module, values: dict[str, Tensor], *, passing: list[str]) -> None:
    """Write each value into the buffer that is there, where it fits; who shared one shares one again."""
    homes: dict[int, Tensor] = {}
    taken: set[int] = set()
    for name, value in values.items():
        path, _, attribute = name.rpartition(".")
        module = model.get_submodule(path)
        own = dict(module.named_buffers(recurse=False)).get(attribute)
        home = homes.get(id(value))
        if home is None and own is not None and id(own) not in taken and form_of(own) == form_of(value):
            home = own.copy_(value)
        home = homes.setdefault(id(value), value if home is None else home)
        taken.add(id(home))
        if own is None and not hasattr(module, attribute):
            module.register_buffer(attribute, home, persistent=name not in passing)
        elif own is not home:
            setattr(module, attribute, home)


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    """Each module's buffers by name, one that several share under each of them."""
    return {
        f"{path}.{name}" if path else name: buffer
        for path, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
    }


def _with_extra_state(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that keep more than tensors, and say so."""
    for name, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            yield name, module
