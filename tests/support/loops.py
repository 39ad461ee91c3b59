"""A small training loop: data, a host that is easily disturbed, and a policy that follows a plan."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import pytest
import torch
from torch import Tensor, nn

from esper_core.growth import Variety, host_parameters, slots_of
from esper_core.leyline import Action, Op
from esper_grow import Gardener
from tests.support.core_worlds import LOCAL_CONV, NoisyHost, PlannedPolicy, per_example, same, toy_split

Batch = tuple[Tensor, Tensor]
SLOW_MARKS = [pytest.mark.slow, pytest.mark.members, pytest.mark.filterwarnings("ignore")]
"""Marks of tests of other libraries' loops."""


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-2)


@dataclass
class Loop:
    """A training loop, with or without a Gardener."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: list[Batch]
    validation: list[Batch]
    variety: Variety
    gardener: Gardener | None = None
    policy: PlannedPolicy | None = None
    after: list[Callable[[], Any]] = field(default_factory=list)
    """Functions that the loop calls after each batch, such as a schedule or an average."""
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    """Optimizers that step after the first one."""
    dtype: torch.dtype | None = None
    scaler: torch.amp.GradScaler | None = None

    @property
    def seed(self) -> Any:
        ((seed,),) = (slot.seeds for slot in slots_of(self.model))
        return seed

    def tended(self, plan: Mapping[int, Action] | None = None, **more: Any) -> Self:
        """The loop with a Gardener that follows a plan: the seed of slot "stem" germinates, is blended in, is kept."""
        if plan is None:
            plan = life("stem", self.variety.id, keep=3)
        settings: dict[str, Any] = {
            "loss": per_example,
            "slots": ["stem"],
            "blueprints": [self.variety],
            "example": self.batches[0],
            "validation": self.validation,
            "steps": 8,
            "policy": (policy := PlannedPolicy(plan)),
            "growth": {"gates": "off"},
            **more,
        }
        self.policy = policy
        model, optimizer = settings.pop("model", self.model), settings.pop("optimizer", self.optimizer)
        self.gardener = Gardener(model, optimizer, **settings)
        return self

    def epoch(self, train: Callable[[Batch], Any] | None = None) -> Any:
        """Train on each batch, and return the result of ``tend``."""
        for batch in self.batches:
            (train or self.train)(batch)
            if self.gardener is not None:
                self.gardener.step(batch)
            for call in self.after:
                call()
        return None if self.gardener is None else self.gardener.tend()

    def epochs(self, count: int, train: Callable[[Batch], Any] | None = None) -> list[Any]:
        """Train for several epochs, and return the result of ``tend`` for each."""
        return [self.epoch(train) for _ in range(count)]

    def stays_as(self, plain: Self, trains: Sequence[Callable[[Batch], Any] | None] = (None, None)) -> bool:
        """Train an epoch beside a plain loop with equal random numbers; return whether the hosts are bitwise equal."""
        random = torch.get_rng_state()
        plain.epoch(trains[0])
        expected = plain.state()
        torch.set_rng_state(random)
        self.last = self.epoch(trains[1])
        return self.is_as(expected)

    def train(self, batch: Batch) -> None:
        optimizers = [self.optimizer, *self.optimizers]
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast("cpu", self.dtype, enabled=self.dtype is not None):
            loss = per_example(self.model, batch).mean()
        if loss.requires_grad:
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            return
        for optimizer in optimizers:
            optimizer.step()

    def is_as(self, state: dict[str, Any]) -> bool:
        """Return whether the host is bitwise equal to that of another loop."""
        return same(self.state(), state)

    def state(self) -> dict[str, Any]:
        """Return the state of the host that a Gardener must not change, without that of seeds."""
        host_ids = {id(parameter) for parameter in host_parameters(self.model)}
        state = self.optimizer.state
        members = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        host = [parameter for parameter in members if id(parameter) in host_ids]
        return {
            "parameters": [parameter.detach().clone() for parameter in host_parameters(self.model)],
            "gradients": [None if parameter.grad is None else parameter.grad.clone() for parameter in host],
            "buffers": {name: buffer.clone() for name, buffer in self.model.named_buffers() if "_esper" not in name},
            "modes": [module.training for name, module in self.model.named_modules() if "_esper" not in name],
            "memory": [
                {key: value.clone() if isinstance(value, Tensor) else value for key, value in state[parameter].items()}
                for parameter in host
                if parameter in state
            ],
            "rates": [float(group["lr"]) for group in self.optimizer.param_groups],
            "random": torch.get_rng_state(),
        }


def by_kind(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Return weights, which have several dimensions, and biases and gains, which have one."""
    kinds: list[list[nn.Parameter]] = [[], []]
    for parameter in parameters:
        kinds[parameter.ndim < 2].append(parameter)
    return kinds


def train_batch(gardener: Gardener, loss: Callable[[nn.Module, Any], Tensor], batch: Any) -> None:
    """Train on a batch as a user's loop does; on a frozen host no loss has a gradient until a seed acts."""
    gardener.optimizer.zero_grad()
    if (mean := loss(gardener.model, batch).mean()).requires_grad:
        mean.backward()
    gardener.optimizer.step()
    gardener.step(batch)


def make_loop(optimizer: Callable[[Any], torch.optim.Optimizer] = adam, *, host: Callable[[], Any] = NoisyHost) -> Loop:
    """Return an equal loop each time."""
    torch.manual_seed(3)
    model = host()
    train, held_out = toy_data()
    batches = list(zip(*(part.split(20) for part in train), strict=True))
    torch.manual_seed(4)
    return Loop(model, optimizer(list(model.parameters())), batches, [held_out], LOCAL_CONV)


def life(slot: str, blueprint: str, *, begin: int = 0, keep: int | None = None) -> dict[int, Action]:
    """Return the plan of a seed that germinates in a step, is blended in after the next, and is kept in another."""
    plan = {begin: Action(Op.GERMINATE, slot, blueprint), begin + 1: Action(Op.ADVANCE, slot)}
    return plan if keep is None else plan | {keep: Action(Op.FOSSILISE, slot)}


def planned(slot: str, *, blueprint: str = "conv_light", keep: int | None = None) -> dict[str, Any]:
    """Return arguments of a Gardener: a seed germinates at once, is blended in, and is kept in the given step."""
    policy = PlannedPolicy(life(slot, f"blueprints/{blueprint}", keep=keep))
    return {"blueprints": [blueprint], "policy": policy, "growth": {"gates": "off"}, "steps": 8}


def toy_data() -> tuple[Batch, Batch]:
    """Return examples to train on, and held-out ones."""
    train, held_out = toy_split(60, 1), toy_split(60, 2)
    return (train.inputs, train.targets), (held_out.inputs, held_out.targets)
