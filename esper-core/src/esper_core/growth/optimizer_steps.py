"""Optimizer steps: Adam without torch.optim's per-step overhead, optimizer state, gradient statistics.

``FusedAdam.fast_step`` calls torch's fused kernel directly, without the search for hooks, profilers and compilers that
``step()`` makes each time. The results are bit for bit those of ``step()``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from esper_core.growth.serialization import decode_state, encode_state
from esper_core.leyline.constants import EXPLODING_NORM, VANISHING_NORM
from esper_core.leyline.signals import GradientHealth

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from esper_core.leyline.protocols import State


class _WithoutCompiler(torch.optim.Optimizer):
    """Torch loads its compiler, a second's work, when the first optimizer is made: to keep out of the method's way."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """What torch does, without a word to a compiler that is not there."""
        add = torch.optim.Optimizer.add_param_group
        getattr(add, "__wrapped__", add)(self, param_group)


class FusedAdam(_WithoutCompiler, torch.optim.Adam):
    """The fused one, with one group of parameters."""

    def fast_step(self) -> None:
        """What ``step`` does."""
        _step(self, adam)


class FusedAdamW(_WithoutCompiler, torch.optim.AdamW):
    """The fused one, with one group of parameters."""

    def fast_step(self) -> None:
        """What ``step`` does."""
        _step(self, adamw)


def step_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Take one step, by ``fast_step`` where the optimizer has it."""
    if isinstance(optimizer, FusedAdam | FusedAdamW):
        optimizer.fast_step()
    else:
        optimizer.step()


def _step(optimizer: torch.optim.Optimizer, arithmetic: Callable[..., None]) -> None:
    (group,) = optimizer.param_groups
    learning = [parameter for parameter in group["params"] if parameter.grad is not None]
    memory = [optimizer.state[parameter] or _begun(optimizer.state[parameter], parameter) for parameter in learning]
    beta1, beta2 = group["betas"]
    with torch.no_grad():
        arithmetic(
            learning,
            [parameter.grad for parameter in learning],
            [own["exp_avg"] for own in memory],
            [own["exp_avg_sq"] for own in memory],
            [],
            [own["step"] for own in memory],
            fused=True,
            foreach=False,
            amsgrad=False,
            maximize=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
        )


