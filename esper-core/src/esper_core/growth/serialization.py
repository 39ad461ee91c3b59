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
        *(torch.bool, torch.complex64),
    }
)
"""The dtypes that a checkpoint can store."""

_KEY: Final = "told"
"""Key of the encoded value in a State; a part of the format of checkpoints."""


def encode_state(value: Any) -> State:
    """Return ``value`` as a State that ``decode_state`` reads. GrowthError if something in it cannot be stored.

    >>> decode_state(encode_state({7: (0.5, float("nan")), "best": None}))
    {7: (0.5, nan), 'best': None}
    """
    encoder = _Encoder()
    return State({_KEY: encoder.encode(value, "")}, encoder.tensors)


def decode_state(state: State, device: torch.device | str = "cpu") -> Any:
    """Return the value that was encoded. Tensors that were on the CPU are there again; others are on ``device``.

    Raises:
        GrowthError: the state is not one of ``encode_state``, or was changed.
    """
    decoder = _Decoder(state.tensors, torch.device(device))
    try:
        return decoder.decode(state.plain[_KEY])
    except (KeyError, TypeError, ValueError) as error:
        why = f"it cannot be read: {type(error).__name__}: {error}"
        raise state_mismatch(why) from error


def stored_copy(name: str, tensor: Tensor) -> Tensor:
    """Return a copy of ``tensor`` as a checkpoint stores it: on the CPU, and contiguous."""
    if tensor.is_meta or tensor.layout is not torch.strided or tensor.dtype not in STORED:
        received = f"{tensor.dtype}, {tensor.layout}, on {tensor.device}".replace("torch.", "")
        hint = "Use a dense tensor, at most complex64, that is neither quantised nor on the meta device."
        raise GrowthError(Problem("E335", f'the tensor "{name}" cannot be stored: {received}', hint=hint))
    # Copied on the CPU as well: training goes on, and writes in place.
    return tensor.detach().to("cpu", copy=True).contiguous()


def state_mismatch(why: str) -> GrowthError:
    """Return the error for a state that does not fit what it is loaded into."""
    hint = f"{why}\nLoad a state into an object built with the same settings and package versions."
    return GrowthError(Problem("E334", "the state does not fit what it is loaded into", hint=hint))


def form_of(value: Any) -> str:
    """Return the shape and dtype of a tensor, in which a saved tensor and its place must agree."""
    return f"{tuple(value.shape)} {value.dtype}".replace("torch.", "") if isinstance(value, Tensor) else "not a tensor"


def describe_mismatch(expected: Mapping[str, str], actual: Mapping[str, str]) -> str:
    """Return, one per line, where names or forms of tensors differ; at most five, and empty if none do."""
    problems = [f"it lacks {key}" for key in sorted(expected.keys() - actual.keys())]
    problems += [f"it has {key}, which is not expected" for key in sorted(actual.keys() - expected.keys())]
    shared = sorted(expected.keys() & actual.keys())
    problems += [f"{key} is {actual[key]}, expected {expected[key]}" for key in shared if actual[key] != expected[key]]
    return "\n".join([*problems[:5], *([f"… and {len(problems) - 5} more"] if len(problems) > 5 else [])])


