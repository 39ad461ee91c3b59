"""Optimizers of one model: an OptimizerKeeper owns every trainable parameter exactly once.

A seed gets an optimizer of its own when it is born and keeps it, with its state, until it is pruned or fossilised.
Pruning releases the optimizer. From fossilisation on the seed's parameters train with the host's settings: learning
rate, weight decay, betas, clipping and schedule. The state is handed over where host and seed use the same algorithm;
otherwise the fossil starts with the fresh state of the host's algorithm.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from esper_core.growth.optimizer_steps import (
    FusedAdam,
    FusedAdamW,
    GradientCollector,
    decode_optimizer_state,
    decode_scaler,
    encode_scaler,
    hand_over_state,
    laid_out,
    settings_of,
    step_optimizer,
)
from esper_core.growth.serialization import decode_state, encode_state, state_mismatch
from esper_core.leyline.errors import GrowthError, Problem
from esper_core.leyline.protocols import State
from esper_core.settings import OptimizerConfig  # noqa: TC001  exported by growth

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.amp import GradScaler

    from esper_core.growth.seeds import Seed
    from esper_core.leyline.protocols import Schedule

Build = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]
"""Builds an optimizer of any class over some parameters."""


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """How parameters learn.

    Attributes:
        build: builds any optimizer that needs no closure: ``partial(torch.optim.AdamW, lr=1e-3)``.
        clip_norm: largest global norm of the gradients; None: no clipping.
        schedule: the factor on the learning rate, step by step; None: 1 throughout.
    """

    build: Build
    clip_norm: float | None = None
    schedule: Schedule | None = None

    @classmethod
    def of(cls, settings: OptimizerConfig | OptimizerSettings, schedule: Schedule | None = None) -> OptimizerSettings:
        """Return the settings that a configuration describes."""
        if isinstance(settings, OptimizerSettings):
            return settings
        return cls(_BuildConfigured(settings), settings.clip_norm, schedule)


@dataclass(frozen=True, slots=True)
class _BuildConfigured:
    """Builds the optimizer that a configuration describes. Two of them are equal if their settings are."""

    settings: OptimizerConfig

    def __call__(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        return build_optimizer(self.settings, parameters)


def build_optimizer(settings: OptimizerConfig, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer that a configuration describes, over ``parameters``."""
    rate, decay, implementation = settings.learning_rate, settings.weight_decay, settings.implementation
    how: dict[str, Any] = {"fused": True} if implementation == "fused" else {"foreach": implementation == "foreach"}
    fused = "fused" in how
    match settings.kind:
        case "sgd":
            return torch.optim.SGD(parameters, rate, momentum=settings.momentum, weight_decay=decay, **how)
        case "adam":
            return (FusedAdam if fused else torch.optim.Adam)(parameters, rate, weight_decay=decay, **how)
        case "adamw":
            return (FusedAdamW if fused else torch.optim.AdamW)(parameters, rate, weight_decay=decay, **how)


