"""Optimizer steps: Adam without torch.optim's per-step overhead, optimizer state, gradient statistics.

``FusedAdam.fast_step`` calls torch's fused kernel directly, without the search for hooks, profilers and compilers that
``step()`` makes each time. The results are bit for bit those of ``step()``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeGuard

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from esper_core.growth.serialization import decode_state, encode_state
from esper_core.leyline.constants import EXPLODING_NORM, VANISHING_NORM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from esper_core.leyline.protocols import State


@dataclass(frozen=True, slots=True)
class AdamSettings:
    """Settings of a fused Adam or AdamW: optimizers with equal ones step in one call."""

    kernel: Callable[..., None]
    learning_rate: float
    betas: tuple[float, float]
    weight_decay: float
    epsilon: float

    @torch.no_grad()
    def step(
        self,
        parameters: Sequence[Tensor],
        gradients: Sequence[Tensor],
        means: Sequence[Tensor],
        squares: Sequence[Tensor],
        steps: Sequence[Tensor],
    ) -> None:
        """Take one step of these parameters, given the moments of their gradients and the counts of their steps."""
        self.kernel(
            parameters,
            gradients,
            means,
            squares,
            [],
            steps,
            fused=True,
            foreach=False,
            amsgrad=False,
            maximize=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=self.learning_rate,
            weight_decay=self.weight_decay,
            eps=self.epsilon,
        )


class _Fused(torch.optim.Optimizer):
    """A fused optimizer with one group of parameters."""

    _kernel: ClassVar[Callable[..., None]]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters without torch's decorator, which imports the compiler and takes a second."""
        add = torch.optim.Optimizer.add_param_group
        getattr(add, "__wrapped__", add)(self, param_group)

    @property
    def settings(self) -> AdamSettings:
        """The settings of the next step."""
        (group,) = self.param_groups
        return AdamSettings(self._kernel, *(group[name] for name in ("lr", "betas", "weight_decay", "eps")))

    def fast_step(self) -> None:
        """Take one step."""
        (group,) = self.param_groups
        learning = [parameter for parameter in group["params"] if parameter.grad is not None]
        states = [begun_state(self.state[parameter], parameter) for parameter in learning]
        self.settings.step(
            learning,
            [parameter.grad for parameter in learning],
            *([state[name] for state in states] for name in (*MOMENTS, "step")),
        )


class FusedAdam(_Fused, torch.optim.Adam):
    """Fused Adam."""

    _kernel = staticmethod(adam)


class FusedAdamW(_Fused, torch.optim.AdamW):
    """Fused AdamW."""

    _kernel = staticmethod(adamw)


MOMENTS: Final = ("exp_avg", "exp_avg_sq")
"""What Adam keeps of each parameter beside the count of its steps."""


def step_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Take one step, by ``fast_step`` if there is one and no scheduler of torch counts the calls of ``step``."""
    (optimizer.fast_step if is_fast(optimizer) else optimizer.step)()


def is_fast(optimizer: torch.optim.Optimizer | None) -> TypeGuard[_Fused]:
    """Return whether an optimizer is a fused Adam or AdamW that steps by itself."""
    return isinstance(optimizer, _Fused) and not hasattr(optimizer.step, "_wrapped_by_lr_sched")


def begun_state(state: dict[str, Tensor], parameter: Tensor) -> dict[str, Tensor]:
    """Return the state of a parameter, filled in before its first step."""
    if not state:
        # On the device and in float32, which the fused kernel needs, and which torch's own first step makes.
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        for name in MOMENTS:
            state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return state


OptimizerState = dict[Any, dict[str, Any]]
"""An optimizer's state of each parameter: momenta, counts of steps."""


def decode_optimizer_state(
    parameters: Sequence[nn.Parameter], encoded: Sequence[dict[str, Any] | None]
) -> OptimizerState:
    """Return the state of ``parameters``, given in their order; None for one that never had a gradient."""
    return {
        parameter: {
            key: laid_out(value, parameter) if isinstance(value, Tensor) else value
            for key, value in of_parameter.items()
        }
        for parameter, of_parameter in zip(parameters, encoded, strict=True)
        if of_parameter is not None
    }


_ADAMS: Final = (torch.optim.Adam, torch.optim.AdamW, FusedAdam, FusedAdamW)
_WITHOUT_EFFECT_ON_STATE: Final = {
    *("foreach", "fused", "capturable", "differentiable"),  # which code computes the step
    *("nesterov", "decoupled_weight_decay"),  # how the state is used
}


def hand_over_state(old: torch.optim.Optimizer, new: torch.optim.Optimizer) -> None:
    """Give ``new`` the state that ``old`` has of each parameter, if both keep the same quantities of it.

    They do if the algorithm is the same (SGD, or Adam and AdamW, or any other class with itself), and every switch that
    decides what is kept: ``amsgrad``, ``centered``, ``maximize``, a momentum or none. Otherwise ``new`` keeps its own
    fresh state. The tensors are handed over, not copied; ``old`` is not changed.
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
    """Return what decides which quantities an optimizer keeps of the parameters of a group."""
    algorithm = torch.optim.Adam if type(optimizer) in _ADAMS else type(optimizer)
    switches = {key: value for key, value in group.items() if isinstance(value, bool)}
    relevant = {key: value for key, value in switches.items() if key not in _WITHOUT_EFFECT_ON_STATE}
    return algorithm, {**relevant, "momentum": bool(group.get("momentum"))}


def settings_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain settings of a group of parameters, its learning rate among them."""
    kinds = (bool, int, float, str, tuple, Tensor, type(None))
    return {key: value for key, value in group.items() if key != "params" and isinstance(value, kinds)}


