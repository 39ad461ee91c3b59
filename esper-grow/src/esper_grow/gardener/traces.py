"""Passes of a Gardener without side effects on the loop: random numbers, gradients, gradient mode and autocast.

The loop goes on with the same numbers as without a Gardener, so everything that a pass may change is put back.
"""

from __future__ import annotations

import random
import sys
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import torch

from esper_core.growth import Host, RandomStream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn

_STEPPING_HOOKS: Final = "_post_accumulate_grad_hooks"
"""Attribute of a tensor with its hooks after a gradient; torch has no public way to suspend them."""


@contextmanager
def without_trace(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer] = ()) -> Iterator[None]:
    """Set torch's usual modes for the ``with`` block; put back gradients, random numbers and the default dtype.

    Seeds that change torch's modes are found by comparing with the usual ones, so the loop's own dtype is suspended.
    So are hooks that step an optimizer as soon as a gradient is computed. ``optimizers`` may have parameters outside
    the model, such as those of a loss, to which a pass adds gradients as well.
    """
    members = (member for lender in optimizers for group in lender.param_groups for member in group["params"])
    gradients = [(parameter, parameter.grad) for parameter in dict.fromkeys([*model.parameters(), *members])]
    device = gradients[0][0].device if gradients else Host(model).device
    hooks = [(parameter, getattr(parameter, _STEPPING_HOOKS)) for parameter, _ in gradients]
    hooks = [(parameter, registered) for parameter, registered in hooks if registered]
    dtype = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float32)
        for parameter, _ in hooks:
            setattr(parameter, _STEPPING_HOOKS, None)
        usual = (torch.inference_mode(mode=False), torch.enable_grad(), _without_autocast(device))
        with ExitStack() as stack:
            for mode in (*usual, RandomStream(0, device), same_random_numbers()):
                stack.enter_context(mode)
            # The loop may be collecting gradients over several batches, to which a pass must not add.
            for parameter, _ in gradients:
                parameter.grad = None
            yield
    finally:
        torch.set_default_dtype(dtype)
        for parameter, registered in hooks:
            setattr(parameter, _STEPPING_HOOKS, registered)
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    kind = device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return nullcontext()  # around the autocast of a loss function it would keep shortened weights from step to step
    return torch.autocast(kind, enabled=False, cache_enabled=False)


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Put back the generators of Python and NumPy, from which datasets draw, after the ``with`` block."""
    python_state, numpy = random.getstate(), sys.modules.get("numpy")
    state: Any = None if numpy is None else numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(state)


_TENDED: Final = "_tended"
"""Attribute of a slot at which a Gardener is at work: the id of the slot, which a copy of the slot has not."""


class HostAutocast:
    """Records under which autocast the host runs, by a hook on the module of the first slot.

    Each slot is marked as that of a Gardener, too.
    """

    def __init__(self, model: nn.Module) -> None:
        self._slots = Host(model).slots.by_module
        for slot in self._slots.values():
            setattr(slot, _TENDED, id(slot))
        module = model.get_submodule(next(iter(self._slots)))
        self._device = Host(model).device.type
        self.dtype: torch.dtype | None = None
        """The dtype of the latest pass; None without autocast."""
        self._handle = module.register_forward_pre_hook(self._record)

    def _record(self, module: nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling():
            enabled = torch.is_autocast_enabled(self._device)
            self.dtype = torch.get_autocast_dtype(self._device) if enabled else None

    @staticmethod
    def is_on(model: nn.Module) -> bool:
        """Return whether a Gardener is at work on a grafted model, a part of it, or a model around it."""
        return any(vars(slot).get(_TENDED) == id(slot) for slot in Host(model).slots)

    def __call__(self) -> AbstractContextManager[Any]:
        """Return a context in which the model computes as the host did."""
        if self.dtype is None:
            return nullcontext()
        # A cache would take the host's shortened weights for a branch's, which are the same Parameter objects.
        return torch.autocast(self._device, dtype=self.dtype, cache_enabled=False)

    def close(self) -> None:
        """Remove the hook and the marks."""
        self._handle.remove()
        for slot in self._slots.values():
            delattr(slot, _TENDED)
