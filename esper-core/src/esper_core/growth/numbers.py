"""What are all the numbers of a model, and how do they get into a fresh one? Parameters, buffers, and extra state.

More than a state dict has: buffers that do not persist, too. Each tensor stands there once, however many modules share
it. A buffer that has another shape by now than it was built with, or that came only in the first pass, comes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from esper_core.growth.memory import form_of, heard, told, unfit
from esper_core.growth.probe import device_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from esper_core.leyline.protocols import State

_SETTLED: Final = "torch.nn."
"""Where classes come from whose buffers are all there from the beginning, and keep their shape."""


def numbers_of(model: nn.Module) -> State:
    """All numbers of ``model``, as a state of copies."""
    persistent = model.state_dict(keep_vars=True).keys()
    buffers = _buffers(model)
    return told(
        {
            "parameters": dict(model.named_parameters()),
            "buffers": buffers,
            "passing": [name for name in buffers if name not in persistent],
            "extra": {name: module.get_extra_state() for name, module in _with_extra_state(model)},
        }
    )


def put_numbers(model: nn.Module, state: State) -> None:
    """Give ``model``, built like the one whose ``numbers_of`` these are, its numbers.

    Parameters stay the objects that they are. GrowthError where something does not fit; then nothing was changed.
    """
    numbers = heard(state, device_of(model))
    if misfits := list(_misfits(model, numbers)):
        more = [f"… and {len(misfits) - 5} more"] if len(misfits) > 5 else []
        raise unfit("\n".join([*misfits[:5], *more]))
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