def _begun(memory: dict[str, Tensor], parameter: nn.Parameter) -> dict[str, Tensor]:
    """What is known of a parameter before its first step."""
    memory["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
    memory["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    memory["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return memory


Memory = dict[Any, dict[str, Any]]
"""What an optimizer remembers of each parameter: momenta, counts of steps."""


def remembered(parameters: Sequence[nn.Parameter], memory: Mapping[Any, dict[str, Any]]) -> list[dict[str, Any] | None]:
    """``memory`` in the order of ``parameters``; None for one that never had a gradient."""
    return [memory.get(parameter) for parameter in parameters]


def recalled(parameters: Sequence[nn.Parameter], told_memory: Sequence[dict[str, Any] | None]) -> Memory:
    """What ``remembered`` gave, of the parameters that stand in the same places here."""
    pairs = zip(parameters, told_memory, strict=True)
    return {
        parameter: {key: _laid_out(value, parameter) for key, value in memory.items()}
        for parameter, memory in pairs
        if memory is not None
    }


_ADAMS: Final = (torch.optim.Adam, torch.optim.AdamW, FusedAdam, FusedAdamW)
_WITHOUT_EFFECT_ON_STATE: Final = {
    *("foreach", "fused", "capturable", "differentiable"),  # which code computes the step
    *("nesterov", "decoupled_weight_decay"),  # what is made of the state, and not what it is
}


def hand_over_state(old: torch.optim.Optimizer, new: torch.optim.Optimizer) -> None:
    """Give ``new`` the state that ``old`` has of each parameter, where both keep the same quantities of it.

    They do where the algorithm is the same (SGD, or Adam and AdamW, or any other class with itself) and every switch
    that decides what is kept is set alike: ``amsgrad``, ``centered``, ``maximize``, a momentum or none. Of every other
    parameter ``new`` keeps its own fresh state. The tensors are handed over, not copied; ``old`` is not changed.
    """
    kept = {parameter: _form(old, group) for group in old.param_groups for parameter in group["params"]}
    for group in new.param_groups:
        form = _form(new, group)
        on_device = bool(group.get("fused") or group.get("capturable"))
        for parameter in group["params"]:
            if kept.get(parameter) == form and parameter in old.state:
                state = dict(old.state[parameter])
                if on_device and isinstance(state.get("step"), Tensor):
                    state["step"] = state["step"].to(parameter.device, torch.float32)
                new.state[parameter] = state


def _form(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> tuple[type, dict[str, bool]]:
    """What decides which quantities an optimizer keeps of the parameters of a group."""
    algorithm = torch.optim.Adam if type(optimizer) in _ADAMS else type(optimizer)
    switches = {key: value for key, value in group.items() if isinstance(value, bool)}
    relevant = {key: value for key, value in switches.items() if key not in _WITHOUT_EFFECT_ON_STATE}
    return algorithm, {**relevant, "momentum": bool(group.get("momentum"))}


def settings_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a group of parameters, its learning rate among them. What else there is whoever made it knows."""
    kinds = (bool, int, float, str, tuple, Tensor, type(None))
    return {key: value for key, value in group.items() if key != "params" and isinstance(value, kinds)}


def scaler_told(scaler: GradScaler | None) -> State:
    """What a scaler of the loss remembers; it is told, too, where there is none."""
    return encode_state(None if scaler is None else scaler.state_dict())


def scaler_with(state: State, scaler: GradScaler | None, device: torch.device) -> GradScaler | None:
    """A scaler with what ``scaler_told`` gave: ``scaler`` itself where there is one."""
    memory = decode_state(state)
    if memory is None:
        return None
    if scaler is None:
        scaler = GradScaler(device.type, enabled=bool(memory))
    scaler.load_state_dict(memory)
    return scaler


def _laid_out(value: Any, parameter: nn.Parameter) -> Any:
    """A tensor as the optimizer would have made it: fused code takes it to lie in memory as the parameter does."""
    if not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    return torch.empty_like(parameter, dtype=value.dtype, device=value.device, requires_grad=False).copy_(value)


class GradientCollector:
    """Gathers the gradients of one set of parameters over the batches of a step.

    vanishing, exploding: norms of one parameter's gradient below and above which it counts as such.

    >>> collector = GradientCollector()
    >>> collector.collect([torch.tensor([3.0]), torch.tensor([4.0]), None])
    >>> read_health(collector.take().tolist()).global_norm
    5.0
    """

    def __init__(self, *, vanishing: float = VANISHING_NORM, exploding: float = EXPLODING_NORM) -> None:
        self._vanishing = vanishing
        self._exploding = exploding
        self._norms: list[Tensor] = []
        self._scaled = False

    def collect(self, gradients: Sequence[Tensor | None], *, scaled: bool = False) -> None:
        """Take in the gradients of one batch, one for each parameter; None where a parameter got none.

        scaled: they come from a loss that was scaled, so that a batch may overflow, and is left out of the training
        then: here, too. Where all were, every mean and share is NaN: nothing was learnt from.

        Nothing is read: the device does not wait. TypeError for what can be gone through only once, for whoever went
        through it before has left nothing; ValueError where there is nothing.
        """
        if not isinstance(gradients, Sequence):
            msg = f"gradients are a sequence: a list or a tuple. Received: {type(gradients).__name__}"
            raise TypeError(msg)
        there = [gradient for gradient in gradients if gradient is not None]
        if not gradients:
            msg = "gradients are at least one. Received: none"
            raise ValueError(msg)
        norms = [_norm(gradient.detach()) for gradient in there]
        absent = [torch.zeros((), device=norms[0].device if norms else None)] * (len(gradients) - len(there))
        self._norms.append(torch.stack([*norms, *absent]))
        self._scaled = scaled

    def take(self) -> Tensor | None:
        """What was gathered since it was taken last, as the numbers of ``read_health``; None where that is nothing."""
        batches, self._norms = self._norms, []
        if not batches:
            return None
        norms_NP = torch.stack(batches)
        if self._scaled:
            return self._of_those_left(norms_NP)
        finite_NP = norms_NP.isfinite()
        return torch.stack(
            [
                norms_NP.square().sum(1).sqrt().mean(),
                norms_NP.mean(),
                norms_NP.max(),
                (norms_NP < self._vanishing).float().mean(),
                ((norms_NP > self._exploding) & finite_NP).float().mean(),
                (~finite_NP).float().mean(),
            ]
        )

    def _of_those_left(self, norms_NP: Tensor) -> Tensor:
        """The same, of the batches that did not overflow."""
        left_N1 = norms_NP.isfinite().all(1, keepdim=True)
        norms_NP = torch.where(left_N1, norms_NP, 0.0)
        batches = left_N1.sum()
        numbers = batches * norms_NP.shape[1]
        return torch.stack(
            [
                norms_NP.square().sum(1).sqrt().sum() / batches,
                norms_NP.sum() / numbers,
                norms_NP.max(),
                ((norms_NP < self._vanishing) & left_N1).sum() / numbers,
                (norms_NP > self._exploding).sum() / numbers,
                (batches - batches) / batches,
            ]
        )


def _norm(gradient: Tensor) -> Tensor:
    """The Euclidean norm in float32; numbers of half the width are added up in it, and doubles in their own."""
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    narrow = values.dtype in (torch.float16, torch.bfloat16)
    norm: Tensor = torch.linalg.vector_norm(values, dtype=torch.float32 if narrow else None)
    return norm.float()


WIDTH = 6
"""How many numbers ``take`` gives."""


def read_health(numbers: Sequence[float]) -> GradientHealth:
    """What the collector's numbers mean, once they are read."""
    return GradientHealth(*numbers)
