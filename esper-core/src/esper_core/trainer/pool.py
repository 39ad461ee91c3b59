"""Where do the environments live, and in which order do they work? In a pool; this one has one lane, this process.

The arms' environments are interleaved and the order is rotated each step, so that no arm always comes first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from esper_core.governor import Act
from esper_core.growth import FaultBook, Transition, read_network, slots_of
from esper_core.leyline.actions import Action, ActionMask, Op
from esper_core.leyline.health import CALM
from esper_core.trainer.answerable import answerable
from esper_core.trainer.environment import Environment, Mishap, Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from esper_core.governor import Decision, RolledBack
    from esper_core.growth import Growth
    from esper_core.leyline.health import Verdict
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
        self._evaluations: dict[int, Tensor] = {}
        self._latest: list[Signals] = []

    def of_arm(self, arm: str) -> list[int]:
        """The places of an arm's environments, in the order of their seeds."""
        return [place for place, environment in enumerate(self.environments) if environment.arm == arm]

    def reset(self, round_: int, first_seed: int) -> None:
        """Begin a round: the environments of one index share a seed, whatever their arm."""
        for environment in self.environments:
            environment.reset(round_, first_seed + environment.index)
        guessing: list[Tensor] = []
        for environment in self.environments:
            with answerable(self._of(environment), "in evaluation, before it was trained"):
                guessing.append(environment.evaluate("validation"))
        for environment, (loss, _) in zip(self.environments, torch.stack(guessing).tolist(), strict=True):
            environment.governor.begin(environment.garden, loss)

    @property
    def over(self) -> bool:
        """Whether every episode came to its end before its time. That of a twin never does."""
        return all(environment.over for environment in self.environments)

    def running(self) -> list[int]:
        """The places of the environments whose episode goes on."""
        return [place for place, environment in enumerate(self.environments) if not environment.over]

    def train(self, step: int) -> Changes:
        """Train every environment for one step; what time brought to its seeds."""
        changes: Changes = []
        for environment in self._turns(step):
            with answerable(self._of(environment), f"in training, step {step}"):
                changes += self._noted(environment, environment.train(), step)
        return changes

    def evaluate(self, step: int) -> None:
        """Measure every environment on the validation split; the results stay on the device."""
        self._evaluations = {}
        for place in self.running():
            environment = self.environments[place]
            with answerable(self._of(environment), f"in evaluation, step {step}"):
                self._evaluations[place] = environment.evaluate("validation")
        for place in self.running():
            environment = self.environments[place]
            with answerable(self._of(environment), f"when its seeds were weighed, step {step}"):
                environment.weigh(self._twin_of(environment))

    def synchronise(self, step: int) -> list[Signals]:
        """Read what was measured: the one place in a step where the host waits for the device.

        Of an episode that is over these are the last signals that there were.
        """
        readings = {
            place: self.environments[place].reading.numbers(evaluation)
            for place, evaluation in self._evaluations.items()
        }
        numbers = torch.cat(list(readings.values())).tolist()
        read: dict[int, Signals] = {}
        for place, reading in readings.items():
            own, numbers = numbers[: len(reading)], numbers[len(reading) :]
            read[place] = self.environments[place].reading.signals(step, own)
        return self._keep([read.get(place) or self._latest[place] for place in range(len(self.environments))])

    def heal(self, signals_E: Sequence[Signals], step: int) -> tuple[list[Signals], Mishaps]:
        """Take out seeds that went wrong, and measure their environments again; the signals, and what was lost."""
        healed: list[Signals] = []
        mishaps: Mishaps = []
        for environment, measured in zip(self.environments, signals_E, strict=True):
            sick = not environment.over and not (measured.finite and not environment.reading.gone_wild)
            healed.append(_read_again(environment, step) if sick and environment.heal(measured) else measured)
            lost = environment.take_mishaps()
            mishaps += [(environment, mishap) for mishap in lost]
            self._noted(environment, [mishap.ending for mishap in lost if mishap.ending is not None], step)
        return self._keep(healed), mishaps

    def judge(self, signals_E: Sequence[Signals], opinions: Mapping[int, Verdict]) -> dict[int, Decision]:
        """What is to be done in each environment whose episode goes on, by its place.

        opinions: what others think of it. No twin is stopped early: the others are measured by it.
        """
        decisions: dict[int, Decision] = {}
        for place in self.running():
            environment = self.environments[place]
            decision = environment.judge(signals_E[place], opinions.get(place, CALM))
            if decision.truncated and environment.arm == self._twin:
                decision = replace(decision, act=Act.CONTINUE)
            decisions[place] = decision
        return decisions

    def heed(
        self, signals_E: Sequence[Signals], decisions: Mapping[int, Decision], step: int
    ) -> tuple[list[Signals], dict[int, RolledBack], Changes]:
        """Carry out what was decided: signals as they are now, what was rolled back, by its place, and what was pruned.

        An environment that was rolled back is measured anew, and so is one whose episode ends here: with it go the
        seeds whose fate is open.
        """
        now, changes = list(signals_E), Changes()
        rolled: dict[int, RolledBack] = {}
        for place, decision in decisions.items():
            environment = self.environments[place]
            if decision.act is Act.ROLL_BACK:
                rolled[place] = environment.roll_back(decision)
                now[place] = _read_again(environment, step)
                self._tell_of_twin(environment)
            elif decision.truncated:
                changes += [(environment, t) for t in environment.garden.uproot("the episode is over")]
                now[place] = _read_again(environment, step)
                environment.over = True
        return self._keep(now), rolled, changes

    def masks(self) -> list[ActionMask]:
        """What could be done now, in each environment."""
        return [environment.mask() for environment in self.environments]

    def apply(self, actions: Sequence[Action], step: int) -> tuple[Changes, Mishaps]:
        """Carry out one action in each environment; what changed, and what could not even be built."""
        changes, mishaps = Changes(), Mishaps()
        for environment, action in zip(self.environments, actions, strict=True):
            if action.op is not Op.WAIT:
                changes += self._noted(environment, environment.apply(action, step), step)
                mishaps += [(environment, mishap) for mishap in environment.take_mishaps()]
        return changes, mishaps

    def conclude(self, step: int) -> tuple[Changes, list[Ending]]:
        """End the episodes: seeds whose fate is open are pruned, and what is left is read on the test split."""
        changes: Changes = []
        endings: list[Ending] = []
        for place, environment in enumerate(self.environments):
            changes += [(environment, t) for t in environment.garden.uproot("the episode is over")]
            signals = self._latest[place] if environment.over else _read_again(environment, step)
            test_loss, test_metric = environment.evaluate("test").tolist()
            grown = read_network(slots_of(environment.model), type(environment.model).__name__).grown
            endings.append(Ending(signals, test_loss, test_metric, grown))
        return changes, endings

    def _twin_of(self, environment: Environment) -> Environment | None:
        same = (one for one in self.environments if one.arm == self._twin and one.index == environment.index)
        return next(same, None)

    def _turns(self, step: int) -> list[Environment]:
        first = step % len(self.environments)
        every = self.environments[first:] + self.environments[:first]
        return [environment for environment in every if not environment.over]

    def _tell_of_twin(self, environment: Environment) -> None:
        """A twin that was rolled back is not what others were weighed against before."""
        if environment.arm == self._twin:
            for other in self.environments:
                if other.index == environment.index:
                    other.scales.forget_lead()

    def _keep(self, signals: Sequence[Signals]) -> list[Signals]:
        self._latest = list(signals)
        return self._latest

    @staticmethod
    def _noted(environment: Environment, transitions: Sequence[Transition], step: int) -> Changes:
        """The transitions, of which the environment's governor knows now."""
        environment.governor.note(transitions, step)
        return [(environment, transition) for transition in transitions]

    @staticmethod
    def _of(environment: Environment) -> str:
        grown = {seed.blueprint for slot in environment.garden.slots.values() for seed in slot.stack}
        return "the host" + (f" with {', '.join(sorted(grown))}" if grown else "")


def _read_again(environment: Environment, step: int) -> Signals:
    """The signals of an environment that was changed after it was read: the step's own loss stays."""
    numbers = environment.reading.numbers(environment.evaluate("validation"))
    return environment.reading.signals(step, numbers.tolist())