class _Encoder:
    """Encodes values as plain data, and collects their tensors under names that say where they were."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}

    def encode(self, value: Any, place: str) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            # Members of enums become what a checkpoint would make of them.
            return str(value)
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            # JSON has neither NaN nor infinities.
            return float(value) if math.isfinite(value) else {"float": str(float(value))}
        if isinstance(value, Tensor):
            return {"tensor": self._name(value, place), "form": form_of(value), "cpu": value.device.type == "cpu"}
        if isinstance(value, list | tuple):
            parts = [self.encode(part, f"{place}.{number}") for number, part in enumerate(value)]
            return parts if isinstance(value, list) else {"tuple": parts}
        if isinstance(value, dict):
            # As pairs, because keys in JSON are text, and these are numbers and tuples, too.
            return {"map": [[self.encode(key, ""), self.encode(part, f"{place}.{key}")] for key, part in value.items()]}
        message = f'"{place[1:]}" cannot be stored: it is a {type(value).__name__}'
        raise GrowthError(Problem("E335", message, hint="Use plain numbers, text and tensors."))

    def _name(self, tensor: Tensor, place: str) -> str:
        if id(tensor) not in self._names:
            name = place[1:] or "whole"
            while name in self.tensors:
                name += "'"  # 1 and "1" are two keys of a mapping, and one name
            self._names[id(tensor)] = name
            self.tensors[name] = stored_copy(name, tensor)
        return self._names[id(tensor)]


class _Decoder:
    """Decodes what an encoder encoded."""

    def __init__(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        self._tensors = tensors
        self._device = device
        self._decoded: dict[str, Tensor] = {}

    def decode(self, plain: Any) -> Any:
        if isinstance(plain, list):
            return [self.decode(part) for part in plain]
        if not isinstance(plain, dict):
            return plain
        if "tensor" in plain:
            return self._tensor(plain["tensor"], plain["form"], on_cpu=plain["cpu"])
        if "map" in plain:
            return {self.decode(key): self.decode(part) for key, part in plain["map"]}
        if "tuple" in plain:
            return tuple(self.decode(part) for part in plain["tuple"])
        return float(plain["float"])

    def _tensor(self, name: str, form: str, *, on_cpu: bool) -> Tensor:
        actual_form = form_of(self._tensors.get(name))
        if actual_form != form:
            why = f"its tensor {name} is {actual_form}, and was {form}"
            raise state_mismatch(why)
        if name not in self._decoded:
            # Copied on the CPU as well: one state may be loaded several times, and is not to be trained.
            self._decoded[name] = self._tensors[name].to("cpu" if on_cpu else self._device, copy=True)
        return self._decoded[name]


_FIXED_BUFFERS: Final = "torch.nn."
"""Package of the modules that have all of their buffers from the beginning, in the shape that they keep."""


def model_state(model: nn.Module) -> State:
    """Return copies of all tensors of ``model``."""
    persistent = model.state_dict(keep_vars=True).keys()
    buffers = _buffers(model)
    return encode_state(
        {
            # A tied parameter is under each of its names, as in a state dict; its numbers are stored once.
            "parameters": dict(model.named_parameters(remove_duplicate=False)),
            "buffers": buffers,
            "passing": [name for name in buffers if name not in persistent],
            "extra": {name: module.get_extra_state() for name, module in _with_extra_state(model)},
        }
    )


def state_dict_of(state: State) -> dict[str, Any]:
    """Return the state dict that is in a ``model_state``."""
    saved = decode_state(state)
    buffers = {name: buffer for name, buffer in saved["buffers"].items() if name not in saved["passing"]}
    extra = {f"{name}._extra_state".removeprefix("."): value for name, value in saved["extra"].items()}
    return {**saved["parameters"], **buffers, **extra}


def load_model_state(model: nn.Module, state: State) -> None:
    """Load a ``model_state`` into a model that was built in the same way. Parameters stay the same objects.

    Raises:
        GrowthError: something does not fit; then nothing was changed.
    """
    saved = decode_state(state, device_of(model))
    if mismatch := _mismatch(model, saved):
        raise state_mismatch(mismatch)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(saved["parameters"][name])
        _load_buffers(model, saved["buffers"], passing=saved["passing"])
    for name, module in _with_extra_state(model):
        module.set_extra_state(saved["extra"][name])


def _mismatch(model: nn.Module, saved: dict[str, Any]) -> str:
    """Return what does not fit. A module's own kind of buffer may appear, or change its shape, in the first pass."""
    buffers, modules = _buffers(model), dict(model.named_modules(remove_duplicate=False))
    parameters = model.named_parameters(remove_duplicate=False)
    expected = {name: form_of(tensor) for name, tensor in (*parameters, *buffers.items())}
    expected |= {f"the extra state of {name}": "" for name, _ in _with_extra_state(model)}
    actual = {name: form_of(tensor) for kind in ("parameters", "buffers") for name, tensor in saved[kind].items()}
    actual |= {f"the extra state of {name}": "" for name in saved["extra"]}
    for name in saved["buffers"]:
        module = modules.get(name.rpartition(".")[0])
        fixed = type(module).__module__.startswith(_FIXED_BUFFERS) and name in buffers
        if module is not None and not fixed:
            expected[name] = actual[name]
    return describe_mismatch(expected, actual)


def _load_buffers(model: nn.Module, values: dict[str, Tensor], *, passing: list[str]) -> None:
    """Write each value into the buffer that is there, if it fits; buffers that were shared are shared again."""
    targets: dict[int, Tensor] = {}
    taken: set[int] = set()
    for name, value in values.items():
        path, _, attribute = name.rpartition(".")
        module = model.get_submodule(path)
        buffer = dict(module.named_buffers(recurse=False)).get(attribute)
        target = targets.get(id(value))
        if target is None and buffer is not None and id(buffer) not in taken and form_of(buffer) == form_of(value):
            target = buffer.copy_(value)
        target = targets.setdefault(id(value), value if target is None else target)
        taken.add(id(target))
        if buffer is None and not hasattr(module, attribute):
            module.register_buffer(attribute, target, persistent=name not in passing)
        elif buffer is not target:
            setattr(module, attribute, target)


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return each module's buffers by name; one that several share is under each of its names."""
    return {
        f"{path}.{name}" if path else name: buffer
        for path, module in model.named_modules(remove_duplicate=False)
        for name, buffer in module.named_buffers(recurse=False)
    }


def _with_extra_state(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that have extra state, with their names."""
    for name, module in model.named_modules(remove_duplicate=False):
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            yield name, module