@dataclass(frozen=True, slots=True)
class OwnedParameters:
    """The parameters of the host, or of one seed, with the optimizer that trains them.

    Without trainable parameters, in a frozen host for example, there is neither optimizer nor settings. ``rates`` are
    the learning rates of the groups before any schedule, ``begun`` is the keeper's step in which training began.
    """

    parameters: tuple[nn.Parameter, ...]
    optimizer: torch.optim.Optimizer | None
    settings: OptimizerSettings | None = None
    rates: tuple[float, ...] = ()
    begun: int = 0
    gradients: GradientCollector = field(default_factory=GradientCollector)

    @classmethod
    def of(cls, parameters: Iterable[nn.Parameter], settings: OptimizerSettings, begun: int = 0) -> OwnedParameters:
        """Return an owner of the trainable ones of ``parameters``."""
        trainable = tuple(parameter for parameter in parameters if parameter.requires_grad)
        if not trainable:
            # torch refuses to build an optimizer of nothing.
            return cls((), None)
        optimizer = settings.build(trainable)
        cls.refuse_closure(optimizer)
        rates = tuple(float(group["lr"]) for group in optimizer.param_groups if "lr" in group)
        return cls(trainable, optimizer, settings, rates, begun)

    @staticmethod
    def refuse_closure(optimizer: torch.optim.Optimizer) -> None:
        """Raise GrowthError for an optimizer whose step needs a closure."""
        closure = inspect.signature(type(optimizer).step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            message = f"{type(optimizer).__name__} computes the loss several times a step, which is not supported here"
            hint = "Use one whose step() needs no closure, such as Adam or SGD."
            raise GrowthError(Problem("E306", message, hint=hint))

    def under(self, settings: OptimizerSettings, begun: int) -> OwnedParameters:
        """Return the same parameters under other settings, with their optimizer's state; this owner is not changed.

        The optimizer is kept if both settings build the same one; a new one takes over what ``hand_over_state`` can.
        """
        if self.optimizer is None or self.settings is None:
            return self
        if self.settings.build == settings.build:
            return replace(self, settings=settings, begun=begun, gradients=GradientCollector())
        owner = OwnedParameters.of(self.parameters, settings, begun)
        if owner.optimizer is not None:
            hand_over_state(self.optimizer, owner.optimizer)
        return owner

    def groups(self) -> list[dict[str, Any]]:
        """Return the optimizer's parameter groups."""
        return [] if self.optimizer is None else self.optimizer.param_groups

    def schedule_rates(self, step: int, steps: int | None) -> None:
        """Set the learning rates for ``step`` as counted by the keeper, if the settings have a schedule."""
        if self.settings is not None and (schedule := self.settings.schedule) is not None:
            # At least 1, because a seed that is born in the last step has none left, and schedules divide by them.
            self.set_rates(schedule.factor(step - self.begun, None if steps is None else max(1, steps - self.begun)))

    def set_rates(self, factor: float) -> None:
        """Set each group's learning rate to ``factor`` times the rate that it was built with.

        A rate that is a tensor becomes another one: several optimizers may have been built with the same.
        """
        for group, rate in zip((group for group in self.groups() if "lr" in group), self.rates, strict=True):
            now = group["lr"]
            group["lr"] = torch.full_like(now, rate * factor) if isinstance(now, Tensor) else rate * factor

    def gradients_now(self) -> list[Tensor]:
        """Return the gradients of the parameters that have one."""
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def collect_gradients(self, *, scaled: bool) -> None:
        """Record the gradients for the statistics; ``scaled``: they come from a scaled loss."""
        gradients = [parameter.grad for parameter in self.parameters]
        self.gradients.collect(gradients, scaled=scaled, device=self.parameters[0].device)

    def unscale(self, scaler: GradScaler | None) -> None:
        """Divide the gradients by the scale of the loss, and notice whether they are finite."""
        if scaler is not None and self.optimizer is not None and self.gradients_now():
            scaler.unscale_(self.optimizer)

    def step(self, scaler: GradScaler | None = None) -> None:
        """Take one step; none if ``scaler`` noticed a gradient that is not finite."""
        if self.optimizer is None:
            return
        if scaler is None:
            step_optimizer(self.optimizer)
        elif self.gradients_now():  # without gradients a scaler raises
            scaler.step(self.optimizer)

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self.parameters:
            # Not zero: momentum and weight decay would still move a parameter that has a gradient of 0.
            parameter.grad = None

    def state_dict(self) -> State:
        """Return the optimizer's state of each parameter, the settings of its groups, and when it began."""
        if self.optimizer is None:
            return encode_state({"begun": self.begun})
        groups = [settings_of(group) for group in self.optimizer.param_groups]
        states = [self.optimizer.state.get(parameter) for parameter in self.parameters]
        waiting = self.gradients.state_dict()
        return encode_state({"begun": self.begun, "groups": groups, "state": states, "gradients": waiting})

    def restored(self, state: State) -> Self:
        """Return this owner with the state of another one, whose parameters have the same shapes."""
        saved = decode_state(state, self.parameters[0].device if self.parameters else "cpu")
        if self.optimizer is not None:
            state_of_parameters = decode_optimizer_state(self.parameters, saved["state"])
            for group, settings in zip(self.optimizer.param_groups, saved["groups"], strict=True):
                group.update(settings)
            self.optimizer.state.clear()
            self.optimizer.state.update(state_of_parameters)
            self.gradients.load_state_dict(saved["gradients"])
        return replace(self, begun=saved["begun"])


class OptimizerKeeper:
    """The optimizers of one model: one for the host, one for each seed and one for each fossil.

    Args:
        host: the host's parameters.
        host_settings: of the host's optimizer, and of each seed's from its fossilisation on.
        seed_settings: how living seeds learn.
        steps: decision steps that there will be in all, for schedules; None if unknown.
        scaler: gradient scaler of the host's own step; an incubating seed has a copy of it.
    """

    encode_scaler, decode_scaler = staticmethod(encode_scaler), staticmethod(decode_scaler)

    def __init__(
        self,
        host: Iterable[nn.Parameter],
        *,
        host_settings: OptimizerConfig | OptimizerSettings,
        seed_settings: OptimizerConfig | OptimizerSettings,
        steps: int | None = None,
        scaler: GradScaler | None = None,
    ) -> None:
        self._host_settings = OptimizerSettings.of(host_settings)
        self._seed_settings = OptimizerSettings.of(seed_settings)
        self._steps = steps
        self._step = -1
        self.scaler = scaler
        self.host = OwnedParameters.of(host, self._host_settings)
        self.seeds: dict[int, OwnedParameters] = {}
        self.fossils: dict[int, OwnedParameters] = {}

    def adopt(self, seed: Seed) -> None:
        """Add a seed's parameters, with an optimizer of their own."""
        # Seeds are born at the end of a step, and begin to train with the next one.
        owner = OwnedParameters.of(seed.parameters(), self._seed_settings, self._step + 1)
        owned = {id(parameter) for other in self.owners() for parameter in other.parameters}
        if seed.number in self.seeds or any(id(parameter) in owned for parameter in owner.parameters):
            hint = "Give the keeper the host's own:  OptimizerKeeper(esper_core.growth.host_parameters(model), …)"
            message = f"the parameters of seed {seed.number} already have an optimizer"
            raise GrowthError(Problem("E304", message, hint=hint))
        self.seeds[seed.number] = owner

    def release(self, number: int) -> None:
        """Drop a seed's owner, because it was pruned, or is a fossil that learns no more."""
        self.seeds.pop(number).zero_grad()

    def settle(self, seed: Seed, *, freeze: bool) -> None:
        """Make a fossilised seed part of the host, whose settings it trains with; or freeze it."""
        if freeze:
            self.release(seed.number)
            seed.requires_grad_(requires_grad=False)
            return
        owner = self.seeds[seed.number]
        fossil = owner.under(self._host_settings, self.host.begun)
        if self._host_settings.schedule is not None and self._step >= 0:
            fossil.schedule_rates(self._step, self._steps)
        elif owner.settings is not None and owner.settings.schedule is not None:
            # The rate at which the seed's own schedule left it would never change again.
            fossil.set_rates(1.0)
        self.fossils[seed.number] = fossil
        del self.seeds[seed.number]

    def undo(self) -> Callable[[], None]:
        """Return a function that restores the present owners, step and learning rates; parameters stay trained."""
        seeds, fossils, step = dict(self.seeds), dict(self.fossils), self._step
        rates = [(group, group["lr"]) for owner in self.owners() for group in owner.groups() if "lr" in group]

        def put_back() -> None:
            for owned, before in ((self.seeds, seeds), (self.fossils, fossils)):
                owned.clear()
                owned.update(before)
            self._step = step
            for group, rate in rates:
                group["lr"] = rate

        return put_back

    def state_dict(self) -> State:
        """Return its state beside the parameters, between two steps, when no gradients are waiting."""
        order = {"fossils": list(self.fossils), "seeds": list(self.seeds)}
        owners = {str(number): owner.state_dict() for number, owner in (*self.fossils.items(), *self.seeds.items())}
        scaler = encode_scaler(self.scaler)
        return State.of({"host": self.host.state_dict(), **owners, "scaler": scaler}, step=self._step, order=order)

    def load_state_dict(self, state: State) -> None:
        """Continue from the state of another keeper, whose model had the same parameters."""
        order = state.plain["order"]
        if sorted(order["fossils"]) != sorted(self.fossils) or sorted(order["seeds"]) != sorted(self.seeds):
            why = f"it is of seeds {order}, and here are {sorted(self.fossils)} and {sorted(self.seeds)}"
            raise state_mismatch(why)
        self._step = state.plain["step"]
        device = next(
            (parameter.device for owner in self.owners() for parameter in owner.parameters), torch.device("cpu")
        )
        self.scaler = decode_scaler(state.part("scaler"), self.scaler, device)
        self.host = self.host.restored(state.part("host"))
        for name, owned in (("fossils", self.fossils), ("seeds", self.seeds)):
            owners = {number: owned[number].restored(state.part(str(number))) for number in order[name]}
            owned.clear()  # gradient norms are summed in this order
            owned.update(owners)

    def owners(self) -> tuple[OwnedParameters, ...]:
        """Return all owners."""
        return (*self.owned_by_host(), *(owner for number in self.seeds for owner in self.owned_by_seed(number)))

    def owned_by_host(self) -> tuple[OwnedParameters, ...]:
        """Return the owners of the host and of its fossils, which step together."""
        return (self.host, *self.fossils.values())

    def owned_by_seed(self, number: int) -> tuple[OwnedParameters, ...]:
        """Return the owners of a living seed."""
        return (self.seeds[number],)

    def host_gradients(self) -> list[Tensor]:
        """Return the gradients of host and fossils from the latest batch."""
        return [gradient for owner in self.owned_by_host() for gradient in owner.gradients_now()]

    def open_step(self) -> None:
        """Begin a decision step: schedules set their learning rates."""
        self._step += 1
        for owner in self.owners():
            owner.schedule_rates(self._step, self._steps)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for owner in self.owners():
            owner.zero_grad()

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients for ``step``."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def step(self, blended: Iterable[int]) -> None:
        """Take one step of the host, of its fossils, and of the ``blended`` seeds.

        Host and fossils are clipped together, each seed by itself: none of them affects the steps of the others.
        """
        owned_by_host = self.owned_by_host()
        seeds = [owner for number in blended for owner in self.owned_by_seed(number)]
        self.pass_rates_to_fossils()
        self.step_together(owned_by_host, self._host_settings.clip_norm)
        for owner in seeds:
            self._step_alone(owner, self.scaler)
        self.update_scaler(self.scaler, (*owned_by_host, *seeds))

    def pass_rates_to_fossils(self) -> None:
        """Give fossils the host's learning rate, as a multiple of the first, where no schedule of settings does."""
        if self._host_settings.schedule is None and self.host.rates:
            rate, first = float(self.host.groups()[0]["lr"]), self.host.rates[0]
            for fossil in self.fossils.values():  # a scheduler of torch knows the host's optimizer alone
                fossil.set_rates(rate / first if first else 1.0)

    def step_together(
        self, owners: Sequence[OwnedParameters], clip_norm: float | None, collected: Iterable[OwnedParameters] = ()
    ) -> None:
        """Take one step of several owners, clipped together; if one gradient is not finite, all of them skip it.

        The gradients of ``collected``, some of these owners, are recorded for the statistics.
        """
        if self.scaler is not None:
            overflow_together(owners)
        for owner in owners:
            owner.unscale(self.scaler)
        for owner in collected:
            owner.collect_gradients(scaled=self.scaler is not None)
        # After the unscaling, so that the norm is that of the true gradients.
        if clip_norm is not None:
            clip_grad_norm_([parameter for owner in owners for parameter in owner.parameters], clip_norm)
        for owner in owners:
            owner.step(self.scaler)

    @staticmethod
    def update_scaler(scaler: GradScaler | None, owners: Iterable[OwnedParameters]) -> None:
        """Update the scale after a step of ``owners``, unless none of them had gradients."""
        if scaler is not None and any(owner.gradients_now() for owner in owners):
            # Without gradients nothing was unscaled, and ``update`` would raise.
            scaler.update()

    def step_seed(self, number: int, gradients: Sequence[Tensor | None], scaler: GradScaler | None) -> None:
        """Take one step of one seed from gradients in the order of its owner; they are dropped afterwards.

        ``scaler`` is the seed's own, by which the loss was scaled.
        """
        owner = self.seeds[number]
        for parameter, gradient in zip(owner.parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else laid_out(gradient, parameter)
        self._step_alone(owner, scaler)
        self.update_scaler(scaler, [owner])
        owner.zero_grad()

    def take_gradients(self) -> dict[int, Tensor]:
        """Return the gradient statistics of each seed that was trained since the last call, on the device."""
        taken = {number: owner.gradients.take() for number, owner in self.seeds.items()}
        return {number: numbers for number, numbers in taken.items() if numbers is not None}

    def forget_host_state(self) -> None:
        """Reset the state of the optimizers of host and fossils to that of new ones."""
        for owner in self.owned_by_host():
            if owner.optimizer is not None and owner.settings is not None:
                owner.optimizer.state.clear()
                # Some, such as Adagrad, begin with a state, so it cannot just be emptied.
                owner.optimizer.state.update(owner.settings.build(owner.parameters).state)

    def misowned(self, model: nn.Module) -> list[str]:
        """Return the trainable parameters without exactly one optimizer, and those that are not in the model."""
        groups = (group for owner in self.owners() for group in owner.groups())
        owners = Counter(id(parameter) for group in groups for parameter in group["params"])
        named = {id(parameter): name for name, parameter in model.named_parameters() if parameter.requires_grad}
        wrong = [name for key, name in named.items() if owners[key] != 1]
        return wrong + ["a parameter that is not in the model" for key in owners if key not in named]

    @staticmethod
    def _step_alone(owner: OwnedParameters, scaler: GradScaler | None) -> None:
        owner.unscale(scaler)
        if owner.settings is not None:
            owner.collect_gradients(scaled=scaler is not None)
            if owner.settings.clip_norm is not None:
                clip_grad_norm_(owner.parameters, owner.settings.clip_norm)
        owner.step(scaler)


def overflow_together(owners: Sequence[OwnedParameters]) -> None:
    """Make one gradient of each owner not finite if any is, so that all of them skip the step.

    They are clipped together, and a NaN in one would make the others' gradients NaN.
    """
    dense = [[gradient for gradient in owner.gradients_now() if not gradient.is_sparse] for owner in owners]
    firsts = [gradients[0] for gradients in dense if gradients]
    if len(firsts) > 1:
        largest = torch.nn.utils.get_total_norm([gradient for gradients in dense for gradient in gradients], math.inf)
        for first in firsts:
            first.add_(largest - largest)  # 0, or NaN if it is not finite; asking which would wait for the device