def encode_scaler(scaler: GradScaler | None) -> State:
    """Return the state of a gradient scaler, or that there is none."""
    return encode_state(None if scaler is None else scaler.state_dict())


def decode_scaler(state: State, scaler: GradScaler | None, device: torch.device) -> GradScaler | None:
    """Return a scaler with the state from ``encode_scaler``: ``scaler`` itself if there is one."""
    saved = decode_state(state)
    if saved is None:
        return None
    if scaler is None:
        scaler = GradScaler(device.type, enabled=bool(saved))
    scaler.load_state_dict(saved)
    return scaler


def laid_out(value: Tensor, parameter: nn.Parameter) -> Tensor:
    """Return a tensor in the memory layout of the parameter if it has its shape.

    Fused optimizers walk through parameter, gradient and state as they lie in memory. On a CPU they do not check that
    all lie alike, and ``torch.autograd.grad`` returns gradients of convolutions in the layout of the images.
    """
    dense = value.layout is torch.strided and value.shape == parameter.shape
    if not dense or value.stride() == parameter.stride():
        return value
    return torch.empty_like(parameter, dtype=value.dtype, device=value.device, requires_grad=False).copy_(value)


class GradientCollector:
    """Collects the gradient norms of one set of parameters over the batches of a step.

    ``used`` says whether there ever was a batch.

    >>> from esper_core.leyline import GradientHealth
    >>> collector = GradientCollector()
    >>> collector.collect([torch.tensor([3.0]), torch.tensor([4.0]), None])
    >>> GradientHealth(*collector.take().tolist()).global_norm
    5.0
    """

    def __init__(self) -> None:
        self._norms: list[Tensor] = []
        self._scaled = False
        self.used = False

    def collect(
        self, gradients: Sequence[Tensor | None], *, scaled: bool = False, device: torch.device | None = None
    ) -> None:
        """Record the gradients of one batch, one per parameter; None if a parameter got none.

        ``scaled``: they come from a scaled loss. Training skips batches that overflow, and so do the statistics: if all
        did, every mean and share is NaN. Nothing is read, so the device does not wait. ``device``: of the parameters;
        None: the CPU.
        """
        if not isinstance(gradients, Sequence):
            msg = f"gradients must be a sequence, such as a list. Received: {type(gradients).__name__}"
            raise TypeError(msg)
        if not gradients:
            msg = "there must be at least one gradient. Received: none"
            raise ValueError(msg)
        present = [gradient for gradient in gradients if gradient is not None]
        norms = [_norm(gradient.detach()) for gradient in present]
        absent = [torch.zeros((), device=device)] * (len(gradients) - len(present))
        self._norms.append(torch.stack([*norms, *absent]))
        self._scaled, self.used = scaled, True

    def record(self, norms: Tensor) -> None:
        """Record the gradient norms of one batch, one for each parameter, of a loss that is not scaled."""
        self._norms.append(norms)
        self._scaled, self.used = False, True

    def state_dict(self) -> dict[str, Any]:
        """Return what was collected since the last ``take``."""
        return {"norms": list(self._norms), "scaled": self._scaled}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what another collector had collected."""
        self._norms, self._scaled = list(state["norms"]), state["scaled"]

    def take(self) -> Tensor | None:
        """Return what was collected since the last call, as the numbers of a GradientHealth; None if nothing was."""
        batches, self._norms = self._norms, []
        if not batches:
            return None
        norms_NP = torch.stack(batches)
        if self._scaled:
            return _without_overflows(norms_NP)
        finite_NP = norms_NP.isfinite()
        return torch.stack(
            [
                norms_NP.square().sum(1).sqrt().mean(),
                (norms_NP < VANISHING_NORM).float().mean(),
                ((norms_NP > EXPLODING_NORM) & finite_NP).float().mean(),
                (~finite_NP).float().mean(),
            ]
        )


def _without_overflows(norms_NP: Tensor) -> Tensor:
    """Return the statistics of the batches that did not overflow."""
    left_N1 = norms_NP.isfinite().all(1, keepdim=True)
    norms_NP = torch.where(left_N1, norms_NP, 0.0)
    batches = left_N1.sum()
    numbers = batches * norms_NP.shape[1]
    return torch.stack(
        [
            norms_NP.square().sum(1).sqrt().sum() / batches,
            ((norms_NP < VANISHING_NORM) & left_N1).sum() / numbers,
            (norms_NP > EXPLODING_NORM).sum() / numbers,
            # 0, but NaN as the numbers above where all batches overflowed.
            (batches - batches) / batches,
        ]
    )


def _norm(gradient: Tensor) -> Tensor:
    """Return the Euclidean norm in float32; half-precision values are summed in float32, doubles in float64."""
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    narrow = values.dtype in (torch.float16, torch.bfloat16)
    norm: Tensor = torch.linalg.vector_norm(values, dtype=torch.float32 if narrow else None)
    return norm.float()
