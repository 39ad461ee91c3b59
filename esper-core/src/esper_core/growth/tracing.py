"""In which order does a model call its modules, and which of these calls could be left out for what they put out?

A call can be left out where its output is all that it does: where it writes into nothing that it is given, keeps
nothing for later, and gives out tensors of its own. This is looked at, once, in a pass that runs as any other.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from esper_core.growth.slot import Slot
from esper_core.leyline.lifecycle import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Forward = Callable[..., Any]

NEVER: Final = 1 << 30
"""When a call has finished that did not come to a good end."""

_PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device, torch.Size)


@dataclass(slots=True)
class Call:
    """One call of a module.

    ``parent`` is the number of the call that it was made in, None where the model itself made it; ``end`` the number of
    the first call after it that was not made in it; ``finished`` how many slots with a living seed had spoken when it
    was over; ``skippable`` whether its output is all that it does.
    """

    module: nn.Module
    parent: int | None
    end: int = 0
    finished: int = NEVER
    skippable: bool = False


class Trace:
    """The calls of one pass in the order in which they began, and the slots with a living seed as they spoke."""

    def __init__(self, model: nn.Module) -> None:
        self.calls: list[Call] = []
        self.spoken: list[str] = []
        self.compiled = False
        self._open: list[int] = []
        self._keeping: set[int] = set()
        self._lasting = storages([*model.parameters(), *model.buffers()])

    def watching(self, module: nn.Module, forward: Forward) -> Forward:
        """``forward`` of ``module``, and every call of it is written down."""

        def watched(*args: Any, **named: Any) -> Any:
            if torch.compiler.is_compiling():
                self.compiled = True
                return forward(*args, **named)
            number = len(self.calls)
            call = Call(module, self._open[-1] if self._open else None)
            self.calls.append(call)
            self._open.append(number)
            witness = _Witness(module, args[-1:] if isinstance(module, Slot) else (*args, *named.values()))
            try:
                output = forward(*args, **named)
            finally:
                self._open.pop()
                call.end = len(self.calls)
            if isinstance(module, Slot) and module.living is not None:
                self.spoken.append(module.name)
            if witness.saw_keeping():
                self._keeping.update((number, *self._open))  # who leaves out the outer call leaves this out, too
            call.finished = len(self.spoken)
            call.skippable = number not in self._keeping and witness.saw_nothing_but(output, self._lasting)
            return output

        return watched


class _Witness:
    """Sees what a call does beside what it puts out."""

    def __init__(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        self._module = module
        self._own = dict(vars(module))
        self._given = tensors_in(given, (tuple,))  # into a list or a dict it could put something
        self._before = [tensor.clone() for tensor in self._given or ()]

    def saw_keeping(self) -> bool:
        """Whether the module has another attribute than before, or another value of one."""
        own = vars(self._module)
        return own.keys() != self._own.keys() or any(own[name] is not value for name, value in self._own.items())

    def saw_nothing_but(self, output: Any, lasting: frozenset[int]) -> bool:
        """Whether the inputs are untouched and ``output`` is made of tensors that share their memory with nothing."""
        given, put_out = self._given, tensors_in(output, (tuple, list, dict))
        if given is None or put_out is None:
            return False
        own = storages(put_out)
        apart = len(own) == sum(tensor.numel() > 0 for tensor in put_out) and not own & (lasting | storages(given))
        whole = all(type(tensor) is Tensor and copied(tensor).stride() == tensor.stride() for tensor in put_out)
        return apart and whole and all(same_bits(now, then) for now, then in zip(given, self._before, strict=True))


@contextmanager
def shadowed(modules: Iterable[nn.Module], by: Callable[[nn.Module, Forward], Forward]) -> Iterator[None]:
    """While this lasts, ``by(module, forward)`` stands in for the forward of each module; afterwards nothing does."""
    with ExitStack() as undo:
        for module in modules:
            undo.callback(_restore, module, vars(module).get("forward"))
            module.forward = by(module, module.forward)
        yield


def _restore(module: nn.Module, own: Forward | None) -> None:
    """Give back to ``module`` a forward that it had as a thing of its own; else that of its class."""
    if own is not None:
        module.forward = own
    elif "forward" in vars(module):
        del module.forward


def watchable(model: nn.Module) -> list[nn.Module]:
    """The modules whose calls can be written down: not the model itself, nothing scripted, nothing of a living seed."""
    left_out = {id(model)}
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            left_out.update(id(part) for part in module.modules())
        elif isinstance(module, Slot):
            living = [seed for seed in module.stack if seed.stage is not Stage.FOSSILIZED]
            left_out.update(id(part) for seed in living for part in seed.modules())
    return [module for module in model.modules() if id(module) not in left_out]


def tensors_in(value: Any, through: tuple[type, ...]) -> list[Tensor] | None:
    """The tensors in ``value``, also in containers of the types ``through``; None where anything else may hide one."""
    if isinstance(value, Tensor):
        return None if value.layout is not torch.strided or value.is_nested else [value]
    if isinstance(value, _PLAIN):
        return []
    if type(value) not in through:
        return None
    found: list[Tensor] = []
    for part in value.values() if isinstance(value, dict) else value:
        tensors = tensors_in(part, through)
        if tensors is None:
            return None
        found += tensors
    return found


def copied(value: Any) -> Any:
    """``value`` with every tensor in it cloned."""
    if isinstance(value, Tensor):
        return value.clone()
    if type(value) is dict:
        return {key: copied(part) for key, part in value.items()}
    return type(value)(copied(part) for part in value) if type(value) in (tuple, list) else value


def storages(tensors: Iterable[Tensor]) -> frozenset[int]:
    """Where the memory of tensors begins, without those that have none."""
    strided = (tensor for tensor in tensors if tensor.layout is torch.strided and not tensor.is_nested)
    return frozenset(tensor.untyped_storage().data_ptr() for tensor in strided if tensor.numel())


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same to the bit: NaN is NaN then, and 0 is not −0. The host waits for the device."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(*(tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)))
