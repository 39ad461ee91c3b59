"""Where do the environments live, and in which order do they work? In a pool; this one has one lane, this process.

The arms' environments are interleaved and the order is rotated each step, so that no arm always comes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from esper_core.growth import FaultBook, Transition, read_network, slots_of
from esper_core.leyline.actions import Action, ActionMask, Op
from esper_core.trainer.answerable import answerable
from esper_core.trainer.environment import Environment, Mishap, Recipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from esper_core.growth import Growth
    from esper_core.leyline.signals import Signals


@dataclass(frozen=True, slots=True)
class Ending:
    """How an episode ended: the network that is left, measured once on the test split."""

    signals: Signals
    test_loss: float
    test_metric: float
    growth: tuple[Growth, ...]


Changes = list[tuple[Environment, Transition]]
Mishaps = list[tuple[Environment, Mishap]]


class Pool:
    """The environments of every arm: ``environments`` of each, side by side on one lane.

    ``twin`` is the arm that never grows, against which seeds are weighed.
    """

    def __init__(self, recipe: Recipe, arms: Sequence[str], environments: int, *, twin: str | None = None) -> None:
        faults = FaultBook()
        self._twin = twin
        self.environments = [
            Environment(recipe, arm=arm, index=index, faults=faults) for index in range(environments) for arm in arms
        ]
        self._evaluations: list[Tensor] = []

    def of_arm(self, arm: str) -> list[int]:
        """The places of an arm's environments, in the order of their seeds."""
        return [place for place, environment in enumerate(self.environments) if environment.arm == arm]

    def reset(self, round_: int, first_seed: int) -> None:
        """Begin a round: the environments of one index share a seed, whatever their arm."""
        for environment in self.environments:
            environment.reset(round_, first_seed + environment.index)

    def train(self, step: int) -> Changes:
        """Train every environment for one step; what time brought to its seeds."""
        changes: Changes = []
        for environment in self._turns(step):
            with answerable(self._of(environment), f"in training, step {step}"):
                changes += [(environment, transition) for transition in environment.train()]
        return changes

    def evaluate(self, step: int) -> None:
        """Measure every environment on the validation split; the results stay on the device."""
        self._evaluations = []
        for environment in self.environments:
            with answerable(self._of(environment), f"in evaluation, step {step}"):
                self._evaluations.append(environment.evaluate("validation"))
        for environment in self.environments:
            with answerable(self._of(environment), f"when its seeds were weighed, step {step}"):
                environment.weigh(self._twin_of(environment))

    def synchronise(self, step: int) -> list[Signals]:
        """Read what was measured: the one place in a step where the host waits for the device."""
        readings = [e.readings(evaluation) for e, evaluation in zip(self.environments, self._evaluations, strict=True)]
        numbers = torch.cat(readings).tolist()
        signals: list[Signals] = []
        for environment, reading in zip(self.environments, readings, strict=True):
            own, numbers = numbers[: len(reading)], numbers[len(reading) :]
            signals.append(environment.signals(step, own))
        return signals

    def heal(self, signals_E: Sequence[Signals], step: int) -> tuple[list[Signals], Mishaps]:
        """Take out seeds that went wrong, and measure their environments again; the signals, and what was lost."""
        healed: list[Signals] = []
        mishaps: Mishaps = []
        for environment, measured in zip(self.environments, signals_E, strict=True):
            signals = measured
            if not measured.finite and environment.heal(measured):
                readings = environment.readings(environment.evaluate("validation"))
                signals = environment.signals(step, readings.tolist())
            healed.append(signals)
            mishaps += [(environment, mishap) for mishap in environment.take_mishaps()]
        return healed, mishaps

    def masks(self) -> list[ActionMask]:
        """What could be done now, in each environment."""
        return [environment.mask() for environment in self.environments]

    def apply(self, actions: Sequence[Action], step: int) -> Changes:
        """Carry out one action in each environment."""
        changes: Changes = []
        for environment, action in zip(self.environments, actions, strict=True):
            if action.op is Op.WAIT:
                continue
            changes += [(environment, transition) for transition in environment.apply(action, step)]
        return changes

    def conclude(self, step: int) -> tuple[Changes, list[Ending]]:
        """End the episodes: seeds whose fate is open are pruned, and what is left is read on the test split."""
        changes: Changes = []
        endings: list[Ending] = []
        for environment in self.environments:
            changes += [(environment, t) for t in environment.garden.uproot("the episode is over")]
            validation, test = environment.evaluate("validation"), environment.evaluate("test")
            signals = environment.signals(step, environment.readings(validation).tolist())
            test_loss, test_metric = test.tolist()
            grown = read_network(slots_of(environment.model), type(environment.model).__name__).grown
            endings.append(Ending(signals, test_loss, test_metric, grown))
        return changes, endings

    def _twin_of(self, environment: Environment) -> Environment | None:
        same = (one for one in self.environments if one.arm == self._twin and one.index == environment.index)
        return next(same, None)

    def _turns(self, step: int) -> list[Environment]:
        first = step % len(self.environments)
        return self.environments[first:] + self.environments[:first]

    @staticmethod
    def _of(environment: Environment) -> str:
        grown = {seed.blueprint for slot in environment.garden.slots.values() for seed in slot.stack}
        return "the host" + (f" with {', '.join(sorted(grown))}" if grown else "")
