"""Shared set-up for tests of the governor: signals without a network, and an environment that is stepped manually."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from esper_core.governor import Act, Governor, GovernorDecision, RolledBack
from esper_core.growth import Transition
from esper_core.leyline import WAIT, Action, SeedSignals, Signals, SlotSignals, SlotState, Stage
from esper_core.trainer.environment import Recipe
from tests.support.core_worlds import ADVANCE, FOSSILISE, GERMINATE, begin, make_recipe, read

GROW_AND_KEEP = {0: GERMINATE, 1: ADVANCE, 4: FOSSILISE}
"""A plan that fossilises a seed after step 4."""


def signals(step: int, loss: float, *, train: float | None = None, metric: float = 0.5, slot: Any = None) -> Signals:
    """Return a step with this loss in training and validation by default."""
    empty = SlotSignals("early", SlotState.FREE, 0)
    return Signals(step, loss if train is None else train, loss, metric, 10, 10, (slot or empty,))


def living(stage: Stage = Stage.HOLDING, alpha: float = 1.0, **more: Any) -> SlotSignals:
    """Return the slot "early" with a seed in it."""
    seed = SeedSignals("test/local-conv", stage, alpha, 10, 3, **more)
    return SlotSignals("early", SlotState.OCCUPIED, 0, (seed,))


@contextmanager
def poisoned(recipe: Recipe) -> Iterator[None]:
    """Run a block in which every training example is NaN."""
    inputs = recipe.data["train"].inputs
    before = inputs.clone()
    inputs.fill_(torch.nan)
    try:
        yield
    finally:
        inputs.copy_(before)


class Drive:
    """One environment and its governor, a step at a time; ``plan`` says which action follows which step."""

    def __init__(self, recipe: Recipe, governor: Governor, plan: dict[int, Action] | None = None) -> None:
        self.environment = begin(recipe)
        self.governor, self.plan, self.now = governor, plan or {}, 0
        guessing, _ = self.environment.evaluate("validation").tolist()
        governor.begin(self.environment.garden, guessing)
        self.rolled: RolledBack | None = None
        self.losses: list[float] = []

    def step(self) -> GovernorDecision:
        """Train, measure, let the governor decide, and carry out its decision."""
        environment, step = self.environment, self.now
        self.governor.record(environment.train(), step)
        signals = read(environment, step)
        finite = all(bool(parameter.isfinite().all()) for parameter in environment.model.parameters())
        self.losses.append(signals.validation_loss)
        decision = self.governor.decide(signals, host_finite=finite)
        if decision.act is Act.ROLL_BACK:
            self.rolled = self.governor.roll_back(decision)
        elif decision.act is Act.CONTINUE or decision.act is Act.WARN:
            action = self.plan.get(step, WAIT)
            self.apply(action if environment.mask().allows(action) else WAIT)
        self.now += 1
        return decision

    def steps(self, count: int) -> list[GovernorDecision]:
        """Take several steps, and return their decisions."""
        return [self.step() for _ in range(count)]

    def apply(self, action: Action) -> list[Transition]:
        """Carry out an action after the step that was just judged."""
        changes = self.environment.network.apply(action, self.now)
        self.governor.record(changes, self.now)
        return changes

    def poisoned_step(self) -> GovernorDecision:
        """Take a step on examples that are NaN."""
        with poisoned(self.environment.recipe):
            return self.step()

    def copies(self) -> list[Mapping[str, torch.Tensor]]:
        """Return the memory of the snapshots, the newest first; writing to it damages them."""
        return [kept.snapshot.tensors() for kept in self.governor._snapshots.kept]

    def numbers(self) -> dict[str, torch.Tensor]:
        """A copy of the state of host and fossils."""
        living = {
            id(tensor)
            for seed in self.environment.garden.living_seeds()
            for tensor in seed.state_dict(keep_vars=True).values()
        }
        model = self.environment.model
        named = (*model.named_parameters(), *model.named_buffers())
        return {name: tensor.detach().clone() for name, tensor in named if id(tensor) not in living}


def drive(governor: Governor | None = None, plan: dict[int, Action] | None = None, **recipe: Any) -> Drive:
    """Return a small environment with its governor; other arguments are passed to its recipe."""
    return Drive(make_recipe(**recipe), governor or Governor(), plan)
