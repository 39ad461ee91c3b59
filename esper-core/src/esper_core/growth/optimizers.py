"""Optimizers of one model: an OptimizerKeeper owns every trainable parameter exactly once.

A seed gets an optimizer of its own when it is born and keeps it, with its state, until it is pruned or fossilised.
Pruning releases the optimizer. From fossilisation on the seed's parameters train with the host's settings: learning
rate, weight decay, betas, clipping and schedule. The state is handed over where host and seed use the same algorithm;
otherwise the fossil starts with the fresh state of the host's algorithm.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from esper_core.config import OptimizerConfig
from esper_core.growth.optimizer_steps import (
    FusedAdam,
    FusedAdamW,
    GradientCollector,
    hand_over_state,
    recalled,
    remembered,
    scaler_told,
    scaler_with,
    settings_of,
    step_optimizer,
)
from esper_core.growth.serialization import decode_state, encode_state, state_mismatch
from esper_core.leyline.errors import GrowthError, Problem
from esper_core.leyline.protocols import State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.amp import GradScaler

    from esper_core.growth.seeds import Seed
    from esper_core.leyline.protocols import Schedule

Build = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]
"""Makes an optimizer of any class over some parameters."""


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """How parameters learn: what makes their optimizer, how they are clipped, and how fast they learn when.

    build: any optimizer that takes its steps from gradients that lie there; ``partial(torch.optim.AdamW, lr=1e-3)``.
    clip_norm: largest global norm of their gradients; None: no clipping.
    schedule: the factor on the learning rate, step by step; None: 1 throughout.
    """

    build: Build
    clip_norm: float | None = None
    schedule: Schedule | None = None

    @classmethod
    def of(cls, settings: OptimizerConfig, schedule: Schedule | None = None) -> OptimizerSettings:
        """The regimen that a configuration describes."""
        return cls(_BuildConfigured(settings), settings.clip_norm, schedule)


@dataclass(frozen=True, slots=True)
class _BuildConfigured:
    """Builds the optimizer that a configuration describes. Two of them are equal where their settings are."""

    settings: OptimizerConfig

    def __call__(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        return build_optimizer(self.settings, parameters)


def build_optimizer(settings: OptimizerConfig, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer that a configuration describes, over ``parameters``."""
    rate, decay = settings.learning_rate, settings.weight_decay
    way: dict[str, Any] = {"plain": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[
        settings.implementation
    ]
    if settings.kind == "sgd":
        return torch.optim.SGD(parameters, rate, momentum=settings.momentum, weight_decay=decay, **way)
    adam, adamw = (FusedAdam, FusedAdamW) if "fused" in way else (torch.optim.Adam, torch.optim.AdamW)
    return (adamw if settings.kind == "adamw" else adam)(parameters, rate, weight_decay=decay, **way)


@dataclass(frozen=True, slots=True)
class Share:
    """Parameters that step together, and what makes them step.

    optimizer: None where there is nothing to train: a frozen host, say. build: what made it. rates: the learning rate
    of each of its groups, before any schedule. begun: the keeper's step in which they began to learn.
    """

    parameters: tuple[nn.Parameter, ...]
    optimizer: torch.optim.Optimizer | None
    clip_norm: float | None = None
    schedule: Schedule | None = None
    rates: tuple[float, ...] = ()
    begun: int = 0
    build: Build | None = None
    gradients: GradientCollector = field(default_factory=GradientCollector)

    @classmethod
    def of(cls, parameters: Iterable[nn.Parameter], regimen: OptimizerSettings, begun: int = 0) -> Share:
        """The trainable ones of ``parameters``, under ``regimen``."""
        own = tuple(parameter for parameter in parameters if parameter.requires_grad)
        if not own:
            return cls((), None)
        optimizer = regimen.build(own)
        _refuse_unfit(optimizer)
        for group in optimizer.param_groups:
            if isinstance(group.get("lr"), Tensor):
                group["lr"] = group["lr"].clone()  # all calls of ``build`` may have been given the same tensor
        rates = tuple(float(group["lr"]) for group in optimizer.param_groups if "lr" in group)
        return cls(own, optimizer, regimen.clip_norm, regimen.schedule, rates, begun, regimen.build)

    def under(self, regimen: OptimizerSettings, begun: int) -> Share:
        """The same parameters under another regimen, with their optimizer's state; this share stays as it is.

        Where both build the same optimizer it is kept. Otherwise a new one is built and takes over the state, as far
        as ``hand_over_state`` says.
        """
        if self.optimizer is None:
            return self
        if self.build != regimen.build:
            share = Share.of(self.parameters, regimen, begun)
            if share.optimizer is not None:
                hand_over_state(self.optimizer, share.optimizer)
            return share
        return replace(
            self,
            clip_norm=regimen.clip_norm,
            schedule=regimen.schedule,
            begun=begun,
            gradients=GradientCollector(),
        )

    def owned(self) -> list[nn.Parameter]:
        """What the optimizer really steps."""
        return [] if self.optimizer is None else [p for group in self.optimizer.param_groups for p in group["params"]]

    def pace(self, step: int, steps: int | None) -> None:
        """Set the learning rates for one decision step of the keeper's, where there is a schedule."""
        if self.schedule is not None:
            factor = self.schedule.factor(step - self.begun, None if steps is None else max(1, steps - self.begun))
            self.set_rates(factor)

    def set_rates(self, factor: float) -> None:
        """Set each group's learning rate to ``factor`` times the rate that it was built with."""
        if self.optimizer is None:
            return
        with_rate = [group for group in self.optimizer.param_groups if "lr" in group]
        for group, rate in zip(with_rate, self.rates, strict=True):
            _set_rate(group, rate * factor)

    def rates_now(self) -> list[tuple[dict[str, Any], float | Tensor]]:
        """Each group that has a learning rate, and that rate."""
        if self.optimizer is None:
            return []
        with_rate = [group for group in self.optimizer.param_groups if "lr" in group]
        return [(group, rate.clone() if isinstance(rate := group["lr"], Tensor) else rate) for group in with_rate]

    def clip(self) -> None:
        """Bring the gradients' global norm down to the bound, where there is one."""
        if self.clip_norm is not None:
            clip_grad_norm_(self.parameters, self.clip_norm)

    def gradients_now(self) -> list[Tensor]:
        """The gradients that lie there."""
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def unscale(self, scaler: GradScaler | None) -> None:
        """Take off the gradients what ``scaler`` put on the loss, and see whether they are finite."""
        if scaler is not None and self.optimizer is not None and self.gradients_now():
            scaler.unscale_(self.optimizer)

    def step(self, scaler: GradScaler | None = None) -> None:
        """One step from the gradients that lie there; none where ``scaler`` saw one that is not finite."""
        if self.optimizer is None:
            return
        if scaler is None:
            step_optimizer(self.optimizer)
        elif self.gradients_now():  # a scaler takes it for a mistake where there is none
            scaler.step(self.optimizer)

    def forget_gradients(self) -> None:
        """Drop the gradients that lie there."""
        for parameter in self.parameters:
            parameter.grad = None

    def state_dict(self) -> State:
        """What its optimizer remembers of each parameter, its groups' settings as they stand, and when it began."""
        if self.optimizer is None:
            return encode_state({"begun": self.begun})
        groups = [settings_of(group) for group in self.optimizer.param_groups]
        memory = remembered(self.parameters, self.optimizer.state)
        return encode_state({"begun": self.begun, "groups": groups, "memory": memory})

    def recalling(self, state: State) -> Share:
        """The same share, made of parameters alike, with what another one's ``state`` tells."""
        known = decode_state(state, self.parameters[0].device if self.parameters else "cpu")
        if self.optimizer is not None:
            memory = recalled(self.parameters, known["memory"])
            for group, settings in zip(self.optimizer.param_groups, known["groups"], strict=True):
                if "lr" in settings:
                    _set_rate(group, settings.pop("lr"))
                group.update(settings)
            self.optimizer.state.clear()
            self.optimizer.state.update(memory)
        return replace(self, begun=known["begun"])

    def forget_state(self) -> None:
        """Clear what the optimizer remembers: what a new one begins with is all that it knows then."""
        if self.optimizer is not None and self.build is not None:
            self.optimizer.state.clear()
            self.optimizer.state.update(self.build(self.parameters).state)


def _set_rate(group: dict[str, Any], rate: float | Tensor) -> None:
    """Give a group a learning rate: a tensor stays the tensor that it is, for a compiled step holds on to it."""
    if isinstance(group["lr"], Tensor):
        group["lr"].copy_(rate) if isinstance(rate, Tensor) else group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def _refuse_unfit(optimizer: torch.optim.Optimizer) -> None:
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        message = f"{type(optimizer).__name__} computes the loss itself, several times a step, and cannot train here"
        raise GrowthError(Problem("E306", message, hint="Use one whose step() needs no closure: Adam, SGD, …"))


class OptimizerKeeper:
    """The shares of one model: the host's, and one for each seed and each fossil.

    host: the host's parameters. host_settings: how they learn, and each seed from its fossilisation on.
    seed_settings: how living seeds learn.
    steps: decision steps that there will be in all, for schedules; None where nobody knows.
    scaler: keeps small gradients from vanishing in half precision: that of the host's own step, of which a seed that
    learns behind the host's back has a copy.
    """

    def __init__(
        self,
        host: Iterable[nn.Parameter],
        *,
        host_settings: OptimizerConfig | OptimizerSettings,
        seed_settings: OptimizerConfig | OptimizerSettings,
        steps: int | None = None,
        scaler: GradScaler | None = None,
    ) -> None:
        self._host_regimen = _regimen(host_settings)
        self._seed_regimen = _regimen(seed_settings)
        self._steps = steps
        self._step = -1
        self.scaler = scaler
        self.host = Share.of(host, self._host_regimen)
        self.seeds: dict[int, Share] = {}
        self.fossils: dict[int, Share] = {}

    def adopt(self, seed: Seed) -> None:
        """Take on a newborn seed's parameters, with an optimizer of their own."""
        share = Share.of(seed.parameters(), self._seed_regimen, self._step + 1)
        hosts = {id(parameter) for parameter in self.host.parameters}
        if any(id(parameter) in hosts for parameter in share.parameters):
            message = f"seed {seed.number} is in the host's share already: it grew before this keeper was made"
            hint = "Give the keeper the host's own:  OptimizerKeeper(esper_core.growth.host_parameters(model), …)"
            raise GrowthError(Problem("E304", message, hint=hint))
        owned = {id(parameter) for other in self.shares() for parameter in other.parameters}
        if seed.number in self.seeds or any(id(parameter) in owned for parameter in share.parameters):
            msg = f"seed {seed.number} is owned already"
            raise RuntimeError(msg)
        self.seeds[seed.number] = share

    def release(self, number: int) -> None:
        """Let a seed's parameters, gradients and state go: it was pruned, or is kept and learns no more."""
        self.seeds.pop(number).forget_gradients()

    def hand_over(self, number: int) -> None:
        """Move a fossilised seed to the host's side: it trains with the host's settings and keeps its state."""
        seed, regimen = self.seeds[number], self._host_regimen
        fossil = seed.under(regimen, self.host.begun)
        if regimen.schedule is not None and self._step >= 0:
            fossil.pace(self._step, self._steps)
        elif seed.schedule is not None:
            fossil.set_rates(1.0)
        self.fossils[number] = fossil
        del self.seeds[number]

    def settle(self, seed: Seed, *, freeze: bool) -> None:
        """Make a seed part of the host: it goes on learning as the host does, or not at all where ``freeze`` is."""
        if freeze:
            self.release(seed.number)
            seed.requires_grad_(requires_grad=False)
        else:
            self.hand_over(seed.number)

    def undo(self) -> Callable[[], None]:
        """What makes owners, the step and the learning rates what they are now; what parameters learnt stays."""
        seeds, fossils, step = dict(self.seeds), dict(self.fossils), self._step
        rates = [rate for share in self.shares() for rate in share.rates_now()]

        def put_back() -> None:
            for owned, before in ((self.seeds, seeds), (self.fossils, fossils)):
                owned.clear()
                owned.update(before)
            self._step = step
            for group, rate in rates:
                _set_rate(group, rate)

        return put_back

    def state_dict(self) -> State:
        """All that it knows of its parameters but their numbers; between two steps, when no gradient is waited for."""
        order = {"fossils": list(self.fossils), "seeds": list(self.seeds)}
        shares = {str(number): share.state_dict() for number, share in (*self.fossils.items(), *self.seeds.items())}
        scaler = scaler_told(self.scaler)
        return State.of({"host": self.host.state_dict(), **shares, "scaler": scaler}, step=self._step, order=order)

    def load_state_dict(self, state: State) -> None:
        """Know what another one knew, which owned the like of every parameter that this one owns."""
        order = state.plain["order"]
        if sorted(order["fossils"]) != sorted(self.fossils) or sorted(order["seeds"]) != sorted(self.seeds):
            why = f"it is of seeds {order}, and here are {sorted(self.fossils)} and {sorted(self.seeds)}"
            raise state_mismatch(why)
        self._step = state.plain["step"]
        device = next((own.device for share in self.shares() for own in share.parameters), torch.device("cpu"))
        self.scaler = scaler_with(state.part("scaler"), self.scaler, device)
        self.host = self.host.recalling(state.part("host"))
        for name, owned in (("fossils", self.fossils), ("seeds", self.seeds)):
            shares = {number: owned[number].recalling(state.part(str(number))) for number in order[name]}
            owned.clear()  # the order counts, too: in it numbers are added up
            owned.update(shares)

    def shares(self) -> tuple[Share, ...]:
        """Every share there is."""
        return (self.host, *self.fossils.values(), *self.seeds.values())

    def open_step(self) -> None:
        """A decision step begins: schedules set their learning rates."""
        self._step += 1
        for share in self.shares():
            share.pace(self._step, self._steps)

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for share in self.shares():
            share.forget_gradients()

    def backward(self, loss: Tensor) -> None:
        """Let the gradients of the host's own step lie where ``step`` finds them."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def step(self, blended: Iterable[int]) -> None:
        """One step of the host, of its fossils, and of the ``blended`` seeds, from the gradients that lie there.

        Host and fossils are clipped together, each seed by itself: what one does takes nothing from the others.
        """
        own, seeds = (self.host, *self.fossils.values()), [self.seeds[number] for number in blended]
        if self.scaler is not None:
            _overflow_together(own)
        for share in own:
            share.unscale(self.scaler)
        if self._host_regimen.clip_norm is not None:
            clip_grad_norm_(self._host_side(), self._host_regimen.clip_norm)
        for share in own:
            share.step(self.scaler)
        for share in seeds:
            self._step_alone(share, self.scaler)
        _update(self.scaler, (*own, *seeds))

    def step_seed(self, number: int, gradients: Sequence[Tensor | None], scaler: GradScaler | None = None) -> None:
        """One step of one seed from gradients that are given, in the order of its share; they do not stay behind.

        scaler: the seed's own, by which the loss was scaled.
        """
        share = self.seeds[number]
        for parameter, gradient in zip(share.parameters, gradients, strict=True):
            parameter.grad = gradient
        self._step_alone(share, scaler)
        _update(scaler, [share])
        share.forget_gradients()

    def take_gradients(self) -> dict[int, Tensor]:
        """For each seed that was trained since this was asked last, its gradients' numbers, on the device."""
        taken = {number: share.gradients.take() for number, share in self.seeds.items()}
        return {number: numbers for number, numbers in taken.items() if numbers is not None}

    def forget_host_state(self) -> None:
        """Clear what the optimizers of host and fossils remember: their next step is that of a fresh optimizer."""
        for share in (self.host, *self.fossils.values()):
            share.forget_state()

    def misowned(self, model: nn.Module) -> list[str]:
        """What is not as it should be: trainable parameters without exactly one owner, and owners of nothing there."""
        owners: dict[int, int] = {}
        for share in self.shares():
            for parameter in share.owned():
                owners[id(parameter)] = owners.get(id(parameter), 0) + 1
        named = {id(parameter): name for name, parameter in model.named_parameters() if parameter.requires_grad}
        lost = [name for key, name in named.items() if owners.get(key, 0) != 1]
        return lost + ["a parameter that is not in the model" for key in owners if key not in named]

    def _host_side(self) -> list[nn.Parameter]:
        return [parameter for share in (self.host, *self.fossils.values()) for parameter in share.parameters]

    @staticmethod
    def _step_alone(share: Share, scaler: GradScaler | None) -> None:
        share.unscale(scaler)
        if share.parameters:
            gradients = [parameter.grad for parameter in share.parameters]
            share.gradients.collect(gradients, scaled=scaler is not None)
        share.clip()
        share.step(scaler)


def _overflow_together(shares: Sequence[Share]) -> None:
    """Where a gradient of one is not finite, one of each is made so: then all of them leave the step out.

    They are clipped together, and what is no number in one would make the others' gradients the same.
    """
    dense = [[own for own in share.gradients_now() if not own.is_sparse] for share in shares]
    firsts = [gradients[0] for gradients in dense if gradients]
    if len(firsts) > 1:
        largest = torch.nn.utils.get_total_norm([own for gradients in dense for own in gradients], math.inf)
        for first in firsts:
            first.add_(largest - largest)  # 0, or no number


def _update(scaler: GradScaler | None, shares: Iterable[Share]) -> None:
    if scaler is not None and any(share.gradients_now() for share in shares):
        scaler.update()


def _regimen(settings: OptimizerConfig | OptimizerSettings) -> OptimizerSettings:
    return OptimizerSettings.of(settings) if isinstance(settings, OptimizerConfig) else settings
