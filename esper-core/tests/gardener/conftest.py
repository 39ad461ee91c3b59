"""A small loop of a user's own: data, a host that is hard to leave undisturbed, and a policy that follows a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core import Gardener
from esper_core.growth import Variety, host_parameters
from esper_core.leyline import Action, ActionMask, Observation, Op

Batch = tuple[Tensor, Tensor]
Optimizers = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def per_example(model: nn.Module, batch: Batch) -> Tensor:
    """The loss of a user: one number for each example."""
    inputs, targets = batch
    return nn.functional.cross_entropy(model(inputs), targets, reduction="none")


def bumps(examples: int, seed: int) -> Batch:
    """Three classes of bumps on noise, told apart by the bump's shape."""
    generator = torch.Generator().manual_seed(seed)
    shapes = torch.tensor([[1.0, 2.0, 1.0], [2.0, -1.0, 2.0], [-1.0, 0.0, 1.0]])
    targets = torch.randint(0, 3, (examples,), generator=generator)
    inputs = 0.1 * torch.randn(examples, 1, 12, generator=generator)
    starts = torch.randint(0, 9, (examples,), generator=generator)
    for row, (target, start) in enumerate(zip(targets, starts, strict=True)):
        inputs[row, 0, start : start + 3] += shapes[target]
    return inputs, targets


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-2)


class Plan:
    """Carries out a plan: an action for some steps, and WAIT otherwise."""

    def __init__(self, plan: Mapping[int, Action]) -> None:
        self.plan = dict(plan)
        self.seen: list[int] = []
        self.masks: list[ActionMask] = []

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        (observation,) = observations
        self.seen.append(observation.step)
        self.masks += masks
        return [self.plan.get(observation.step, Action())]


@dataclass
class Loop:
    """A training loop, with or without a Gardener."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: list[Batch]
    validation: list[Batch]
    variety: Variety
    gardener: Gardener | None = None
    policy: Plan | None = None
    after: list[Callable[[], Any]] = field(default_factory=list)
    """What the loop calls after each batch: a schedule, an average."""

    def tended(self, plan: Mapping[int, Action] | None = None, **more: Any) -> Loop:
        """The loop with a Gardener that follows a plan: the seed of slot "stem" germinates, is blended in, is kept."""
        if plan is None:
            plan = {
                0: Action(Op.GERMINATE, "stem", self.variety.id),
                1: Action(Op.ADVANCE, "stem"),
                3: Action(Op.FOSSILISE, "stem"),
            }
        settings: dict[str, Any] = {
            "loss": per_example,
            "slots": ["stem"],
            "blueprints": [self.variety],
            "example": self.batches[0],
            "validation": self.validation,
            "steps": 8,
            "policy": (policy := Plan(plan)),
            "growth": {"gates": "off"},
            **more,
        }
        self.policy = policy
        self.gardener = Gardener(self.model, settings.pop("optimizer", self.optimizer), **settings)
        return self

    def epoch(self, train: Callable[[Batch], Any] | None = None) -> Any:
        """Train on each batch, and return what ``tend`` says."""
        for batch in self.batches:
            (train or self.train)(batch)
            if self.gardener is not None:
                self.gardener.step(batch)
            for call in self.after:
                call()
        return None if self.gardener is None else self.gardener.tend()

    def train(self, batch: Batch) -> None:
        self.optimizer.zero_grad()
        per_example(self.model, batch).mean().backward()
        self.optimizer.step()

    def is_as(self, state: dict[str, Any]) -> bool:
        """Whether the host is to the bit what it was in another loop."""
        return equal(self.state(), state)

    def state(self) -> dict[str, Any]:
        """Everything of the host that a Gardener must leave alone, as far as it is no seed's."""
        own = {id(parameter) for parameter in host_parameters(self.model)}
        state = self.optimizer.state
        host = [
            parameter for group in self.optimizer.param_groups for parameter in group["params"] if id(parameter) in own
        ]
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


def equal(one: Any, other: Any) -> bool:
    """Whether two states are equal to the bit."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(equal(mine, yours) for mine, yours in zip(one, other, strict=True))
    return bool(one == other)


@pytest.fixture
def make_loop(noisy_host: Callable[[], nn.Module], local_conv: Variety) -> Callable[..., Loop]:
    """``make_loop(optimizer)``: equal loops each time it is called."""

    def make(optimizer: Callable[[Any], torch.optim.Optimizer] = adam, *, host: Any = None) -> Loop:
        torch.manual_seed(3)
        model = (host or noisy_host)()
        inputs, targets = bumps(60, 1)
        batches = list(zip(inputs.split(20), targets.split(20), strict=True))
        torch.manual_seed(4)
        return Loop(model, optimizer(list(model.parameters())), batches, [bumps(60, 2)], local_conv)

    return make
